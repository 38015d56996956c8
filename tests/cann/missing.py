"""What torch_npu may look up in the emulated operator library and not find, and what it does then.

A name that is not in this table makes the tests fail (see ``conftest.py``): torch_npu says nothing when it goes
another way, and the other way may be wrong.
"""

from __future__ import annotations

HOOKS = {
    **dict.fromkeys(
        (
            *("PTAGetExecCache", "PTAFindExecCache", "CanUsePTACache", "SetPTAHashKey", "SetPTACacheHashKey"),
            *("InitPTACacheThreadLocal", "UnInitPTACacheThreadLocal"),
        ),
        "a cache of planned operators: without it every call is planned",
    ),
    **dict.fromkeys(
        ("InitHugeMemThreadLocal", "UnInitHugeMemThreadLocal", "ReleaseHugeMem"),
        "huge pages for arguments: without them they lie in ordinary memory",
    ),
}

OTHERS = {
    "aclnnDropoutV3Grad": "aclnnDropoutDoMask is called",
    "aclnnFlashAttentionVarLenScoreV4": "only variable lengths would use it, and they are refused by name",
    "aclnnHardswishBackwardV2": "aclnnHardswishBackward is called",
    "aclnnKthvalue": "refused by name: what torch_npu would do is not compared",
    "aclnnRotaryPositionEmbeddingV2": "aclnnRotaryPositionEmbedding is called",
    "aclnnTopkV2": "aclnnTopk is called",
}

# PyTorch's own composites: one operator for each tensor of a list. Each has a row in test_kernels.py.
COMPOSITES = {
    f"aclnnForeach{name}": f"PyTorch's loop over {name}"
    for name in (
        *("Acos", "Asin", "Atan", "Cos", "Cosh", "Erf", "Erfc", "Expm1", "LerpList", "Log10", "Log1p", "Log2"),
        *("PowScalarAndTensor", "Sin", "Sinh", "Tan"),
    )
}

# Both phases of an operator are looked up.
MAY_BE_MISSING = {
    **HOOKS,
    **{
        name + suffix: reason
        for name, reason in {**OTHERS, **COMPOSITES}.items()
        for suffix in ("", "GetWorkspaceSize")
    },
}

"""Hooks on modules and parameters: their Python code runs when a region is captured, and never at a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.modules.module as module_globals
from torch.optim import Optimizer

from graphspec.errors import Diagnostic
from graphspec.hazards import HOOKED
from graphspec.runtime.holdings.parts import is_of_user
from graphspec.runtime.holdings.reach import reach

MODULE_HOOKS: Mapping[str, str] = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "full backward pre-hook",
    "_backward_hooks": "backward hook",
}
_GLOBAL_HOOKS: Mapping[str, str] = {
    "_global_forward_pre_hooks": "forward pre-hook",
    "_global_forward_hooks": "forward hook",
    "_global_backward_pre_hooks": "full backward pre-hook",
    "_global_backward_hooks": "backward hook",
}
_PARAMETER_HOOKS: Mapping[str, str] = {
    "_backward_hooks": "gradient hook",
    "_post_accumulate_grad_hooks": "post-accumulate gradient hook",
}
_OPTIMIZER_HOOKS: Mapping[str, str] = {
    "_optimizer_step_pre_hooks": "step pre-hook",
    "_optimizer_step_post_hooks": "step post-hook",
}
EVERY_MODULE = "(every module)"


def hooked_modules(root: object, prefix: str = "model") -> list[tuple[str, str]]:
    """Each hook that can run in a captured call, as (dotted name, kind); global hooks have `EVERY_MODULE` as name.

    Hooks of torch.nn.utils (weight_norm, spectral_norm, pruning) compute tensors with operators and are no hooks
    in this sense. Nor are those that a package puts on modules of its own, as transformers does to collect hidden
    states: they are part of its models, and the other laws judge what they do. Hooks on parameters count under the
    name of the parameter, those on optimizers under that of the optimizer; all that the model reaches is looked at.
    """
    found = [
        (EVERY_MODULE, kind) for slot, kind in _GLOBAL_HOOKS.items() if _foreign(getattr(module_globals, slot, None))
    ]
    reached = reach({prefix: root})
    for path, module in reached.modules:
        full = "full " if getattr(module, "_is_full_backward_hook", None) else ""
        for slot, kind in MODULE_HOOKS.items():
            if _foreign(getattr(module, slot, None), type(module)):
                found.append((path, full + kind if slot == "_backward_hooks" else kind))
    tensors = {id(tensor): (place.name, tensor) for place, tensor in reversed(reached.tensors)}
    hooked = [(name, tensor, _PARAMETER_HOOKS) for name, tensor in reversed(tensors.values()) if tensor.is_leaf] + [
        (part.name, part.owner, _OPTIMIZER_HOOKS) for part in reached.parts if isinstance(part.owner, Optimizer)
    ]
    found += [(name, kind) for name, holder, kinds in hooked for slot, kind in kinds.items()
              if _foreign(getattr(holder, slot, None))]  # fmt: skip
    return list(dict.fromkeys(found))


def hook_findings(root: object, prefix: str = "model") -> list[Diagnostic]:
    """A finding for each hooked module and kind of hook: what `hooks: refuse` refuses."""
    return [
        Diagnostic(HOOKED.code, f"{name} {HOOKED.does}: a {kind}", hint=HOOKED.hint)
        for name, kind in hooked_modules(root, prefix)
    ]


def _foreign(hooks: Mapping[int, Any] | None, kind: type | None = None) -> bool:
    """Whether some hook is neither torch's own nor that of the package whose class it sits on."""
    package = _package(kind) if kind is not None and not is_of_user(kind) else None
    return any(
        not _module_of(hook).startswith("torch.nn.utils") and (package is None or _package(hook) != package)
        for hook in (hooks or {}).values()
    )


def _package(value: Any) -> str | None:
    """The package that a class or a function is from; None for one of a single file, such as the model's."""
    top, dot, _ = _module_of(value).partition(".")
    return top if dot else None


def _module_of(hook: Any) -> str:
    return str(getattr(hook, "__module__", None) or type(hook).__module__)

"""Along which axes of which arguments an operator mixes elements: reduces, sorts, normalises, or sums products.

One table. Nothing here traces; an argument is a `Ref` of a recorded call, an axis counts from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphspec.recording.calls import Call, Ref

#: Pairs of an argument and an axis.
Mixed = Iterator[tuple[Ref, int]]


def _along(*names: str, argument: str = "self") -> Callable[[Call], Mixed]:
    """The axes in the first of ``names`` that the operator has; all of them where it is left out or empty."""

    def axes(call: Call) -> Mixed:
        bound = call.arguments()
        ref = bound.get(argument)
        if not isinstance(ref, Ref):
            return
        given = next((bound[name] for name in names if bound.get(name) is not None), None)
        chosen = given if isinstance(given, (list, tuple)) else () if given is None else (given,)
        rank = len(ref.size)
        for axis in sorted({int(axis) % max(rank, 1) for axis in chosen} or set(range(rank))):
            yield ref, axis

    return axes


def _sorted(call: Call) -> Mixed:
    """Sorts of numbers. One of integers is a grouping by id, which is undone again (mixtures of experts)."""
    for ref, axis in _along("dim")(call):
        if ref.dtype.is_floating_point:
            yield ref, axis


def _normalized(call: Call) -> Mixed:
    """Layer norm and RMS norm: the trailing axes."""
    bound = call.arguments()
    ref = bound["input"]
    for axis in range(len(ref.size) - len(bound["normalized_shape"]), len(ref.size)):
        yield ref, axis


def _grouped(call: Call) -> Mixed:
    """Group norm: everything but the batch."""
    ref = call.arguments()["input"]
    yield from ((ref, axis) for axis in range(1, len(ref.size)))


def _batch(call: Call) -> Mixed:
    """Batch norm in training: everything but the channel."""
    bound = call.arguments()
    if not bound.get("training", bound.get("train", True)):
        return
    ref = bound["input"]
    yield from ((ref, axis) for axis in range(len(ref.size)) if axis != 1)


def _pooled(count: int) -> Callable[[Call], Mixed]:
    """Adaptive pooling over the last ``count`` axes."""

    def axes(call: Call) -> Mixed:
        ref = call.arguments()["self"]
        yield from ((ref, axis) for axis in range(len(ref.size) - count, len(ref.size)))

    return axes


def _loss(call: Call) -> Mixed:
    bound = call.arguments()
    if bound.get("reduction", 0) == 0:
        return
    ref = bound["self"]
    yield from ((ref, axis) for axis in range(len(ref.size)))


def _product(first: str, second: str) -> Callable[[Call], Mixed]:
    """A matrix product sums over the last axis of its first factor and the last but one of its second."""

    def axes(call: Call) -> Mixed:
        bound = call.arguments()
        for name, axis in ((first, -1), (second, -2)):
            ref = bound[name]
            yield ref, len(ref.size) + max(axis, -len(ref.size))

    return axes


def _attention(call: Call) -> Mixed:
    """Attention without a mask mixes all keys and values; a mask, or causality, keeps the padded ones out."""
    bound = call.arguments()
    masks = [value for name, value in bound.items() if "mask" in name or "bias" in name]
    if bound.get("is_causal") or any(isinstance(mask, Ref) for mask in masks):
        return
    for name in ("key", "value"):
        ref = bound[name]
        yield ref, len(ref.size) - 2


_REDUCED = _along("dim", "dims", "axis")

#: By dispatcher name, without namespace and overload.
MIXERS: Mapping[str, Callable[[Call], Mixed]] = {
    **dict.fromkeys(
        ("mean", "sum", "nansum", "nanmean", "amax", "amin", "aminmax", "max", "min", "prod", "var", "std", "var_mean",
         "std_mean", "argmax", "argmin", "logsumexp", "norm", "linalg_vector_norm", "any", "all", "median", "nanmedian",
         "mode", "kthvalue", "topk", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_softmax",
         "_log_softmax", "_safe_softmax", "flip", "roll"),
        _REDUCED,
    ),
    "sort": _sorted,
    "argsort": _sorted,
    "native_layer_norm": _normalized,
    "_fused_rms_norm": _normalized,
    "native_group_norm": _grouped,
    "_adaptive_avg_pool2d": _pooled(2),
    "_adaptive_avg_pool3d": _pooled(3),
    "adaptive_max_pool2d": _pooled(2),
    "adaptive_max_pool3d": _pooled(3),
    "native_batch_norm": _batch,
    "_native_batch_norm_legit": _batch,
    "_batch_norm_with_update": _batch,
    **dict.fromkeys(
        ("mse_loss", "nll_loss_forward", "nll_loss2d_forward", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
         "binary_cross_entropy_with_logits", "soft_margin_loss"),
        _loss,
    ),
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "addbmm": _product("batch1", "batch2"),
    "mv": _product("self", "vec"),
    "dot": _product("self", "tensor"),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
         "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
         "_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_for_mps",
         "_scaled_dot_product_fused_attention_overrideable"),
        _attention,
    ),
}  # fmt: skip


def mixed_axes(call: Call) -> Mixed:
    """Every (argument, axis) along which a call mixes elements; none for operators the table does not have."""
    mixer = MIXERS.get(short_name(call))
    if mixer is not None:
        yield from mixer(call)


def short_name(call: Call) -> str:
    """The name of the operator without namespace and overload: ``mean`` of ``aten::mean.dim``."""
    return call.name.partition("::")[2].partition(".")[0]

"""What an operator does to the tensors it is given: one answer, for recordings, for clones and for update slots.

Schemas say it, but for the operators named here, whose kernels write what their schemas do not mark. A test compares
the answer with what the operators of torch really write.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

#: Written although not marked; where a pair ends in a name, only when the argument of that name is true.
_STATISTICS = ("running_mean", "running_var")
_UNSAID: Mapping[str, tuple[tuple[str, ...], str]] = {
    "aten::batch_norm": (_STATISTICS, "training"),
    "aten::native_batch_norm": (_STATISTICS, "training"),
    "aten::cudnn_batch_norm": (_STATISTICS, "training"),
    "aten::miopen_batch_norm": (_STATISTICS, "training"),
    "aten::_batch_norm_impl_index": (_STATISTICS, "training"),
    "aten::instance_norm": (_STATISTICS, "use_input_stats"),
    "aten::batch_norm_update_stats": (_STATISTICS, ""),
    "aten::batch_norm_gather_stats": (_STATISTICS, ""),
    "aten::batch_norm_gather_stats_with_counts": (_STATISTICS, ""),
    "npu::batch_norm_gather_stats_update": (_STATISTICS, ""),
    "npu::npu_apply_rotary_pos_emb": (("query", "key"), ""),
    "npu::npu_change_data_ptr": (("dst",), ""),
    "npu::npu_dequant_rope_quant_kvcache": (("k_cache", "v_cache"), ""),
    "npu::npu_kv_rmsnorm_rope_cache": (("k_cache", "ckv_cache"), ""),
    "npu::npu_mla_prolog": (("kv_cache", "kr_cache"), ""),
    "npu::npu_mla_prolog_v2": (("kv_cache", "kr_cache"), ""),
    "npu::npu_rope_quant_kvcache": (("k_cache", "v_cache"), ""),
    "atb::npu_mla_preprocess": (("kv_cache", "kv_cache_rope"), ""),
}
#: Collectives mark nothing: they receive into arguments of these names.
_COLLECTIVES = frozenset({"c10d", "npu_custom_dist"})
_RECEIVING = ("tensors", "output")
_NOT_RECEIVING = frozenset({"c10d::send"})


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument of a schema, as it is found in a call."""

    position: int
    name: str
    default: Any

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives it."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name, self.default)


@dataclass(frozen=True, slots=True)
class Effect:
    """What one operator does.

    ``known``: it has a schema; else it may write every tensor it is given. ``reshapes``: it changes how a tensor looks
    at its memory, not the memory (``t_``, ``resize_``). ``views``: what it returns lies in an argument. ``unfilled``:
    what it returns has no content yet.
    """

    known: bool = False
    reshapes: bool = False
    views: bool = False
    unfilled: bool = False
    _marked: tuple[_Argument, ...] = ()
    _unsaid: tuple[_Argument, ...] = ()
    _when: _Argument | None = None

    def targets(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call, tensors or lists of them, that it writes or reshapes."""
        if not self.known:
            return (*args, *kwargs.values())
        unsaid = self._unsaid if self._when is None or self._when.of(args, kwargs) else ()
        return tuple(argument.of(args, kwargs) for argument in (*self._marked, *unsaid))

    def written(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call whose memory it writes."""
        return () if self.reshapes else self.targets(args, kwargs)


@functools.cache
def effect_of(op: Any) -> Effect:
    """What an operator does, by its schema and by what that does not say."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return Effect()
    given = {it.name: _Argument(at, it.name, it.default_value) for at, it in enumerate(schema.arguments)}
    marked = tuple(given[it.name] for it in schema.arguments if it.alias_info is not None and it.alias_info.is_write)
    unsaid, when = _UNSAID.get(schema.name, ((), ""))
    return Effect(
        known=True,
        reshapes=torch.Tag.inplace_view in op.tags,
        views=any(it.alias_info is not None and not it.alias_info.is_write for it in schema.returns),
        unfilled=schema.name.partition("::")[2].startswith(("empty", "new_empty", "_empty")),
        _marked=(*marked, *(given[name] for name in _received(schema) if given[name] not in marked)),
        _unsaid=tuple(given[name] for name in unsaid),
        _when=given.get(when),
    )


def _received(schema: Any) -> Iterator[str]:
    """Arguments that are there to be written, by their names: those of collectives, and ``out`` of an ``.out``."""
    if schema.name.partition("::")[0] in _COLLECTIVES and schema.name not in _NOT_RECEIVING:
        yield from (it.name for it in schema.arguments if it.name.startswith(_RECEIVING))
    if schema.overload_name.endswith("out"):  # npu_fused_infer_attention_score.out marks none of its results
        yield from (it.name for it in schema.arguments if it.name == "out")

"""What one run was given, checked: tensors, params, sizes, and which graphs it takes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from graphspec import plan as plans
from graphspec import spec as language
from graphspec.errors import InputError
from graphspec.plan import Bucket, Variant, choose
from graphspec.runtime.opened.context import Context, variant_of
from graphspec.runtime.values.inputs import InputCheck, ParamCheck, check_names, copies_of
from graphspec.runtime.values.samples import default_param, filled
from graphspec.runtime.values.trees import mapped

#: The keyword of a run that states sizes, unless an input or a param bears the name.
SIZES = "sizes"
#: A held input, and the sizes it shows, each with the name that shows it.
Held = tuple[torch.Tensor, Mapping[str, tuple[int, str]]]


@dataclass(slots=True)
class Remembered:
    """What runs leave for later ones that give less: the last value of each param, the content of each held input.

    One for all sequences: a param and an input are the spec's, not a sequence's.
    """

    params: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)

    def update(self, other: Remembered) -> None:
        """A run that was given this has ended well."""
        self.params.update(other.params)
        self.held.update(other.held)


@dataclass(slots=True)
class Request:
    """One checked run. ``bucket`` None: no bucket holds ``sizes``. ``params`` are at the real sizes.

    ``shown`` are the sizes that its tensors show, each with the name of one that does. ``asked`` are the sizes that the
    bucket was chosen for: those of the run, or larger ones that it stated. ``key`` is equal for runs that take the same
    steps: of one variant, one real size and one bucket. ``given`` is to be remembered if the run ends well.
    """

    tensors: Mapping[str, torch.Tensor]
    params: Mapping[str, Any]
    sizes: Mapping[str, int]
    shown: Mapping[str, tuple[int, str]]
    asked: Mapping[str, int]
    bucket: Bucket | None
    variant: Variant
    key: Hashable
    given: Remembered | None


class Reader:
    """Reads what a caller gives to one sequence; reading changes nothing."""

    def __init__(self, context: Context, sequence: plans.Sequence, remembered: Remembered) -> None:
        plan = context.plan
        self._context = context
        self._sequence = sequence
        self._checks = {name: InputCheck(plan.buffers[name].declared, plan.constants) for name in sequence.inputs}
        self._param_checks = {
            name: ParamCheck(plan.params[name], plan.largest, plan.constants, copies_of(plan, name))
            for name in sequence.params
        }
        self._known = frozenset((*sequence.inputs, *sequence.params))
        self._takes_sizes = SIZES not in self._known
        self._optional = tuple(name for name in sequence.inputs if plan.buffers[name].declared.optional)
        inputs = [plan.buffers[name].declared for name in sequence.inputs]
        self._needed = tuple(each.name for each in inputs if not each.optional and not each.hold)
        self._holds = tuple(name for name in sequence.inputs if plan.buffers[name].declared.hold)
        self._special = context.special
        self._exact = plan.exact
        self._remembered = remembered
        self._buckets: dict[tuple[int, ...], Bucket | None] = {}

    def read(self, given: Mapping[str, Any]) -> Request:
        """Check a run's inputs and params and choose its bucket.

        Raises InputError: a wrong name, shape, dtype or value, a missing input, sizes that disagree.
        """
        stated: Mapping[str, int] = {}
        if not given.keys() <= self._known:
            if self._takes_sizes and SIZES in given:
                given = dict(given)
                stated = self._stated(given.pop(SIZES))
            check_names(given, (*self._sequence.inputs, *self._sequence.params), self._sequence.name)
        sizes: dict[str, tuple[int, str]] = {}
        tensors: dict[str, torch.Tensor] = {}
        for name, check in self._checks.items():
            value = given.get(name)
            if value is not None:
                tensors[name] = check(value, sizes)
        for name in self._needed:
            if name not in tensors:
                self._refuse_missing(given)
        kept = Remembered() if self._holds or self._param_checks else None
        if kept is not None:
            self._hold(tensors, sizes, kept)
        for dim, size in stated.items():
            sizes.setdefault(dim, (size, SIZES))
        shown = dict(sizes)
        params = self._params(given, sizes, kept) if kept is not None and self._param_checks else {}
        real = {dim: size for dim, (size, _) in sizes.items()}
        dims = tuple([real.get(dim, -1) for dim in self._sequence.dims])
        variant = self._variant(tensors, params)
        key: Hashable = dims if variant is _PLAIN else (variant, dims)
        if not stated:
            return Request(tensors, params, real, shown, real, self._bucket(dims, real), variant, key, kept)
        asked = self._at_least(real, stated)
        wanted = tuple([asked.get(dim, -1) for dim in self._sequence.dims])
        return Request(tensors, params, real, shown, asked, self._bucket(wanted, asked), variant, (key, wanted), kept)

    def _stated(self, sizes: Any) -> Mapping[str, int]:
        """The sizes that a run states. Raises InputError for what is no size of a dim of the sequence."""
        dims = ", ".join(self._sequence.dims) or "no bucketed dims"
        if not isinstance(sizes, Mapping):
            message = f"`sizes` is a mapping from dims to sizes, and a {type(sizes).__name__} came"
            raise InputError(message, hint=f"sequence '{self._sequence.name}' has {dims}")
        for dim, size in sizes.items():
            if dim not in self._sequence.dims:
                message = f"sequence '{self._sequence.name}' has no bucketed dim '{dim}' whose size could be stated"
                raise InputError(message, hint=f"it has {dims}")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InputError(f"the size of '{dim}' is an integer, and {size!r} came")
        return sizes

    def _at_least(self, real: Mapping[str, int], stated: Mapping[str, int]) -> dict[str, int]:
        """The sizes that a bucket must hold. Raises InputError for a stated one that the inputs do not fit in."""
        for dim, size in stated.items():
            if size < real[dim] or (dim in self._exact and size != real[dim]):
                rule = "are exact" if dim in self._exact else "may be larger, not smaller"
                message = f"the run states {dim}={size}, and its inputs have {dim}={real[dim]}"
                raise InputError(message, hint=f"stated sizes {rule}: state {real[dim]}, or leave '{dim}' out")
        return {**real, **stated}

    @property
    def repeats(self) -> bool:
        """Whether what was read once says how a request like it is read: no input is held from run to run."""
        return not self._holds

    def again(self, given: Mapping[str, Any], last: Request) -> Request | None:
        """The request of a run whose inputs are of the same form as those of ``last``, with its own params.

        None where it is another: other inputs are left out, the params show other sizes or ask for other graphs. Raises
        InputError as `read` does.
        """
        if not given.keys() <= self._known:
            return None
        if any(given.get(name) is not None for name in self._checks if name not in last.tensors):
            return None
        if not self._param_checks:
            return last
        sizes = dict(last.shown)
        kept = Remembered()
        params = self._params(given, sizes, kept)
        real = {dim: size for dim, (size, _) in sizes.items()}
        if real != last.sizes or self._variant(last.tensors, params) != last.variant:
            return None
        return replace(last, params=params, given=kept)

    def no_bucket(self, sizes: Mapping[str, int]) -> InputError:
        """The error for sizes that no bucket holds."""
        asked = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
        buckets = self._sequence.buckets
        if len(self._sequence.dims) == 1:
            (dim,) = self._sequence.dims
            have = [bucket[dim] for bucket in buckets]
            if dim in self._exact:
                tail = f"{dim} is exact and has the sizes {', '.join(map(str, have))}"
            else:
                tail = f"the largest {dim} is {max(have)}"
        else:
            tail = f"the buckets are {'; '.join(map(str, buckets))}"
        return InputError(
            f"sequence '{self._sequence.name}': no bucket holds {asked}: {tail}",
            hint="add a larger size under dims, or set on_miss: eager on the regions",
        )

    def _bucket(self, dims: tuple[int, ...], real: Mapping[str, int]) -> Bucket | None:
        if dims not in self._buckets:
            self._buckets[dims] = choose(self._sequence, real, self._exact)
        return self._buckets[dims]

    def _variant(self, tensors: Mapping[str, torch.Tensor], params: Mapping[str, Any]) -> Variant:
        if not self._optional and not self._special:
            return _PLAIN
        absent = [name for name in self._optional if name not in tensors]
        special = {name: self._present(name, params) for name in self._special}
        own = {name: value for name, value in special.items() if name in self._param_checks}
        if not plans.occurs(self._context.plan.combinations, own, absent, self._optional):
            said = [*(f"{name}={value!r}" for name, value in own.items()), *(f"no '{name}'" for name in absent)]
            message = f"sequence '{self._sequence.name}': no combination under `variants` is that of this run"
            raise InputError(f"{message}: {', '.join(said) or 'every input'}", hint="add it there, if it occurs")
        return variant_of(absent, special)

    def _present(self, name: str, params: Mapping[str, Any]) -> Any:
        """The value of a param that any sequence takes: one set of graphs serves them all."""
        if name in params:
            return params[name]
        last = self._remembered.params
        return last[name] if name in last else self._default(name, {})

    def _hold(self, tensors: dict[str, torch.Tensor], sizes: dict[str, tuple[int, str]], kept: Remembered) -> None:
        """Held inputs that were left out keep their content, if the sizes of the run are still theirs."""
        held = self._remembered.held
        for name in self._holds:
            if name in tensors:
                own: dict[str, tuple[int, str]] = {}
                self._checks[name](tensors[name], own)
                kept.held[name] = (tensors[name].detach().clone(), own)
                continue
            if name not in held:
                if name in self._optional:
                    continue
                raise InputError(
                    f"input '{name}' must be given once before it can be left out", hint=f"give '{name}' in this run"
                )
            tensors[name], shown = held[name]
            for dim, (size, _) in shown.items():
                if sizes.setdefault(dim, (size, name))[0] != size:
                    raise InputError(
                        f"input '{name}' was last given with {dim}={size}, and this run has {dim}={sizes[dim][0]}",
                        hint=f"give '{name}' again when the size changes",
                    )

    def _params(self, given: Mapping[str, Any], sizes: dict[str, tuple[int, str]], kept: Remembered) -> dict[str, Any]:
        values: dict[str, Any] = {}
        last = self._remembered.params
        for name, check in self._param_checks.items():
            if name in given:
                values[name] = check(given[name], sizes)
        for name, check in self._param_checks.items():
            if name in values:
                continue
            if name in last:
                try:
                    values[name] = check(last[name], sizes)
                except InputError as error:
                    raise InputError(error.message, hint=f"give '{name}' again when the size changes") from None
                continue
            real = {dim: size for dim, (size, _) in sizes.items()}
            values[name] = self._default(name, real)
        # Lists of their own: an eager region may change those of this run.
        kept.params.update((name, mapped(values[name], _itself)) for name in given if name in values)
        return values

    def _default(self, name: str, real: Mapping[str, int]) -> Any:
        param = self._context.plan.params[name]
        missing = [a.dim for a in param.shape if isinstance(a, language.DimSize) and a.dim not in real]
        missing = [dim for dim in missing if dim not in self._context.plan.constants]
        if missing:
            raise InputError(f"param '{name}' must be given: nothing else says how large {missing[0]} is")
        return default_param(param, plans.concrete(param.shape, {**self._context.plan.constants, **real}))

    def _refuse_missing(self, given: Mapping[str, Any]) -> None:
        missing = [name for name in self._needed if given.get(name) is None]
        takes = ", ".join(self._known)
        raise InputError(
            f"sequence '{self._sequence.name}' needs the input{'s' if len(missing) > 1 else ''} "
            f"{', '.join(repr(name) for name in missing)}",
            hint=f"it takes {takes}; an input that may be left out is declared optional: true",
        )


_PLAIN = Variant()


def _itself(value: Any) -> Any:
    return value


def padded_params(context: Context, params: Mapping[str, Any], bucket: Bucket) -> dict[str, Any]:
    """Params at the sizes of the bucket: what a bucketed shape adds is filled with the param's `pad`."""
    return {
        name: _padded(value, param, context.shape(param.shape, bucket)) if param.shape else value
        for name, value in params.items()
        for param in [context.plan.params[name]]
    }


def _padded(value: Any, param: language.Param, shape: tuple[int, ...]) -> Any:
    if not shape:
        return value
    items = [_padded(item, param, shape[1:]) for item in value]
    pad = param.pad if param.pad is not None else param.default if not isinstance(param.default, list) else None
    fill = {"int": 0, "float": 0.0, "bool": False, "str": ""}[param.type] if pad is None else pad
    return items + [filled(shape[1:], fill) for _ in range(shape[0] - len(items))]

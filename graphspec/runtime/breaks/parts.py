"""The eager parts of one call of a region: made while it is called, run between its graphs when those are replayed.

A part is given the tensors of the graph before it where they lie. What it returns is copied to where the graph after it
reads it, unless it lies there already: a part that writes into what it is given, and returns that, costs no copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from graphspec.errors import CaptureError, ModelError, OrderError
from graphspec.recording.calls import Recorder
from graphspec.recording.eager import operator
from graphspec.recording.source import Site, site
from graphspec.runtime.breaks.named import unmet
from graphspec.runtime.breaks.seen import PartSeen
from graphspec.runtime.breaks.written import Writes
from graphspec.runtime.hazards.fake import TraceEnded, lacks_value
from graphspec.runtime.hazards.outside import outside_capture
from graphspec.runtime.importing.user_code import call_user_code
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.values.blocks import Block, bytes_at
from graphspec.runtime.values.leases import Lease, movable

#: What a leaf of arguments or results is: all but these is kept as the object that it is.
_CONTAINERS = (list, tuple, dict)


@dataclass
class EagerPiece:
    """One eager part of a captured region. ``tensors`` are at their final addresses once `bind` has been called.

    ``params`` are the places among the arguments that are values of params. A result of the part is a tensor of its
    own (``owned``), or lies in an argument.
    """

    region: str
    seen: PartSeen
    function: Callable[..., Any]
    leaves: list[Any]
    structure: Any
    result: Any
    constants: Mapping[int, Any]
    owned: tuple[bool, ...]
    inputs: Collection[int]
    tensors: Sequence[torch.Tensor] = ()
    results: Sequence[torch.Tensor] = ()
    params: dict[int, str] = field(default_factory=dict)
    learning: bool = True
    _leases: dict[int, Lease] = field(default_factory=dict)
    _copied: set[int] = field(default_factory=set)
    _copies: dict[int, torch.Tensor] = field(default_factory=dict)
    _renewed: frozenset[int] = frozenset()

    def bind(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], made: Sequence[bool]) -> None:
        """The tensors that the part is given, and those that the next graph reads, where they lie in replays.

        ``made``: which of the tensors the graph makes anew in every replay.
        """
        self.tensors, self.results = tensors, results
        self._renewed = frozenset(
            at
            for at, (tensor, new) in enumerate(zip(tensors, made, strict=True))
            if (new or tensor.untyped_storage()._cdata in self.inputs) and tensor.numel() and movable()
        )

    def run(self, params: Mapping[str, Any]) -> None:
        """Call the part on what the graphs made, and put what it returns where it is read.

        Raises ModelError with the user's exception as its cause, OrderError for another form than at the capture.
        """
        holders = self._holders()
        given, tensors = list(self.leaves), iter(range(len(self.tensors)))
        for at, leaf in enumerate(given):
            if isinstance(leaf, torch.Tensor):
                given[at] = self._given(next(tensors))
        for at, param in self.params.items():
            given[at] = params[param]
        args, kwargs = _pytree.tree_unflatten(given, self.structure)
        del given
        with SharedModel.inside():
            returned = call_user_code(
                self.function, f"region '{self.region}' (break: {self.seen.name})", *args, **kwargs
            )
        copies = {copy.untyped_storage()._cdata for copy in self._copies.values()}
        for at, copy in self._copies.items():
            self.tensors[at].copy_(copy)  # what the part has written into it
        self._copies.clear()
        leaves, structure = _flat(returned)
        made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if structure != self.result or len(made) != len(self.results) or self._constants(leaves) != self.constants:
            raise self._other("another structure, or other host values,")
        for leaf, target, owned in zip(made, self.results, self.owned, strict=True):
            if leaf.shape != target.shape or leaf.dtype != target.dtype:
                raise self._other(
                    f"{list(leaf.shape)} {leaf.dtype} in the place of {list(target.shape)} {target.dtype}"
                )
            there = leaf.data_ptr() == target.data_ptr() and leaf.stride() == target.stride()
            if owned and not there:
                target.copy_(leaf)
            elif not owned and not there and leaf.numel() and leaf.untyped_storage()._cdata not in copies:
                raise self._other("memory of its own in the place of what it was given")
        del args, kwargs, returned, leaves, made
        leaf = copy = torch.empty(0)
        self._let_go(holders)

    def _given(self, at: int) -> torch.Tensor:
        """A tensor as the part is given it; in a storage that tells whether it is kept, where replays renew it."""
        tensor = self.tensors[at]
        if at in self._copied:
            self._copies[at] = tensor.clone()
            return self._copies[at].detach()
        if at not in self._renewed or tensor.device.type != "cpu":
            return tensor.detach()
        lease = self._leases.get(at)
        if lease is None:
            lease = self._leases[at] = Lease(Block(self.seen.name, partial(_bytes_of, tensor)), own=False)
        return lease.like(tensor).detach()

    def _holders(self) -> dict[int, int]:
        """How many hold each storage of a device that replays renew; on the CPU leases tell it."""
        places = (at for at in self._renewed - self._copied if self.tensors[at].device.type != "cpu")
        return {at: torch._C._storage_Use_Count(self.tensors[at].untyped_storage()._cdata) for at in places}

    def _let_go(self, before: Mapping[int, int]) -> None:
        """What the part has kept of what it was given is its own from now on: a replay makes that memory anew.

        The memory of a device cannot be moved. What is kept there in the proof of a capture is a copy in each run; what
        is kept for the first time later is an OrderError.
        """
        kept = [at for at, now in self._holders().items() if now > before[at]]
        if kept and not self.learning:
            message = (
                f"region '{self.region}' (break: {self.seen.name}) keeps a tensor that it was given, which it did not"
            )
            raise OrderError(f"{message} do before: the next replay makes it anew", hint="keep a copy of it, x.clone()")
        self._copied.update(kept)
        for at in [at for at, lease in self._leases.items() if lease.held()]:
            self._leases.pop(at).move_out()

    def _constants(self, leaves: Sequence[Any]) -> dict[int, Any]:
        return {at: leaf for at, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}

    def _other(self, what: str) -> OrderError:
        message = f"region '{self.region}': '{self.seen.name}' at {self.seen.place} returned {what}"
        hint = "what stays eager must return the same forms in every run: the graph after it reads them where they are"
        return OrderError(f"{message} than when its graphs were captured", hint=hint)


class Parts:
    """The parts that one call of a region meets. ``keeps``: they are kept, to be run by replays.

    A backend that must end a capture before a part sets ``cut`` for the time of a capture: it is entered around each.
    ``changes`` gives the names of the host values that differ from before, ``changed`` are those that parts changed.
    ``params`` are the present ones, ``inputs`` the storages of the buffers that callers fill. ``surroundings`` make
    what a region declares around its calls, from params.
    """

    def __init__(
        self,
        region: str,
        params: Mapping[str, Any],
        *,
        inputs: Collection[int] = (),
        changes: Callable[[], frozenset[str]] | None = None,
    ) -> None:
        self.region = region
        self.params = params
        self.surroundings: Callable[[Mapping[str, Any]], AbstractContextManager[Any]] | None = None
        self._inputs = inputs
        self.found: list[EagerPiece] = []
        self.changed: frozenset[str] = frozenset()
        self.cut: Callable[[], AbstractContextManager[Any]] = nullcontext
        #: Makes what the next graph reads in the place of a result; a copy, or memory that is filled before a replay.
        self.placed: Callable[[torch.Tensor], torch.Tensor] = lambda leaf: leaf.clone()
        self.holding = False
        self._changes = changes or frozenset

    def run(self, at: int) -> None:
        """Run one part, in a replay."""
        self.found[at].run(self.params)

    def settle(self) -> None:
        """The capture is proven: from now on runs are the caller's."""
        for part in self.found:
            part.learning = False

    def around(self, replay: Callable[[], None]) -> None:
        """A replay in the surroundings that the region declares, for its parts, from the present params."""
        if self.surroundings is None:
            replay()
            return
        with self.surroundings(self.params):
            replay()

    @property
    def seen(self) -> tuple[PartSeen, ...]:
        """What was met, in order."""
        return tuple(part.seen for part in self.found)

    def call(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call that stays eager, while the region is rehearsed or captured."""
        place = site()
        leaves, structure = _flat((args, dict(kwargs)), self.params)
        if any(type(leaf).__module__.startswith("graphspec.runtime.symbols") for leaf in leaves):
            message = "a symbol ends where a part stays eager"
            raise CaptureError(message)
        recorder = _get_current_dispatch_mode()
        recording = isinstance(recorder, Recorder)
        with ExitStack() as stack:
            stack.enter_context(_pop_mode_temporarily() if recording else nullcontext())
            given = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            real_args, real_kwargs = _pytree.tree_unflatten(given, structure)
            stack.enter_context(self.cut())
            before = self._changes()
            try:
                with _eagerly(), Writes() as writes:
                    what = f"region '{self.region}' (break: {name})"
                    returned = call_user_code(function, what, *real_args, **real_kwargs)
            except ModelError as error:
                if lacks_value(error.__cause__ or error):
                    raise TraceEnded from error  # it reads a value, as it may, and there is none
                raise
            finally:
                self.changed |= self._changes() - before
        del real_args, real_kwargs, given
        results, form = _flat(returned)
        given_storages = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self._refuse_opaque(name, place, results)
        made = [leaf for leaf in results if isinstance(leaf, torch.Tensor)]
        owned = tuple(leaf.untyped_storage()._cdata not in given_storages for leaf in made)
        with _pop_mode_temporarily() if recording else nullcontext():
            put = [self.placed(leaf.detach()) if own else leaf for leaf, own in zip(made, owned, strict=True)]
            met = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)] if self.holding else []
            read_next = [leaf.detach() for leaf in put] if self.holding else []
        host = {at: leaf for at, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
        constants = {at: leaf for at, leaf in enumerate(results) if not isinstance(leaf, torch.Tensor)}
        seen = PartSeen(name, place, host)
        if isinstance(recorder, Recorder):
            read = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            written = [leaf for leaf in read if leaf.untyped_storage()._cdata in writes.found]
            recorder.note(operator(), (read, len(self.found), written), put, place)
            recorder.recording.also_written.update(writes.found)
        self.found.append(
            EagerPiece(
                self.region, seen, function, _without_tensors(leaves), structure, form, constants, owned, self._inputs
            )
        )
        self.found[-1].tensors, self.found[-1].results = met, read_next
        places = iter(put)
        whole = [next(places) if isinstance(leaf, torch.Tensor) else leaf for leaf in results]
        return _pytree.tree_unflatten(whole, form)

    def _refuse_opaque(self, name: str, place: Site, results: Sequence[Any]) -> None:
        """A result must be made of tensors and plain values: in an object nobody finds them."""
        plain = (torch.Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
        for leaf in results:
            if not isinstance(leaf, plain):
                message = f"region '{self.region}': '{name}' at {place} returns a {type(leaf).__name__}"
                hint = "what stays eager returns tensors, in lists, tuples and dicts; break inside of it instead"
                raise CaptureError(message, hint=hint)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's memory, from its first element to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return bytes_at(tensor.untyped_storage(), start, (last + 1) * tensor.element_size())


def _without_tensors(leaves: Sequence[Any]) -> list[Any]:
    """The leaves, with an empty tensor where one was: the graph has it, and nothing else should keep it alive."""
    return [torch.empty(0) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _flat(value: Any, params: Mapping[str, Any] | None = None) -> tuple[list[Any], Any]:
    """The leaves of nested lists, tuples and dicts; the value of a param, which may be a list, is one."""
    whole = {id(param) for param in (params or {}).values()}
    leaf = lambda each: type(each) not in _CONTAINERS or id(each) in whole  # noqa: E731
    leaves, structure = _pytree.tree_flatten(value, is_leaf=leaf)
    return leaves, structure


@contextmanager
def _eagerly() -> Iterator[None]:
    """What watches a captured region does not see an eager part of it."""
    profiler: Any = sys.getprofile()
    sys.setprofile(None)
    try:
        with unmet(), outside_capture(), SharedModel.inside(), torch.no_grad():
            yield
    finally:
        if callable(profiler) or profiler is None:
            sys.setprofile(profiler)

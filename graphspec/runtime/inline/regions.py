"""The regions of a pass: a module's forward with what it saves, and its backward, which autograd runs on that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.graph import Node

from graphspec.errors import Diagnostic, HazardError, ModelError
from graphspec.runtime.holdings.storages import tensors_in
from graphspec.runtime.importing.user_code import call_user_code
from graphspec.runtime.inline.installed import Installed
from graphspec.runtime.inline.lowering import GRADIENTS, RESULT, SAVED, TaughtCall
from graphspec.runtime.values.trees import Tree, flatten
from graphspec.spec import Region

Environment = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """Where in row ``row`` of gradients one of this shape lies: from element ``start`` on, contiguous."""

    row: int
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """The gradient, as a tensor of its own on the memory of its row."""
        return rows[self.row].as_strided(self.shape, self.strides, self.start).data


@dataclass(eq=False)
class Joint:
    """What the forward of one pass leaves for the backward of the same pass.

    ``results`` are its tensors, on autograd's graph; ``inputs`` those of its tensors that require gradients, by number;
    ``variables`` the parameters that its results depend on. ``result`` is the structure around them,
    ``differentiable`` says which of them gradients can come to. ``pieces`` says where the backward leaves the gradient
    of each variable.
    """

    results: Sequence[torch.Tensor] = ()
    inputs: dict[int, torch.Tensor] = field(default_factory=dict)
    variables: tuple[torch.Tensor, ...] = ()
    result: Tree | None = None
    differentiable: tuple[bool, ...] = ()
    pieces: tuple[Piece | None, ...] = ()

    def clear(self) -> None:
        """Let go of autograd's graph."""
        self.results, self.inputs = (), {}


@dataclass(frozen=True)
class PassRegion:
    """A region of a pass as the runtime sees regions, for the rehearsals and captures of that pass."""

    declared: Region
    part: TaughtCall
    installed: Installed
    joint: Joint
    around: None = None
    makers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def function(self) -> Any:
        """What is called, here or by the forward."""
        return self.installed.module

    def bound(self) -> list[Any]:
        """Nothing: the caller gives every value anew."""
        return []


class Forward(PassRegion):
    """The forward of a module on named values."""

    def __call__(self, values: Environment) -> dict[str, Any]:
        """Its result and, where a backward is captured, what autograd saved for it. Raises ModelError, HazardError."""
        part, signature = self.part, self.part.lesson.signature
        leaves = [slot.view(values[slot.name]) for slot in part.inputs]
        saved = _Saved()
        torch.clear_autocast_cache()  # casts that somebody else has made would be read where they are now
        with torch.set_grad_enabled(signature.grad), self._autocast(leaves):
            if part.lesson.backward:
                leaves = [
                    leaf.detach().requires_grad_(form[4]) for leaf, form in zip(leaves, signature.tensors, strict=True)
                ]
            args, kwargs = part.lesson.taken.rebuild(leaves)
            began = torch.autograd._get_sequence_nr() if part.lesson.backward else 0  # type: ignore[attr-defined]
            with saved.watching() if part.lesson.backward else contextlib.nullcontext():
                what = f"region '{self.declared.name}' ({self.declared.call})"
                returned = call_user_code(self.installed.forward, what, *args, **kwargs)
        tree = flatten(returned, place=f"the result of region '{self.declared.name}'", opaque=True)
        outputs = {part.value(RESULT): tree.rebuild([leaf.detach() for leaf in tree.leaves])}
        self.joint.result = replace(tree, leaves=())  # which would keep autograd's graph
        if not part.lesson.backward:
            return outputs
        self.joint.results = tree.leaves
        self.joint.differentiable = tuple(leaf.requires_grad for leaf in tree.leaves)
        self.joint.inputs = {number: leaf for number, leaf in enumerate(leaves) if leaf.requires_grad}
        nodes = list(_nodes(tree.leaves))
        self.joint.variables = self._variables(nodes, began)
        saved.add(value for node in nodes for value in tensors_in(list(getattr(node, "__dict__", {}).values())))
        known = {leaf.untyped_storage()._cdata for leaf in (*leaves, *self.installed.module.parameters())}
        return outputs | {part.value(SAVED): saved.besides(known)}

    def _autocast(self, leaves: Sequence[torch.Tensor]) -> Any:
        enabled, dtype = self.part.lesson.signature.autocast
        if not enabled:
            return contextlib.nullcontext()
        where = next((leaf.device.type for leaf in (*leaves, *self.installed.module.parameters())), "cpu")
        return torch.autocast(where, dtype=dtype, cache_enabled=False)

    def _variables(self, nodes: Sequence[Node], began: int) -> tuple[torch.Tensor, ...]:
        """Every tensor besides the inputs into which a gradient ends. Raises HazardError."""
        inputs = {id(leaf) for leaf in self.joint.inputs.values()}
        found: dict[int, torch.Tensor] = {}
        for node in nodes:
            variable = getattr(node, "variable", None)
            if variable is not None:
                if id(variable) not in inputs:
                    self._refuse_hooked(variable)
                    found.setdefault(id(variable), variable)
            elif node._sequence_nr() < began:
                message = (
                    f"region '{self.declared.name}' uses a tensor that was computed outside of it and has a history of "
                    f"its own ({node.name()}): a captured backward cannot go on there"
                )
                hint = "give it to the module as an argument; or compute it in the module"
                raise HazardError([Diagnostic("GS726", message, hint=hint)])
        return tuple(found.values())

    def _refuse_hooked(self, variable: torch.Tensor) -> None:
        """Raise HazardError for a hook that would run in the captured backward, and in the caller's once more."""
        if variable._backward_hooks:
            message = (
                f"region '{self.declared.name}' reads a tensor {list(variable.shape)} that is no parameter of its "
            )
            message += "module, and that has a gradient hook"
            raise HazardError([Diagnostic("GS712", message, hint="register the tensor as a parameter of the module")])


class Backward(PassRegion):
    """The backward of a `Forward` on named values: the gradients of its inputs and variables."""

    def __call__(self, values: Environment) -> dict[str, Any]:
        """A gradient, or None, for each input that requires one; those of variables in rows, one for each dtype.

        Whoever hands them on copies a row at once. Raises ModelError.
        """
        joint, gradients = self.joint, self.part.gradients
        results = [joint.results[number] for number in gradients]
        wanted = (*joint.inputs.values(), *joint.variables)
        given = [slot.view(values[slot.name]) for slot in gradients.values()]
        what = f"region '{self.declared.name}' ({self.declared.call})"
        if len(results) != len(given) or not wanted:
            message = f"{what} has results that wanted gradients in one call and not in another"
            raise ModelError(message, hint="leave `backward` out for it")
        found = call_user_code(torch.autograd.grad, what, results, wanted, given, allow_unused=True)
        count = len(joint.inputs)
        joint.pieces, rows = _in_rows(found[count:])
        return {self.part.value(GRADIENTS): [list(found[:count]), rows]}


def _in_rows(gradients: Sequence[torch.Tensor | None]) -> tuple[tuple[Piece | None, ...], list[torch.Tensor]]:
    """Gradients one after another, and where each is. Leaves add them to `.grad`, so their strides are free."""
    rows: dict[torch.dtype, list[torch.Tensor]] = {}
    pieces: list[Piece | None] = []
    for gradient in gradients:
        if gradient is None:
            pieces.append(None)
            continue
        row = rows.setdefault(gradient.dtype, [])
        start = sum(each.numel() for each in row)
        strides = torch.empty(gradient.shape, device="meta").stride()
        pieces.append(Piece(list(rows).index(gradient.dtype), start, tuple(gradient.shape), strides))
        row.append(gradient.reshape(-1))
    return tuple(pieces), [torch.cat(row) for row in rows.values()]


class _Saved:
    """What autograd saves for a backward, while `watching`."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _same):
            yield

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """What functions of the model's own keep without a word to autograd."""
        self._tensors += tensors

    def besides(self, known: set[int]) -> list[torch.Tensor]:
        """One tensor for each storage that is not ``known``: the storage has to outlive the forward, as it lies."""
        found = {tensor.untyped_storage()._cdata: tensor.detach() for tensor in self._tensors}
        return [tensor for key, tensor in found.items() if key not in known]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._tensors.append(tensor)
        return tensor


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _nodes(results: Sequence[torch.Tensor]) -> Iterator[Node]:
    """Every node of autograd's graph behind these tensors."""
    todo = [leaf.grad_fn for leaf in results if leaf.grad_fn is not None]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        todo += [following for following, _ in node.next_functions if following is not None]

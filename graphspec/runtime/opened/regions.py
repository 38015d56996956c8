"""A region bound to the model: its arguments from named values, its call, and its named outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from graphspec import spec as language
from graphspec.errors import KeyPath, ModelError
from graphspec.plan import Plan
from graphspec.runtime.importing.references import import_object
from graphspec.runtime.importing.user_code import call_user_code
from graphspec.runtime.values.outputs import MisfitError
from graphspec.runtime.values.paths import lacks, nearby, step_into
from graphspec.runtime.values.trees import follow

Environment = Mapping[str, Any]


@dataclass(frozen=True)
class BoundRegion:
    """A region and the callable it names. ``makers`` are the factories of its structured arguments."""

    declared: language.Region
    model: Any
    function: Callable[..., Any]
    around: Callable[..., Any] | None
    makers: Mapping[str, Callable[..., Any]]

    def __call__(self, values: Environment) -> dict[str, Any]:
        """Call the region on named values and return its outputs by name.

        Raises ModelError with the user's exception as its cause; MisfitError for an output path that leads nowhere.
        """
        args = [self._argument(value, values) for value in self.declared.positional]
        kwargs = {key: self._argument(value, values) for key, value in self.declared.keyword.items()}
        with self._surroundings(args, kwargs):
            returned = call_user_code(
                self.callable, f"region '{self.declared.name}' ({self.declared.call})", *args, **kwargs
            )
            return {name: self._output(returned, name, path) for name, path in self.declared.outputs.items()}

    def direct(self, values: Environment) -> dict[str, Any]:
        """The call as the user's own loop would make it, for measuring: the user's exceptions come as they are.

        Autograd is the caller's business; everything else that the region declares around its calls is there.
        """
        if self.declared.mode is not None or self.declared.autocast is not None or self.around is not None:
            return self(values)
        args = [self._argument(value, values) for value in self.declared.positional]
        kwargs = {key: self._argument(value, values) for key, value in self.declared.keyword.items()}
        returned = self.callable(*args, **kwargs)
        return {name: self._output(returned, name, path) for name, path in self.declared.outputs.items()}

    @property
    def callable(self) -> Callable[..., Any]:
        """What the region calls: as found when the spec was opened, or, for an eager region, what is there now."""
        return (
            attribute(self.model, self.declared.call, f"region '{self.declared.name}'")
            if self.declared.eager
            else self.function
        )

    @contextlib.contextmanager
    def _surroundings(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.declared.mode is not None:
                stack.enter_context(training_mode(self.model, training=self.declared.mode == "train"))
            if self.declared.autocast is not None:
                kind = torch.empty(0).device.type if not args else _device_type(args)
                dtype = getattr(torch, self.declared.autocast)
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
            if self.around is not None:
                self._enter(stack, args, kwargs)
            yield

    def _enter(self, stack: contextlib.ExitStack, args: list[Any], kwargs: dict[str, Any]) -> None:
        what = f"region '{self.declared.name}' (around: {self.declared.around})"
        manager = call_user_code(self.around, what, *args, **kwargs)  # type: ignore[arg-type]  # asked by the caller
        kind = type(manager)
        if not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
            message = f"{what} returned a {kind.__name__}, not a context manager"
            raise ModelError(message, hint="decorate it with contextlib.contextmanager")
        call_user_code(kind.__enter__, what, manager)

        @stack.push
        def leave(*error: Any) -> None:  # a result of True would swallow the region's own exception
            call_user_code(kind.__exit__, what, manager, *error)

    def _argument(self, value: language.Value, values: Environment) -> Any:
        match value:
            case language.Name(name):
                return values[name]
            case language.Const(constant):
                return constant
            case language.Attr(path):
                return attribute(self.model, path, f"region '{self.declared.name}'")
            case language.ListOf(items):
                return [self._argument(item, values) for item in items]
            case language.DictOf(entries):
                return {key: self._argument(item, values) for key, item in entries.items()}
            case language.Make(factory, arguments):
                given = {key: self._argument(item, values) for key, item in arguments.items()}
                return call_user_code(self.makers[factory], f"region '{self.declared.name}' (make: {factory})", **given)

    def _output(self, returned: Any, name: str, path: str) -> Any:
        try:
            return follow(returned, path)
        except KeyError as error:
            head, _, rest = path.partition(".")
            if head == "model":  # something the call left on the model
                return attribute(self.model, path, f"region '{self.declared.name}'") if rest else self.model
            message = f"region '{self.declared.name}': output '{name}' is not at '{path}': there is no {error.args[0]}"
            raise MisfitError(message, name) from None


class UnboundError(ModelError):
    """The model has nothing at a path of a region; ``path`` is the place of that path in the spec."""

    def __init__(self, error: ModelError, path: KeyPath) -> None:
        super().__init__(error.message, hint=error.hint)
        self.path = path


def bind_regions(plan: Plan, model: Any) -> tuple[dict[str, BoundRegion], list[UnboundError]]:
    """Regions that are not inline with their callables, and what is wrong with paths that the model does not have."""
    bound, wrong = {}, []
    for name, region in plan.regions.items():
        if region.declared.inline:
            continue  # whoever calls the module calls it
        try:
            bound[name] = _bind(region.declared, model, plan.folder)
        except UnboundError as error:
            wrong.append(error)
    return bound, wrong


def attribute(model: Any, path: str, what: str) -> Any:
    """What a path such as ``model.layers.0.attn`` leads to; its first step is the model. Raises ModelError."""
    _, *steps = path.split(".")
    value = model
    walked = "model"
    for step in steps:
        try:
            value = step_into(value, step, what)
        except KeyError:
            message = f"{what}: {path} does not exist: {lacks(walked, value, step)}"
            raise ModelError(message, hint=nearby(value, step)) from None
        walked = f"{walked}.{step}"
    return value


@contextlib.contextmanager
def training_mode(model: Any, *, training: bool) -> Any:
    """Every module of the model in train or eval mode, and each back in its own mode afterwards."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    before = [module.training for module in modules]
    for module in modules:
        module.training = training
    try:
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            module.training = was


def _bind(region: language.Region, model: Any, folder: Path) -> BoundRegion:
    with _at(region, "call"):
        function = _callable(region, model, "", region.call)
    with _at(region, "around"):
        around = _callable(region, model, "around: ", region.around) if region.around else None
    values = (*region.positional, *region.keyword.values())
    with _at(region, "inputs"):
        makers = {name: import_object(name, folder, loaded=True) for value in values for name in _factories(value)}
    return BoundRegion(region, model, function, around, makers)


def _callable(region: language.Region, model: Any, key: str, path: str) -> Callable[..., Any]:
    """What a path of a region leads to. Raises ModelError where that is nothing, or not callable."""
    found: Any = attribute(model, path, f"region '{region.name}'")
    if isinstance(found, torch.Tensor) or not callable(found):
        kind = "tensor" if isinstance(found, torch.Tensor) else type(found).__name__
        hint = "name a function that returns a context manager; it gets the region's inputs" if key else None
        raise ModelError(f"region '{region.name}': {key}{path} is a {kind}, not a callable", hint=hint)
    return cast("Callable[..., Any]", found)


@contextlib.contextmanager
def _at(region: language.Region, key: str) -> Iterator[None]:
    """Errors of what a key of a region names say that it was this key; a failure of the user's code stays one."""
    try:
        yield
    except ModelError as error:
        if error.__cause__ is not None:
            raise
        raise UnboundError(error, ("regions", region.name, key)) from None


def _factories(value: language.Value) -> list[str]:
    match value:
        case language.Make(factory, arguments):
            return [factory, *(name for item in arguments.values() for name in _factories(item))]
        case language.ListOf(items):
            return [name for item in items for name in _factories(item)]
        case language.DictOf(entries):
            return [name for item in entries.values() for name in _factories(item)]
        case _:
            return []


def _device_type(args: list[Any]) -> str:
    return next((value.device.type for value in args if isinstance(value, torch.Tensor)), "cpu")

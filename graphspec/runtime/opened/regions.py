"""A region bound to the model: its arguments from named values, its call, and its named outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from graphspec import spec as language
from graphspec.errors import KeyPath, ModelError
from graphspec.plan import Plan
from graphspec.runtime.hazards.literals import literals_filled
from graphspec.runtime.importing.references import import_beside
from graphspec.runtime.importing.user_code import call_user_code
from graphspec.runtime.opened.binds import Bound, bound_of, refuse_unfit
from graphspec.runtime.values.outputs import MisfitError
from graphspec.runtime.values.paths import lacks, nearby, step_into
from graphspec.runtime.values.trees import follow

Environment = Mapping[str, Any]


@dataclass(frozen=True)
class BoundAround:
    """What is called before and after each call of a region. ``after`` None: ``before`` gives a context manager."""

    declared: language.Around
    before: Callable[..., Any]
    after: Callable[..., Any] | None

    @property
    def roots(self) -> dict[str, Any]:
        """What is called, by the paths of the spec."""
        return dict(zip(self.declared.paths, (self.before, self.after), strict=False))

    @contextlib.contextmanager
    def entered(self, region: str, args: list[Any], kwargs: dict[str, Any]) -> Iterator[None]:
        """Around a call. A result of True does not swallow the region's own exception."""
        what = f"region '{region}' (around: {self.declared.call})"
        manager = call_user_code(self.before, what, *args, **kwargs)
        if self.after is not None:
            try:
                yield
            finally:
                call_user_code(self.after, f"region '{region}' (after: {self.declared.after})")
            return
        kind = type(manager)
        if not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
            message = f"{what} returned a {kind.__name__}, not a context manager"
            hint = "decorate it with contextlib.contextmanager, or name what undoes it: {call: ..., after: ...}"
            raise ModelError(message, hint=hint)
        call_user_code(kind.__enter__, what, manager)
        with contextlib.ExitStack() as stack:

            @stack.push
            def leave(*error: Any) -> None:
                call_user_code(kind.__exit__, what, manager, *error)

            yield


@dataclass(frozen=True)
class BoundRegion:
    """A region and the callable it names. ``makers`` are the factories of its structured arguments."""

    declared: language.Region
    model: Any
    function: Callable[..., Any]
    around: BoundAround | None
    makers: Mapping[str, Callable[..., Any]]

    def __call__(self, values: Environment) -> dict[str, Any]:
        """Call the region on named values and return its outputs by name.

        Raises ModelError with the user's exception as its cause; MisfitError for an output path that leads nowhere.
        """
        args, kwargs = self._arguments(self.declared.positional, self.declared.keyword, values)
        with self._surroundings(args, kwargs, values):
            returned = call_user_code(
                self.callable, f"region '{self.declared.name}' ({self.declared.call})", *args, **kwargs
            )
            return {name: self._output(returned, name, path) for name, path in self.declared.outputs.items()}

    def direct(self, values: Environment) -> dict[str, Any]:
        """The call as the user's own loop would make it, for measuring: the user's exceptions come as they are.

        Autograd is the caller's business; everything else that the region declares around its calls is there.
        """
        declared = self.declared
        if declared.mode is not None or declared.autocast is not None or self.around is not None or declared.trains:
            return self(values)
        args, kwargs = self._arguments(self.declared.positional, self.declared.keyword, values)
        returned = self.callable(*args, **kwargs)
        return {name: self._output(returned, name, path) for name, path in self.declared.outputs.items()}

    def bound(self) -> list[Bound]:
        """Where params are written before each call. Raises ModelError."""
        return bound_of(self.declared, self.model) if self.declared.bind else []

    @property
    def callable(self) -> Callable[..., Any]:
        """What the region calls: as found when the spec was opened, or, for an eager region, what is there now."""
        return (
            attribute(self.model, self.declared.call, f"region '{self.declared.name}'")
            if self.declared.eager
            else self.function
        )

    @property
    def has_surroundings(self) -> bool:
        """Whether the region declares something around its calls."""
        return self.around is not None or self.declared.mode is not None or self.declared.autocast is not None

    def surrounded(self, values: Environment) -> contextlib.AbstractContextManager[Any]:
        """What the region declares around its calls, without a call; for the parts of it that stay eager."""
        args, kwargs = self._arguments(self.declared.positional, self.declared.keyword, values)
        found: contextlib.AbstractContextManager[Any] = self._surroundings(args, kwargs, values)
        return found

    @contextlib.contextmanager
    def _surroundings(self, args: list[Any], kwargs: dict[str, Any], values: Environment) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.declared.trains))
            if not self.declared.eager:
                stack.enter_context(literals_filled())
            if self.declared.mode is not None:
                stack.enter_context(training_mode(self.model, training=self.declared.mode == "train"))
            if self.declared.autocast is not None:
                kind = torch.empty(0).device.type if not args else _device_type(args)
                dtype = getattr(torch, self.declared.autocast)
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
                if self.declared.trains:
                    stack.enter_context(_backward_outside_autocast(kind))
            if self.around is not None:
                own = self.around.declared
                if own.positional is not None:
                    args, kwargs = self._arguments(own.positional, own.keyword or {}, values)
                stack.enter_context(self.around.entered(self.declared.name, args, kwargs))
            yield

    def _arguments(
        self, positional: Sequence[language.Value], keyword: Mapping[str, language.Value], values: Environment
    ) -> tuple[list[Any], dict[str, Any]]:
        args = [self._argument(value, values) for value in positional]
        return args, {key: self._argument(value, values) for key, value in keyword.items()}

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
            bound[name] = _bind(region.declared, model, plan)
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
def _backward_outside_autocast(kind: str) -> Iterator[None]:
    """The autocast of a region that trains covers its forward: a backward inside runs in the dtypes of the forward."""
    engine: Any = torch.autograd
    run = engine._engine_run_backward

    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(kind, enabled=False):
            return run(*args, **kwargs)

    engine._engine_run_backward = outside
    try:
        yield
    finally:
        engine._engine_run_backward = run


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


def _bind(region: language.Region, model: Any, plan: Plan) -> BoundRegion:
    with _at(region, "call"):
        function = _callable(region, "", attribute(model, region.call, f"region '{region.name}'"), region.call)
    around = None
    if region.around is not None:
        called = [_around(region, model, plan, path, key) for path, key in _around_keys(region.around)]
        around = BoundAround(region.around, called[0], called[1] if len(called) > 1 else None)
    makers: dict[str, Callable[..., Any]] = {}
    for value in region.arguments:
        with _at(region, "inputs"):
            makers |= {name: import_beside(name, plan.folder, plan.model.factory) for name in _factories(value)}
    bound = BoundRegion(region, model, function, around, makers)
    with _at(region, "bind"):
        refuse_unfit(bound.bound(), region, plan)
    with _at(region, "optimizer"):
        for path in region.optimizer:
            _optimizer(region, model, path)
    return bound


def _optimizer(region: language.Region, model: Any, path: str) -> None:
    found = attribute(model, path, f"region '{region.name}'")
    if isinstance(found, torch.optim.LBFGS):
        message = f"region '{region.name}': {path} is LBFGS, whose step calls the model as often as the losses ask for"
        raise ModelError(message, hint="step it outside of the spec, or take another optimizer")
    if not isinstance(found, torch.optim.Optimizer):
        message = f"region '{region.name}': {path} is a {type(found).__name__}, not an optimizer"
        raise ModelError(message, hint="name the attribute that holds the torch.optim.Optimizer")


def _around_keys(around: language.Around) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is called around a region, and under which key; the short form and the long one without more are alike."""
    long = around.positional is not None or around.after is not None
    yield around.call, ("around", "call") if long else ("around",)
    if around.after is not None:
        yield around.after, ("around", "after")


def _around(region: language.Region, model: Any, plan: Plan, path: str, key: tuple[str, ...]) -> Callable[..., Any]:
    with _at(region, *key):
        if ":" in path:
            found = import_beside(path, plan.folder, plan.model.factory)
        else:
            found = attribute(model, path, f"region '{region.name}'")
        return _callable(region, f"{key[-1]}: ", found, path)


def _callable(region: language.Region, key: str, found: Any, path: str) -> Callable[..., Any]:
    """What a path of a region leads to. Raises ModelError where it is not callable."""
    if isinstance(found, torch.Tensor) or not callable(found):
        kind = "tensor" if isinstance(found, torch.Tensor) else type(found).__name__
        hint = "name a function that returns a context manager; it gets the region's inputs" if key else None
        raise ModelError(f"region '{region.name}': {key}{path} is a {kind}, not a callable", hint=hint)
    return cast("Callable[..., Any]", found)


@contextlib.contextmanager
def _at(region: language.Region, *key: str) -> Iterator[None]:
    """Errors of what a key of a region names say that it was this key; a failure of the user's code stays one."""
    try:
        yield
    except ModelError as error:
        if error.__cause__ is not None:
            raise
        raise UnboundError(error, ("regions", region.name, *key)) from None


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

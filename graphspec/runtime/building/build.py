"""From the spec's `model` to the thing its regions call: factory, dtype, weights, mode."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from graphspec import spec as language
from graphspec.errors import ModelError
from graphspec.nearest import did_you_mean
from graphspec.plan import Plan
from graphspec.runtime.building.weights import load_weights, read_weights
from graphspec.runtime.importing.references import beside, import_object
from graphspec.runtime.importing.user_code import began, call_user_code, read_attribute, user_traceback

__all__ = [
    "build_model",
    "call_user_code",
    "import_object",
    "read_attribute",
    "refuse_other_devices",
    "refuse_other_modes",
    "tells_device",
    "user_traceback",
]

_SHOWN = 8


def build_model(plan: Plan, device: torch.device, factory: Callable[..., Any] | None = None) -> Any:
    """Call the factory, then apply dtype, weights and mode. Seeded by ``plan.seed``.

    ``factory`` is the plan's, where it was imported already. Raises ModelError with the user's own exception as its
    cause, and WeightsError if the file does not fit.
    """
    dtype = _model_dtype(plan.model)
    if factory is None:
        factory = import_object(plan.model.factory, plan.folder)
    what = f"the factory {plan.model.factory}"
    weights = None if plan.model.weights is None else read_weights(plan.folder / plan.model.weights)
    model = _called(plan, factory, what, device)
    if isinstance(model, torch.nn.Module):
        _refuse_tensors(model, device, lambda where: where.type == "meta")
        if device.type == "cpu":
            call_user_code(model.to, f"moving what {plan.model.factory} returned to cpu", device=device, dtype=dtype)
        else:
            model.to(device=device, dtype=dtype)  # a device that fails, or has too little memory, says so itself
        mode = plan.model.mode
        call_user_code(model.train, f"setting what {plan.model.factory} returned to {mode}", mode == "train")
    if weights is not None:
        load_weights(model, weights)
    return model


def refuse_other_devices(model: Any, device: torch.device) -> None:
    """Every parameter and buffer of a module must be on the graphs' device. Raises ModelError naming the others."""
    _refuse_tensors(model, device, lambda where: not _same_device(where, device))


def refuse_other_modes(model: Any, plan: Plan) -> None:
    """A model that was given keeps its modes, which must be the plan's. Raises ModelError naming modules that differ.

    Regions with a mode of their own set it around their calls; with nothing but such regions any mode will do.
    """
    if not isinstance(model, torch.nn.Module) or all(each.declared.mode is not None for each in plan.regions.values()):
        return
    training = plan.model.mode == "train"
    others = list(dict.fromkeys(_in_other_mode(model, "model", training=training)))
    if others:
        has, wanted = ("eval", "train") if training else ("train", "eval")
        message = f"the model given has modules in {has} mode, and the spec says `mode: {wanted}`: {_listed(others)}"
        raise ModelError(message, hint=f"call model.{wanted}() before, or write `mode: {has}` under `model`")


def _in_other_mode(module: torch.nn.Module, name: str, *, training: bool) -> Iterator[str]:
    """Modules that `train()` would switch. One with a `train` of its own decides by itself what is below it."""
    if module.training != training:
        yield name
    if type(module).train is torch.nn.Module.train:
        for key, child in module.named_children():
            yield from _in_other_mode(child, f"{name}.{key}", training=training)


def _called(plan: Plan, factory: Callable[..., Any], what: str, device: torch.device) -> Any:
    """What the factory returns. The caller's random streams go on where they were."""
    arguments = _arguments(plan.model.args, plan.largest, device)
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(plan.seed)
        with beside(plan.model.factory, plan.folder), _without_meta_default(what):
            try:
                model = call_user_code(factory, what, **arguments)
            except ModelError as error:
                refused = _unknown_arguments(factory, what, arguments, error.__cause__)
                if refused is None:
                    raise
                raise refused from None
    if model is None:
        raise ModelError(f"{what} returned None", hint="return the model from the factory")
    return model


def _unknown_arguments(
    factory: Callable[..., Any], what: str, arguments: Mapping[str, Any], error: BaseException | None
) -> ModelError | None:
    """The refusal of a call that never began, since its arguments are not those the factory takes."""
    if not isinstance(error, TypeError) or began(error):
        return None
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (ValueError, TypeError):
        return None
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes = [each.name for each in named]
    needed = [each.name for each in named if each.default is each.empty and each.name not in arguments]
    unknown = [name for name in arguments if name not in takes]
    has = f"it takes {', '.join(takes)}" if takes else "it takes none"
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        hint = did_you_mean(unknown[0], [name for name in takes if name not in arguments], has)
        return ModelError(f"{what} takes no argument {_quoted(unknown)}", hint=hint)
    if needed:
        return ModelError(f"{what} needs {_quoted(needed)}", hint=f"give it under `model.args`; {has}")
    return None


@contextlib.contextmanager
def _without_meta_default(what: str) -> Iterator[None]:
    """Refuse a factory that leaves `meta` as the default device, where whatever is made later would have no values."""
    before = torch.get_default_device()
    none = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None
    try:
        yield
    finally:
        left = before.type != "meta" and torch.get_default_device().type == "meta"
        if left:
            torch.set_default_device(None if none else before)
    if left:
        message = f"{what} leaves torch's default device at meta, and a tensor made there has no values"
        raise ModelError(message, hint="with torch.device('meta'): around what is to have none")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _quoted(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _refuse_tensors(model: Any, device: torch.device, refused: Callable[[torch.device], bool]) -> None:
    if not isinstance(model, torch.nn.Module):
        return
    tensors = [*model.named_parameters(), *model.named_buffers()]
    others = [(name, tensor.device) for name, tensor in tensors if refused(tensor.device)]
    if others:
        shown = _listed([f"model.{name} on {where}" for name, where in others])
        meta = any(where.type == "meta" for _, where in others)
        hint = "a meta tensor has no values: build the model without it" if meta else f"model.to('{device}')"
        raise ModelError(f"the graphs are for {device}, and the model has {shown}", hint=hint)


def _same_device(have: torch.device, want: torch.device) -> bool:
    return have.type == want.type and (want.index is None or have.index == want.index)


def _model_dtype(model: language.Model) -> torch.dtype | None:
    """What the factory's module is converted to: what torch converts a module to, and nothing else."""
    if model.dtype is None:
        return None
    dtype: torch.dtype = getattr(torch, model.dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        message = f"model.dtype is {model.dtype}, and a model is converted to a floating or complex dtype only"
        raise ModelError(message, hint="float32, bfloat16, float16, ...; inputs declare a dtype of their own")
    return dtype


def tells_device(value: Any) -> bool:
    """Whether arguments of the factory hold ``{device: true}``."""
    if isinstance(value, Mapping):
        return _is_device(value) or any(map(tells_device, value.values()))
    return isinstance(value, (list, tuple)) and any(map(tells_device, value))


def _arguments(value: Any, sizes: Mapping[str, int], device: torch.device) -> Any:
    """Factory arguments with each ``{dim: NAME}`` replaced by its size and ``{device: true}`` by the graphs' device."""
    if isinstance(value, Mapping):
        if set(value) == {"dim"} and value["dim"] in sizes:
            return sizes[value["dim"]]
        if _is_device(value):
            return device
        return {key: _arguments(item, sizes, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_arguments(item, sizes, device) for item in value]
    return value


def _is_device(value: Mapping[str, Any]) -> bool:
    return set(value) == {"device"} and value["device"] is True

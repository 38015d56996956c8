"""The two modes that see a region's calls: torch functions by name, and what reaches the dispatcher.

Reads such as ``tolist`` or formatting never reach the dispatcher on a CPU; what C++ calls inside an operator is seen
by no function mode. So both are needed. Each sees its own thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.runtime.hazards.conditions import FunctionCall
from graphspec.runtime.hazards.watching import Watching


class FunctionWatch(TorchFunctionMode):
    """Reports hazardous torch functions, and remembers the one being called for the dispatcher's findings."""

    def __init__(self, watch: Watching) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if isinstance(func, OpOverload):  # another mode passing its call on: not the model's
            return func(*args, **kwargs)
        call = FunctionCall(func, args, kwargs, self.watch.is_host)
        with self.watch.function(call) as outcome:
            outcome.result = func(*args, **kwargs)
        return outcome.result


class DispatchWatch(TorchDispatchMode):
    """Reports hazardous operators."""

    def __init__(self, watch: Watching) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return self.watch.operator(func, args, kwargs or {})

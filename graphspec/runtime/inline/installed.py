"""A module replaced in place: the same object, with a class of its own whose ``forward`` asks graphspec first.

Nothing is written into the module's ``__dict__``, so parameters, hooks, names and state dicts are untouched, and what
the module is called by (its ``__call__``, with all hooks) runs as before. The class is made for one module: a copy, a
pickle or a replica of the module is an eager module of the class it had before.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from graphspec.errors import ModelError, ReplayError

#: An attribute of classes that are made here.
_MARK = "_serves_inline_regions"

#: What a call of an installed module becomes; given the module's own forward and what it was called with.
Called = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Installed:
    """One module and its two classes. ``called`` answers for its forward while `install` holds."""

    def __init__(self, module: nn.Module, name: str, called: Called) -> None:
        self.module = module
        self.name = name
        self._original = type(module)
        self._own = _class_for(module, called)

    def install(self) -> None:
        """Give the module its own class.

        Raises ModelError where torch or the class does not let it change, ReplayError where another spec is at work.
        """
        if _MARK in vars(type(self.module)):
            message = f"{self.name} already serves inline regions"
            raise ReplayError(message, hint="undo what was applied before, or close the runner")
        try:
            self.module.__class__ = self._own
        except TypeError as error:
            message = f"{self.name}, a {self._original.__name__}, cannot be replaced in place: {error}"
            raise ModelError(message, hint="name a plain torch.nn.Module in `call`") from None

    def undo(self) -> None:
        """Give the module the class it had, unless somebody else has changed it since."""
        if type(self.module) is self._own:
            self.module.__class__ = self._original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, as its class has it."""
        return self._original.forward(self.module, *args, **kwargs)


def _class_for(module: nn.Module, called: Called) -> type[nn.Module]:
    original = type(module)

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not module:  # a replica, which torch makes of the class and of what the module holds
            return original.forward(self, *args, **kwargs)
        return called(args, kwargs)

    def plainly(method: Callable[..., Any]) -> Callable[..., Any]:
        """The same of the module as it was, since every way to copy begins at the class."""

        @functools.wraps(method)
        def call(self: nn.Module, *args: Any) -> Any:
            own = type(self)
            self.__class__ = original
            try:
                return method(self, *args)
            finally:
                self.__class__ = own

        return call

    members: dict[str, Any] = {_MARK: True, "forward": forward, "__reduce_ex__": plainly(original.__reduce_ex__)}
    for name, way in (("__deepcopy__", copy.deepcopy), ("__copy__", copy.copy)):
        if hasattr(original, name):
            members[name] = plainly(way)
    members |= {"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__}
    kind: Any = type(original)
    made: type[nn.Module] = kind(original.__name__, (original,), members)
    return made

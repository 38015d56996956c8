"""Whether the code of a model can write into what it is given, as far as its text shows. It is read, never run."""

from __future__ import annotations

import ast
import sys
import warnings
from functools import cached_property
from typing import Final

from graphspec.files import problem
from graphspec.spec import Region, Spec

#: Modules whose functions write into an argument only where a call says so.
_PLAIN: Final = frozenset({"torch"}) | sys.stdlib_module_names
#: Keywords with which a function of torch writes into an argument.
_WRITING: Final = frozenset({"out", "inplace", "max_norm"})
#: Names that reach functions which no text shows, or functions that write without saying so.
_HIDDEN: Final = frozenset({"getattr", "setattr", "eval", "exec", "__import__", "importlib", "ctypes", "ops", "data"})
_NORMS: Final = ("batch_norm", "instance_norm")


class Writing:
    """What the file of the factory can write in place. It is parsed once, and only if somebody asks."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def may_happen_in(self, region: Region) -> bool:
        """Whether a region could write into a tensor it is given.

        In doubt it may: it surely does not where the file of the factory defines what is called, and nothing in the
        file writes in place or comes from code that is not read.
        """
        name = region.call.rpartition(".")[2]
        called = {"forward", "__call__"} if name == "model" else {name}
        return self._writes or called.isdisjoint(self._defined)

    @cached_property
    def _writes(self) -> bool:
        return not self._nodes or any(map(_may_write, self._nodes))

    @cached_property
    def _defined(self) -> set[str]:
        return {node.name for node in self._nodes if isinstance(node, ast.FunctionDef)}

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        """The syntax of the file; nothing where it cannot be read."""
        file = self._spec.model.factory.rpartition(":")[0]
        path = self._spec.folder / file
        if self._spec.document is None or not file.endswith(".py") or problem(path) is not None:
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a doubtful escape in the model is none of our findings
                return list(ast.walk(ast.parse(path.read_bytes())))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return []


def _may_write(node: ast.AST) -> bool:
    match node:
        case ast.Import(names):
            return any(each.name.partition(".")[0] not in _PLAIN for each in names)
        case ast.ImportFrom(module, _, level):
            return level > 0 or (module or "").partition(".")[0] not in _PLAIN
        case ast.AugAssign():
            return True
        case ast.Subscript(ctx=ast.Store() | ast.Del()):
            return True
        case ast.keyword(arg):
            return arg in _WRITING
        case ast.Name(name) | ast.Attribute(attr=name):
            written = name.endswith("_") and not name.endswith("__")  # as torch names what writes
            return written or name in _HIDDEN or name.endswith(_NORMS)
        case _:
            return False

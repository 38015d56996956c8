"""A spec file as plain data, with the position of every key and value kept beside it.

Reading follows YAML 1.2: `off`, `no` and dates are text, `1e5` is a number. Aliases are copies, so two places of the
data never share a list. Nothing is known here about the language but its version, which is checked before the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from graphspec.errors import Diagnostic, SpecError
from graphspec.reading import characters
from graphspec.reading.compose import TAG, compose
from graphspec.reading.construct import Constructor, Members
from graphspec.reading.source import read_text, spec_file
from graphspec.units import shortened

#: The format version this build reads.
VERSION = 1


@dataclass(frozen=True, eq=False)
class Document:
    """The data of one spec file: dicts, lists and scalars. ``path`` is as the user gave it, ``text`` as it was read."""

    path: Path
    text: str = field(repr=False)
    data: dict[str, Any]
    root: yaml.Node = field(repr=False)
    members: Mapping[int, Members] = field(repr=False)

    def position(self, path: Sequence[str | int], *, key: bool = False) -> tuple[int, int]:
        """Line and column, from 1, of the value at ``path``, or of its key.

        A place that does not exist (a missing key) is that of the nearest enclosing key; a blank value is its key's.
        """
        node, key_node = self.root, None
        for part in path:
            found = self._child(node, part)
            if found is None:
                key = True
                break
            parent_key, node = found
            key_node = parent_key if parent_key is not None else node
        blank = isinstance(node, yaml.ScalarNode) and not node.value and not node.style
        mark = (key_node if key_node is not None and (key or blank) else node).start_mark
        return mark.line + 1, mark.column + 1

    def _child(self, node: yaml.Node, part: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
        if isinstance(node, yaml.MappingNode) and isinstance(part, str):
            return self.members.get(id(node), {}).get(part)
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            return None, node.value[part]
        return None


def read(path: Path | str) -> Document:
    """The document in the file at ``path``. Raises `SpecError` with every finding of the text."""
    return _clean(*examine(path))


def parse(text: str, path: Path | str) -> Document:
    """The document in ``text``; ``path`` is only its name. Raises `SpecError` with every finding of the text."""
    return _clean(*examine_text(text, path))


def examine(path: Path | str) -> tuple[Document, list[Diagnostic]]:
    """The document and what was refused in its text, for a caller that goes on to collect findings of later stages.

    ``-`` is standard input, and a folder is the spec in it. Raises `SpecError` only where nothing can be said about
    the rest of the file.
    """
    file = spec_file(Path(path))
    text = read_text(file)
    try:
        return examine_text(text, file)
    except SpecError as error:
        raise SpecError(error.diagnostics, {str(file): text}) from None


def examine_text(text: str, path: Path | str) -> tuple[Document, list[Diagnostic]]:
    """`examine` for text that was read already."""
    text = text.removeprefix("\ufeff")
    root = compose(text, str(path))
    _check_version(root, str(path))
    constructor = Constructor(str(path))
    data = constructor.value(root)
    return Document(Path(path), text, data, root, constructor.members), constructor.findings


def _clean(document: Document, findings: list[Diagnostic]) -> Document:
    if findings:
        raise SpecError(sorted(findings, key=lambda found: (found.line or 0, found.column or 0)))
    return document


def _check_version(root: yaml.Node, file: str) -> None:
    """Refuse every other version before anything else is said: its rules may be different ones."""
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else f"`{root.value[:40]}`"
        line, column = root.start_mark.line + 1, root.start_mark.column + 1
        if isinstance(root, yaml.ScalarNode) and root.tag == TAG + "null":  # it may begin behind the last line
            raise SpecError([Diagnostic("GS003", "the file holds no spec: it is empty", file=file, line=1, column=1,
                                        hint="start with the one in README.md")])  # fmt: skip
        message = f"a spec is a mapping of keys, and this file holds {kind}"
        raise SpecError([Diagnostic("GS003", message, file=file, line=line, column=column,
                                    hint="begin with `graphspec: 1`")])  # fmt: skip
    hint = f"write `graphspec: {VERSION}`"
    for key, value in root.value:
        if getattr(key, "value", None) == "graphspec":
            integer = isinstance(value, yaml.ScalarNode) and value.tag == TAG + "int"
            if integer and value.value == str(VERSION):
                return
            message = f"`graphspec` is {_shown(value)}, and this build reads {VERSION}"
            if not integer:
                message += ": an integer is required"
            mark = value.start_mark
            raise SpecError([Diagnostic("GS014", message, file=file, line=mark.line + 1, column=mark.column + 1,
                                        path=("graphspec",), hint=hint)])  # fmt: skip
    for key, _ in root.value:
        odd = characters.odd_in_plain(key.value) if isinstance(key, yaml.ScalarNode) and not key.style else None
        if odd is not None:
            message = f"{characters.name_of(key.value[odd])} in an unquoted key"
            raise SpecError([Diagnostic("GS005", message, file=file, line=key.start_mark.line + 1,
                                        column=key.start_mark.column + 1 + odd,
                                        hint=characters.remedy(key.value[odd]))])  # fmt: skip
    message = f"the key `graphspec` is missing: it says the format version, and this build reads {VERSION}"
    raise SpecError([Diagnostic("GS014", message, file=file, line=1, column=1, path=("graphspec",), hint=hint)])


def _shown(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
    if not node.value and not node.style:
        return "blank"
    shown = shortened(node.value)
    return f"the text '{shown}'" if node.tag == TAG + "str" else shown

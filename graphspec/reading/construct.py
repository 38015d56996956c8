"""Nodes to plain data: every alias its own copy, merges resolved, and everything a spec may not hold reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from graphspec.errors import Diagnostic, SpecError
from graphspec.reading import characters, places
from graphspec.reading.compose import TAG, core_tag
from graphspec.reading.variables import VARIABLE, variable_finding
from graphspec.units import shortened

#: Key to (node of the key, node of the value), of one mapping with its merges resolved.
Members = Mapping[str, tuple[yaml.ScalarNode, yaml.Node]]

#: Values that aliases may add to those written in the file: templates of real specs add some thousands.
MAX_COPIED = 200_000
MAX_DEPTH = 100
_MAX_DIGITS = 400


class Constructor:
    """Builds the data of one document, and keeps what `Document.position` and the caller need afterwards.

    ``members`` maps the id of a mapping node to its entries; ``findings`` is what was refused on the way.
    """

    def __init__(self, file: str) -> None:
        self.members: dict[int, Members] = {}
        self.findings: list[Diagnostic] = []
        self._file = file
        self._reported: set[tuple[str, int, int]] = set()
        self._seen: set[int] = set()
        self._open: set[int] = set()
        self._copied = 0
        self._path: list[str | int] = []
        self._odd_keys: dict[int, list[tuple[yaml.Node, yaml.Node]]] = {}
        self._scalars: dict[str, Callable[[str], Any]] = {
            TAG + "str": str,
            TAG + "int": _integer,
            TAG + "float": _float,
            TAG + "bool": lambda text: text.lower() == "true",
            TAG + "null": lambda _: None,
        }

    def value(self, node: Any) -> Any:
        """The data of ``node``: dicts with text keys, lists and scalars, shared with nothing.

        What stands under a key `x-` is read for its findings, and is no part of the data: nobody can mistake it.
        """
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        identity = id(node)
        if identity in self._open:
            self._report("GS007", "this anchor contains itself", node, "repeat the value instead of the alias")
            return None
        if len(self._open) >= MAX_DEPTH:
            raise SpecError([self._finding("GS011", f"more than {MAX_DEPTH} levels of nesting", node, "flatten it")])
        self._count(node)
        self._open.add(identity)
        try:
            if isinstance(node, yaml.SequenceNode):
                self._check_tag(node, "seq")
                return [self._below(index, item) for index, item in enumerate(node.value)]
            data = {key: self._below(key, value) for key, (_, value) in self._entries(node).items()}
            ignored = [key for key in data if key.startswith("x-")]
            if ignored and not places.is_literal(self._path):
                for key in ignored:
                    del data[key]
            return data
        finally:
            self._open.discard(identity)

    def _below(self, part: str | int, node: yaml.Node) -> Any:
        """The data of what stands at ``part`` of the mapping or list that is being read."""
        self._path.append(part)
        value = self.value(node)
        self._path.pop()
        return value

    def _count(self, node: yaml.Node) -> None:
        """Aliases of aliases grow exponentially: stop long before the memory does."""
        if id(node) not in self._seen:
            self._seen.add(id(node))
            return
        self._copied += 1 + len(node.value)
        if self._copied > MAX_COPIED:
            message = f"aliases expand this file by more than {MAX_COPIED:,} values"
            raise SpecError([self._finding("GS011", message, node, "use fewer aliases of aliases")])

    def _entries(self, node: yaml.MappingNode) -> Members:
        """The entries of a mapping. Merged keys come first, those of an earlier source winning; local keys win all."""
        known = self.members.get(id(node))
        if known is None:
            known = self.members[id(node)] = self._read_entries(node)
        odd = self._odd_keys.get(id(node))
        if odd and not places.is_ignored(
            self._path
        ):  # an alias can bring a mapping from where it is ignored to where it is not
            for key_node, value_node in odd:
                self._report_key(key_node, value_node)
        return known

    def _read_entries(self, node: yaml.MappingNode) -> Members:
        self._check_tag(node, "map")
        local: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if not isinstance(key, str):
                self._odd_keys.setdefault(id(node), []).append((key_node, value_node))
                if not isinstance(key_node, yaml.ScalarNode):
                    continue
                key = key_node.value  # under its text, so that what follows is judged with it there
            if key in local:
                first = local[key][0].start_mark
                place = f"line {first.line + 1}, column {first.column + 1}"
                message = f"the key `{shortened(key)}` appears twice in this mapping, first at {place}"
                hint = "use one `<<` with a list: [*a, *b]" if key == "<<" else "remove one of the two"
                self._report("GS006", message, key_node, hint)
                continue
            local[key] = (key_node, value_node)
        merged = self._merged(local)
        return {**merged, **local}

    def _merged(self, local: dict[str, tuple[yaml.ScalarNode, yaml.Node]]) -> Members:
        """What the `<<` of these entries brings in; the key itself is taken out of ``local``."""
        if "<<" not in local or local["<<"][0].style in {"'", '"'}:
            return {}
        _, value = local.pop("<<")
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        merged: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._report("GS008", "`<<` merges a mapping or a list of mappings", source, "write `<<: *name`")
            elif id(source) in self._open:
                self._report("GS007", "this anchor merges itself", source, "merge another mapping")
            else:
                self._open.add(id(source))
                for key, entry in self._entries(source).items():
                    merged.setdefault(key, entry)
                self._open.discard(id(source))
        return merged

    def _key(self, node: yaml.Node) -> Any:
        """What a key is read as; None for a list or mapping."""
        return self._scalar(node) if isinstance(node, yaml.ScalarNode) else None

    def _report_key(self, node: yaml.Node, value: yaml.Node) -> None:
        if not isinstance(node, yaml.ScalarNode):
            self._report("GS013", "a list or mapping cannot be a key", node, "write a text key")
            return
        shown = "this is an empty key"
        if node.value:
            shown = f"`{shortened(node.value)}` is read as {_KINDS[type(self._scalar(node))]}"
        if isinstance(value, yaml.ScalarNode) and not value.value:  # `{shape: 4, 8}` is two entries
            hint = "a list needs square brackets, such as [4, 8]"
        elif node.value and places.takes_any_key(self._path):
            hint = f'quote it: "{shortened(node.value)}"'
        else:
            hint = "write a name: letters, digits and `_`, beginning with a letter or `_`"
        self._report("GS013", f"{shown}, and a key must be text", node, hint)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        tag, text = node.tag, node.value
        convert = self._scalars.get(tag)
        if convert is None:
            self._check_tag(node, "str")
            return text
        if tag == TAG + "str":
            return self._text(node)
        actual = core_tag(text)
        if actual != tag and (actual, tag) != (TAG + "int", TAG + "float"):
            kind = tag.removeprefix(TAG)
            self._report("GS009", f"`{shortened(text)}` is not what its tag !!{kind} says", node, "remove the tag")
            return text
        if len(text) > _MAX_DIGITS:
            self._report("GS013", f"a number of {len(text)} characters is not supported", node, "shorten it")
            return 0
        return convert(text)

    def _text(self, node: yaml.ScalarNode) -> str:
        """The text, without what was reported in it: what follows a slip is no second one."""
        text: str = node.value
        if "${" in text and (found := re.search(VARIABLE, text)):
            mark = node.start_mark
            self._add(variable_finding(found[0], self._file, mark.line + 1, mark.column + 1))
        if text.isascii() or node.style in {"'", '"', "|", ">"}:
            return text
        odd = characters.odd_in_plain(text)
        if odd is not None:
            message = f"{characters.name_of(text[odd])} in an unquoted value"
            self._report("GS005", message, node, characters.remedy(text[odd]), shift=odd)
            return characters.without_odd(text)
        return text

    def _check_tag(self, node: yaml.Node, kind: str) -> None:
        if node.tag not in {TAG + kind, "!"}:
            shown = node.tag.replace(TAG, "!!", 1)
            self._report("GS009", f"the tag {shown} is not supported: a spec is plain data", node, "remove the tag")

    def _report(self, code: str, message: str, node: yaml.Node, hint: str, *, shift: int = 0) -> None:
        self._add(self._finding(code, message, node, hint, shift=shift))

    def _add(self, finding: Diagnostic) -> None:
        """Keep a finding once, however many aliases lead to its place."""
        place = (finding.code, finding.line or 0, finding.column or 0)
        if place not in self._reported:
            self._reported.add(place)
            self.findings.append(finding)

    def _finding(self, code: str, message: str, node: yaml.Node, hint: str, *, shift: int = 0) -> Diagnostic:
        mark = node.start_mark
        line, column = mark.line + 1, mark.column + 1 + shift
        return Diagnostic(code, message, file=self._file, line=line, column=column, hint=hint)


_KINDS: Mapping[type, str] = {int: "a number", float: "a number", bool: "a boolean", type(None): "nothing"}


def _integer(text: str) -> int:
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    return int(text)


def _float(text: str) -> float:
    word = text.lower()
    return float(word.replace(".inf", "inf").replace(".nan", "nan"))

"""Characters that look right in an editor and are not: found, and called by their Unicode names."""

from __future__ import annotations

import re

#: Line breaks as editors count them. The other breaks of YAML 1.1 (NEL, LS, PS) are refused by `FORBIDDEN`.
LINE_BREAK = re.compile(r"\r\n|\r|\n")

#: What no YAML text may hold, and the breaks and marks whose meaning differs between YAML 1.1 and 1.2.
FORBIDDEN = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

#: Spaces that are not U+0020, and characters without width.
INVISIBLE = re.compile(r"[\xa0\xad\u1680\u2000-\u200f\u202a-\u202f\u205f-\u2064\u3000]")

#: Quotation marks a word processor puts in place of ' and ".
SMART_QUOTES = frozenset("\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2032\u2033\uff02\uff07")

_ANY_ODD = re.compile(f"{INVISIBLE.pattern}|[{''.join(sorted(SMART_QUOTES))}]")


def name_of(character: str) -> str:
    """``character`` as a message shows it: ``'[' (LEFT SQUARE BRACKET)``, ``TAB``, ``U+0007``."""
    if character == "\t":
        return "a TAB"
    import unicodedata  # noqa: PLC0415  only a spec with a mistake needs the table

    name = unicodedata.name(character, "")
    if not name:
        return f"a control character (U+{ord(character):04X})"
    if INVISIBLE.match(character) or FORBIDDEN.match(character):
        return f"a {name} (U+{ord(character):04X})"
    return f"'{character}' ({name})"


def remedy(character: str) -> str:
    """What to write in place of an odd character."""
    if character == "\t":
        return "indent with spaces"
    if character in SMART_QUOTES:
        return "write a plain ' or \""
    if INVISIBLE.match(character):
        return "write a plain space, or none"
    return "remove it, or write it as an escape inside double quotes"


def odd_in_plain(value: str) -> int | None:
    """Where an unquoted scalar holds what can only be a slip: an invisible character, or a smart quote at an end."""
    found = INVISIBLE.search(value)
    if found:
        return found.start()
    if value and value[0] in SMART_QUOTES:
        return 0
    if value and value[-1] in SMART_QUOTES:
        return len(value) - 1
    return None


def without_odd(value: str) -> str:
    """What was meant: no smart quotes around, no invisible characters inside."""
    return INVISIBLE.sub(" ", value).strip("".join(SMART_QUOTES) + " ")


def odd_in_line(line: str) -> int | None:
    """Where a line that YAML cannot read holds an odd character: a tab in its indentation, or one of the above."""
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        return indentation.index("\t")
    found = _ANY_ODD.search(line)
    return found.start() if found else None

"""Characters that look right in an editor and are not: found, and called by their Unicode names."""

from __future__ import annotations

import re

#: Line breaks as editors count them. The other breaks of YAML 1.1 (NEL, LS, PS) are refused with `forbidden`.
_BREAK = r"\r\n|\r|\n"

#: What no YAML text may hold, and the breaks and marks whose meaning differs between YAML 1.1 and 1.2.
_FORBIDDEN_ASCII = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_FORBIDDEN = r"[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"

#: Spaces that are not U+0020, and characters without width.
_INVISIBLE = r"[\xa0\xad\u1680\u2000-\u200f\u202a-\u202f\u205f-\u2064\u3000]"

#: Quotation marks a word processor puts in place of ' and ".
SMART_QUOTES = frozenset("\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2032\u2033\uff02\uff07")


def lines_of(text: str) -> list[str]:
    """The lines of ``text``, as editors count them."""
    return re.split(_BREAK, text)


def forbidden(text: str) -> int | None:
    """Where ``text`` holds a character that no spec may hold."""
    found = re.search(_FORBIDDEN_ASCII if text.isascii() else _FORBIDDEN, text)
    return None if found is None else found.start()


def name_of(character: str) -> str:
    """``character`` as a message shows it: ``'[' (LEFT SQUARE BRACKET)``, ``TAB``, ``U+0007``."""
    if character == "\t":
        return "a TAB"
    import unicodedata  # only a spec with a mistake needs the table

    name = unicodedata.name(character, "")
    if not name:
        return f"a control character (U+{ord(character):04X})"
    if re.match(_INVISIBLE, character) or forbidden(character) is not None:
        return f"a {name} (U+{ord(character):04X})"
    return f"'{character}' ({name})"


def remedy(character: str) -> str:
    """What to write in place of an odd character."""
    if character == "\t":
        return "indent with spaces"
    if character in SMART_QUOTES:
        return "write a plain ' or \""
    if re.match(_INVISIBLE, character):
        return "write a plain space, or none"
    return "remove it, or write it as an escape inside double quotes"


def odd_in_plain(value: str) -> int | None:
    """Where an unquoted scalar holds what can only be a slip: an invisible character, or a smart quote at an end."""
    found = re.search(_INVISIBLE, value)
    if found:
        return found.start()
    if value and value[0] in SMART_QUOTES:
        return 0
    if value and value[-1] in SMART_QUOTES:
        return len(value) - 1
    return None


def without_odd(value: str) -> str:
    """What was meant: no smart quotes around, no invisible characters inside."""
    return re.sub(_INVISIBLE, " ", value).strip("".join(SMART_QUOTES) + " ")


def odd_in_line(line: str) -> int | None:
    """Where a line that YAML cannot read holds an odd character: a tab in its indentation, or one of the above."""
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        return indentation.index("\t")
    found = re.search(f"{_INVISIBLE}|[{''.join(sorted(SMART_QUOTES))}]", line)
    return found.start() if found else None

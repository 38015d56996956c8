"""Which dtypes somebody means who writes one by another name: those of other libraries, of tensors, or a slip."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

#: Names of whole kinds, their most used dtypes first.
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "float": ("float32", "float16", "bfloat16"),
    "bfloat": ("bfloat16", "float16", "float32"),
    "int": ("int64", "int32", "int8"),
    "uint": ("uint8", "int32", "int64"),
    "complex": ("complex64", "complex128", "float32"),
}
#: Names that torch, numpy and C have for single ones.
_ALIASES: Final[Mapping[str, str]] = {
    "half": "float16", "single": "float32", "double": "float64", "short": "int16", "long": "int64", "char": "int8",
    "byte": "uint8", "cfloat": "complex64", "cdouble": "complex128", "boolean": "bool",
}  # fmt: skip
_SHORT: Final[Mapping[str, str]] = {"f": "float", "fp": "float", "tf": "float", "bf": "bfloat", "i": "int",
                                    "u": "uint", "c": "complex", "b": "bool"}  # fmt: skip
_LISTED: Final = 3
#: A word less like every dtype stands for none of them.
_LIKE: Final = 0.5


def likely(word: str, dtypes: Collection[str]) -> list[str]:
    """The three of ``dtypes`` that ``word`` may stand for, the likeliest first; one, where it is that without doubt.

    None for a word that is like none of them.
    """
    from difflib import SequenceMatcher

    name = word.rpartition(".")[2].strip().lower().removesuffix("tensor").removesuffix("_t")
    if name in dtypes:
        return [name]
    letters, digits = re.fullmatch(r"(.*?)([0-9]*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    kind = _SHORT.get(letters, letters)
    if kind in _KINDS and not digits:
        return list(_KINDS[kind])
    meant = _ALIASES.get(name, f"{kind}{digits}")

    like = {dtype: SequenceMatcher(None, meant, dtype).ratio() for dtype in dtypes}
    if max(like.values()) < _LIKE:
        return []
    family = _family(meant)
    return sorted(dtypes, key=lambda each: (not each.startswith(meant), _family(each) != family, -like[each]))[:_LISTED]


def _family(name: str) -> str:
    """What a dtype is besides its bits; brain floats are floats."""
    return name.rstrip("0123456789").partition("8")[0].removeprefix("b")

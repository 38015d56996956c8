"""What torch knows of operators: which it keeps out of graphs."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from typing import Any

import torch

_LIST = re.compile(r"^FORBIDDEN_CUDAGRAPH_OPS = frozenset\(\s*\[\n(.*?)^\s*\]", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r'^\s*"([\w.]+)",$', re.MULTILINE)


def is_unsafe(op: Any) -> bool:
    """Whether torch keeps an operator out of graphs."""
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    if tag is not None and tag in op.tags:
        return True
    packet = str(op.overloadpacket) if hasattr(op, "overloadpacket") else str(op)
    return not {packet, str(op)}.isdisjoint(_forbidden())


@functools.cache
def _forbidden() -> frozenset[str]:
    """The list as it stands in torch's source: importing what holds it would cost as much as torch itself."""
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found is not None else None
    source = Path(next(iter(folders or ()), "")) / "_inductor" / "utils.py"
    try:
        text = source.read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    listed = _LIST.search(text)
    return frozenset(_NAME.findall(listed[1])) if listed is not None else frozenset()

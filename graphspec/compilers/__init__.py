"""The compilers that a region may name: what each takes, on which devices it is, and what graphspec does not hand on.

Tables of graphspec's own: `validate` knows every option by name, kind and meaning without importing a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from graphspec.compilers import inductor, npu
from graphspec.compilers.option import Compiler, Option

if TYPE_CHECKING:
    from graphspec.spec import Region

__all__ = ["COMPILERS", "Compiler", "Option", "lacks"]

#: By the name that `compile: {backend: ...}` gives.
COMPILERS: Final[Mapping[str, Compiler]] = {
    each.name: each for each in (inductor.INDUCTOR, npu.NPUGRAPH_EX, npu.TORCHAIR)
}


def lacks(region: Region, device: str) -> str | None:
    """Why a kind of device (cpu, cuda, npu) does not have the compiler of a region; None where it has, or needs none.

    A spec for ``device: auto`` is captured uncompiled there.
    """
    if region.compile is None:
        return None
    compiler = COMPILERS[region.compile.backend]
    if device in compiler.devices:
        return None
    return f"{compiler.name} is run on {' and '.join(compiler.devices)}, not on {device}"

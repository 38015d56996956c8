"""What every diagnostic code means, with an example of wrong and right: what `graphspec explain` prints."""

from __future__ import annotations

from collections.abc import Mapping

from graphspec.codes import capture, compilers, reading, references, schema, sizes, updates
from graphspec.codes.entry import Code

__all__ = ["CODES", "Code"]

CODES: Mapping[str, Code] = {
    entry.code: entry
    for entry in (
        *reading.CODES,
        *schema.CODES,
        *references.CODES,
        *sizes.CODES,
        *updates.CODES,
        *compilers.CODES,
        *capture.CODES,
    )
}

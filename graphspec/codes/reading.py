"""GS0xx: the file cannot be read as the plain YAML that a spec is."""

from __future__ import annotations

from typing import Final

from graphspec.codes.entry import Code

CODES: Final = (
    Code("GS001", "The file cannot be read.",
         "It is missing, a folder, or protected. The message shows the full path that was tried.",
         "graphspec validate specs/mlp", "graphspec validate specs/mlp/model.yaml"),
    Code("GS002", "The file is not UTF-8 text.",
         "A spec is UTF-8, with or without a byte order mark. The message names the first byte that is not."),
    Code("GS003", "The file holds no spec.",
         "It is empty, holds only comments, or is a list or a single value where a mapping of keys is wanted.",
         "[]", "graphspec: 1\nmodel: {factory: model.py:build}\nregions: {...}"),
    Code("GS004", "The file is not YAML.",
         "The place is where reading stopped, or the bracket or quote that is never closed.",
         "shape: [batch, 64", "shape: [batch, 64]"),
    Code("GS005", "A character that looks right but is not.",
         "Tabs in the indentation, no-break spaces, characters without width and typographic quotes come from web pages"
         " and word processors. YAML reads them as part of the text beside them.",
         "name: \u201cdecoder\u201d", 'name: "decoder"'),
    Code("GS006", "A key appears twice in one mapping.",
         "Most readers let the last one win in silence. Both places are shown.",
         "buffers:\n  x: {shape: [4], dtype: int64}\n  x: {shape: [8], dtype: int64}",
         "buffers:\n  x: {shape: [4], dtype: int64}\n  y: {shape: [8], dtype: int64}"),
    Code("GS007", "An anchor or alias is wrong.",
         "An alias needs an anchor above it, an anchor has one meaning, and no value may contain itself.",
         "a: *missing", "x-shape: &shape [batch, 64]\nbuffers: {a: {shape: *shape, dtype: float32}}"),
    Code("GS008", "A merge key merges something that is no mapping.",
         "`<<` takes an alias of a mapping, or a list of them. It is shallow, and local keys win.",
         "<<: 3", "<<: *defaults"),
    Code("GS009", "A YAML tag is not supported.",
         "A spec is plain data: custom tags would build objects, and standard ones must agree with their value.",
         "pad: !!python/int 0", "pad: 0"),
    Code("GS010", "The file holds several documents.",
         "A spec file holds one; what follows `---` would be dropped in silence.",
         "graphspec: 1\n---\ngraphspec: 1", "graphspec: 1"),
    Code("GS011", "The file expands or nests too far.",
         "Aliases of aliases grow exponentially, so their expansion is bounded; so is the depth of nesting."),
    Code("GS012", "Environment variables are not supported.",
         "`${NAME}` would be passed on as text. What varies is a dim or a param, or an argument of the command.",
         "shape: [${B}, 4]", "dims: {batch: [1, 2]}\nbuffers: {x: {shape: [batch, 4], dtype: float32}}"),
    Code("GS013", "A key or a number cannot be used as it is.",
         "Keys are text; an unquoted number or boolean as a key is something else. A list without brackets inside"
         " braces is read as two keys.",
         "{shape: 4, 8}", "{shape: [4, 8]}"),
    Code("GS014", "The format version is not the one this build reads.",
         "`graphspec` is checked before anything else, since another version may have other rules.",
         'graphspec: "1"', "graphspec: 1"),
)  # fmt: skip

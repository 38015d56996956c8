"""GS1xx: the shape of the document is not the language's."""

from __future__ import annotations

from typing import Final

from graphspec.codes.entry import Code

CODES: Final = (
    Code("GS101", "Unknown key.",
         "A misspelt key would have no effect. The nearest known key is suggested. Keys that begin with `x-` are"
         " ignored, so that anchors have a home.",
         "warmpu: 3", "warmup: 3"),
    Code("GS102", "A required key is missing.", "The mapping cannot mean anything without it.",
         "regions: {decode: {inputs: [tokens]}}", "regions: {decode: {call: model.decode, inputs: [tokens]}}"),
    Code("GS103", "A value is of another kind than the key takes.",
         "The message shows what YAML read. In YAML 1.2 `yes`, `no`, `on` and `off` are text.",
         "eager: yes", "eager: true"),
    Code("GS104", "A value is not one of those allowed.", "The message lists them, and the hint is the nearest.",
         "on_miss: off", "on_miss: eager"),
    Code("GS105", "A text has not the form the key takes.", "Names, paths, sizes and devices have their own spelling.",
         "shape: [4 8]", "shape: [4, 8]"),
    Code("GS106", "A number is too small, too large, or stands for too many sizes.", "The message says the bound.",
         "warmup: -1", "warmup: 0"),
    Code("GS107", "A key has no value.",
         "A blank value is not the default: it may be a value that got lost.", "warmup:", "warmup: 3"),
    Code("GS108", "A list, mapping or text has the wrong number of items.",
         "An empty list or mapping says nothing; leave the key out.",
         "sample: {randint: [10]}", "sample: {randint: [0, 10]}"),
    Code("GS109", "Keys that exclude each other, or need each other.",
         "Where a value may be written in several ways, one of them is written.",
         "inputs: [{const: 1, attr: model.cache}]", "inputs: [{const: 1}, {attr: model.cache}]"),
    Code("GS110", "A name has a character that names do not have.",
         "Names of values and dims are Python identifiers; regions, pools and sequences may also hold `-` and `.`.",
         "buffers: {my tokens: {...}}", "buffers: {my_tokens: {...}}"),
)  # fmt: skip

"""GS5xx and GS6xx: updates, and keys that nothing runs yet."""

from __future__ import annotations

from typing import Final

from graphspec.codes.entry import Code

CODES: Final = (
    Code("GS501", "This is no name of an operator.", "Operators are named as the dispatcher names them.",
         "op: torch.mul", "op: aten::mul"),
    Code("GS502", "An occurrence does not exist or is listed twice.",
         "Calls of an operator are counted from 0 in capture order.", "at: [-1]", "at: [0]"),
    Code("GS503", "A param without axes cannot be spread over calls.",
         "`each: occurrence` gives each call one entry of the param's first axis.",
         "params: {n: {type: int}}\n# updates: {..., from: n, each: occurrence}",
         "params: {n: {type: int, shape: [4]}}\n# updates: {..., from: n, each: occurrence}"),
    Code("GS504", "One argument is refreshed twice.", "The last one would win in silence.",
         "updates:\n  - {op: aten::mul, arg: other, from: a}\n  - {op: aten::mul, arg: other, from: b}",
         "updates:\n  - {op: aten::mul, arg: other, from: a, at: [0]}\n"
         "  - {op: aten::mul, arg: other, from: b, at: [1]}"),
    Code("GS505", "A specialized param is updated.",
         "`specialize: true` makes a graph for each value, so there is nothing to refresh."),
    Code("GS510", "An update does not fit the operator that was captured.",
         "The operator is not called, does not take the argument, or was captured without it. A device ignores such an"
         " update in silence; the message lists what is accepted."),
    Code("GS511", "A param reaches an operator and is not updated.",
         "A graph freezes the number it was captured with. Declare the argument under `updates`, or the param with"
         " `specialize: true`.",
         "inputs: {x: x, scale: scale}",
         "inputs: {x: x, scale: scale}\nupdates: [{op: aten::mul, arg: other, from: scale}]"),
    Code("GS512", "A region makes a Python value, a branch or a tensor of a param.",
         "What Python does with it runs once, at the capture: a graph keeps the branch that was taken and the number"
         " that came out. Where `min` and `max` of the param leave a comparison one answer, it is no branch.",
         "y = x * 2 if scale > 1 else x * 10",
         "y = torch.where(scale > 1, x * 2, x * 10)  # scale: a buffer `from:` it"),
    Code("GS513", "A param decides a size or a view.",
         "Sizes and addresses are laid out once, for every replay of a graph.",
         "x[:n]  # n is a param", "x * (torch.arange(8) < n)  # n: a buffer `from:` the param, or a bucketed dim"),
    Code("GS601", "This version does not support this key yet.",
         "It is part of the language, and refused so that it is never silently ignored."),
)  # fmt: skip

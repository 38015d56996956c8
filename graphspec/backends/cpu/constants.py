"""Calls that make the same in every replay: they are issued once, when their graph is linked, into memory of their own.

A call is constant if all it reads was made by constant calls before it, and it draws no random numbers. What it writes
must be born in this recording, written by no other call, and no result: a later graph may write into a result, and
`poison` overwrites what lies in an arena. What an update refreshes is no constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch

from graphspec.backends.cpu.issue import Issue
from graphspec.recording.calls import Recording, Ref, refs_in
from graphspec.recording.writes import effect_of

#: Bytes of constants of one graph. They stay for good, where an arena would be used again.
MOST = 1 << 20

#: These write all of their first argument, and do not read it.
_OVERWRITING = frozenset({"fill_", "copy_", "zero_"})


def constants(
    issues: Sequence[Issue], recording: Recording, outputs: Sequence[Ref], refreshed: Collection[int]
) -> list[Issue]:
    """The constant calls among ``issues``, in order. ``refreshed`` are the ids of the recorded calls with a slot."""
    effects = [(_read(issue), written(issue)) for issue in issues]
    writers = Counter(storage for _, writes in effects for storage in writes)
    free = {storage for storage, count in writers.items() if count == 1 and recording.is_born(storage)}
    free -= {ref.storage for ref in outputs}
    made: set[int] = set()
    left = MOST
    found = []
    for issue, (reads, writes) in zip(issues, effects, strict=True):
        size = sum(recording.bytes[storage] for storage in writes)
        if id(issue.call) not in refreshed and _is_pure(issue) and reads <= made and writes <= free and size <= left:
            found.append(issue)
            made |= writes
            left -= size
    return found


def written(issue: Issue) -> set[int]:
    """The storages that a call writes, also those that its results are copied to."""
    return {ref.storage for ref in refs_in((*effect_of(issue.op).written(issue.args, {}), *issue.copies))}


def _read(issue: Issue) -> set[int]:
    """The storages whose content a call may read: all but those that it only writes."""
    found: set[int] = set()
    for position, (value, argument) in enumerate(zip(issue.args, issue.op._schema.arguments, strict=True)):
        only_written = argument.is_out or (position == 0 and issue.op._opname in _OVERWRITING)
        if not only_written:
            found |= {ref.storage for ref in refs_in(value)}
    return found


def _is_pure(issue: Issue) -> bool:
    """Whether all that a call does is to write its results, from its arguments alone. Only of torch's own it is known.

    What writes nothing is kept: it may refuse, or print.
    """
    op = issue.op
    draws = torch.Tag.nondeterministic_seeded in op.tags or torch.Tag.nondeterministic_seeded in issue.call.op.tags
    given = any("Generator" in str(argument.type) for argument in op._schema.arguments)
    return op.namespace == "aten" and not draws and not given and bool(written(issue))

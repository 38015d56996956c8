"""What makes replays and runs faster and changes nothing they compute: each is a lever that tests can put back.

Levers are looked at when graphs are linked and routes are bound, never in a run. To run anything without some of them:
``GRAPHSPEC_TEST_WITHOUT=constants,routes``. No user needs this, and nothing else may tell the two ways apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Each with what is done where it is put back.
LEVERS = {
    "below_autograd": "every replayed call passes autograd's kernels, as it would in eager",
    "constants": "calls that make the same in every replay are issued in every replay",
    "routes": "every run reads, fills, replays and copies call by call from Python",
    "words": "what was touched is asked of torch's guard tree, which goes from object to object",
}

_pulled = dict.fromkeys(LEVERS, True)


def pulled(lever: str) -> bool:
    """Whether a lever is in use."""
    return _pulled[lever]


@contextmanager
def put_back(*levers: str) -> Iterator[None]:
    """Without these levers, for what is opened and bound inside. For tests."""
    before = {lever: _pulled[lever] for lever in levers}
    _pulled.update(dict.fromkeys(levers, False))
    try:
        yield
    finally:
        _pulled.update(before)


_pulled.update(
    (lever, not _pulled[lever]) for lever in os.environ.get("GRAPHSPEC_TEST_WITHOUT", "").split(",") if lever
)

"""What is checked before every replay: first whether anything was touched, then what.

The expectations decide and name what differs; two quick comparisons, which may only err towards "touched", spare them.
Before most replays words of memory or the tree alone answer (words.py, tree.py). The cost: benchmarks/guards.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from graphspec.errors import GuardError
from graphspec.runtime.holdings.columns import Columns
from graphspec.runtime.holdings.expectations import Expectation
from graphspec.runtime.holdings.storages import quiet
from graphspec.runtime.holdings.tree import GuardTree
from graphspec.runtime.holdings.tree_proof import quickest

#: How many trees are kept: what is expected of a tensor differs with the caller's inference mode and autocast.
MODES = 4
#: How many trees in a row may never have held before columns are compared every time instead.
PATIENCE = 4
#: How many differences an error names.
_MOST = 8


class Guard:
    """The check of one set of graphs."""

    def __init__(self, expectations: Iterable[Expectation]) -> None:
        self._expectations = tuple(expectations)
        self._restless: set[int] = set()
        self._kind = quickest()
        self._left = PATIENCE if self._kind is not None else 0
        self._held = True
        self._tree: GuardTree | None = None
        self._checks: list[Callable[[], bool]] = []  # the one that held last comes first
        self._columns: Callable[[], bool] = _never
        self._examine()

    def check(self) -> None:
        """Pass, or raise GuardError naming what moved or changed since capture."""
        try:  # in this very frame: every call counts while the caches are cold
            if self._checks and self._checks[0]():
                self._held = True
                return
        except Exception:  # noqa: BLE001, S110 # a vanished place raises what its kind raises
            pass
        self._check_others()

    def examine(self) -> None:
        """Have every expectation decide, whatever the quick comparisons say. Raises GuardError as `check` does."""
        with quiet():
            found = {each: it for it in self._expectations for each in it.difference()}
        if found:
            named: dict[str, list[str]] = {}
            for difference in list(found)[:_MOST]:
                named.setdefault(found[difference].heading, []).append(difference)
            message = " and ".join(f"{heading}: {'; '.join(differences)}" for heading, differences in named.items())
            more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
            ways = dict.fromkeys(it.way_out for it in found.values() if it.way_out is not None)
            hint = "; ".join(("call runner.recapture(), or put back what was there", *ways))
            raise GuardError(f"the graphs {message}{more}", hint=hint)

    def _check_others(self) -> None:
        for place, untouched in enumerate(self._checks[1:], 1):
            if _holds(untouched):
                self._held = True
                self._checks.insert(0, self._checks.pop(place))
                return
        self._examine()

    def _examine(self) -> None:
        """What the expectations pass is from now on what is expected."""
        if not _holds(self._columns):
            fresh = self._compiled(Columns())  # before they decide: what is written meanwhile is then told
            self.examine()
            self._columns = fresh
        self._left = PATIENCE if self._held and self._left else self._left - 1
        if self._left <= 0:
            self._left, self._checks = 0, []
            return
        self._held = False
        untouched = self._fresh_tree()
        if untouched is _never:
            self._left = 0
        elif _holds(self._columns):  # else something was written since they passed
            self._checks.insert(0, untouched)
            del self._checks[MODES:]

    def _fresh_tree(self) -> Callable[[], bool]:
        written = self._tree.written() if self._tree is not None else set()
        if written:
            self._restless |= written
            self._checks.clear()  # they expect the versions of before
        assert self._kind is not None
        self._tree = self._kind(self._restless)
        return self._compiled(self._tree)

    def _compiled(self, quick: Columns) -> Callable[[], bool]:
        """The quick comparison with what is there now; one that never holds where something is missing."""
        try:
            for expectation in self._expectations:
                expectation.compile(quick)
            return quick.build()
        except Exception:  # noqa: BLE001 # a vanished place, or something private to torch: the expectations decide
            return _never


def _never() -> bool:
    return False


def _holds(quick: Callable[[], bool]) -> bool:
    try:
        return quick()
    except Exception:  # noqa: BLE001 # a vanished place raises what its kind raises; the expectations name it
        return False

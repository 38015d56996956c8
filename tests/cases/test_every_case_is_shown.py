"""The list of cases, in one place: each has a test that carries its id, and no test carries another."""

import ast
from pathlib import Path

CASES = (
    *(f"C{number:02}" for number in (1, 2, 3, 4)),  # values read on the host, sizes that depend on data
    *(f"C{number}" for number in (10, 11, 12, 13, 14)),  # host values frozen into the graph
    *(f"C{number}" for number in (20, 21, 22, 23)),  # outputs
    *(f"C{number}" for number in (30, 31, 32, 33, 34, 35)),  # inputs
    *(f"C{number}" for number in (40, 41, 42, 43)),  # weights
    *(f"C{number}" for number in range(50, 59)),  # training and randomness
    *(f"C{number}" for number in (60, 61, 62, 63, 64)),  # pools, lifetime, recovery
    *(f"C{number}" for number in (69, 70, 71)),  # buckets
    *(f"C{number}" for number in (90, 91, 92, 93, 94)),  # threads and tools
)


def carried():
    """Every case id that a test of this folder carries."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case":
                yield from (ast.literal_eval(argument) for argument in node.args)


def test_every_case_is_carried_by_a_test():
    assert sorted(set(CASES) - set(carried())) == []


def test_no_test_carries_a_case_that_is_not_listed():
    assert sorted(set(carried()) - set(CASES)) == []

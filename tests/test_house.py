"""The house: which of its rooms may know which, and that what is written about it is there."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "graphspec"
#: A path below the project or below the package.
NAMED = re.compile(r"(?<![\w/.])((?:graphspec|runtime|rules|compiler|recording|backends|tests|codes)/[\w/.-]*\w)")
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def file_of(module):
    """The file of a module of the package, or None."""
    at = ROOT.joinpath(*module.split("."))
    return next((each for each in (at.with_suffix(".py"), at / "__init__.py") if each.is_file()), None)


def room(file):
    """The folder, or the file that lies in none; of the runtime and the backends, the folder within."""
    parts = file.relative_to(HOUSE).with_suffix("").parts
    return "/".join(parts[:2] if parts[0] in ("runtime", "backends") and len(parts) > 2 else parts[:1])


def imported():
    """Which file imports which, also within functions."""
    edges = defaultdict(set)
    for file in sorted(HOUSE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "graphspec":
                inner = [file_of(f"{node.module}.{alias.name}") for alias in node.names]
                edges[file] |= {each for each in inner or [] if each} or {file_of(node.module)}
    return {file: {each for each in targets if each and each != file} for file, targets in edges.items()}


EDGES = imported()


def test_no_room_imports_one_that_imports_it():
    rooms = {(room(file), room(each)) for file, targets in EDGES.items() for each in targets}
    assert len(rooms) > 100  # or the imports were not found
    assert [(one, other) for one, other in sorted(rooms) if one < other and (other, one) in rooms] == []


def test_no_file_is_imported_by_way_of_itself():
    reached = {file: set(targets) for file, targets in EDGES.items()}
    for _ in EDGES:
        more = {file: targets.union(*(reached.get(each, ()) for each in targets)) for file, targets in reached.items()}
        if more == reached:
            break
        reached = more
    assert [str(file) for file, targets in reached.items() if file in targets] == []


def test_no_two_classes_have_the_same_name():
    places = defaultdict(list)
    for file in sorted(HOUSE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    text = re.sub(r"```(?!bash).*?```", "", page.read_text(), flags=re.DOTALL)
    named = set(NAMED.findall(text))
    missing = [each for each in sorted(named) if not any((at / each).exists() for at in (ROOT, HOUSE))]
    assert missing == [], f"{page.name} names what is not there"

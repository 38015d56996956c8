"""What the pages under docs/ show is a spec that `validate` takes."""

import re
from pathlib import Path

import pytest

from graphspec.loading import inspect

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: A page shows no model beside its specs.
NO_FILE = "GS214"
SHOWN = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.glob("*.md"))
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
    if block.startswith("graphspec: 1")
]


@pytest.mark.parametrize("block", SHOWN)
def test_a_spec_of_a_page_is_valid(block, tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(block)
    assert [str(each) for each in inspect(path)[1] if each.code != NO_FILE] == []


def test_some_page_shows_some():
    assert len(SHOWN) > 1

"""Every finding, word for word. A new one is a new YAML file here plus its golden text:

python -m pytest tests/findings --update-golden
"""

import re
from pathlib import Path

import pytest

from graphspec.codes import CODES
from graphspec.loading import inspect
from graphspec.report import findings_text

HERE = Path(__file__).resolve().parent
SPECS = sorted(path.name for path in HERE.glob("*.yaml"))
VALID = sorted(path.name for path in (HERE / "valid").glob("*.yaml"))
# Found without a file that git could keep, or only by running the model; tested beside what finds them.
ELSEWHERE = ("GS001", "GS002", "GS51", "GS7")


def text_of(name):
    _, findings = inspect(name)
    return findings_text.render(findings, {name: Path(name).read_text(encoding="utf-8")}).replace(str(HERE), "<here>")


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_has_exactly_the_findings_of_its_golden_text(name, monkeypatch, request):
    monkeypatch.chdir(HERE)
    golden = (HERE / name).with_suffix(".txt")
    text = text_of(name)
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in SPECS if name.startswith("GS")])
def test_a_spec_has_only_findings_of_the_code_it_is_named_after(name):
    found = set(re.findall(r"\[(GS\d+)\]", (HERE / name).with_suffix(".txt").read_text(encoding="utf-8")))
    assert name[:5] in found
    assert found - {name[:5]} <= {"GS101", "GS103", "GS209", "GS220", "GS401", "GS601"}


@pytest.mark.parametrize("code", sorted(code for code in CODES if not code.startswith(ELSEWHERE)))
def test_every_code_of_a_file_has_a_golden_text(code):
    assert any(name.startswith(code) for name in SPECS)


@pytest.mark.parametrize("name", VALID)
def test_a_valid_spec_has_no_finding(name):
    spec, findings = inspect(HERE / "valid" / name)
    assert spec is not None
    assert [str(each) for each in findings if each.severity == "error"] == []


@pytest.mark.parametrize("name", SPECS)
def test_a_message_is_one_line_with_a_place_and_a_fix(name):
    for each in inspect(HERE / name)[1]:
        assert "\n" not in each.message
        assert each.message[-1] not in ".!"
        assert each.line is not None
        assert each.column is not None
        assert each.hint

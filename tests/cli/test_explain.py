"""`graphspec explain` and `graphspec schema`: every code and every key, from the one place each is defined."""

import json
import re
from pathlib import Path

import pytest

from graphspec import cli, schema
from graphspec.codes import CODES, capture, compilers, reading, references, sizes, updates
from graphspec.codes import schema as schema_codes
from graphspec.compilers import COMPILERS
from graphspec.report import explanations

SOURCE = Path(schema.__file__).resolve().parent
KEYS = tuple(explanations.keys())


@pytest.fixture
def run(capsys):
    def command(*arguments):
        code = cli.main(arguments)
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return command


def codes_in_source():
    files = (path for path in SOURCE.rglob("*.py") if path.parent.name != "codes")
    return {code for path in files for code in re.findall(r"\"(GS\d{3})\"", path.read_text(encoding="utf-8"))}


def test_every_code_of_the_source_is_explained():
    assert codes_in_source() <= set(CODES)


def test_every_code_has_one_entry():
    parts = (reading, references, sizes, updates, compilers, capture)
    families = (schema_codes.CODES, *(part.CODES for part in parts))
    assert sum(map(len, families)) == len(CODES)


def test_every_explained_code_is_one_of_the_source():
    assert set(CODES) <= codes_in_source()


@pytest.mark.parametrize("code", CODES)
def test_a_code_has_a_title_and_a_reason(code):
    text = explanations.of_code(code)
    assert text.startswith(f"{code}: ")
    assert CODES[code].title.endswith(".")
    assert CODES[code].why.endswith(".")
    assert bool(CODES[code].wrong) == bool(CODES[code].right)


def test_a_code_is_explained_with_an_example_of_wrong_and_right(run):
    code, out, _ = run("explain", "gs101")
    assert code == 0
    assert out == (
        "GS101: Unknown key.\n\nA misspelt key would have no effect. The nearest known key is suggested. Keys that"
        " begin with `x-`\nare ignored, so that anchors have a home.\n\nwrong:\n    warmpu: 3\n\nright:\n"
        "    warmup: 3\n"
    )


def test_a_key_with_several_places_is_explained_at_each(run):
    _, out, _ = run("explain", "pad")
    assert re.findall(r"^(\S+):", out, flags=re.MULTILINE) == ["params.pad", "buffers.pad"]
    assert run("explain", "buffers.pad")[1] in out
    assert run("explain", "buffers.NAME.pad")[1] == run("explain", "buffers.pad")[1]


def test_a_key_is_explained_once_at_each_of_its_places():
    for key in KEYS:
        places = re.findall(r"^([\w.]+): ", explanations.of_key(key), flags=re.MULTILINE)
        assert len(places) == len(set(places)) > 0


def test_without_a_name_every_code_and_every_key_is_listed_with_its_title(run):
    code, out, _ = run("explain")
    assert code == 0
    assert re.findall(r"^  (GS\d+)  (.*)$", out, flags=re.MULTILINE) == [(c.code, c.title) for c in CODES.values()]
    listed = re.findall(r"^  ([a-z][\w.]*) ", out.partition("\nkeys\n")[2], flags=re.MULTILINE)
    assert set(listed) <= set(KEYS)
    assert {key.rpartition(".")[2] for key in KEYS} == {key.rpartition(".")[2] for key in listed}
    assert all(run("explain", name)[0] == 0 for name in ("GS001", listed[0], listed[-1]))


def test_every_key_of_the_schema_is_explained():
    for key in KEYS:
        assert explanations.of_key(key), key


@pytest.mark.parametrize(
    "key", ["graphspec", "dims", "regions.updates.within", "capture.gc", "inputs", "make", "sizes"]
)
def test_keys_at_any_depth_are_known(key):
    assert key in KEYS


@pytest.mark.parametrize(
    ("name", "nearest"), [("warmpu", "warmup"), ("buffers.padd", "buffers.pad"), ("GS100", "GS101")]
)
def test_an_unknown_name_exits_with_two_and_the_nearest(name, nearest, run):
    code, out, err = run("explain", name)
    assert (code, out) == (2, "")
    assert f"Did you mean '{nearest}" in err


def test_schema_prints_the_published_file(run):
    code, out, _ = run("schema")
    assert code == 0
    assert json.loads(out) == schema.published()


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_is_explained_with_every_option_and_why_some_are_refused(run, name):
    code, out, _ = run("explain", name)
    assert code == 0
    for option in COMPILERS[name].options.values():
        assert option.name in out
        assert (option.refused or option.meaning) in out

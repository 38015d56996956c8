"""Text to data with positions: YAML 1.2, every alias a copy, every slip at its place."""

import math
from pathlib import Path

import pytest
import yaml

from graphspec import document
from graphspec.errors import SpecError
from graphspec.reading import compose as composing
from graphspec.reading.construct import MAX_COPIED

HEAD = "graphspec: 1\n"
LOADERS = {"pure": composing.core_loader(yaml.SafeLoader), "libyaml": composing.core_loader(yaml.CSafeLoader)}


@pytest.fixture(params=LOADERS, autouse=True)
def loader(request, monkeypatch):
    """Every test runs with both parsers of PyYAML: results and positions must not depend on the build."""
    monkeypatch.setattr(composing.compose, "__defaults__", (LOADERS[request.param],))


def data(text):
    return document.parse(HEAD + text, "spec.yaml").data


def refused(text, head=HEAD):
    with pytest.raises(SpecError) as caught:
        document.parse(head + text, "spec.yaml")
    return caught.value.diagnostics


def only(text, head=HEAD):
    (finding,) = refused(text, head)
    return finding


@pytest.mark.parametrize(
    "word", ["off", "on", "no", "yes", "y", "1_000", "2020-01-01", "1:30", "0b1", "017x", "<", "="]
)
def test_words_that_older_yaml_converts_are_text(word):
    assert data(f"a: {word}")["a"] == word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e5", 1e5), ("1e-5", 1e-5), ("1.0e-5", 1e-5), ("1.", 1.0), (".5", 0.5), ("+1.5", 1.5), ("-1E+2", -100.0),
        (".inf", math.inf), ("-.INF", -math.inf), ("0o17", 15), ("0x1F", 31), ("017", 17), ("-12", -12), ("+3", 3),
        ("true", True), ("False", False), ("~", None), ("null", None), ("", None), ("Null", None),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema_of_yaml_1_2(text, value):
    read = data(f"a: {text}")["a"]
    assert read == value
    assert type(read) is type(value)


def test_nan_is_a_float():
    assert math.isnan(data("a: .nan")["a"])


@pytest.mark.parametrize("text", ["'1'", '"true"', "!!str 1"])
def test_a_quoted_or_tagged_scalar_is_text(text):
    assert data(f"a: {text}")["a"] in {"1", "true"}


def test_changing_one_place_of_an_alias_never_changes_the_other():
    read = data("a: &shape [1, [2]]\nb: *shape\nc: {<<: &m {k: [3]}}\nd: {<<: *m}")
    read["a"][1].append(9)
    read["c"]["k"].append(9)
    assert read["b"] == [1, [2]]
    assert read["d"] == {"k": [3]}


def test_a_merge_is_shallow_and_local_keys_win():
    read = data("a: &a {x: {p: 1}, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: {q: 1}}")
    assert read["c"] == {"x": {"q": 1}, "y": 1, "z": 2}


def test_a_quoted_merge_key_is_a_key():
    assert data('a: {"<<": 1}')["a"] == {"<<": 1}


def test_positions_of_keys_and_values_are_where_they_are_written():
    parsed = document.parse(HEAD + "é: {key: [1, 'two']}\nb:\n  - c: 3\n", "spec.yaml")
    assert parsed.position(("é",)) == (2, 4)
    assert parsed.position(("é",), key=True) == (2, 1)
    assert parsed.position(("é", "key", 1)) == (2, 14)
    assert parsed.position(("b", 0, "c")) == (4, 8)
    assert parsed.position(("b", 0, "c"), key=True) == (4, 5)


def test_the_position_of_a_merged_key_is_in_its_anchor():
    parsed = document.parse(HEAD + "a: &a {x: 1}\nb: {<<: *a}\nc: *a", "spec.yaml")
    assert parsed.position(("b", "x")) == (2, 11)
    assert parsed.position(("c", "x"), key=True) == (2, 8)


def test_the_position_of_a_missing_key_is_its_owner_and_of_a_blank_value_its_key():
    parsed = document.parse(HEAD + "a:\n  b: {c: 1}\n  d:\n", "spec.yaml")
    assert parsed.position(("a", "b", "nothing")) == (3, 3)
    assert parsed.position(("a", "d")) == (4, 3)
    assert parsed.position(("nothing",)) == (1, 1)


def test_all_findings_of_a_text_come_at_once_and_in_order():
    found = refused("a: 1\na: 2\nb: !x 1\nc: ${D}\n1: 2\n")
    assert [(each.code, each.line, each.column) for each in found] == [
        ("GS006", 3, 1), ("GS009", 4, 4), ("GS012", 5, 4), ("GS013", 6, 1),
    ]  # fmt: skip


def test_a_duplicate_key_names_both_positions():
    finding = only("b: {shape: [4], shape: [8]}")
    assert (finding.line, finding.column) == (2, 17)
    assert "line 2, column 5" in finding.message


@pytest.mark.parametrize("value", ["2", "'1'", "1.10", "2020-01-01", "", "[1]", "true", "0x1"])
def test_another_version_is_refused_before_anything_else(value):
    finding = only(f"graphspec: {value}\na: 1\na: 2\nb: !x 1", head="")
    assert finding.code == "GS014"
    assert "this build reads 1" in finding.message
    assert finding.path == ("graphspec",)


def test_a_missing_version_is_refused():
    assert only("name: x", head="").code == "GS014"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "~", "[]", "hello", "- 1", "\ufeff"])
def test_a_file_without_a_spec_is_one_plain_line(text):
    finding = only(text, head="")
    assert finding.code == "GS003"
    assert "\n" not in finding.message


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ("a:\n\tb: 1\n", (3, 1), "TAB"),
        ("a: 1\n\tb: 1\n", (3, 1), "TAB"),
        ("a: \u201chi\u201d\n", (2, 4), "LEFT DOUBLE QUOTATION MARK"),
        ("a: [\u2018x\u2019]\n", (2, 5), "LEFT SINGLE QUOTATION MARK"),
        ('a: "x\u201d\nb: 1\n', (2, 6), "RIGHT DOUBLE QUOTATION MARK"),
        ("a: 1\n\u00a0b: 1\n", (3, 1), "NO-BREAK SPACE"),
        ("a:\n  \u00a0b: 1\n  c: 1\n", (3, 3), "NO-BREAK SPACE"),
        ("a: x\u200by\n", (2, 5), "ZERO WIDTH SPACE"),
        ("a: b\ufeffc\n", (2, 5), "ZERO WIDTH NO-BREAK SPACE"),
        ("a: b\u2028c\n", (2, 5), "LINE SEPARATOR"),
        ("a: \x07\n", (2, 4), "U+0007"),
    ],
)
def test_a_character_that_only_looks_right_is_named_at_its_place(text, place, name):
    finding = only(text)
    assert (finding.code, finding.line, finding.column) == ("GS005", *place)
    assert name in finding.message


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ("a: x: y\n", (2, 5), "COLON"),
        ("a: [1, 2\nb: 3\n", (2, 4), "LEFT SQUARE BRACKET"),
        ("a: {b: 1\n", (2, 4), "LEFT CURLY BRACKET"),
        ("a: [1, 2}\n", (2, 9), "RIGHT CURLY BRACKET"),
        ("a: 'x\nb: 1\n", (2, 4), "APOSTROPHE"),
        ("a: @x\n", (2, 4), "COMMERCIAL AT"),
        ("a: `x`\n", (2, 4), "GRAVE ACCENT"),
        ("a: 1\n  b: 2\n", (3, 4), "COLON"),
        ("a:\n  b: 1\n c: 2\n", (4, 2), "LATIN SMALL LETTER C"),
        ("a: ]\n", (2, 4), "RIGHT SQUARE BRACKET"),
    ],
)
def test_what_yaml_cannot_read_is_one_line_with_the_character_by_name(text, place, name):
    finding = only(text)
    assert (finding.code, finding.line, finding.column) == ("GS004", *place)
    assert name in finding.message
    assert "\n" not in finding.message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1,\n", (2, 4)), ("a: {b: [1,\n\n\n", (2, 8)), ("a: {b:\n", (2, 4)), ("a: [\n# more\n", (2, 4)),
        ("a: {b: [1], c: {d", (2, 16)), ("a: [1]\nb", (3, 2)), ("a: [1]\nb\n\n", (3, 2)), ("a: &", (2, 5)),
        ("a: 'x\n\n", (2, 4)), ("a: [*b, &c", (2, 5)), ("a: {[", (2, 5)), ("a: [}\n", (2, 5)), ("a: [1, #", (2, 4)),
    ],
)  # fmt: skip
def test_a_file_that_is_cut_off_is_reported_at_what_is_open_and_never_behind_its_end(text, place):
    finding = only(text)
    assert (finding.line, finding.column) == place


@pytest.mark.parametrize("text", ["a: [${B}, 4]", "a: ${B}", "a: '${B}'", "a: {b: ${B}, c: 1}", "a: x/${B}/y"])
def test_an_environment_variable_is_refused(text):
    finding = only(text)
    assert finding.code == "GS012"
    assert "${B}" in finding.message


def test_a_variable_in_a_comment_is_a_comment():
    assert data("a: 1  # ${B}\n")["a"] == 1


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}", "a: *nowhere", "a: &x 1\nb: &x 2"])
def test_a_wrong_anchor_is_refused(text):
    assert only(text).code == "GS007"


def test_a_bomb_of_aliases_is_refused_before_it_expands():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    finding = only("\n".join(lines))
    assert finding.code == "GS011"
    assert f"{MAX_COPIED:,}" in finding.message


@pytest.mark.parametrize("text", ["a: " + "[" * 500 + "]" * 500, "a: " + "[" * 20_000, "a:\n" + "- " * 20_000 + "x"])
def test_deep_nesting_is_refused(text):
    assert only(text).code == "GS011"


def test_a_second_document_is_refused_where_it_begins():
    finding = only("a: 1\n---\nb: 2\n")
    assert (finding.code, finding.line, finding.column) == ("GS010", 3, 1)


def test_tags_build_no_objects():
    finding = only("a: !!python/object/apply:os.system ['false']")
    assert finding.code == "GS009"


def test_a_number_of_a_thousand_digits_is_refused():
    assert only(f"a: {'9' * 5000}").code == "GS013"


@pytest.mark.parametrize("text", ["", "# only this\n", "---\n", "# this\n--- # and that\n\n\n", "~", "\n\n", "--- ~\n"])
def test_a_file_that_holds_nothing_is_reported_at_its_beginning(text):
    finding = only(text, head="")
    assert (finding.code, finding.line, finding.column) == ("GS003", 1, 1)


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbfgraphspec: 1\r\na: [1,\r\n  2]\r\nb: x\r\n")
    read = document.read(path)
    assert read.data == {"graphspec": 1, "a": [1, 2], "b": "x"}
    assert read.position(("b",)) == (4, 4)


@pytest.mark.parametrize("name", ["missing.yaml", "folder", "latin.yaml", "utf16.yaml", "nul\0.yaml"])
def test_a_file_that_cannot_be_read_is_one_line_with_the_full_path_tried(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (tmp_path / "utf16.yaml").write_bytes("graphspec: 1\n".encode("utf-16"))
    with pytest.raises(SpecError) as caught:
        document.read(Path(name))
    (finding,) = caught.value.diagnostics
    assert finding.code == ("GS002" if name in {"latin.yaml", "utf16.yaml"} else "GS001")
    assert str(tmp_path / name) in finding.message
    assert "\n" not in finding.message

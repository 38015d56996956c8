"""`graphspec plan`: exact output, and what it never does.

A golden file is the output of the command: ``graphspec plan tests/cli/plans/NAME.yaml --format FORMAT``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphspec.cli.plan import command
from graphspec.compiler import compile_spec
from graphspec.errors import SpecError
from graphspec.loading import load
from graphspec.plan_json import from_json
from graphspec.report import plan_mermaid
from graphspec.report.tables import shortened, table
from graphspec.spec import Buffer, Model, Name, Region, Spec
from graphspec.units import human_bytes

ROOT = Path(__file__).resolve().parents[2]
PLANS = Path(__file__).parent / "plans"
SPECS = sorted(PLANS.glob("*.yaml"))
EXAMPLES = sorted((ROOT / "specs").glob("*/model.yaml"))
ENDINGS = {"text": ".txt", "json": ".json", "mermaid": ".mmd"}


def planned(*arguments):
    result = CliRunner().invoke(command, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
@pytest.mark.parametrize("style", ENDINGS)
def test_the_output_is_exactly_the_golden_file(spec, style):
    assert planned(spec, "--format", style) == spec.with_suffix(ENDINGS[style]).read_text()


def test_text_is_the_default():
    assert planned(SPECS[0]) == planned(SPECS[0], "--format", "text")


def test_the_plan_of_a_small_spec_fits_one_screen():
    lines = planned(PLANS / "decoder-step.yaml").splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize("spec", [*SPECS, *EXAMPLES], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_json_is_the_whole_plan(spec):
    assert from_json(json.loads(planned(spec, "--format", "json"))) == compile_spec(load(spec))


NODE = r"[rbpl]\d+"
LABEL = r'"[^"]+"'
SHAPE = rf"\[{LABEL}\]|\(\[{LABEL}\]\)|\[/{LABEL}/\]|\[\({LABEL}\)\]|\[\\{LABEL}\\\]|\{{\{{{LABEL}\}}\}}|\{{{LABEL}\}}"
ARROW = rf"-->|-\.->|-->\|{LABEL}\||-\. {LABEL} \.->"
MERMAID = re.compile(
    rf"flowchart LR|  subgraph pool\d+\[{LABEL}\]|  end"
    rf"|  (?:  )?(?P<node>{NODE})(?:{SHAPE})"
    rf"|  (?P<start>{NODE}) (?:{ARROW}) (?P<stop>{NODE})"
)


@pytest.mark.parametrize("spec", [*SPECS, *EXAMPLES], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_mermaid_has_only_statements_of_a_flowchart_between_declared_nodes(spec):
    lines = [MERMAID.fullmatch(line) for line in planned(spec, "--format", "mermaid").splitlines()]
    assert all(lines)
    nodes = [line["node"] for line in lines if line["node"]]
    assert len(set(nodes)) == len(nodes) > 0
    assert {end for line in lines for end in (line["start"], line["stop"]) if end} <= set(nodes)


@pytest.mark.parametrize("name", ["end", 'a"] --> end', "r0", "graph LR"])
def test_no_name_of_a_spec_is_syntax_of_the_flowchart(name):
    region = Region(name, "model.f", (Name("x"),), outputs={name + "s": ""})
    buffers = {"x": Buffer("x", shape=(4,), dtype="float32")}
    spec = Spec("s", Model("m.py:f"), {name: region}, {"replay": (name,)}, buffers=buffers)
    assert all(map(MERMAID.fullmatch, plan_mermaid.render(compile_spec(spec)).splitlines()))


def test_params_of_a_region_that_nothing_replays_are_drawn_too(tmp_path):
    (tmp_path / "model.py").write_text("def build(): ...\n")
    (tmp_path / "spec.yaml").write_text(
        "graphspec: 1\nmodel: {factory: model.py:build}\nparams: {n: {type: int}, k: {type: int}, m: {type: int}}\n"
        "buffers: {x: {shape: [2], dtype: float32}, lens: {shape: [], dtype: int64, from: n}}\nregions:\n"
        "  f: {call: model.f, inputs: [x], outputs: y}\n"
        "  g: {call: model.g, inputs: [lens, m], outputs: z, updates: [{op: aten::mul, arg: other, from: k}]}\n"
        "replay: [f]\n"
    )
    drawn = planned(tmp_path / "spec.yaml", "--format", "mermaid")
    assert all(map(MERMAID.fullmatch, drawn.splitlines()))
    assert all(f'"{name}<br>param"' in drawn for name in "nkm")


def test_findings_are_raised_as_one_error_for_the_command_line_to_print(tmp_path):
    text = (PLANS / "decoder-step.yaml").read_text().replace("[embed, decode, sample]", "[decode, embed, sample]")
    (tmp_path / "spec.yaml").write_text(text)
    (tmp_path / "model.py").write_text((PLANS / "model.py").read_text())
    result = CliRunner().invoke(command, [str(tmp_path / "spec.yaml")])
    assert isinstance(result.exception, SpecError)
    assert [finding.code for finding in result.exception.diagnostics] == ["GS302"]
    assert result.stdout == ""


def test_an_unknown_format_is_a_usage_error():
    result = CliRunner().invoke(command, [str(SPECS[0]), "--format", "xml"])
    assert result.exit_code == 2
    assert "'text', 'json', 'mermaid'" in result.stderr


def test_planning_neither_imports_torch_nor_runs_the_model():
    probe = (
        "import sys; from graphspec.cli.plan import command; command([sys.argv[1]], standalone_mode=False);"
        "assert 'torch' not in sys.modules; assert 'model' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(SPECS[0])], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("decoder-step: 8 graphs in 1 pool, 4 buckets")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (32_000, "31.2 KiB"),
        (1023 * 1024, "1023 KiB"),
        (5 * 1024**2, "5 MiB"),
        (2 * 1024**3, "2 GiB"),
        (1536 * 1024**3, "1,536 GiB"),
    ],
)
def test_bytes_are_said_in_the_unit_that_fits(count, said):
    assert human_bytes(count) == said


def test_a_long_list_keeps_its_ends_and_says_how_long_it_is():
    assert shortened(["a", "b", "c"], 3) == "a, b, c"
    assert shortened(["a", "b", "c", "d"], 3) == "a, b, ... d (4 in all)"


def test_a_table_aligns_its_columns_and_leaves_out_empty_ones():
    assert table("name", ("size", "unused", "kind"), [("a", "1", "", "x"), ("longer", "20", "", "")]) == [
        "name      size  kind",
        "  a       1     x",
        "  longer  20",
    ]
    assert table("name", ("size",), []) == []

"""`graphspec validate` and what every command shares: formats, exit codes, stdout as data, and a fast start."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from graphspec import cli
from graphspec.codes import CODES
from graphspec.errors import DeviceError, InputError, SpecError

ROOT = Path(__file__).resolve().parents[2]
GOOD = str(ROOT / "specs/mlp/model.yaml")
BAD = "graphspec: 1\nmodel: {factory: model.py:build}\ndims: {batch: [2, 1]}\nregions: {f: {call: mdel, warmpu: 3}}\n"
WARNS = "graphspec: 1\nmodel: {factory: model.py:build}\ndims: {batch: 2}\nregions: {f: {call: model, outputs: y}}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text("def build(): ...\n")
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "warns.yaml").write_text(WARNS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    def command(*arguments):
        code = cli.main([str(each) for each in arguments])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return command


def test_a_good_spec_exits_with_zero_and_says_so(run):
    assert run("validate", GOOD) == (0, "1 spec: no findings\n", "")


@pytest.mark.usefixtures("folder")
def test_findings_show_the_line_a_caret_and_the_fix(run):
    code, out, err = run("validate", "bad.yaml")
    assert (code, err) == (1, "")
    assert out == (
        "bad.yaml:3:19: error[GS401]: the sizes of dim 'batch' do not ascend: 1 comes after 2\n"
        "    3 | dims: {batch: [2, 1]}\n"
        "      |                   ^\n"
        "  fix: write [1, 2]\n"
        "bad.yaml:4:21: error[GS213]: `regions.f.call` is 'mdel', and a path begins with `model`: "
        "what the factory returned\n"
        "    4 | regions: {f: {call: mdel, warmpu: 3}}\n"
        "      |                     ^^^^\n"
        "  fix: write model\n"
        "bad.yaml:4:27: error[GS101]: unknown key `warmpu` in `regions.f`\n"
        "    4 | regions: {f: {call: mdel, warmpu: 3}}\n"
        "      |                           ^^^^^^\n"
        "  fix: did you mean `warmup`?\n"
        "1 spec: 3 errors\n"
    )


@pytest.mark.usefixtures("folder")
def test_a_warning_alone_exits_with_zero(run):
    code, out, _ = run("validate", "warns.yaml")
    assert code == 0
    assert "warning[GS220]" in out
    assert out.endswith("1 spec: 1 warning\n")


@pytest.mark.usefixtures("folder")
def test_several_specs_show_all_findings_of_all_of_them(run):
    code, out, _ = run("validate", "bad.yaml", GOOD, "missing.yaml", "warns.yaml")
    assert code == 1
    assert re.findall(r"GS\d+", out) == ["GS401", "GS213", "GS101", "GS001", "GS220"]
    assert out.endswith("4 specs: 4 errors, 1 warning\n")


@pytest.mark.usefixtures("folder")
def test_json_is_one_object_with_frozen_keys(run):
    code, out, _ = run("validate", "--format", "json", "bad.yaml", "missing.yaml")
    report = json.loads(out)
    assert code == 1
    assert set(report) == {"version", "diagnostics"}
    assert report["version"] == 1
    assert report["diagnostics"][2] == {
        "code": "GS101", "severity": "error", "message": "unknown key `warmpu` in `regions.f`", "file": "bad.yaml",
        "line": 4, "column": 27, "path": ["regions", "f", "warmpu"], "hint": "did you mean `warmup`?",
    }  # fmt: skip
    missing = report["diagnostics"][3]
    assert (missing["file"], missing["line"], missing["path"]) == ("missing.yaml", None, [])


def test_json_of_a_good_spec_has_no_diagnostics(run):
    assert json.loads(run("validate", GOOD, "--format", "json")[1]) == {"version": 1, "diagnostics": []}


def test_github_commands_are_escaped(run, folder):
    (folder / "a,b.yaml").write_text(BAD.replace("warmpu", '"50%\\n"'))
    _, out, _ = run("validate", "--format", "github", "a,b.yaml")
    lines = out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("::error file=a%2Cb.yaml,line=3,col=19,title=GS401::the sizes of dim 'batch'")
    assert "%0Afix: write [1, 2]" in lines[0]
    assert any("50%25%0A" in line for line in lines)


@pytest.mark.usefixtures("folder")
def test_sarif_has_a_rule_for_each_code_and_a_place_for_each_result(run):
    _, out, _ = run("validate", "--format", "sarif", "bad.yaml", "warns.yaml")
    log = json.loads(out)
    assert log["version"] == "2.1.0"
    (only,) = log["runs"]
    rules = only["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["GS101", "GS213", "GS220", "GS401"]
    assert rules[0]["shortDescription"]["text"] == CODES["GS101"].title
    for result in only["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    first = only["results"][0]
    assert first["level"] == "error"
    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "bad.yaml"},
                "region": {"startLine": 3, "startColumn": 19},
            }
        }
    ]


@pytest.mark.parametrize("arguments", [["validate"], ["validate", "--format", "xml", GOOD], ["nothing"], ["--nothing"]])
def test_wrong_usage_exits_with_two(arguments, run):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_a_misspelt_command_names_the_nearest(run):
    code, _, err = run("validte", GOOD)
    assert code == 2
    assert "Did you mean 'validate'?" in err


def test_the_help_lists_the_commands_that_exist_without_importing_them():
    probe = (
        "import sys; from graphspec.cli import main; main(['--help'])\n"
        "print([name for name in sys.modules if name.startswith('graphspec.cli.') or name in ('yaml', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.endswith("[]\n")
    assert re.search(r"validate +Check specs", done.stdout)


def test_every_listed_command_has_help(run):
    for name in cli.COMMANDS:
        if cli._module(name) is not None and name in {"validate", "schema", "explain", "plan"}:
            code, out, _ = run(name, "--help")
            assert code == 0
            assert out.startswith(f"Usage: graphspec {name}")


def test_the_exit_codes_are_listed_in_the_help_and_in_the_readme(run):
    shown = " ".join(run("--help")[1].split())
    readme = " ".join((ROOT / "README.md").read_text().split())
    for text in (shown, readme):
        assert cli.EXIT_CODES in text


def test_the_version_is_printed(run):
    import graphspec

    assert run("--version") == (0, f"graphspec {graphspec.__version__}\n", "")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DeviceError("no device", hint="use the cpu"), 3, "error: no device\n  fix: use the cpu\n"),
        (InputError("wrong shape"), 2, "error: wrong shape\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.Abort(), 130, "interrupted\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_every_way_out_has_its_exit_code_and_no_traceback(error, code, words, run, monkeypatch):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(cli.group, "main", fail)
    assert run("validate", GOOD) == (code, "", words)


@pytest.mark.usefixtures("folder")
def test_an_error_with_findings_shows_them_on_stderr(run, monkeypatch):
    from graphspec.loading import load

    monkeypatch.setattr(cli.group, "main", lambda *_a, **_k: load(Path("bad.yaml")))
    code, out, err = run("run", "bad.yaml")
    assert (code, out) == (SpecError.exit_code, "")
    assert "bad.yaml:4:27: error[GS101]" in err
    assert "      |                           ^^^^^^" in err


def test_a_reader_that_goes_away_is_no_error_message():
    command = f"{sys.executable} -m graphspec schema | head -c 10 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}


@pytest.mark.parametrize(("variable", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals_only(variable, coloured, folder):
    import pty

    main, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **variable}
    command = [sys.executable, "-m", "graphspec", "validate", "bad.yaml"]
    with subprocess.Popen(command, stdout=other, cwd=folder, env={**environment, "PYTHONPATH": str(ROOT)}) as process:
        process.wait()
    os.close(other)
    assert (b"\x1b[31m" in os.read(main, 100_000)) == coloured
    os.close(main)
    piped = subprocess.run(command, capture_output=True, check=False, env={**environment, "PYTHONPATH": str(ROOT)})
    assert b"\x1b[" not in piped.stdout

"""Where a spec comes from: files, pipes, standard input, folders, and names that lead nowhere."""

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import graphspec
from graphspec import cli
from graphspec.errors import SpecError
from graphspec.reading import source

ROOT = Path(__file__).resolve().parents[2]
GOOD = """\
graphspec: 1
model: {factory: model.py:build}
buffers: {x: {shape: [2], dtype: float32}}
regions: {f: {call: model, inputs: [x], outputs: y}}
"""
BAD = GOOD.replace("call: model", "call: mdel")
SHOWN = "    4 | regions: {f: {call: mdel, inputs: [x], outputs: y}}\n      |                     ^^^^\n"
LONG = "a" * 300
STYLES = ["text", "json", "github", "sarif"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("def build(): ...\n")
    return tmp_path


@pytest.fixture
def run(capsys):
    def command(*arguments):
        code = cli.main([str(each) for each in arguments])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return command


def piped(text):
    """A named pipe through which ``text`` comes once."""
    os.mkfifo("pipe")
    threading.Thread(target=Path("pipe").write_text, args=(text,), daemon=True).start()
    return "pipe"


def from_stdin(monkeypatch, text):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return "-"


@pytest.mark.parametrize("style", STYLES)
def test_a_named_pipe_is_read_once_and_its_lines_are_still_shown(style, run):
    code, out, err = run("validate", "--format", style, piped(BAD))
    assert (code, err) == (1, "")
    assert style != "text" or SHOWN in out


def test_a_command_that_needs_a_good_spec_shows_the_lines_of_a_pipe_too(run):
    code, out, err = run("plan", piped(BAD))
    assert (code, out) == (1, "")
    assert SHOWN in err


def test_a_dash_is_standard_input_and_paths_in_it_are_relative_to_the_working_directory(run, monkeypatch):
    assert run("validate", from_stdin(monkeypatch, GOOD)) == (0, "1 spec: no findings\n", "")
    code, out, _ = run("validate", from_stdin(monkeypatch, BAD))
    assert code == 1
    assert SHOWN in out
    assert run("plan", from_stdin(monkeypatch, GOOD))[1].startswith("stdin: 1 graph in 1 pool")
    assert graphspec.load(from_stdin(monkeypatch, GOOD)).name == "stdin"


def test_a_folder_is_its_model_yaml_or_else_its_only_spec(run, folder):
    Path("notes.yaml").write_text("a: 1\n")
    Path("only.yml").write_text("# first\ngraphspec: 1\n" + GOOD.partition("\n")[2])
    assert run("plan", ".")[1].startswith("only: ")
    Path("model.yaml").write_text("name: usual\n" + GOOD)
    assert run("plan", folder)[1].startswith("usual: ")
    assert graphspec.load(folder).document.path == folder / "model.yaml"


def test_a_folder_of_several_specs_is_refused_in_one_line_that_names_them(run):
    Path("a.yaml").write_text(GOOD)
    Path("b.yaml").write_text(GOOD)
    code, out, err = run("plan", ".")
    assert (code, out) == (1, "")
    assert err.splitlines()[0].endswith("is a folder of 2 specs: a.yaml, b.yaml")


def test_validate_takes_every_spec_below_a_folder_and_none_of_what_others_installed(run):
    for place in (".", "one", "one/two", ".hidden", "node_modules/x", "venv/lib"):
        Path(place).mkdir(parents=True, exist_ok=True)
        Path(place, "spec.yaml").write_text(BAD)
    Path("venv/pyvenv.cfg").touch()
    Path("one/other.yaml").write_text("version: 3\n")
    Path("loop").symlink_to(".")
    _, out, _ = run("validate", "--format", "json", ".")
    files = [each["file"] for each in json.loads(out)["diagnostics"] if each["code"] == "GS213"]
    assert files == ["spec.yaml", "one/spec.yaml", "one/two/spec.yaml"]


@pytest.mark.parametrize("command", ["validate", "plan", "check", "run"])
def test_a_folder_without_a_spec_is_one_finding(command, run):
    Path("empty").mkdir()
    code, out, err = run(command, "empty")
    assert code == 1
    assert "GS001" in out + err
    assert "is a folder" in out + err


def test_a_file_larger_than_any_spec_is_not_read_to_its_end():
    with pytest.raises(SpecError, match="holds more than 64 MiB"):
        source.read_text(Path("/dev/zero"))


@pytest.mark.parametrize("text", [BAD, None])
def test_a_deleted_working_directory_is_no_reason_to_fail(text, tmp_path):
    script = f"mkdir gone; cd gone; rmdir ../gone; {sys.executable} -m graphspec validate --format FORMAT FILE"
    place = tmp_path / "bad.yaml"
    if text is not None:
        place.write_text(text)
    for style, file in (("text", place if text else "none.yaml"), ("sarif", "none.yaml")):
        command = script.replace("FORMAT", style).replace("FILE", str(file))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stderr) == (1, "")


def test_a_model_runs_from_a_deleted_working_directory_and_writes_nothing_into_another(tmp_path):
    (tmp_path / "model.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(2, 2)\n")
    (tmp_path / "spec.yaml").write_text(GOOD)
    command = f"{sys.executable} -m graphspec run --device cpu --steps 1 --no-check {tmp_path / 'spec.yaml'}"
    script = f"mkdir gone; cd gone; rmdir ../gone; {command}; echo $?; {command} --output y.npz; echo $?"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["0", "2"]
    assert "--output: the working directory was deleted" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "place",
    ["factory: NAME.py:build", "factory: FOLDER/model.py:build", "weights: NAME.pt", "sample: {file: NAME.npy}",
     "make: NAME.py:make", "file: 'nul\\0.npy'", "factory: pipe.py:build", "weights: locked/w.pt"],
)  # fmt: skip
def test_a_file_name_that_the_system_refuses_is_a_finding_at_its_place(place, run, monkeypatch):
    os.mkfifo("pipe.py")
    if "locked" in place:  # a folder that may not be searched; root may search any
        real = Path.stat

        def stat(path, **options):
            if "locked" in str(path):
                raise PermissionError(13, "Permission denied")
            return real(path, **options)

        monkeypatch.setattr(Path, "stat", stat)
    key, _, value = place.partition(": ")
    value = value.replace("NAME", LONG).replace("FOLDER", "/".join([LONG[:200]] * 40))
    text = GOOD
    if key == "factory":
        text = GOOD.replace("model.py:build", value)
    elif key == "weights":
        text = GOOD.replace("build}", f"build, weights: {value}}}")
    elif key == "make":
        text = GOOD.replace("[x]", f"[x, {{make: {value}}}]")
    else:
        sample = value if key == "sample" else f"{{file: {value}}}".replace("'", '"')
        text = GOOD.replace("float32}", f"float32, sample: {sample}}}")
    Path("spec.yaml").write_text(text)
    _, out, err = run("validate", "--format", "json", "spec.yaml")
    assert err == ""
    (finding,) = json.loads(out)["diagnostics"]
    assert finding["code"] == ("GS215" if key == "weights" else "GS214")
    assert finding["line"] is not None


@pytest.mark.parametrize("arguments", [["validate", f"{LONG}.yaml"], ["run", "spec.yaml", "--input", f"x={LONG}.npy"]])
def test_an_over_long_name_on_the_command_line_is_one_message(arguments, run):
    Path("spec.yaml").write_text(GOOD)
    code, out, err = run(*arguments)
    assert code == (1 if arguments[0] == "validate" else 2)
    assert "File name too long" in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("there", [True, False])
def test_a_path_may_hold_any_bytes(style, there, capfdbinary):
    name = os.fsdecode(b"caf\xe9.yaml")
    if there:
        Path(name).write_text(BAD)
    code = cli.main(["validate", "--format", style, name])
    out = capfdbinary.readouterr().out
    assert code == 1
    assert {"sarif": b"caf%E9.yaml", "json": b"caf\\udce9.yaml"}.get(style, b"caf") in out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8:strict"])
def test_what_the_encoding_of_a_stream_lacks_is_written_as_an_escape(encoding):
    name = os.fsdecode(b"caf\xe9.yaml")
    Path(name).write_text("graphspec: 1\nname: \u201cx\u201d\n", encoding="utf-8")
    command = [sys.executable, "-m", "graphspec", "validate", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b".yaml:2:7: error[GS005]: " in done.stdout


@pytest.mark.parametrize(
    ("command", "code"),
    [("validate bad.yaml", 141), ("plan bad.yaml", 141), ("schema", 141), ("--help", 141), ("--nothing", 141)],
)
@pytest.mark.parametrize("streams", ["2>&1", ""])
def test_a_reader_that_is_gone_ends_a_command_as_it_ends_any_other(command, code, streams):
    Path("bad.yaml").write_text(BAD)
    script = f"(sleep 0.2; {sys.executable} -m graphspec {command} {streams}; echo $? > code) | head -0"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=environment)
    of_stderr = not streams and command in {"plan bad.yaml", "--nothing"}  # they say nothing on stdout
    expected = {"plan bad.yaml": 1, "--nothing": 2}[command] if of_stderr else code
    for _ in range(50):
        if Path("code").exists() and Path("code").read_text():
            break
        threading.Event().wait(0.1)
    assert int(Path("code").read_text()) == expected
    assert "Traceback" not in done.stderr


def completed(line, monkeypatch, run):
    words = line.split(" ")
    monkeypatch.setenv("_GRAPHSPEC_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    code, out, err = run()
    assert (code, err) == (0, "")
    return out.split()


def test_a_shell_completes_commands_flags_and_values(monkeypatch, run):
    assert completed("graphspec val", monkeypatch, run) == ["plain,validate"]
    assert "plain,plan" in completed("graphspec ", monkeypatch, run)
    assert completed("graphspec plan --fo", monkeypatch, run) == ["plain,--format"]
    assert completed("graphspec plan --format m", monkeypatch, run) == ["plain,mermaid"]
    assert completed("graphspec validate spec", monkeypatch, run) == ["file,spec"]
    assert completed("graphspec nothing --fo", monkeypatch, run) == []

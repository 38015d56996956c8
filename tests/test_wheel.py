"""The built wheel works on its own: the schema is inside, and found from there."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "schemas/graphspec-v1.schema.json"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from the checkout with the installed hatchling: no network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that holds graphspec from the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("target")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True, stdin=subprocess.DEVNULL)
    return folder


def python(installed, *arguments):
    """Runs Python away from the checkout, with the installed folder first on its path."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=installed.parent, env=environment)


def test_the_wheel_holds_the_published_schema_and_the_type_marker(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"graphspec/{SCHEMA}") == (ROOT / SCHEMA).read_bytes()
        assert "graphspec/py.typed" in archive.namelist()


def test_the_wheel_holds_every_module_and_nothing_but_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("graphspec/**/*.py")}
    assert modules <= names
    assert {name.split("/")[0] for name in names} == {"graphspec"}


def test_the_wheel_carries_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_schema_command_prints_the_schema_of_the_installed_wheel(installed):
    where = python(installed, "-c", "import graphspec; print(graphspec.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(installed)
    printed = python(installed, "-m", "graphspec", "schema")
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout) == json.loads((ROOT / SCHEMA).read_text())


def test_the_installed_wheel_validates_a_spec(installed):
    done = python(installed, "-m", "graphspec", "validate", str(ROOT / "specs/mlp/model.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_installed_wheel_has_the_command_graphspec(installed):
    done = python(installed, str(installed / "bin" / "graphspec"), "schema")
    assert done.returncode == 0, done.stderr

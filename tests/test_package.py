"""What the project promises around the code: README, CI, pins, and the public surface."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

import graphspec

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)


def commands(text):
    """The shell commands of a Markdown text, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements():
    project = PYPROJECT["project"]
    return [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]


def test_the_first_command_of_the_readme_sets_up_and_runs_an_example():
    first = commands(README)[0]
    assert first.startswith("python3 -m venv .venv && ")
    spec = re.search(r"graphspec run (\S+) --device cpu$", first).group(1)
    assert (ROOT / spec).is_file()


def test_the_second_command_of_the_readme_sets_up_and_runs_the_tests():
    second = commands(README)[1]
    assert second.startswith("python3 -m venv .venv && ")
    assert "pytest" in second.split("&&")[-1]


def test_ci_runs_the_test_command_of_the_readme():
    pattern = re.search(r"grep -m 1 -E '(.*)' README\.md", (ROOT / ".ci/run").read_text()).group(1)
    found = [line for line in README.splitlines() if re.search(pattern, line)]
    assert found[0] == commands(README)[1]


def test_the_spec_in_the_readme_is_the_example_itself():
    assert f"```yaml\n{(ROOT / 'specs/mlp/model.yaml').read_text()}```" in README


def test_the_readme_lists_every_example():
    for folder in (ROOT / "specs").iterdir():
        assert f"specs/{folder.name}/model.yaml" in README


@pytest.mark.parametrize("requirement", requirements())
def test_every_requirement_is_pinned_to_a_public_version(requirement):
    name = re.match(r"[A-Za-z0-9_.-]+", requirement).group()
    version = {normalized(key): value for key, value in PINS.items()}[normalized(name)]
    assert re.fullmatch(r"[0-9.]+", version)


def test_torch_and_torch_npu_are_pinned_to_the_same_minor_version():
    assert PINS["torch"].split(".")[:2] == PINS["torch_npu"].split(".")[:2]


def test_the_version_is_the_one_of_the_package_metadata():
    assert graphspec.__version__ == importlib.metadata.version("graphspec") == PYPROJECT["project"]["version"]


def test_importing_graphspec_does_not_import_torch():
    probe = "import sys, graphspec; assert 'torch' not in sys.modules; print(graphspec.open.__name__)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "open\n"


def test_the_public_surface_of_the_package_is_this():
    assert set(graphspec.__all__) == {
        "CaptureError",
        "CheckError",
        "DeviceError",
        "Diagnostic",
        "GraphSpecError",
        "GuardError",
        "HazardError",
        "InputError",
        "ModelError",
        "OrderError",
        "Plan",
        "ReplayError",
        "Spec",
        "SpecError",
        "WeightsError",
        "__version__",
        "apply",
        "compile",
        "load",
        "open",
    }
    for name in graphspec.__all__:
        assert getattr(graphspec, name) is not None


def test_no_line_of_the_project_names_a_machine_or_a_registry():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    for name in listed:
        if name.endswith((".py", ".toml", ".txt", ".md", ".yaml", ".json", "run")) and name != "tests/test_package.py":
            text = (ROOT / name).read_text()
            assert not re.search(r"/work/|/tmp/w/|/opt/(pypi|wheels)|pypi\.org|index-url", text), name

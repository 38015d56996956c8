"""Where a library is installed does not decide what counts as the user's code, nor what is guarded."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import graphspec
from graphspec.runtime.holdings.parts import is_installed_file

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "specs" / "mlp" / "model.yaml"
SITE_PACKAGES = Path(torch.__file__).parents[1]
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from test_where_libraries_lie import expected
print("\\n".join(expected()))
"""


def expected():
    """What is expected before each replay, in words."""
    with graphspec.open(SPEC, device="cpu") as runner:
        (guard,) = runner._variants.guards()
        facts = guard._expectations
        places = [getattr(fact, "places", ()) or [getattr(fact, "place", None)] for fact in facts]
        names = [getattr(fact, "name", None) or ", ".join(place.name for place in held if place)
                 for fact, held in zip(facts, places, strict=True)]  # fmt: skip
        return sorted(f"{type(fact).__name__} {name}" for fact, name in zip(facts, names, strict=True))


def test_packages_reached_by_another_path_are_guarded_alike(tmp_path):
    libraries = tmp_path / "libraries"
    libraries.symlink_to(SITE_PACKAGES)
    path = os.pathsep.join([str(ROOT), str(libraries)])
    call = [sys.executable, "-S", "-c", PROGRAM, str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected()


def test_a_library_is_installed_where_an_installer_noted_it_and_the_users_folder_is_not(tmp_path, monkeypatch):
    library, project = tmp_path / "library", tmp_path / "project"
    (library / "thing-1.0.dist-info").mkdir(parents=True)
    (project / "project.egg-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(library), str(project)])
    assert is_installed_file(library / "thing" / "code.py")
    assert is_installed_file(SITE_PACKAGES / "torch" / "nn" / "__init__.py")
    assert is_installed_file("/usr/lib/python3/dist-packages/yaml/__init__.py")
    assert not is_installed_file(project / "model.py")
    assert not is_installed_file(tmp_path / "elsewhere.py")

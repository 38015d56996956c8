"""With and without CANN: what runs, what is refused and why, and what `doctor` says."""

import json

import pytest

from graphspec.runtime.doctor import misfit

pytestmark = pytest.mark.takes(3)


def test_without_cann_auto_runs_on_the_cpu(command):
    done = command("run", "specs/mlp/model.yaml", "--format", "json", "--steps", "2", cann=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["device"] == "cpu"
    assert report["check"]["status"] == "match"


def test_without_cann_the_npu_is_refused_with_exit_code_3_and_one_paragraph(command):
    done = command("run", "specs/mlp/model.yaml", "--device", "npu", cann=False)
    assert done.returncode == 3
    assert not done.stdout
    reason, fix = [line for line in done.stderr.splitlines() if not line.startswith("Warning: ")]
    assert reason.startswith("error: npu cannot be used: torch_npu does not load: lib")
    assert "It needs CANN's runtime libraries (source its set_env.sh)" in reason
    assert fix == "  fix: see `graphspec doctor`, or use --device cpu"


def test_without_cann_doctor_says_why_the_npu_cannot_be_used(command):
    done = command("doctor", cann=False)
    assert done.returncode == 0, done.stderr
    assert "npu   no   torch_npu does not load: lib" in done.stdout
    assert done.stdout.endswith("device: auto is cpu here\n")
    found = json.loads(command("doctor", "--format", "json", cann=False).stdout)
    assert found["auto"] == "cpu"
    assert not found["devices"]["npu"]["usable"]
    assert "CANN" in found["devices"]["npu"]["reason"]
    assert found["devices"]["cpu"]["usable"]


def test_with_cann_doctor_lists_the_devices_and_the_version_of_cann(command):
    done = command("doctor")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("graphspec ")
    assert "npu   yes  2 x Ascend910B3\n           CANN 8.5.0\n" in done.stdout
    assert done.stdout.endswith("device: auto is npu here\n")
    found = json.loads(command("doctor", "--format", "json").stdout)
    assert found["auto"] == "npu"
    assert found["devices"]["npu"] == {
        "usable": True,
        "reason": None,
        "count": 2,
        "models": ["Ascend910B3", "Ascend910B3"],
        "notes": ["CANN 8.5.0"],
        "can": "NPU graphs; updates of the operators that have a handler in torch_npu",
    }


@pytest.mark.parametrize("versions", [("2.13.0", "2.13.0"), ("2.13.1+cpu", "2.13.0.post2"), ("2.9.0", "2.9.0rc1")])
def test_the_same_minor_versions_go_together(versions):
    assert misfit(*versions) is None


@pytest.mark.parametrize("versions", [("2.13.0+cpu", "2.12.0"), ("2.1.0", "2.13.0"), ("3.13.0", "2.13.0")])
def test_other_minor_versions_are_named_with_the_torch_to_install(versions):
    torch_version, npu_version = versions
    wanted = ".".join(npu_version.split(".")[:2])
    assert misfit(*versions) == (
        f"torch_npu {npu_version} goes with torch {wanted}.*, and torch is {torch_version}: install torch=={wanted}.*"
    )

"""Every example captures, replays and matches eager on the emulated NPU."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPECS = {
    path.parent.name: path
    for path in sorted(ROOT.glob("specs/*/model.yaml"))
    if "x-check-only: true" not in path.read_text()
}


def test_the_example_for_npus_is_there():
    assert "paged-decode" in SPECS


@pytest.mark.parametrize("name", SPECS)
def test_an_example_matches_eager_on_the_npu_and_stdout_is_one_json_object(command, name):
    done = command("run", str(SPECS[name]), "--device", "npu", "--format", "json", "--steps", "5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["spec"] == name
    assert report["device"] == "npu:0"
    assert report["check"]["status"] == "match"

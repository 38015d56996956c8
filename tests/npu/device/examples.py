"""Every example captures, replays and matches eager on the emulated NPU."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from graphspec.cli import group

ROOT = Path(__file__).resolve().parents[3]
SPECS = {
    path.parent.name if path.stem == "model" else f"{path.parent.name}-{path.stem}": path
    for path in sorted([*ROOT.glob("specs/*/model.yaml"), ROOT / "specs/paged-decode/compiled.yaml"])
    if "x-check-only: true" not in path.read_text()
}


@pytest.mark.parametrize("name", SPECS)
def test_an_example_matches_eager(name):
    options = ["--device", "npu", "--format", "json", "--steps", "5"]
    with torch.enable_grad():  # as in a process of its own
        done = CliRunner().invoke(group, ["run", str(SPECS[name]), *options])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["spec"] == name
    assert report["device"] == "npu:0"
    assert report["check"]["status"] == "match"

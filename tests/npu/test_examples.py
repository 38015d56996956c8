"""The example for NPUs from the command line; device/examples.py runs every example, in one process."""

import json

import pytest


@pytest.mark.takes(6)
def test_the_example_for_npus_matches_eager_and_stdout_is_one_json_object(command):
    done = command("run", "specs/paged-decode/model.yaml", "--device", "npu", "--format", "json", "--steps", "5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["spec"] == "paged-decode"
    assert report["device"] == "npu:0"
    assert report["check"]["status"] == "match"

"""The one comparison of times among the tests of the NPU: a ratio of two measured in turns."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_costs_no_more_host_time_than_torch_npus_own_graphed_callable(environment):
    call = [sys.executable, "benchmarks/npu_host_time.py"]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ratio 0." in done.stdout or "ratio 1.00" in done.stdout

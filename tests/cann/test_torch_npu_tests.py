"""The script that runs torch_npu's own tests: what it counts, and what it says of the tests that do not pass."""

from __future__ import annotations

import os
from pathlib import Path

import torch_npu_tests

TESTS = """
import os, time, unittest
class T(unittest.TestCase):
    def test_a_pass(self): pass
    def test_a_pass_too(self): pass
    def test_b_fail(self): raise RuntimeError("failed\\n[emulated CANN] stream 3: aclnnX: no size 123456")
    def test_c_end(self): os._exit(7)
    @unittest.skip("other chips")
    def test_d_skip(self): pass
    def test_e_hang(self): time.sleep(60)
    def test_f_pass(self): pass
"""


def test_each_test_counts_once_also_behind_failures_ends_and_hangs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    environment = torch_npu_tests.settings(dict(os.environ), tmp_path / "out")
    outcomes = torch_npu_tests.run_file(tmp_path, "test_it.py", environment, patience=3)
    found = {test.split("::")[-1]: outcome for test, outcome in outcomes.of.items()}
    assert list(found.values()) == ["passed", "passed", "failed", "failed", "skipped", "failed", "passed"]
    assert list(outcomes.why.values()) == [
        "aclnnX: no size N",
        "the process ended with 7",
        "other chips",
        "no progress for 3 s",
    ]
    text = "\n".join(torch_npu_tests.tables({"test_it.py": outcomes}))
    assert "| test_it.py | 3 | 3 | 1 |" in text
    assert "| failed | the process ended with 7 | test_c_end |" in text

"""Makes the package `random_models` beside this file importable, and closes with what became of the draws."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter):
    from random_models.statistics import lines, total

    reports = [report for each in ("passed", "failed") for report in terminalreporter.stats.get(each, ())]
    parts = [value for report in reports for name, value in report.user_properties if name == "random models"]
    if parts:
        terminalreporter.section("random models")
        for line in lines(total(parts)):
            terminalreporter.line(line)

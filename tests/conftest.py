"""Runs before any test imports torch."""

import os
import sys

# With torch_npu installed and no CANN beside it, `import torch` itself would fail, and so would transformers, which
# imports torch_npu where it is installed. The tests of the NPU run processes of their own, on the emulated CANN.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
if "cann" not in " ".join(sys.argv):
    sys.modules.setdefault("torch_npu", None)


def pytest_ignore_collect(collection_path, config):
    """tests/cann loads torch_npu and runs in a process of its own: `pytest tests/cann`."""
    if collection_path.name == "cann" and not any("cann" in argument for argument in config.args):
        return True
    return None

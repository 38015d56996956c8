"""Runs before any test imports torch."""

import os

# With torch_npu installed and no CANN beside it, `import torch` itself would fail.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


def pytest_ignore_collect(collection_path, config):
    """tests/cann loads torch_npu and runs in a process of its own: `pytest tests/cann`."""
    if collection_path.name == "cann" and not any("cann" in argument for argument in config.args):
        return True
    return None

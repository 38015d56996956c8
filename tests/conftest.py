"""Runs before any test imports torch."""

import os
import sys

# With torch_npu installed and no CANN beside it, `import torch` itself would fail, and so would transformers, which
# imports torch_npu where it is installed. The tests of the NPU run processes of their own, on the emulated CANN.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
if "cann" not in " ".join(sys.argv):
    sys.modules.setdefault("torch_npu", None)


# Folders whose tests load torch_npu, each in a process of its own: only where a command names them.
OF_THEIR_OWN_PROCESS = ("cann", "device")


def pytest_ignore_collect(collection_path, config):
    if collection_path.name in OF_THEIR_OWN_PROCESS:
        named = any(collection_path.name in argument for argument in config.args)
        return None if named else True
    return None


def pytest_configure(config):
    config.addinivalue_line("markers", "takes(seconds): about how long a test takes; the longest begin first")
    if getattr(config.option, "maxschedchunk", 0) is None:  # pytest-xdist: hand tests out few at a time, ...
        config.option.maxschedchunk = 2


def pytest_collection_modifyitems(items):
    """The longest first, so that the workers of a parallel run end together."""
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("takes")), default=0))

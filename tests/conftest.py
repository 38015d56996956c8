"""Runs before any test imports torch."""

import os

# With torch_npu installed and no CANN beside it, `import torch` itself would fail.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

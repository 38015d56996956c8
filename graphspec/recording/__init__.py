"""What a region did, as data: the operators it called, on which memory, from which lines. The first layer with torch.

``import torch`` loads every installed device extension, and fails altogether where one of them fails: a torch_npu
without CANN's libraries would take the CPU away too. So graphspec imports torch without them, and a device's
extension when that device is opened (`graphspec.runtime.building.devices`), where a failure can be explained.
"""

from __future__ import annotations

import os
import sys

from graphspec.errors import DeviceError

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

if "torch" not in sys.modules:
    try:
        os.getcwd()  # noqa: PTH109 - torch's math library ends the process in a folder that is gone
    except FileNotFoundError:
        message = "the current folder was deleted, and torch cannot be loaded in it"
        raise DeviceError(message, hint="change to a folder that exists") from None
    _before = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        import torch  # noqa: F401 - for its side effect: from here on it is there
    finally:
        if _before is None:
            del os.environ[_AUTOLOAD]
        else:
            os.environ[_AUTOLOAD] = _before

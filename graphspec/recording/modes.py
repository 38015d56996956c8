"""What graphspec's dispatch modes have in common."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch.compile need not be kept away from: that costs more than most operators.

    Compiled functions run as eager code under any mode, so there is nothing to keep away.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

"""What functions made by torch.compile do while regions are rehearsed and captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compiled_as_eager() -> Iterator[None]:
    """Inside, what the model compiled itself runs as the code it was made of: kernels are no operators to record."""
    with torch.compiler.set_stance("force_eager"):
        yield

"""A spec checked without weights and without a device: its model and regions on fake tensors.

Named after what it does, a trace; ``runtime.check`` compares real replays with eager.
"""

from graphspec.runtime.tracing.check import check_spec

__all__ = ["check_spec"]

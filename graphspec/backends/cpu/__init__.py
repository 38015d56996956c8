"""The CPU backend: records the dispatcher calls of one run and replays them at the same addresses.

It is the reference for what a device graph means: old addresses, frozen scalars, one memory arena a pool that later
captures and wrong orders really overwrite.
"""

from graphspec.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]

"""The device a spec is judged for, as far as the runtime asks a backend without capturing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from graphspec.recording.calls import Call

#: What torch_npu 2.13 updates, by operator; more can be registered (`npu.handlers`).
_NPU: Mapping[str, tuple[str, ...]] = {
    "npu_fused_infer_attention_score": ("actual_seq_lengths", "actual_seq_lengths_kv"),
    "npu_fused_infer_attention_score_v2": ("actual_seq_qlen", "actual_seq_kvlen"),
    "_npu_paged_attention": ("context_lens",),
    "npu_multi_head_latent_attention": ("context_lens",),
    "npu_fusion_attention_v3": ("actual_seq_qlen", "actual_seq_kvlen"),
    "npu_fusion_attention_grad_v3": ("actual_seq_qlen", "actual_seq_kvlen"),
}


@dataclass(frozen=True)
class JudgedDevice:
    """``label`` is auto (judged for every device), cpu, cuda or npu; ``handlers``: the spec registers more updates."""

    label: str
    handlers: bool = False

    @property
    def device(self) -> torch.device:
        """Where tensors are in a trace: everything is on the CPU."""
        return torch.device("cpu")

    @property
    def name(self) -> str:
        """The label of the watch, which judges for every device under the name of the CPU."""
        return "cpu" if self.label == "auto" else self.label

    def updatable(self, call: Call) -> tuple[str, ...] | None:
        """The arguments of a recorded call that the device can update; None: any, as far as is known."""
        return self._updatable(call.name)

    def can_update(self, op: str, arg: str) -> bool:
        """Whether the device can update an argument of an operator, as far as names tell."""
        accepted = self._updatable(op)
        return accepted is None or arg in accepted

    def _updatable(self, op: str) -> tuple[str, ...] | None:
        if self.label == "cuda":
            return ()
        if self.label != "npu":
            return None
        known = _NPU.get(op.rpartition("::")[2].partition(".")[0])
        return None if known is None and self.handlers else known or ()

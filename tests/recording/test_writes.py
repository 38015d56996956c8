"""What an operator writes: the one answer, against what kernels really do and against every schema there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed  # registers the collectives

from graphspec.recording.writes import effect_of

aten = torch.ops.aten
SCRIPT = Path(__file__).with_name("every_write.py")
#: They get running statistics and read them.
READING = (
    "_batch_norm_no_update", "_native_batch_norm_legit_no_training", "_functional", "backward",
    "fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper",  # marked, as they should be
)  # fmt: skip


@pytest.mark.takes(12)
def test_every_operator_of_torch_writes_what_is_said_of_it():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def written_names(op, args, kwargs):
    said = [id(one) for one in effect_of(op).written(args, kwargs)]
    named = dict(zip([it.name for it in op._schema.arguments], args, strict=False)) | kwargs
    return {name for name, value in named.items() if isinstance(value, torch.Tensor) and id(value) in said}


X, WEIGHT = torch.randn(4, 3, 5), torch.ones(3)


def statistics():
    return torch.zeros(3), torch.ones(3)


def outs(count):
    return {"out": torch.empty_like(X)} | {name: torch.empty(3) for name in ("save_mean", "save_invstd")[: count - 1]}


NORMS = {
    "batch_norm": lambda train: (aten.batch_norm.default, (X, None, None, *statistics(), train, 0.1, 1e-5, False), {}),
    "batch_norm by index": lambda train: (
        aten._batch_norm_impl_index.default, (X, None, None, *statistics(), train, 0.1, 1e-5, False), {}
    ),
    "native_batch_norm": lambda train: (
        aten.native_batch_norm.default, (X, None, None, *statistics(), train, 0.1, 1e-5), {}
    ),
    "native_batch_norm by keywords": lambda train: (
        aten.native_batch_norm.default,
        (X, None, None),
        dict(zip(("running_mean", "running_var"), statistics(), strict=True))
        | {"training": train, "momentum": 0.1, "eps": 1e-5},
    ),
    "native_batch_norm.out": lambda train: (
        aten.native_batch_norm.out, (X, None, None, *statistics(), train, 0.1, 1e-5), outs(3)
    ),
    "instance_norm": lambda train: (
        aten.instance_norm.default, (X, WEIGHT, WEIGHT, *statistics(), train, 0.1, 1e-5, False), {}
    ),
    "batch_norm_update_stats": lambda _: (aten.batch_norm_update_stats.default, (X, *statistics(), 0.1), {}),
    "no statistics": lambda _: (aten.native_batch_norm.default, (X, None, None, None, None, True, 0.1, 1e-5), {}),
    "without update": lambda _: (
        aten._native_batch_norm_legit_no_training.default, (X, None, None, *statistics(), 0.1, 1e-5), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_running_statistics_are_written_exactly_when_the_kernel_writes_them(name, train):
    op, args, kwargs = NORMS[name](train)
    named = dict(zip([it.name for it in op._schema.arguments], args, strict=False)) | kwargs
    before = {key: value.clone() for key, value in named.items() if isinstance(value, torch.Tensor)}
    with torch.inference_mode():
        op(*args, **kwargs)
    really = {key for key, value in before.items() if not torch.equal(named[key], value)}
    assert written_names(op, args, kwargs) == really | {it.name for it in op._schema.arguments if it.is_out}


def schemas(*namespaces):
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), name, None) if namespace in namespaces else None
        op = getattr(packet, schema.overload_name or "default", None) if packet is not None else None
        if op is not None:
            yield name, op


def all_targets(op):
    """The names of what may be written, whatever the call."""
    named = {it.name: it.name for it in op._schema.arguments}
    return set(effect_of(op).targets((), named))


def test_nobody_who_gets_running_statistics_is_forgotten():
    found = [(name, op) for name, op in schemas("aten") if any("running" in it.name for it in op._schema.arguments)]
    assert len(found) >= 35
    silent = {name for name, op in found if not any("running" in target for target in all_targets(op))}
    assert {name for name in silent if not any(word in name for word in READING)} == set()


def test_collectives_write_what_they_receive_into():
    wrong = {name: all_targets(op) for name, op in schemas("c10d") if name.endswith("_") and not all_targets(op)}
    assert wrong == {"monitored_barrier_": set()}
    assert all_targets(torch.ops.c10d.allreduce_.default) == {"tensors"}
    assert all_targets(torch.ops.c10d._allgather_base_.default) == {"output_tensor"}
    assert all_targets(torch.ops.c10d.send.default) == set()


def test_what_only_changes_the_look_of_a_tensor_writes_no_memory():
    tensor = torch.zeros(2, 3)
    effect = effect_of(aten.t_.default)
    assert effect.written((tensor,), {}) == ()
    assert effect.targets((tensor,), {}) == (tensor,)


def test_what_has_no_schema_may_write_all_it_is_given():
    tensor, other = torch.zeros(1), torch.zeros(1)
    assert effect_of(torch.ops.higher_order.cond).written((tensor,), {"other": other}) == (tensor, other)

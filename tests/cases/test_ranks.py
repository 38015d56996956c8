"""Several ranks over gloo, each in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.takes(4)

MODEL = """
import torch
import torch.distributed as dist

class Model(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1
    def other(self, x):
        return x - 1
"""
SPEC = """
graphspec: 1
name: ranks
model: {{factory: model.py:Model}}
dims: {{batch: {buckets}}}
buffers:
  x: {{shape: [batch], dtype: float32}}
  y: {{role: output, shape: [batch], dtype: float32}}
  z: {{role: output, shape: [batch], dtype: float32}}
regions:
  reduce: {{call: model, inputs: [x], outputs: y}}
  other: {{call: model.other, inputs: [x], outputs: z}}
replay: {order}
"""
# An ordinary exit may abort in gloo's own threads ("terminate called without an active exception"), after all is done.
RANK = """
import os, sys, torch, torch.distributed as dist, graphspec
from graphspec.errors import GraphSpecError
spec, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2)
try:
    runner = graphspec.open(spec, device="cpu")
    for step in range(3):
        print(runner.run(x=torch.full((2,), float(rank + 1 + step)))["y"].tolist())
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
except GraphSpecError as error:
    print(f"refused: {error}")
    sys.exit(error.exit_code)
"""
LATE = """
import sys, torch.distributed as dist, graphspec
from graphspec.errors import CaptureError
from graphspec.runtime import ranks
spec, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2)
if rank == 0:
    try:
        ranks.agree(graphspec.compile(graphspec.load(spec)), patience_s=2)
    except CaptureError as error:
        print(error.message)
dist.barrier()
"""


def run(tmp_path, specs, script=RANK):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "rank.py").write_text(script)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank, (buckets, order) in enumerate(specs):
        path = tmp_path / f"rank{rank}.yaml"
        path.write_text(SPEC.format(buckets=buckets, order=order))
        command = [sys.executable, str(tmp_path / "rank.py"), str(path), str(rank)]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    started = time.monotonic()
    outputs = [process.communicate(timeout=120) for process in processes]
    assert time.monotonic() - started < 100
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, outputs, strict=True)]


@pytest.mark.case("C91")
def test_a_collective_inside_a_region_is_replayed_on_every_rank(tmp_path):
    for code, out, err in run(tmp_path, [("[2]", "[reduce, other]")] * 2):
        assert code == 0, err
        sums = [2.0 * (1 + step) + 2.0 * (2 + step) + 1 for step in range(3)]
        assert out.splitlines() == [str([total, total]) for total in sums]


@pytest.mark.case("C91")
@pytest.mark.parametrize(
    "other", [("[2]", "[reduce, other]"), ("[2, 4]", "[other, reduce]")], ids=["a bucket less", "another order"]
)
def test_ranks_with_different_plans_all_stop_with_the_first_difference(tmp_path, other):
    results = run(tmp_path, [("[2, 4]", "[reduce, other]"), other])
    messages = {out for _, out, _ in results}
    assert len(messages) == 1
    (message,) = messages
    assert message.startswith("refused: the ranks have different plans, first at ")
    assert "rank 0 has" in message
    assert "rank 1 has" in message
    assert all(code == 3 for code, _, _ in results)


@pytest.mark.case("C91")
def test_a_rank_that_never_opens_the_spec_is_named(tmp_path):
    results = run(tmp_path, [("[2]", "[reduce, other]")] * 2, LATE)
    assert results[0][1].strip() == "rank 0 waited 2 s for the plan of rank 1", results

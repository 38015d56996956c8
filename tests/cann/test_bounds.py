"""Shapes and bounds of every argument are checked: when the operator is called, as CANN does, or else when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

npu = torch.npu


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="npu")


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="npu")


def rows(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device="npu")


# Each is refused by torch_npu, or, with the operator's name, by the emulated CANN. CPU PyTorch refuses them all.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "copy_": (lambda: ones(2).copy_(ones(3)), r"aclnnInplaceCopy: a tensor of shape \[3\] does not broadcast to \[2\]"),
    "copy_ of two": (lambda: ones(8).copy_(ones(2)), r"aclnnInplaceCopy: .* \[2\] does not broadcast to \[8\]"),
    "copy_ of another dtype": (lambda: ones(2).copy_(ones(3).half()), "aclnnInplaceCopy: .* does not broadcast"),
    "copy_ strided": (lambda: ones(2, 3).t().copy_(ones(2, 3)), "aclnnInplaceCopy: .* does not broadcast"),
    "copy_ of more dimensions": (lambda: ones(2).copy_(ones(3, 2)), "aclnnInplaceCopy: .* does not broadcast"),
    "_foreach_copy_": (lambda: torch._foreach_copy_([ones(2)], [ones(3)]), "aclnnInplaceCopy: .* does not broadcast"),
    "_foreach_add_": (lambda: torch._foreach_add_([ones(2)], [ones(3)]), "aclnnInplaceAdd: .* does not broadcast"),
    "add_": (lambda: ones(2).add_(ones(3)), "aclnnInplaceAdd: .* does not broadcast"),
    "add_ of more dimensions": (lambda: ones(2).add_(ones(3, 2)), "aclnnInplaceAdd: .* does not broadcast"),
    "addcdiv_": (lambda: ones(2).addcdiv_(ones(3), ones(3)), "aclnnInplaceAddcdiv: .* does not broadcast"),
    "masked_fill_": (
        lambda: ones(4, 2).masked_fill_(ones(3, 2) > 0, 1.0),
        "aclnnInplaceMaskedFill.* does not broadcast",
    ),
    "cat": (lambda: torch.cat([ones(2, 3), ones(2, 4)]), r"aclnnCat: a part of shape \[2, 4\] does not fit"),
    "stack": (lambda: torch.stack([ones(2), ones(3)]), r"aclnnStack: a part of shape \[3\] does not fit"),
    "matmul": (lambda: ones(2, 3) @ ones(4, 5), r"aclnnMatmul: .*\[2, 3\] and \[4, 5\] have no product"),
    "bmm": (lambda: torch.bmm(ones(2, 3, 4), ones(2, 5, 6)), "aclnnBatchMatMul: .* have no product"),
    "bmm of other batches": (
        lambda: torch.bmm(ones(2, 3, 4), ones(3, 4, 6)),
        "aclnnBatchMatMul: .* does not broadcast",
    ),
    "mv": (lambda: torch.mv(ones(2, 3), ones(4)), "aclnnMv: .* have no product"),
    "dot": (lambda: torch.dot(ones(3), ones(4)), "aclnnDot: .* have no product"),
    "linear": (lambda: F.linear(ones(2, 3), ones(4, 5)), "aclnnMatmul: .* have no product"),
    "gather": (lambda: ones(2, 3).gather(0, rows(3, 4)), r"aclnnGather: positions of shape \[3, 4\] reach past"),
    "scatter_": (
        lambda: ones(2, 3).scatter_(0, rows(2, 3), ones(1, 2)),
        "aclnnInplaceScatter: positions .* reach past",
    ),
    "index_copy_": (
        lambda: ones(4, 2).index_copy_(0, index(0, 1, 2), ones(2, 2)),
        "aclnnInplaceIndexCopy: 3 positions",
    ),
    "nll_loss weights": (
        lambda: F.cross_entropy(ones(2, 6), index(0, 1), ones(5)),
        r"aclnnNLLLoss: weights of shape \[5\] for 6 classes",
    ),
    "softmax": (lambda: F.softmax(ones(4), 2), "aclnnSoftmax: .* has no dimension 2"),
    "glu": (lambda: F.glu(ones(3)), "aclnnGlu: .* no halves"),
    "topk": (lambda: torch.topk(ones(3), 5), "aclnnTopk: 5 of 3 elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_shapes_are_refused_at_the_call_and_nothing_is_written(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(RuntimeError, match=message):
        call()
    npu.synchronize()  # nothing was queued


def test_a_refused_copy_leaves_its_target_alone() -> None:
    memory = ones(8)
    with pytest.raises(RuntimeError, match="aclnnInplaceCopy"):
        memory[:2].copy_(ones(3) * 7)
    assert memory.tolist() == [1.0] * 8


def test_wrong_shapes_are_refused_in_a_capture() -> None:
    target, source = ones(2), ones(3)
    graph = npu.NPUGraph()
    with pytest.raises(RuntimeError, match="aclnnInplaceCopy"), npu.graph(graph):
        target.copy_(source)


def test_a_view_past_the_end_of_its_storage_is_refused() -> None:
    x = ones(4)
    x.untyped_storage().resize_(8)
    with pytest.raises(
        RuntimeError, match=r"aclnnAdds: a tensor of shape \[4\], strides \[1\] and offset 0 reaches past"
    ):
        x + 1


@dataclass(frozen=True)
class Late:
    """What only the data tells: reported by the next synchronization, and the stream works again."""

    run: Callable[[], Any]
    message: str


LATE = {
    "embedding": Late(lambda: F.embedding(index(7), ones(4, 2)), "aclnnEmbedding: index 7 is out of range"),
    "masked_scatter_": Late(
        lambda: ones(4).masked_scatter_(ones(4) > 0, ones(3)), "aclnnInplaceMaskedScatter: an argument of 3 elements"
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_what_the_data_asks_for_is_checked_when_the_operator_runs(name: str) -> None:
    LATE[name].run()
    with pytest.raises(RuntimeError, match=LATE[name].message):
        npu.synchronize()
    assert (ones(2) + 1).tolist() == [2.0, 2.0]

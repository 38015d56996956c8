"""Devices and limits of their cores, and npugraph_ex, which reads these limits before it captures."""

from __future__ import annotations

import ctypes

import loader
import pytest
import torch
import torch_npu

npu = torch.npu
ALL = {"cube_core_num": 20, "vector_core_num": 40}


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 2),
        ("0", 1),
        ("1", 1),
        ("0,1", 2),
        ("0,7,1", 1),
        ("1,0", 0),
        ("0,0", 0),
        ("", 0),
        ("npu0", 0),
        ("0, 1", 1),
    ],
)
def test_as_many_devices_as_are_visible(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    if visible is not None:
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    seen = ctypes.c_uint32()
    assert loader._control().aclrtGetDeviceCount(ctypes.byref(seen)) == 0
    assert seen.value == count


def test_a_stream_has_the_limits_of_its_device_until_it_has_its_own() -> None:
    stream = npu.Stream()
    assert npu.get_device_limit(0) == npu.get_stream_limit(stream) == ALL
    try:
        npu.set_device_limit(0, 10, 30)
        npu.set_stream_limit(stream, 5)
        assert npu.get_device_limit(0) == {"cube_core_num": 10, "vector_core_num": 30}
        assert npu.get_stream_limit(stream) == {"cube_core_num": 5, "vector_core_num": 30}
        npu.reset_stream_limit(stream)
        assert npu.get_stream_limit(stream) == {"cube_core_num": 10, "vector_core_num": 30}
    finally:
        torch_npu._C._npu_reset_device_res_limit(0)
    assert npu.get_device_limit(0) == ALL


@pytest.mark.parametrize("cores", [0, 21])
def test_a_limit_that_the_device_cannot_give_is_refused(cores: int) -> None:
    with pytest.raises(RuntimeError, match=f"a limit of {cores} cores where the device has 20"):
        npu.set_stream_limit(npu.Stream(), cores)


def test_a_time_limit_of_operators_is_accepted() -> None:
    npu.set_op_timeout_ms(1000)
    assert (torch.ones(2, device="npu") + 1).tolist() == [2.0, 2.0]


def test_npugraph_ex_captures_a_compiled_function_and_captures_again_for_other_limits() -> None:
    @torch.compile(backend="npugraph_ex", fullgraph=True, dynamic=False)
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 - 1)

    x = torch.tensor([0.0, 1.0, 2.0], device="npu")
    for step in range(3):
        x.fill_(step)
        assert f(x).tolist() == [max(2.0 * step - 1, 0)] * 3
    npu.set_stream_limit(npu.current_stream(), 10, 20)
    try:
        assert f(x).tolist() == [3.0] * 3
    finally:
        npu.reset_stream_limit(npu.current_stream())

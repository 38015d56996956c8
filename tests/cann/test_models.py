"""Whole models on the emulated NPU: eager, captured and trained, against the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, ResNetConfig, ResNetForImageClassification, StaticCache

npu = torch.npu


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance)


def graph_of(run: Any) -> tuple[Any, Any]:
    run()
    npu.synchronize()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        out = run()
    return graph, out


@torch.no_grad()
def test_mlp() -> None:
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8), nn.Softmax(-1))
    device, x = copy.deepcopy(cpu).npu(), torch.randn(4, 16).npu()
    graph, y = graph_of(lambda: device(x))
    new = torch.randn(4, 16)
    x.copy_(new)
    graph.replay()
    close(y, cpu(new))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_llama_decodes_in_a_graph(attention: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attn_implementation=attention,
    )
    cpu = LlamaForCausalLM(config).eval()
    device = copy.deepcopy(cpu).npu()

    def decode(model: Any, where: str, *, captured: bool) -> torch.Tensor:
        cache = StaticCache(config=config, max_cache_len=16)
        token = torch.zeros(1, 1, dtype=torch.long, device=where)
        position = torch.zeros(1, 1, dtype=torch.long, device=where)

        def step() -> torch.Tensor:
            return model(token, past_key_values=cache, position_ids=position, use_cache=True).logits

        graph, out = graph_of(step) if captured else (None, None)
        cache.reset()
        logits = []
        for i in range(8):
            token.fill_(3 * i + 1)
            position.fill_(i)
            if graph:
                graph.replay()
            else:
                out = step()
            logits.append(out.cpu().clone())
        return torch.cat(logits)

    expected = decode(cpu, "cpu", captured=False)
    close(decode(device, "npu", captured=False), expected)
    close(decode(device, "npu", captured=True), expected)


@pytest.mark.parametrize("layer", ["basic", "bottleneck"])
@torch.no_grad()
def test_resnet(layer: str) -> None:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type=layer, num_labels=5)
    cpu = ResNetForImageClassification(config).eval()
    device, x = copy.deepcopy(cpu).npu(), torch.randn(2, 3, 32, 32).npu()
    graph, y = graph_of(lambda: device(x).logits)
    new = torch.randn(2, 3, 32, 32)
    x.copy_(new)
    graph.replay()
    close(y, cpu(new).logits)


def test_channels_last_is_refused_by_torch_npu() -> None:
    with pytest.raises(RuntimeError, match="Only contiguous_format or preserve_format is supported"):
        torch.ones(1, 3, 4, 4, device="npu").to(memory_format=torch.channels_last)


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell])
@torch.no_grad()
def test_recurrent_cell_carries_its_state(cell: Any) -> None:
    torch.manual_seed(0)
    cpu = cell(8, 8)
    device, x, state = copy.deepcopy(cpu).npu(), torch.randn(2, 8), torch.zeros(2, 8)
    on_npu, held = x.npu(), torch.zeros(2, 8, device="npu")
    graph, _ = graph_of(lambda: held.copy_(device(on_npu, held)))
    held.zero_()
    for _ in range(4):
        graph.replay()
        state = cpu(x, state)
        close(held, state)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "sgd single": (torch.optim.SGD, {"lr": 0.05, "foreach": False}),
    "sgd momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "capturable": True}),
    "adam single": (torch.optim.Adam, {"lr": 0.01, "capturable": True, "foreach": False}),
    "adam amsgrad": (torch.optim.Adam, {"lr": 0.01, "capturable": True, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "capturable": True, "weight_decay": 0.1}),
    "adamw fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_in_a_graph(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    torch.manual_seed(0)
    # No bias before BatchNorm: its gradient is rounding noise, which Adam would blow up.
    layers = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    cpu = nn.Sequential(*layers)
    device = copy.deepcopy(cpu).npu()
    x, labels = torch.randn(6, 8), torch.randint(0, 4, (6,))
    on_cpu = {key: value for key, value in options.items() if key != "capturable"}
    trainers = kind(cpu.parameters(), **on_cpu), kind(device.parameters(), **options)

    def step(model: nn.Module, optimizer: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    inputs, targets = x.npu(), labels.npu()
    stream = npu.Stream()
    stream.wait_stream(npu.current_stream())
    with npu.stream(stream):
        for _ in range(3):
            step(cpu, trainers[0], x, labels)
            step(device, trainers[1], inputs, targets)
    npu.current_stream().wait_stream(stream)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        loss = step(device, trainers[1], inputs, targets)
    for _ in range(4):
        graph.replay()
        expected = step(cpu, trainers[0], x, labels)
        close(loss, expected, 1e-4)
    for p, q in zip(cpu.parameters(), device.parameters(), strict=True):
        close(q, p, 1e-4)
    for p, q in zip(cpu.buffers(), device.buffers(), strict=True):
        if p.is_floating_point():
            close(q, p, 1e-4)


def test_a_scaler_skips_bad_steps_and_moves_its_scale_as_on_the_cpu() -> None:
    torch.manual_seed(0)
    cpu = nn.Linear(4, 3)
    device = copy.deepcopy(cpu).npu()
    x, seen = torch.randn(5, 4), []
    for model, where in ((cpu, "cpu"), (device, "npu")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler, scales = torch.amp.GradScaler(where, init_scale=8.0, growth_interval=2), []
        for step in range(6):
            optimizer.zero_grad()
            loss = model(x.to(where)).square().sum() * (float("inf") if step == 3 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        seen.append(scales)
    assert seen[0] == seen[1] == [8.0, 16.0, 16.0, 8.0, 8.0, 16.0]
    for p, q in zip(cpu.parameters(), device.parameters(), strict=True):
        close(q, p)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_train_in_a_graph(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    cpu = kind(4, 6)
    device = copy.deepcopy(cpu).npu()
    x, target = torch.randn(5, 3, 4), torch.randn(5, 3, 6)
    trainers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (cpu, device)]

    def step(model: nn.Module, optimizer: Any, where: str) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(model(inputs[where])[0], targets[where])
        loss.backward()
        optimizer.step()
        return loss

    inputs, targets = {"cpu": x, "npu": x.npu()}, {"cpu": target, "npu": target.npu()}
    stream = npu.Stream()
    stream.wait_stream(npu.current_stream())
    with npu.stream(stream):
        step(device, trainers[1], "npu")
    step(cpu, trainers[0], "cpu")
    npu.current_stream().wait_stream(stream)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        loss = step(device, trainers[1], "npu")
    for _ in range(3):
        graph.replay()
        close(loss, step(cpu, trainers[0], "cpu"))
    for p, q in zip(cpu.parameters(), device.parameters(), strict=True):
        close(q, p)


def test_fused_adam_cannot_be_captured(capfd: pytest.CaptureFixture[str]) -> None:
    """torch_npu has a fused AdamW only; fused Adam falls back to the CPU, which copies synchronously."""
    model = nn.Linear(4, 4).npu()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(2, 4, device="npu")).sum().backward()
    optimizer.step()
    assert "_fused_adam_' is not currently supported on the NPU backend" in capfd.readouterr().err
    with pytest.raises(RuntimeError, match="aclrtMemcpy is not allowed"), npu.graph(npu.NPUGraph()):
        optimizer.step()


def test_clipping_and_dropout_train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4)).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, target = torch.randn(6, 8).npu(), torch.randn(6, 4).npu()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(model(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    stream = npu.Stream()
    stream.wait_stream(npu.current_stream())
    with npu.stream(stream):
        step()
    npu.current_stream().wait_stream(stream)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        loss = step()
    losses = []
    for _ in range(30):
        graph.replay()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5])
    assert len(set(losses)) == 30

"""specs/paged-decode, 64 steps with growing lengths, against the same model in plain PyTorch, its cache in order."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

import graphspec

SPEC = Path(__file__).resolve().parents[3] / "specs" / "paged-decode" / "model.yaml"
STEPS = 64
#: Blocks in no order, and no two sequences' alike.
TABLES = torch.tensor(
    [[7, 3, 12, 20, 1], [5, 2, 9, 14, 6], [19, 4, 8, 11, 16], [10, 18, 13, 15, 17]], dtype=torch.int32
)
#: Lengths that the sequences begin with.
BEFORE = (0, 5, 15, 16)


class Plain:
    """The model's own weights; keys and values kept as growing tensors, attention as softmax in float32."""

    def __init__(self, model, rows):
        self.model = model
        self.caches = [[([], []) for _ in model.layers] for _ in range(rows)]

    def step(self, row, token, *, position):
        """The logits [vocabulary] of one row after one more token."""
        model = self.model
        x = model.embed(token) + model.positions(torch.tensor([position]))
        for layer, (keys, values) in zip(model.layers, self.caches[row], strict=True):
            attention = layer.attention
            h = layer.norm(x)
            keys.append(attention.key(h).view(attention.kv_heads, -1))
            values.append(attention.value(h).view(attention.kv_heads, -1))
            x = x + attention.out(self._attend(attention, attention.query(h), keys, values))
            x = x + layer.down(torch.nn.functional.silu(layer.up(layer.feed_norm(x))))
        return model.head(model.norm(x))[0]

    @staticmethod
    def _attend(attention, query, keys, values):
        group = attention.heads // attention.kv_heads
        k, v = (torch.stack(cache, 1).float().repeat_interleave(group, 0) for cache in (keys, values))
        q = query.view(attention.heads, 1, -1).float()
        return ((q @ k.mT / math.sqrt(attention.size)).softmax(-1) @ v).flatten()[None].to(query.dtype)


def plain_model(runner):
    """The same weights on the CPU, in a model of its own."""
    found = importlib.util.spec_from_file_location("paged_decode_model", SPEC.parent / "model.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    model = module.build(layers=2, hidden=64, vocabulary=100, blocks=21, block_size=16, cache=80).half().eval()
    model.load_state_dict({name: value.cpu() for name, value in runner.model.state_dict().items()})
    return model


@pytest.mark.parametrize("device", ["npu", "cpu"])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_64_steps_with_growing_lengths_equal_plain_pytorch(device, batch):
    random = torch.Generator().manual_seed(batch)
    with graphspec.open(SPEC, device=device) as runner, torch.no_grad():
        runner.reset()
        plain, table = Plain(plain_model(runner), batch), TABLES[:batch].to(runner.device)
        lengths = [0] * batch
        for number in range(max(BEFORE[:batch]) + STEPS):  # shorter sequences wait until the longest has begun
            if number < max(BEFORE[:batch]):
                active = [row for row in range(batch) if BEFORE[row] > number]
            else:
                active = list(range(batch))
            tokens = torch.randint(0, 100, (len(active), 1), generator=random)
            for row in active:
                lengths[row] += 1
            given = {
                "tokens": tokens.to(runner.device),
                "table_of": table[active],
                "kv_lens": [lengths[r] for r in active],
            }
            logits = runner.run(**given)["logits"].cpu()
            wanted = torch.stack(
                [plain.step(row, tokens[i], position=lengths[row] - 1) for i, row in enumerate(active)]
            )
            torch.testing.assert_close(logits, wanted, rtol=5e-3, atol=5e-3)
        assert lengths == [length + STEPS for length in BEFORE[:batch]]
        assert runner.stats.replays == number + 1


@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_a_length_that_is_wrong_by_one_would_show(device):
    with graphspec.open(SPEC, device=device) as runner, torch.no_grad():
        given = {"tokens": torch.tensor([[7]], device=runner.device), "table_of": TABLES[:1].to(runner.device)}
        for length in range(1, 33):
            runner.run(**given | {"tokens": given["tokens"] + length}, kv_lens=[length])
        right = runner.run(**given, kv_lens=[33])["logits"].cpu()
        graph = runner.graph("decode", {"batch": 1})
        graph.refresh({"kv_lens": [17]})  # the host list alone: the device copy still says 33
        graph.replay()
        wrong = graph.value("logits").cpu()
        assert (right - wrong).abs().max() > 5e-2


def test_the_list_of_the_attention_and_the_device_copy_change_in_the_same_run():
    """C14: one param feeds both."""
    with graphspec.open(SPEC, device="npu") as runner:
        given = {"tokens": torch.tensor([[7]], device="npu"), "table_of": TABLES[:1].npu()}
        for length in (1, 2, 40):
            runner.run(**given, kv_lens=[length])
            keys = runner.state["keys"]["model.layers.0.attention.keys"].cpu()
            block, place = TABLES[0, (length - 1) // 16], (length - 1) % 16
            assert keys[block, place].any()
        assert keys.flatten(0, 1).any(-1).sum() == 3

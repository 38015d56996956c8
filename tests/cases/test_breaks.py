"""`break`: what is named runs eagerly between the pieces of a captured region, and all that crosses is as in eager."""

import pytest
import torch

from graphspec.errors import HazardError, ModelError, OrderError, SpecError

DECODER = """
class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4, 8))
        self.scale, self.meta, self.kept, self.layer = 1.0 + layer, None, [], layer

    def forward(self, q, k, v, lens):
        rows = q.shape[0]
        out = torch.empty_like(q)
        for row in range(rows):
            length = lens[row] if isinstance(lens, list) else int(lens[row])
            self.cache[row, length % 4] = k[row]
            seen = self.cache[row, : length % 4 + 1]
            weights = torch.softmax(seen @ q[row] * self.scale, 0)
            if float(weights.max()) > 0.99:
                weights = weights * 0.5
            out[row] = weights @ seen + v[row]
        return out if self.meta is None else out + self.meta["shift"]


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.qkv, self.out, self.attn = nn.Linear(8, 24), nn.Linear(8, 8), Attention(layer)

    def forward(self, x, lens):
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + self.out(self.attn(q, k, v, lens))
        return torch.tanh(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(number) for number in range(3))

    def forward(self, x, lens):
        for layer in self.layers:
            x = layer(x, lens)
        return x
"""
SPEC = """
    dims: {batch: [2, 4]}
    params:
      lens: {type: int, shape: [batch], min: 0, max: 20, default: 1, pad: 0}
    buffers:
      x: {shape: [batch, 8], dtype: float32}
      cache: {role: state, attr: "model.layers.*.attn.cache", shape: [batch, 4, 8]}
      y: {role: output, shape: [batch, 8], dtype: float32}
    regions:
      step: {call: model, inputs: [x, lens], outputs: y, break: ["model.layers.*.attn"]}
    check: {rtol: 1.0e-4, atol: 1.0e-5}
"""


def same(case, runner, rounds=6, rows=(2, 3, 4), each=lambda _: None):
    eager = case.eager()
    eager.load_state_dict(runner.model.state_dict())
    for number in range(rounds):
        count = rows[number % len(rows)]
        x, lens = torch.randn(count, 8), [(number * 3 + row) % 9 for row in range(count)]
        each(eager), each(runner.model)
        torch.testing.assert_close(runner.run(x=x, lens=lens)["y"], eager(x, lens), rtol=1e-4, atol=1e-5)
        for mine, its in zip(eager.layers, runner.model.layers, strict=True):
            torch.testing.assert_close(its.attn.cache[:count], mine.attn.cache[:count], rtol=1e-4, atol=1e-5)
            mine.attn.cache.copy_(its.attn.cache)  # rows that a bucket added are nobody's
    return eager


def test_attention_that_reads_values_and_params_between_graphs_equals_eager_at_every_size(case):
    runner = case.open(DECODER, SPEC)
    before = [layer.attn.cache.clone() for layer in runner.model.layers]
    assert all(not cache.any() for cache in before)  # a capture leaves no trace, of what stays eager neither
    same(case, runner)
    runner.recapture()
    same(case, runner, rows=(4, 2))
    runner.release()
    runner.capture()
    same(case, runner, rows=(3, 2))
    runner.verify(x=torch.randn(2, 8), lens=[1, 2])


def test_what_the_eager_part_reads_on_the_host_is_read_anew(case):
    runner = case.open(DECODER, SPEC)
    number = 0

    def change(model):
        nonlocal number
        number += 1
        for layer in model.layers:
            layer.attn.scale = 1.0 + ((number + 1) // 2) * 0.5
            layer.attn.meta = {"shift": float((number + 1) // 2)}

    same(case, runner, rows=(2,), each=change)


def test_what_the_eager_part_keeps_holds_what_it_held(case):
    model = DECODER.replace("rows = q.shape[0]", "rows = q.shape[0]; self.kept.append((q, k[:, :2]))")
    runner = case.open(model, SPEC)
    eager = same(case, runner, rows=(2,))
    for mine, its in zip(eager.layers, runner.model.layers, strict=True):
        assert len(mine.attn.kept) == len(its.attn.kept) == 6
        for one, other in zip(mine.attn.kept, its.attn.kept, strict=True):
            torch.testing.assert_close(list(other), list(one), rtol=1e-4, atol=1e-5)


OPERATOR = """
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(3):
            h = self.w(x).unsqueeze(0)
            x = x + F.scaled_dot_product_attention(h, x[None], x[None], is_causal=True)[0]
            x = torch.softmax(x, -1).mul_(2.0)
        return x, x.sum()
"""
OPERATOR_SPEC = """
    dims: {batch: [2, 4]}
    buffers:
      x: {shape: [batch, 8], dtype: float32}
      y: {role: output, shape: [batch, 8], dtype: float32}
    regions:
      step: {call: model, inputs: [x], outputs: [y, total], break: [BREAK]}
      after: {call: model, inputs: [y], outputs: [z, rest]}
    pools: {p: [step, after]}
    replay: {one: [step], both: [step, after]}
"""


@pytest.mark.parametrize("named", ['"aten::scaled_dot_product_attention"', '"aten::softmax"', "model.w",
                                   'model.w, "aten::softmax", "aten::scaled_dot_product_attention"'])  # fmt: skip
def test_operators_and_modules_stay_eager_and_what_follows_reads_their_results(case, named):
    spec = OPERATOR_SPEC.replace("BREAK", named)
    spec = spec.replace("      after: {call: model, inputs: [y], outputs: [z, rest]}\n", "").replace(
        "[step, after]", "[step]"
    )
    runner, model = case.open(OPERATOR, spec.replace(", total]", ", total]")), case.eager()
    for rows in (4, 2, 4):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(runner["one"](x=x)["y"], model(x)[0])
        torch.testing.assert_close(runner["both"](x=x)["y"], model(x)[0])


def test_a_part_that_writes_into_what_it_is_given_costs_no_copy(case):
    model = """
class Into(nn.Module):
    def forward(self, q, out):
        out.copy_(q * float(q.sum() > 0) + 1)
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.a = Into(), nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x)
        return self.into(h, torch.empty_like(h)) * 2 + h
    """
    spec = OPERATOR_SPEC.replace("[y, total]", "y").replace("BREAK", "model.into").replace("[step, after]", "[step]")
    spec = spec.replace("      after: {call: model, inputs: [y], outputs: [z, rest]}\n", "")
    runner, eager = case.open(model, spec), case.eager()
    for _ in range(4):
        x = torch.randn(4, 8)
        torch.testing.assert_close(runner["one"](x=x)["y"], eager(x))
    (part,) = next(iter(runner._variants)).regions[next(iter(next(iter(runner._variants)).regions))].parts.found
    assert part.owned == (False,)


def test_metadata_of_a_context_is_made_anew_from_the_params_of_each_run(case):
    model = """
import contextlib

META = []


class Attn(nn.Module):
    def forward(self, q):
        return q * META[-1]["lens"][0] + sum(META[-1]["lens"])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.a = Attn(), nn.Linear(8, 8)

    @contextlib.contextmanager
    def context(self, x, lens):
        META.append({"lens": list(lens)})
        try:
            yield
        finally:
            META.pop()

    def forward(self, x, lens):
        return torch.tanh(self.attn(self.a(x))) + 1
    """
    spec = """
    params: {lens: {type: int, shape: [2], min: 0, max: 9, default: 1}}
    buffers: {x: {shape: [3, 8], dtype: float32}}
    regions:
      step: {call: model, inputs: [x, lens], outputs: y, around: model.context, break: [model.attn]}
    """
    runner = case.open(model, spec)
    for lens in ([1, 1], [3, 2], [0, 5], [9, 9]):
        x = torch.randn(3, 8)
        wanted = torch.tanh(runner.model.a(x) * lens[0] + sum(lens)) + 1
        torch.testing.assert_close(runner.run(x=x, lens=lens)["y"], wanted)
        runner.verify(x=x, lens=lens)


def test_a_part_that_fails_is_the_users_error_and_the_next_run_is_right(case):
    runner = case.open(DECODER, SPEC)
    attention = runner.model.layers[1].attn
    attention.meta = {}
    with pytest.raises(ModelError, match=r"break: model\.layers\.\*\.attn.*KeyError"):
        runner.run(x=torch.randn(2, 8), lens=[1, 2])
    attention.meta = None
    same(case, runner, rows=(2,))


PART = """
class Part(nn.Module):
    rows = None

    def forward(self, x):
        return x[: self.rows] * 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x):
        return torch.tanh(self.part(x * 2))
"""
PART_SPEC = """
    buffers: {x: {shape: [4, 8], dtype: float32}}
    regions:
      step: {call: model, inputs: [x], outputs: y, break: [model.part]}
"""


def test_another_form_than_at_the_capture_is_refused_when_it_comes(case):
    runner, x = case.open(PART, PART_SPEC), torch.randn(4, 8)
    runner.run(x=x)
    runner.model.part.rows = 1
    with case.refused(OrderError, "'model.part'", "[1, 8]", "[4, 8]"):
        runner.run(x=x)
    runner.model.part.rows = None
    assert torch.equal(runner.run(x=x)["y"], torch.tanh(x * 2))


def test_host_values_that_captured_code_makes_for_a_part_are_refused(case):
    model = DECODER.replace("if float(weights.max()) > 0.99:", "if False:")
    model = model.replace("self.attn(q, k, v, lens)", "self.attn(q, k, v, [n for n in lens])")
    with pytest.raises(HazardError, match=r"GS755.*model\.layers\.\*\.attn"):
        case.open(model, SPEC)


@pytest.mark.parametrize("named", ["model.parts.*", "aten::scaled_dot_product_attention"])
def test_a_name_that_nothing_answers_to_is_refused(case, named):
    with pytest.raises(HazardError, match="GS754"):
        case.open(PART, PART_SPEC.replace("[model.part]", f'[model.part, "{named}"]'))


@pytest.mark.parametrize("key", ["eager: true", "grads: overwrite", "optimizer: model.o"])
def test_keys_that_exclude_each_other_are_refused(case, key):
    with pytest.raises(SpecError, match="GS224"):
        case.open(DECODER, SPEC.replace("break:", f"{key}, break:"))

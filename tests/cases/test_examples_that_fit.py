"""`sample: {make: ...}`: inputs and params that must fit each other, for rehearsals, `check` and `run` alike."""

import pytest
import torch

import graphspec
from graphspec.cli import main
from graphspec.errors import GraphSpecError

MODEL = """
    def example(batch, blocks, seed):
        lengths = torch.randint(1, blocks + 1, (batch,))
        table = torch.full((batch, blocks), 99)
        for row, count in enumerate(lengths.tolist()):
            table[row, :count] = torch.randperm(8)[:count] + 1
        return {"table": table, "lengths": lengths, "longest": int(lengths.max())}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pages = nn.Parameter(torch.randn(9, 4))

        def forward(self, x, table, lengths, longest):
            mask = torch.arange(table.shape[1]) < lengths.unsqueeze(1)
            rows = F.embedding(torch.where(mask, table, 0), self.pages) * mask.unsqueeze(2)
            return x + rows.sum(1), self.pages[table[:, 0]] * longest
"""
SPEC = """
    dims: {batch: [2, 4], blocks: 3}
    params:
      longest: {type: int, min: 1, max: blocks}
    sample: {make: "model.py:example"}
    buffers:
      x: {shape: [batch, 4], dtype: float32}
      table: {shape: [batch, blocks], dtype: int64, pad: 0}
      lengths: {shape: [batch], dtype: int64, pad: 0}
      y: {role: output, shape: [batch, 4], dtype: float32}
      z: {role: output, shape: [batch, 4], dtype: float32}
    regions:
      main:
        call: model
        inputs: [x, table, lengths, longest]
        outputs: [y, z]
        updates: [{op: "aten::mul", arg: other, from: longest, at: [1]}]
"""


def test_one_function_gives_inputs_and_params_that_fit_each_other(case, capsys):
    runner = case.open(MODEL, SPEC)
    made = runner.sample("replay", {"batch": 3})
    counts = (made["table"] != 99).sum(1)
    assert made["x"].shape == (3, 4)
    assert torch.equal(counts, made["lengths"])
    assert made["longest"] == int(made["lengths"].max())
    again = runner.sample("replay", {"batch": 3})
    assert all(torch.equal(made[name], again[name]) for name in ("x", "table", "lengths"))
    for seed in range(4):
        given = runner.sample("replay", {"batch": 4 - seed % 4}, seed=seed)
        want = runner.model(*given.values())
        got = runner.run(**given)
        torch.testing.assert_close(got["y"], want[0])
        torch.testing.assert_close(got["z"], want[1])
    before = torch.get_rng_state()
    runner.sample("replay", {"batch": 2}, seed=77)
    assert torch.equal(before, torch.get_rng_state())
    for command in (["check"], ["run", "--steps", "6"]):
        assert main([*command, str(case.path), "--device", "cpu"]) == 0, capsys.readouterr().out
    assert "replay matches eager" in capsys.readouterr().out


def test_without_it_the_first_rehearsal_reads_beyond_the_pages(case):
    spec = SPEC.replace('    sample: {make: "model.py:example"}\n', "").replace(
        "table: {", "table: {sample: {value: 99}, "
    )
    with pytest.raises(GraphSpecError):
        case.open(MODEL, spec)


def test_a_function_may_give_one_input(case):
    spec = """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32, pad: 1, sample: {make: "model.py:ascending"}}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x], outputs: y}
    """
    model = """
        def ascending(batch):
            return torch.arange(1.0, batch + 1)

        class Model(nn.Module):
            def forward(self, x):
                return x * 2
    """
    runner = case.open(model, spec)
    assert runner.sample("replay", {"batch": 3})["x"].tolist() == [1, 2, 3]
    assert main(["run", str(case.path), "--device", "cpu", "--steps", "2"]) == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return {'tabel': 1}", "it gives 'tabel', which is no input and no param"),
        ("return 3", "gives a int, not a mapping"),
        ("return {'lengths': torch.zeros(batch + 1, dtype=torch.int64)}", "inputs disagree on batch"),
        ("return {'longest': 9}", "is at most 3"),
        ("raise KeyError('page')", "KeyError: 'page'"),
    ],
)
def test_an_example_that_does_not_fit_is_one_clear_error(case, body, said):
    start = MODEL.index("        lengths = torch.randint")
    end = MODEL.index("    class Model")
    path = case.write(f"{MODEL[:start]}        {body}\n\n{MODEL[end:]}", SPEC)
    with pytest.raises(GraphSpecError) as caught:
        graphspec.open(path, device="cpu")
    assert said in str(caught.value)
    assert main(["check", str(path), "--device", "cpu"]) == 3

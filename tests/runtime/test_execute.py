"""What `run` does with an opened spec: which sizes, which inputs, what is compared, what is left behind."""

import textwrap

import pytest
import torch

import graphspec
from graphspec.errors import InputError, ModelError
from graphspec.plan import Bucket, Sequence
from graphspec.runtime.padding.cases import cases
from graphspec.runtime.trial.execute import RunOptions, execute
from graphspec.runtime.trial.feed import Feed, Fixed, fix

MODEL = """
import torch
from torch import nn


class Cell(nn.Module):
    def forward(self, x, hidden):
        hidden = torch.tanh(x + hidden)
        return hidden * 2, hidden


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(x)


class Drop(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(nn.functional.dropout(x, 0.5, True), 0.5, True)


class Ring(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(5, 2))

    def forward(self, x):
        self.cache.index_copy_(0, self.position, x)
        self.position.add_(1)
        return self.cache.sum(0)


class Two(nn.Module):
    def first(self, x, factor):
        return x * factor

    def second(self, x, mask=None):
        return x + 1 if mask is None else x + mask
"""

CELL = """
graphspec: 1
name: cell
model: {factory: "model.py:Cell"}
dims: {batch: [1, 4]}
buffers:
  x: {shape: [batch, 2], dtype: float32}
  hidden: {role: state, shape: [batch, 2], dtype: float32, init: 0}
  y: {role: output, shape: [batch, 2], dtype: float32}
regions:
  cell: {call: model, inputs: [x, hidden], outputs: [y, hidden]}
replay: [cell]
"""

PLAIN = """
graphspec: 1
name: plain
model: {factory: "model.py:%s", mode: train}
buffers:
  x: {shape: [%s, 2], dtype: float32}
regions:
  f: {call: model, inputs: [x], outputs: y}
replay: [f]
"""

TWO = """
graphspec: 1
name: two
model: {factory: "model.py:Two"}
dims: {batch: [2, 4]}
params: {factor: {type: float, min: 0.5, max: 8, default: 1.0}}
buffers:
  x: {shape: [batch, 2], dtype: float32}
  mask: {shape: [2], dtype: float32, optional: true}
  y: {role: output, shape: [batch, 2], dtype: float32}
  z: {role: output, shape: [batch, 2], dtype: float32}
regions:
  first: {call: model.first, inputs: [x, factor], outputs: y, updates: [{op: "aten::mul", arg: other, from: factor}]}
  second: {call: model.second, inputs: {x: x, mask: mask}, outputs: z}
replay: {one: [first], all: [first, second]}
"""


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch):
    monkeypatch.setattr("graphspec.runtime.trial.timing._AT_LEAST_S", 0.0)


@pytest.fixture
def opened(tmp_path):
    """An opened spec."""
    runners = []

    def open_spec(text):
        (tmp_path / "model.py").write_text(MODEL)
        (tmp_path / "model.yaml").write_text(textwrap.dedent(text).lstrip())
        runners.append(graphspec.open(tmp_path / "model.yaml", device="cpu"))
        return runners[-1]

    yield open_spec
    for runner in runners:
        runner.close()


def watched(runner, monkeypatch, name="replay"):
    """The inputs of every replay of a sequence."""
    sequence, seen = runner.sequences[name], []
    run = sequence.run
    monkeypatch.setattr(sequence, "run", lambda inputs, fills=None: (seen.append(inputs), run(inputs, fills))[1])
    return seen


class TestCases:
    @staticmethod
    def sequence(*buckets):
        dims = tuple(buckets[0])
        made = tuple(Bucket(tuple(bucket.items())) for bucket in buckets)
        return Sequence("s", ("r",), dims, (), (), (), made)

    def sizes(self, *buckets, fixed=(), exact=()):
        found = cases(self.sequence(*buckets), dict(fixed), exact)
        return [(dict(case.sizes), case.bucket and dict(case.bucket.sizes)) for case in found]

    def test_every_bucket_is_run_full_and_padded_where_a_size_lies_between(self):
        found = self.sizes({"n": 1}, {"n": 2}, {"n": 8})
        assert found == [({"n": 8}, {"n": 8}), ({"n": 3}, {"n": 8}), ({"n": 2}, {"n": 2}), ({"n": 1}, {"n": 1})]

    def test_the_smallest_bucket_is_padded_from_one_row(self):
        assert ({"n": 1}, {"n": 4}) in self.sizes({"n": 4})

    def test_an_exact_dim_is_never_padded(self):
        assert self.sizes({"n": 4}, {"n": 8}, exact={"n"}) == [({"n": 8}, {"n": 8}), ({"n": 4}, {"n": 4})]

    def test_all_dims_are_padded_together(self):
        found = self.sizes({"a": 2, "b": 4}, {"a": 2, "b": 8}, {"a": 4, "b": 8})
        assert ({"a": 3, "b": 5}, {"a": 4, "b": 8}) in found or ({"a": 3, "b": 1}, {"a": 4, "b": 8}) in found
        assert ({"a": 1, "b": 1}, {"a": 2, "b": 4}) in found

    def test_a_fixed_size_leaves_the_buckets_it_fits(self):
        assert self.sizes({"n": 1}, {"n": 4}, fixed={"n": 3}.items()) == [({"n": 3}, {"n": 4})]

    def test_a_size_no_bucket_holds_is_a_case_without_one(self):
        assert self.sizes({"n": 1}, {"n": 4}, fixed={"n": 9}.items()) == [({"n": 9}, None)]

    def test_without_bucketed_dims_there_is_one_case(self):
        assert self.sizes({}) == [({}, {})]


class TestFeed:
    def test_inputs_are_new_at_every_step_and_the_same_for_the_same_step(self, opened):
        runner = opened(CELL)
        feed = Feed(runner, runner.plan, Fixed())
        plan = runner.sequences["replay"].plan
        (case, *_) = cases(plan, {}, ())
        assert torch.equal(feed(plan, case, 1)["x"], feed(plan, case, 1)["x"])
        assert not torch.equal(feed(plan, case, 1)["x"], feed(plan, case, 2)["x"])

    def test_a_param_starts_at_its_default_and_then_takes_values_in_its_range(self, opened, monkeypatch):
        runner = opened(TWO)
        seen = watched(runner, monkeypatch, "one")
        execute(runner, RunOptions(steps=8))
        factors = [inputs["factor"] for inputs in seen]
        assert factors[0] == 1.0
        assert len(set(factors)) > 4
        assert all(0.5 <= factor <= 8 for factor in factors)

    def test_a_fixed_param_stays(self, opened, monkeypatch):
        runner = opened(TWO)
        seen = watched(runner, monkeypatch, "one")
        execute(runner, RunOptions(steps=4, fixed=Fixed(params={"factor": 2.5})))
        assert {inputs["factor"] for inputs in seen} == {2.5}

    def test_an_optional_input_is_given_at_some_steps_and_left_out_at_others(self, opened, monkeypatch):
        runner = opened(TWO)
        seen = watched(runner, monkeypatch, "all")
        report = execute(runner, RunOptions(steps=8)).report
        assert report.check.status == "match"
        assert {"mask" in inputs for inputs in seen} == {True, False}

    def test_a_given_size_that_no_bucket_holds_is_refused(self, opened):
        runner = opened(CELL)
        with pytest.raises(InputError, match=r"no bucket of sequence 'replay' holds batch=9"):
            fix(runner.plan, {}, {}, {"batch": 9})


class TestCheck:
    def test_a_wrong_output_is_found(self, opened, monkeypatch):
        runner = opened(CELL)
        sequence = runner.sequences["replay"]
        run = sequence.run
        monkeypatch.setattr(sequence, "run", lambda inputs, fills=None: {"y": run(inputs, fills)["y"] + 1})
        found = execute(runner, RunOptions(steps=2)).report.check
        assert found.status == "mismatch"
        assert found.failure.startswith("replay differs from eager: y[")
        assert found.max_abs_diff == pytest.approx(1.0, abs=1e-5)

    def test_a_wrong_state_is_found_when_all_outputs_are_right(self, opened, monkeypatch):
        runner = opened(CELL)
        sequence = runner.sequences["replay"]
        run = sequence.run

        def spoiled(inputs, fills=None):
            results = run(inputs, fills)
            runner.state.tensors("hidden")["hidden"][0, 1] += 0.5
            return results

        monkeypatch.setattr(sequence, "run", spoiled)
        failure = execute(runner, RunOptions(steps=2)).report.check.failure
        assert failure.startswith("replay differs from eager: state hidden[0, 1]: ")

    def test_state_rows_beyond_the_real_ones_are_compared_too(self, opened, monkeypatch):
        runner = opened(CELL)
        sequence = runner.sequences["replay"]
        run = sequence.run

        def spoiled(inputs, fills=None):
            results = run(inputs, fills)
            if inputs["x"].shape[0] < 4:
                runner.state.tensors("hidden")["hidden"][3] += 0.5
            return results

        monkeypatch.setattr(sequence, "run", spoiled)
        assert "state hidden[3, 0]: " in execute(runner, RunOptions(steps=4)).report.check.failure

    def test_a_model_tensor_that_nobody_declared_is_compared_too(self, opened, monkeypatch):
        runner = opened(PLAIN % ("Norm", 4))
        sequence = runner.sequences["replay"]
        run = sequence.run

        def spoiled(inputs, fills=None):
            results = run(inputs, fills)
            runner.model.norm.num_batches_tracked += 1
            return results

        monkeypatch.setattr(sequence, "run", spoiled)
        failure = execute(runner, RunOptions(steps=2)).report.check.failure
        assert failure.startswith(
            "replay differs from eager: model.norm.num_batches_tracked[]: 1 in eager, 2 in replay"
        )

    def test_static_memory_is_poisoned_before_every_replay_of_the_check_and_not_in_the_timing(
        self, opened, monkeypatch
    ):
        runner = opened(CELL)
        events = []
        poison = runner.poison
        monkeypatch.setattr(runner, "poison", lambda: (events.append("poison"), poison())[1])
        seen = watched(runner, monkeypatch)
        execute(runner, RunOptions(steps=6))
        padding_runs = 3
        assert len(events) == 6 + padding_runs
        assert len(seen) > len(events)

    def test_states_are_carried_from_step_to_step(self, opened, monkeypatch):
        runner = opened(CELL)
        sequence = runner.sequences["replay"]
        eager, contents = sequence.eager, []

        def noted(inputs):
            contents.append(runner.state["hidden"])
            return eager(inputs)

        monkeypatch.setattr(sequence, "eager", noted)
        execute(runner, RunOptions(steps=6))
        assert not contents[1].any()  # the first step; the call before looks for what a run writes
        assert all(content.any() for content in contents[2:7])

    def test_random_regions_match_with_the_same_stream(self, opened):
        found = execute(opened(PLAIN % ("Drop", 64)), RunOptions(steps=5)).report.check
        assert (found.status, found.max_abs_diff) == ("match", 0.0)

    def test_random_regions_in_a_padded_bucket_are_no_mismatch(self, opened):
        text = (PLAIN % ("Drop", "batch")).replace("buffers:", "dims: {batch: [1, 4]}\nbuffers:")
        text = text.replace("regions:", "  y: {role: output, shape: [batch, 2], dtype: float32}\nregions:")
        assert execute(opened(text), RunOptions(steps=6)).report.check.status == "match"

    def test_a_cache_that_is_full_after_five_steps_is_put_back_and_said(self, opened):
        report = execute(opened(PLAIN % ("Ring", 1)), RunOptions(steps=12)).report
        assert report.check.status == "match"
        assert report.check.steps == 12
        assert report.check.notes == ("the states of 'replay' hold 5 steps, and were put back after them",)
        assert report.total.calls >= 12

    def test_a_cache_that_is_full_is_no_obstacle_to_timing_alone(self, opened):
        assert execute(opened(PLAIN % ("Ring", 1)), RunOptions(steps=12, check=False)).report.total.calls >= 12

    def test_a_model_that_fails_at_its_first_step_is_an_error(self, opened, monkeypatch):
        runner = opened(PLAIN % ("Ring", 1))
        sequence = runner.sequences["replay"]

        def fail(_):
            raise ModelError("broken")

        monkeypatch.setattr(sequence, "eager", fail)
        with pytest.raises(ModelError, match="broken"):
            execute(runner, RunOptions(steps=3))

    def test_runs_that_fall_back_to_eager_are_not_called_replays_that_match(self, opened):
        text = (PLAIN % ("Drop", "batch")).replace("buffers:", "dims: {batch: [1, 4]}\nbuffers:")
        text = text.replace("regions:", "  y: {role: output, shape: [batch, 2], dtype: float32}\nregions:")
        runner = opened(text.replace("outputs: y}", "outputs: y, on_miss: eager}"))
        found = execute(runner, RunOptions(steps=3, fixed=Fixed(sizes={"batch": 8}))).report
        assert (found.check.status, found.check.max_abs_diff) == ("skipped", None)
        assert found.check.notes[0].startswith("no bucket of 'replay' holds batch=8: its runs fall back to eager")
        assert found.counts.fallbacks > 0

    def test_every_sequence_is_checked_and_timed(self, opened):
        report = execute(opened(TWO), RunOptions(steps=6)).report
        assert set(report.check.runs) == {"one", "all"}
        assert [timing.what for timing in report.sequences] == ["one", "all"]
        assert report.total.replay_us > max(timing.replay_us for timing in report.sequences)
        assert set(report.outputs) == {"one.y", "y", "z"}


class TestTrace:
    def test_states_and_random_streams_are_afterwards_as_before(self, opened):
        runner = opened(CELL)
        runner.state.write("hidden", torch.arange(8.0).reshape(4, 2))
        stream = torch.get_rng_state()
        execute(runner, RunOptions(steps=4))
        assert torch.equal(runner.state["hidden"], torch.arange(8.0).reshape(4, 2))
        assert torch.equal(torch.get_rng_state(), stream)

    def test_running_statistics_are_afterwards_as_before(self, opened):
        runner = opened(PLAIN % ("Norm", 4))
        execute(runner, RunOptions(steps=4))
        assert runner.model.norm.num_batches_tracked.item() == 0
        assert not runner.model.norm.running_mean.any()

    def test_after_a_mismatch_states_are_put_back_too(self, opened, monkeypatch):
        runner = opened(CELL)
        sequence = runner.sequences["replay"]
        run = sequence.run
        monkeypatch.setattr(sequence, "run", lambda inputs, fills=None: {"y": run(inputs, fills)["y"] + 1})
        execute(runner, RunOptions(steps=2))
        assert not runner.state["hidden"].any()

    def test_the_reported_results_are_those_of_a_run_from_the_states_there_were(self, opened):
        runner = opened(CELL)
        executed = execute(runner, RunOptions(steps=2))
        inputs = runner.sample("replay", {"batch": 4}, 0)
        assert torch.equal(executed.results["y"], runner.run(**inputs)["y"])

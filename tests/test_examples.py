"""Every spec in specs/ runs from the command line, and does what its comments promise."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from transformers import StaticCache

import graphspec
from graphspec.cli import group
from graphspec.errors import InputError
from graphspec.plan import Wire

ROOT = Path(__file__).resolve().parent.parent
EVERY = {path.parent.name: path for path in sorted(ROOT.glob("specs/*/model.yaml"))}
#: Without those for `check` only, which no machine of the tests could hold.
SPECS = {name: path for name, path in EVERY.items() if not yaml.safe_load(path.read_text()).get("x-check-only")}
STEPS = 32

TOP_KEYS = {"graphspec", "spec", "device", "graphs", "check", "replay", "eager", "outputs", "stats"}
KEYS = {
    "check": {"status", "max_abs_diff"},
    "replay": {"steps", "median_us", "p95_us"},
    "eager": {"median_us"},
    "stats": {"replays", "bucket_hits", "padded_fraction", "fallbacks"},
}
GRAPH_KEYS = {"region", "bucket", "pool", "operators", "bytes", "capture_s"}


@pytest.fixture(autouse=True)
def _no_autograd():
    with torch.no_grad():
        yield


def opened(name):
    return graphspec.open(SPECS[name], device="cpu")


def same_model(name, runner):
    """The model of the example built once more by its own factory, with the runner's weights, untouched by captures."""
    path = SPECS[name].parent / "model.py"
    module_spec = importlib.util.spec_from_file_location(f"example_{name.replace('-', '_')}", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    document = yaml.safe_load(SPECS[name].read_text())
    dims = document.get("dims", {})
    sizes = {dim: max(size) if isinstance(size, list) else size for dim, size in dims.items()}
    arguments = {
        key: ("cpu" if "device" in value else sizes[value["dim"]]) if isinstance(value, dict) else value
        for key, value in document["model"]["args"].items()
    }
    model = module.build(**arguments).eval()
    model.load_state_dict(runner.model.state_dict())
    return model


def run_command(name, *options):
    """What the command prints; npu/test_examples.py and cli/test_streams.py start it as a process."""
    with torch.enable_grad():  # as in a process of its own
        command = ["run", str(SPECS[name]), "--device", "cpu", "--format", "json", *options]
        return CliRunner().invoke(group, command)


def test_the_five_examples_of_the_readme_are_there():
    assert set(SPECS) >= {"mlp", "llama-decode", "resnet", "pipeline", "recurrent"}


@pytest.mark.takes(5)
@pytest.mark.parametrize("name", SPECS)
def test_an_example_matches_eager_with_the_graphs_of_its_plan_and_prints_the_documented_json(name):
    done = run_command(name, "--steps", "20")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == TOP_KEYS
    for part, keys in KEYS.items():
        assert set(report[part]) == keys
    assert report["check"]["status"] == "match"
    assert report["spec"] == name
    assert report["device"] == "cpu"
    assert report["replay"]["steps"] == 20
    assert report["stats"]["fallbacks"] == 0
    assert report["outputs"]
    for output in report["outputs"].values():
        assert set(output) == {"shape", "dtype", "mean"}
    for graph in report["graphs"]:
        assert set(graph) - {"variant"} == GRAPH_KEYS
        assert graph["operators"] > 0
    plan = graphspec.compile(graphspec.load(SPECS[name]))
    assert [each["region"] for each in report["graphs"]] == [each.region for each in plan.graphs] * len(plan.opened)


class TestMlp:
    def test_five_rows_take_the_bucket_of_eight_and_come_back_as_five(self):
        with opened("mlp") as runner:
            x = torch.randn(5, 64)
            y = runner.run(x=x)["y"]
            padded = torch.cat([x, torch.zeros(3, 64)])
            assert torch.equal(y, same_model("mlp", runner)(padded)[:5])


class TestLlamaDecode:
    """One opened runner for all batch sizes: the cache is the model's, and shared by the buckets."""

    @pytest.fixture(scope="class")
    def runner(self):
        with opened("llama-decode") as runner:
            yield runner

    @pytest.fixture(scope="class")
    def eager(self, runner):
        return same_model("llama-decode", runner)

    @pytest.fixture(autouse=True)
    def _fresh_caches(self, runner, eager):
        runner.reset()
        eager.cache.reset()

    @pytest.mark.parametrize("batch", [1, 3, 4])
    def test_greedy_tokens_equal_eager_step_by_step(self, runner, eager, batch):
        tokens = expected = torch.arange(5, 5 + batch).unsqueeze(1)
        seen = set()
        for _ in range(STEPS):
            tokens = runner.run(tokens=tokens)["next_tokens"]
            _, expected = eager(expected)
            assert tokens.tolist() == expected.tolist()
            seen.add(tuple(tokens.flatten().tolist()))
        assert len(seen) > STEPS // 2  # a model that repeats itself would prove little

    @pytest.mark.parametrize(("batch", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4)])
    def test_logits_are_bitwise_equal_to_eager_at_the_padded_size(self, runner, eager, batch, bucket):
        tokens = torch.arange(5, 5 + batch).unsqueeze(1)
        for _ in range(STEPS):
            padded = torch.cat([tokens, torch.zeros(bucket - batch, 1, dtype=torch.int64)])
            results = runner.run(tokens=tokens)
            logits, _ = eager(padded)
            assert torch.equal(results["logits"], logits[:batch])
            tokens = results["next_tokens"]

    def test_a_smaller_bucket_goes_on_in_the_rows_a_larger_one_wrote(self, runner, eager):
        tokens = torch.tensor([[5], [6], [7], [8]])
        for batch in (4, 4, 4, 1, 1, 2):
            results = runner.run(tokens=tokens[:batch])
            logits, expected = eager(tokens[:batch])
            assert torch.equal(results["logits"], logits)
            tokens = torch.cat([expected, tokens[batch:]])

    def test_opening_leaves_the_cache_empty_at_position_zero(self):
        with opened("llama-decode") as runner:
            for layer in runner.model.cache.layers:
                assert layer.cumulative_length.item() == 0
                assert not layer.keys.any()
                assert not layer.values.any()

    @pytest.mark.parametrize("batch", [1, 3, 4])
    def test_the_example_model_decodes_like_the_library_with_a_cache_of_its_own(self, eager, batch):
        cache = StaticCache(eager.llama.config, max_cache_len=128)
        tokens = expected = torch.arange(5, 5 + batch).unsqueeze(1)
        for _ in range(STEPS):
            logits, tokens = eager(tokens)
            reference = eager.llama(input_ids=expected, cache=cache, use_cache=True).logits[:, -1]
            assert torch.equal(logits, reference)
            expected = reference.argmax(dim=-1, keepdim=True)
            assert tokens.tolist() == expected.tolist()

    def test_moving_the_example_model_moves_its_cache(self, runner):
        model = same_model("llama-decode", runner).to(torch.float64)
        assert model.cache.layers[0].keys.dtype == torch.float64
        logits, _ = model(torch.tensor([[5]]))
        assert logits.dtype == torch.float64


class TestResnet:
    def test_logits_equal_eager_at_the_padded_size(self):
        with opened("resnet") as runner:
            image = torch.randn(3, 3, 64, 64).contiguous(memory_format=torch.channels_last)
            padded = torch.cat([image, torch.zeros(1, 3, 64, 64)]).contiguous(memory_format=torch.channels_last)
            expected = same_model("resnet", runner)(pixel_values=padded).logits[:3]
            assert torch.equal(runner.run(image=image)["logits"], expected)

    def test_an_image_of_another_size_is_refused_with_both_shapes(self):
        with opened("resnet") as runner:
            image = torch.randn(1, 3, 32, 32).contiguous(memory_format=torch.channels_last)
            with pytest.raises(InputError) as refusal:
                runner.run(image=image)
        for part in ("image", "64", "32"):
            assert part in str(refusal.value)


class TestPipeline:
    def test_scores_follow_inputs_and_temperature_without_a_new_capture(self):
        with opened("pipeline") as runner:
            eager = same_model("pipeline", runner)
            for temperature in (1.0, 0.5, 3.0):
                tokens = torch.randint(0, 100, (4, 16))
                encoded = eager.encode(eager.embed(tokens))
                expected = eager.score(encoded, eager.pick(encoded), temperature)
                assert torch.equal(runner.run(tokens=tokens, temperature=temperature)["scores"], expected)

    def test_a_temperature_is_kept_until_another_is_given(self):
        with opened("pipeline") as runner:
            tokens = torch.randint(0, 100, (2, 16))
            cool = runner.run(tokens=tokens, temperature=4.0)["scores"]
            assert torch.equal(runner.run(tokens=tokens)["scores"], cool)

    def test_three_rows_are_picked_from_as_three_and_scored_in_the_bucket_of_four(self):
        with opened("pipeline") as runner:
            seen = []
            pick = runner.model.pick
            runner.model.pick = lambda encoded: (seen.append(encoded.shape[0]), pick(encoded))[1]
            scores = runner.run(tokens=torch.randint(0, 100, (3, 16)))["scores"]
            assert scores.shape == (3, 8)
            assert seen == [3]

    def test_intermediates_are_read_where_they_were_made(self):
        plan = graphspec.compile(graphspec.load(SPECS["pipeline"]))
        assert plan.regions["encode"].reads == (Wire("hidden", "graph", "embed"),)
        assert Wire("encoded", "graph", "encode") in plan.regions["score"].reads
        assert Wire("picked", "eager", "pick") in plan.regions["score"].reads


class TestRecurrent:
    def test_the_state_is_carried_over_runs_and_buckets(self):
        with opened("recurrent") as runner:
            eager = same_model("recurrent", runner)
            hidden = torch.zeros(4, 32)
            for batch in (4, 4, 1, 4, 3, 1, 4):
                x = torch.randn(batch, 16)
                y, hidden[:batch] = eager(x, hidden[:batch])
                torch.testing.assert_close(runner.run(x=x)["y"], y)
            torch.testing.assert_close(runner.state["hidden"], hidden)

    def test_reset_starts_over(self):
        with opened("recurrent") as runner:
            x = torch.randn(4, 16)
            first = runner.run(x=x)["y"]
            assert not torch.equal(runner.run(x=x)["y"], first)
            runner.reset()
            assert torch.equal(runner.run(x=x)["y"], first)


class TestGemmaDecode:
    def test_it_decodes_over_the_edge_of_the_sliding_window_as_the_model_does_by_itself(self):
        with opened("gemma-decode") as runner:
            eager = same_model("gemma-decode", runner)
            for _ in range(2):
                tokens = torch.randint(0, 500, (2, 1))
                for step in range(14):
                    got = runner.run(tokens=tokens, count=step, full=0 if step < 8 else 8)
                    want = eager(tokens, torch.tensor(step))
                    torch.testing.assert_close(got["logits"], want[0])
                    tokens = want[1]
                runner.reset()
                eager.cache.reset()


class TestMambaDecode:
    def test_rows_of_every_batch_size_go_on_from_their_own_states(self):
        with opened("mamba-decode") as runner:
            eager = same_model("mamba-decode", runner)
            for rows in (4, 2, 3, 1, 4):
                tokens = torch.randint(0, 500, (rows, 1))
                got, want = runner.run(tokens=tokens), eager(tokens)
                torch.testing.assert_close(got["logits"], want[0])
                for mine, theirs in zip(runner.model.cache.layers, eager.cache.layers, strict=True):
                    torch.testing.assert_close(mine.conv_states[0], theirs.conv_states[0])
                    torch.testing.assert_close(mine.recurrent_states[0], theirs.recurrent_states[0])


class TestWhisper:
    def test_tokens_are_those_of_a_whole_forward_without_any_cache(self):
        with opened("whisper") as runner:
            whisper = same_model("whisper", runner).whisper
            for _ in range(2):
                features = torch.randn(2, 8, 40)
                heard = runner["listen"](features=features)["hidden"]
                torch.testing.assert_close(heard, whisper.model.encoder(features).last_hidden_state)
                said = torch.ones(2, 1, dtype=torch.int64)
                for _ in range(6):
                    got = runner["say"](tokens=said[:, -1:])
                    want = whisper(features, decoder_input_ids=said, use_cache=False).logits[:, -1]
                    torch.testing.assert_close(got["logits"], want, rtol=1e-4, atol=1e-5)
                    said = torch.cat([said, got["next_tokens"]], 1)


class TestTrainStep:
    def test_fifty_steps_by_a_schedule_give_the_losses_weights_and_streams_of_eager(self):
        with opened("train-step") as runner:
            eager = same_model("train-step", runner).train()
            state = torch.get_rng_state()
            for number in range(100):
                inputs = {"tokens": torch.randint(0, 50, (1, 12)), "labels": torch.randint(0, 4, (1,))}
                last, rate = number % 2 == 1, 1e-3 * (1 - number / 100)
                torch.set_rng_state(state)
                with torch.enable_grad():
                    wanted = [eager.learn(**inputs)]
                    if last:
                        eager.optimizer.param_groups[0]["lr"].fill_(rate)
                        wanted.append(eager.update())
                after = torch.get_rng_state()
                torch.set_rng_state(state)
                came = runner["step"](**inputs, lr=rate) if last else runner["accumulate"](**inputs)
                state = torch.get_rng_state()
                assert torch.equal(state, after)
                assert all(map(torch.equal, came.values(), wanted))
            assert all(map(torch.equal, runner.model.parameters(), eager.parameters()))
            assert all(parameter.grad is None for parameter in runner.model.parameters())


class TestPpoStep:
    def test_both_networks_are_trained_at_every_size_as_in_eager(self):
        with opened("ppo-step") as runner:
            eager = same_model("ppo-step", runner).train()
            for number in range(8):
                rows = 64 if number % 3 else 16
                inputs = runner.sample("replay", {"minibatch": rows}, seed=number)
                with torch.enable_grad():
                    wanted = eager.update(**inputs)
                assert all(map(torch.equal, runner.run(**inputs).values(), wanted))
            assert all(map(torch.equal, runner.model.parameters(), eager.parameters()))


@pytest.mark.parametrize("name", ["llama-decode", "paged-decode"])
def test_a_compiled_example_is_the_plain_one_and_its_compiler(name):
    plain = yaml.safe_load(SPECS[name].read_text())
    compiled = yaml.safe_load(SPECS[name].with_name("compiled.yaml").read_text())
    assert compiled["regions"]["decode"].pop("compile")["backend"] in {"inductor", "npugraph_ex"}
    for document in (plain, compiled):
        document.pop("name")
        document.pop("check", None)
    assert compiled == plain

"""`Spec` to `Plan`: what is captured, in which order, and what a run takes and gives."""

from __future__ import annotations

import cProfile
import json
import math
import pstats
import subprocess
import sys
from dataclasses import replace
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphspec.build_spec import build
from graphspec.compiler import compile_spec
from graphspec.document import parse
from graphspec.errors import InputError
from graphspec.plan import Bucket, Variant, Wire, choose
from graphspec.plan_json import from_json, to_json
from graphspec.spec import Buckets, Buffer, DimSize, FromParam, FromSize, Model, Name, Region, Spec

DECODER = """
    graphspec: 1
    name: decoder-step
    model: {factory: "model.py:build"}
    device: npu:1
    dims:
      batch: [1, 2, 4, 8]
      cache: 64
    params:
      kv_lens: {type: int, shape: [batch], min: 1, max: cache, default: 1, pad: 1}
      scale: {type: float, default: 0.125}
      unused: {type: float, default: 1.0}
    buffers:
      tokens: {shape: [batch, 1], dtype: int64, pad: 0}
      state: {role: state, shape: [batch, cache], dtype: float32, init: 0}
      kv: {role: state, attr: "model.layers.*.k_cache"}
      lens: {shape: [batch], dtype: int64, from: kv_lens}
      logits: {role: output, shape: [2*batch, 1000], dtype: float32}
    pools:
      step: [embed, decode]
    regions:
      embed: {call: model.embed, inputs: [tokens, lens], outputs: hidden}
      decode:
        call: model.decode
        inputs: {hidden: hidden, state: state, scale: scale}
        outputs: {logits: "0", state: "1"}
        updates:
          - {op: "npu::npu_fused_infer_attention_score", arg: actual_seq_lengths_kv, from: kv_lens}
      sample: {call: model.sample, inputs: [logits], outputs: next_tokens, eager: true}
    replay: [embed, decode, sample]
"""


def plan_of(text):
    return compile_spec(build(parse(dedent(text), "spec.yaml")))


def graphs_of(plan):
    return [(graph.region, str(graph.bucket)) for graph in plan.graphs]


def spec_with(regions, sequences=None, *, sizes=(1, 2), pools=None, **buffers):
    """A spec of regions given as (inputs, outputs), over the dim `n` unless `dims` says otherwise."""
    made = {
        name: Region(name, f"model.{name}", tuple(map(Name, inputs)), outputs=dict.fromkeys(outputs, ""))
        for name, (inputs, outputs) in regions.items()
    }
    declared = {name: replace(buffer, name=name) for name, buffer in buffers.items()}
    sequences = sequences or {"replay": tuple(regions)}
    return Spec("s", Model("m.py:f"), made, sequences, dims={"n": Buckets(sizes)}, buffers=declared, pools=pools or {})


def flat(**fields):
    return Buffer("", shape=(4,), dtype="float32", **fields)


def rows(**fields):
    return Buffer("", shape=(DimSize("n"), 4), dtype="float32", **fields)


# Buckets and the order of capture


def test_buckets_are_captured_from_the_largest_to_the_smallest_and_regions_in_replay_order():
    assert graphs_of(plan_of(DECODER)) == [
        (region, f"batch={size}") for size in (8, 4, 2, 1) for region in ("embed", "decode")
    ]


def test_the_index_of_a_graph_counts_within_its_pool():
    plan = plan_of(DECODER.replace("step: [embed, decode]", "step: [embed]"))
    assert [(graph.pool, graph.index) for graph in plan.graphs][:4] == [
        ("step", 0),
        ("decode", 0),
        ("step", 1),
        ("decode", 1),
    ]


def test_several_bucketed_dims_give_their_product_with_ties_in_declared_order():
    text = DECODER.replace("batch: [1, 2, 4, 8]", "batch: [1, 2]").replace("cache: 64", "cache: [8, 16]")
    assert [str(bucket) for bucket in plan_of(text).buckets] == [
        "batch=2, cache=16",
        "batch=1, cache=16",
        "batch=2, cache=8",
        "batch=1, cache=8",
    ]


def test_listed_buckets_replace_the_product():
    text = DECODER.replace("cache: 64", "cache: [16, 64]")
    text += "    buckets: [{batch: 1, cache: 64}, {batch: 8, cache: 16}, {cache: 16, batch: 8}]\n"
    assert [str(bucket) for bucket in plan_of(text).buckets] == ["batch=8, cache=16", "batch=1, cache=64"]


def test_nothing_bucketed_is_one_empty_bucket():
    plan = plan_of(DECODER.replace("batch: [1, 2, 4, 8]", "batch: 8"))
    assert plan.buckets == (Bucket(),)
    assert plan.constants == {"batch": 8, "cache": 64}


def test_a_region_is_captured_once_for_each_combination_of_its_own_dims_at_the_largest_bucket_that_has_it():
    text = DECODER.replace("cache: 64", "cache: [16, 64]")
    plan = plan_of(text + "    buckets: [{batch: 4, cache: 16}, {batch: 1, cache: 64}, {batch: 4, cache: 64}]\n")
    assert graphs_of(plan) == [
        ("embed", "batch=4"),
        ("decode", "batch=4, cache=64"),
        ("decode", "batch=4, cache=16"),
        ("embed", "batch=1"),
        ("decode", "batch=1, cache=64"),
    ]


def test_a_region_of_several_sequences_or_places_is_captured_once():
    spec = spec_with({"a": (["x"], ["v"]), "b": (["x"], ["w"])}, {"one": ("b", "a", "b"), "two": ("a", "b")}, x=flat())
    assert graphs_of(compile_spec(spec)) == [("b", ""), ("a", "")]


def test_an_eager_region_has_no_graph_and_no_pool():
    plan = plan_of(DECODER)
    assert plan.regions["sample"].pool is None
    assert "sample" not in {graph.region for graph in plan.graphs}


def test_a_region_in_no_pool_has_one_of_its_own():
    plan = plan_of(DECODER.replace("step: [embed, decode]", "step: [embed]"))
    assert plan.pools == {"step": ("embed",), "decode": ("decode",)}


def test_a_pool_of_its_own_is_never_a_declared_one():
    plan = plan_of(DECODER.replace("step: [embed, decode]", "decode: [embed]"))
    assert plan.regions["decode"].pool != plan.regions["embed"].pool == "decode"


def test_a_pool_lists_its_regions_in_capture_order_and_those_nothing_replays_last():
    spec = spec_with(
        {name: (["x"], [f"v{name}"]) for name in "abcd"}, {"replay": ("c", "a")}, pools={"p": tuple("abcd")}, x=flat()
    )
    assert compile_spec(spec).pools == {"p": ("c", "a", "b", "d")}


# Dims of a region


@pytest.mark.parametrize(
    ("inputs", "outputs", "buffers"),
    [
        (["x"], ["v"], {"x": rows()}),
        (["x"], ["v"], {"x": Buffer("", shape=(3, DimSize("n", 2)), dtype="int64")}),
        (["x", "s"], ["v"], {"x": flat(), "s": rows(role="state")}),
        (["x"], ["v"], {"x": flat(), "v": rows(role="output")}),
        (["x"], ["v"], {"x": flat(), "v": rows(role="state")}),
        (["x"], ["v"], {"x": Buffer("", shape=(), dtype="int64", source=FromSize("n"))}),
        (["x"], ["v"], {"x": Buffer("", shape=(), dtype="int64", source=FromSize("n", bucket=True))}),
    ],
    ids=["input", "scaled", "state", "output", "written back", "real size", "padded size"],
)
def test_a_region_depends_on_the_dims_of_what_it_reads_and_declares(inputs, outputs, buffers):
    plan = compile_spec(spec_with({"a": (inputs, outputs)}, **buffers))
    assert plan.regions["a"].dims == ("n",)
    assert len(plan.graphs) == 2


def test_a_region_depends_on_the_params_it_reads_updates_or_copies():
    text = DECODER.replace("[tokens, lens]", "[lens]").replace("shape: [batch], dtype", "shape: [2], dtype")
    assert plan_of(text).regions["embed"].dims == ("batch",)
    only_updates = DECODER.replace("[tokens, lens]", "[lone]").replace("[batch, cache]", "[cache]")
    only_updates = only_updates.replace("[2*batch, 1000]", "[1000]").replace("state:\n", "")
    only_updates = only_updates.replace("tokens: {shape: [batch, 1]", "lone: {shape: [1]")
    plan = plan_of(only_updates)
    assert (plan.regions["embed"].dims, plan.regions["decode"].dims) == ((), ("batch",))


def test_constants_are_no_dims_of_a_region():
    assert plan_of(DECODER).regions["decode"].dims == ("batch",)


def test_dims_flow_to_every_reader_down_the_line():
    spec = spec_with({"a": (["x"], ["v"]), "b": (["v"], ["w"]), "c": (["w"], ["z"])}, x=rows())
    assert [region.dims for region in compile_spec(spec).regions.values()] == [("n",)] * 3


def test_a_state_does_not_hand_on_the_dims_of_the_region_that_writes_it():
    spec = spec_with({"a": (["x", "s"], ["s"]), "b": (["s"], ["w"])}, x=rows(), s=flat(role="state"))
    assert compile_spec(spec).regions["b"].dims == ()


def test_a_static_output_has_one_address_so_its_reader_depends_on_its_shape_alone():
    spec = spec_with({"a": (["x"], ["v"]), "b": (["v"], ["w"])}, x=rows(), v=flat(role="output", static=True))
    assert compile_spec(spec).regions["b"].dims == ()


def test_dims_flow_through_eager_regions():
    spec = spec_with({"a": (["x"], ["v"]), "b": (["v"], ["w"]), "c": (["w"], ["z"])}, x=rows())
    eager = replace(spec.regions["b"], eager=True)
    plan = compile_spec(replace(spec, regions={**spec.regions, "b": eager}))
    assert plan.regions["c"].dims == ("n",)


# Wires


def test_every_read_says_where_the_value_is():
    spec = spec_with(
        {"a": (["x"], ["v"]), "b": (["v", "s"], ["w", "s"]), "c": (["v", "w", "k"], ["z"])},
        x=flat(),
        s=flat(role="state"),
        k=flat(source=FromParam("p")),
    )
    eager = replace(spec.regions["b"], eager=True)
    plan = compile_spec(
        replace(spec, regions={**spec.regions, "b": eager}, params={}, buffers={**spec.buffers, "k": flat()})
    )
    assert plan.regions["b"].reads == (Wire("v", "graph", "a"), Wire("s", "buffer"))
    assert plan.regions["c"].reads == (Wire("v", "graph", "a"), Wire("w", "eager", "b"), Wire("k", "buffer"))
    assert Wire("scale", "param") in plan_of(DECODER).regions["decode"].reads


def test_a_static_output_is_read_from_its_buffer_and_keeps_its_producer():
    spec = spec_with({"a": (["x"], ["v"]), "b": (["v"], ["w"])}, x=flat(), v=flat(role="output", static=True))
    plan = compile_spec(spec)
    assert plan.regions["b"].reads == (Wire("v", "buffer", "a"),)
    assert plan.buffers["v"].static
    assert "v" not in {span.value for span in plan.spans}


def test_an_output_with_the_name_of_a_state_is_written_back():
    decode = plan_of(DECODER).regions["decode"]
    assert (decode.outputs, decode.results, decode.write_back) == (("logits", "state"), ("logits",), ("state",))


# Spans


def spans_of(plan, value):
    return [(span.first, span.last) for span in plan.spans if span.value == value]


def test_a_value_lives_from_its_producer_to_its_last_consumer_for_each_bucket():
    plan = plan_of(DECODER)
    assert spans_of(plan, "hidden") == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_value_nothing_reads_is_released_after_its_producer():
    spec = spec_with({"a": (["x"], ["v"]), "b": (["x"], ["w"])}, pools={"p": ("a", "b")}, x=flat())
    plan = compile_spec(spec)
    assert (spans_of(plan, "v"), spans_of(plan, "w")) == ([(0, 0)], [(1, 1)])


def test_a_held_result_is_never_released():
    spec = spec_with({"a": (["x"], ["v"])}, x=flat(), v=flat(role="output", copy=False))
    assert spans_of(compile_spec(spec), "v") == [(0, None)]


def test_a_consumer_in_another_pool_keeps_the_value_through_what_its_own_pool_captures_before():
    regions = {"a": (["x"], ["v"]), "b": (["x"], ["w"]), "c": (["v"], ["z"]), "d": (["x"], ["y"])}
    plan = compile_spec(spec_with(regions, pools={"p": ("a", "b", "d")}, x=flat()))
    assert spans_of(plan, "v") == [(0, 1)]


def test_an_eager_consumer_keeps_the_value_through_what_is_captured_before_its_place():
    regions = {"a": (["x"], ["v"]), "b": (["x"], ["w"]), "c": (["v"], ["z"]), "d": (["x"], ["y"])}
    spec = spec_with(regions, pools={"p": ("a", "b", "d")}, x=flat())
    plan = compile_spec(replace(spec, regions={**spec.regions, "c": replace(spec.regions["c"], eager=True)}))
    assert spans_of(plan, "v") == [(0, 1)]


def test_a_value_read_at_several_buckets_lives_to_the_last_of_them():
    regions = {"a": (["x"], ["v"]), "b": (["v", "y"], ["w"])}
    plan = compile_spec(spec_with(regions, sizes=(1, 2, 4), pools={"p": ("a", "b")}, x=flat(), y=rows()))
    assert spans_of(plan, "v") == [(0, 3)]


def test_states_have_no_span():
    assert not spans_of(plan_of(DECODER), "state")


# Sequences


def test_a_sequence_takes_the_inputs_and_params_its_regions_use_and_gives_the_declared_outputs():
    sequence = plan_of(DECODER).sequences["replay"]
    assert sequence.inputs == ("tokens",)
    assert sequence.params == ("kv_lens", "scale")
    assert sequence.results == ("logits",)
    assert sequence.steps == ("embed", "decode", "sample")


def test_a_sequence_without_declared_outputs_gives_all_its_last_region_returns():
    spec = spec_with(
        {"a": (["x"], ["v"]), "b": (["v", "s"], ["w", "s"])},
        {"one": ("a", "b"), "two": ("a",)},
        x=flat(),
        s=flat(role="state"),
    )
    plan = compile_spec(spec)
    assert (plan.sequences["one"].results, plan.sequences["two"].results) == (("w", "s"), ("v",))
    assert (plan.regions["a"].results, plan.regions["b"].results) == (("v",), ("w", "s"))


def test_the_buckets_of_a_sequence_are_what_its_own_dims_can_be_fewest_elements_first():
    text = DECODER.replace("cache: 64", "cache: [16, 64]").replace("replay: [", "replay: {short: [embed], long: [")
    text = text.replace("decode, sample]\n", "decode, sample]}\n")
    plan = plan_of(text)
    assert [str(bucket) for bucket in plan.sequences["short"].buckets] == ["batch=1", "batch=2", "batch=4", "batch=8"]
    assert [bucket.elements for bucket in plan.sequences["long"].buckets] == [16, 32, 64, 64, 128, 128, 256, 512]


# Buffers


def test_a_buffer_is_allocated_once_at_the_largest_size_of_each_dim():
    buffers = plan_of(DECODER).buffers
    assert (buffers["tokens"].largest, buffers["tokens"].bytes) == ((8, 1), 64)
    assert (buffers["state"].largest, buffers["state"].bytes) == ((8, 64), 2048)
    assert (buffers["logits"].largest, buffers["logits"].bytes) == ((16, 1000), 64_000)
    assert buffers["logits"].dims == ("batch",)
    assert [buffer.static for buffer in buffers.values()] == [True, True, True, True, False]


def test_listed_buckets_size_every_axis_by_its_own_largest():
    text = DECODER.replace("cache: 64", "cache: [16, 64]")
    plan = plan_of(text + "    buckets: [{batch: 1, cache: 64}, {batch: 4, cache: 16}]\n")
    assert plan.buffers["state"].largest == (4, 64)


def test_what_the_model_owns_has_no_size():
    kv = plan_of(DECODER).buffers["kv"]
    assert (kv.largest, kv.bytes) == (None, None)


# Digest and JSON


REORDERED = DECODER.replace(
    "      embed: {call: model.embed, inputs: [tokens, lens], outputs: hidden}\n", ""
).replace(
    "    replay: [", "      embed: {outputs: hidden, inputs: [tokens, lens], call: model.embed}  # last\n    replay: ["
)  # fmt: skip


def digest_of(text):
    return plan_of(text).digest


def test_the_digest_ignores_names_comments_device_indices_and_the_order_of_keys():
    assert digest_of(DECODER) == digest_of(REORDERED)
    assert digest_of(DECODER) == digest_of(DECODER.replace("npu:1", "npu:0").replace("decoder-step", "other"))
    swapped = "      batch: [1, 2, 4, 8]\n      cache: 64\n"
    assert digest_of(DECODER) == digest_of(DECODER.replace(swapped, "      cache: 64\n      batch: [1, 2, 4, 8]\n"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1, 2, 4, 8]", "[1, 2, 4]"),
        ("npu:1", "cpu"),
        ("step: [embed, decode]", "step: [embed]"),
        ("dtype: int64, pad", "dtype: int32, pad"),
        ("[2*batch, 1000], dtype: float32", "[2*batch, 1000], dtype: float32, copy: false"),
        ("arg: actual_seq_lengths_kv", "arg: actual_seq_lengths"),
        ("from: kv_lens}\n      logits", "from: {size: batch}}\n      logits"),
        ("[embed, decode, sample]\n", "{other: [embed, decode, sample]}\n"),
    ],
)
def test_the_digest_follows_what_ranks_must_agree_on(old, new):
    assert old in DECODER
    assert digest_of(DECODER) != digest_of(DECODER.replace(old, new))


def test_the_order_of_capture_is_part_of_the_digest():
    spec = spec_with({"a": (["x"], ["v"]), "b": (["x"], ["w"])}, x=flat())
    other = replace(spec, sequences={"replay": ("b", "a")})
    assert compile_spec(spec).digest != compile_spec(other).digest


def test_the_digest_is_the_same_in_another_process():
    code = (
        "import sys; from graphspec.build_spec import build; from graphspec.compiler import compile_spec;"
        "from graphspec.document import parse; print(compile_spec(build(parse(sys.stdin.read(), 'other.yaml'))).digest)"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=dedent(DECODER),
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        assert done.stdout.strip() == digest_of(DECODER)


@pytest.mark.parametrize(
    "text", [DECODER, DECODER.replace("from: kv_lens}\n      logits", "from: {bucket: batch}}\n      logits")]
)
def test_a_plan_survives_the_way_through_json(text):
    plan = plan_of(text)
    data = json.loads(json.dumps(to_json(plan)))
    assert data == to_json(plan)
    assert from_json(data) == plan
    assert from_json(data).digest == plan.digest


def test_the_keys_of_a_plan_in_json_are_these():
    data = to_json(plan_of(DECODER))
    assert list(data) == [
        "version", "name", "device", "digest", "constants", "buckets", "buffers", "pools", "regions", "wires", "graphs",
        "spans", "sequences",
    ]  # fmt: skip
    assert data["graphs"][0] == {"region": "embed", "bucket": {"batch": 8}, "pool": "step", "index": 0}
    assert data["spans"][0] == {"value": "hidden", "pool": "step", "bucket": {"batch": 8}, "first": 0, "last": 1}
    assert data["buffers"]["logits"]["shape"] == ["2*batch", 1000]
    assert data["buffers"]["lens"]["source"] == {"param": "kv_lens"}
    assert {"region": "decode", "value": "hidden", "source": "graph", "producer": "embed"} in data["wires"]


def test_a_plan_of_another_version_is_refused():
    with pytest.raises(ValueError, match="this build reads version 1 of a plan, not 2"):
        from_json(to_json(plan_of(DECODER)) | {"version": 2})


# Variants


VARIANTS = """
    graphspec: 1
    model: {factory: "model.py:build"}
    dims: {batch: [1, 2]}
    params:
      k: {type: int, choices: [1, 2, 4, 9], max: 4, default: 2, specialize: true}
      sign: {type: float, choices: [0, -0.0, 0.0], specialize: true}
      plain: {type: int, choices: [1, 2]}
      unused: {type: int, choices: [1, 2], specialize: true}
    buffers:
      x: {shape: [batch], dtype: float32}
      mask: {shape: [batch], dtype: float32, optional: true}
      bias: {shape: [batch], dtype: float32, optional: true}
      y: {role: output, shape: [batch], dtype: float32}
      z: {role: output, shape: [batch], dtype: float32}
    regions:
      a: {call: model.a, inputs: [x, mask, k], outputs: y}
      b: {call: model.b, inputs: [x, bias, plain, sign], outputs: z}
    replay: {one: [a], two: [b]}
"""


def test_choices_and_optional_inputs_make_variants_the_one_with_every_default_and_input_first():
    plan = plan_of(VARIANTS)
    assert [str(each) for each in plan.variants] == [
        f"k={k}, sign={sign}{absent}"
        for k in (2, 1, 4)
        for sign in (0.0, -0.0)
        for absent in ("", ", without bias", ", without mask")
    ]
    assert plan.opened == plan.variants
    assert plan.unlisted == ()


def test_inputs_of_one_sequence_are_absent_together_those_of_several_are_not():
    plan = plan_of(VARIANTS.replace("{one: [a], two: [b]}", "[a, b]").replace("specialize: true", ""))
    assert [sorted(each.absent) for each in plan.variants] == [[], ["bias"], ["mask"], ["bias", "mask"]]
    eager = plan_of(VARIANTS.replace("outputs: z}", "outputs: z, eager: true}"))
    assert len(eager.variants) == 18


@pytest.mark.parametrize(
    ("param", "values", "unlisted"),
    [
        ("type: bool", [False, True], []),
        ("type: bool, choices: [true]", [True], []),
        ("type: str, choices: [none, lora], default: lora", ["lora", "none"], []),
        ("type: int, min: 1, max: 4", [1], ["k"]),
        ("type: float, default: 2", [2.0], ["k"]),
        ("type: float, choices: [.inf, 1]", [math.inf, 1.0], []),
    ],
)
def test_values_that_are_not_listed_are_not_known_beforehand(param, values, unlisted):
    text = VARIANTS.replace("type: int, choices: [1, 2, 4, 9], max: 4, default: 2", param)
    plan = plan_of(text.replace("mask, k]", "k]").replace("bias, plain, sign", "plain"))
    assert [dict(each.special) for each in plan.variants] == [{"k": value} for value in values]
    assert list(plan.unlisted) == unlisted
    assert from_json(json.loads(json.dumps(to_json(plan), allow_nan=False))) == plan


def test_variants_are_part_of_the_json_and_of_the_digest():
    plan = plan_of(VARIANTS)
    data = to_json(plan)
    assert data["variants"][1] == {"special": {"k": 2, "sign": 0.0}, "absent": ["bias"]}
    assert (data["unlisted"], data["when"]) == ([], "open")
    assert len(data["graphs"]) == 4
    assert from_json(json.loads(json.dumps(data))) == plan
    assert digest_of(VARIANTS) != digest_of(VARIANTS.replace("[1, 2, 4, 9]", "[1, 2, 9]"))
    later = plan_of(VARIANTS + "    capture: {when: first_use}\n")
    assert (later.opened, later.variants) == (plan.variants[:1], plan.variants)
    assert from_json(to_json(later)) == later
    assert later.digest != plan.digest


def test_variants_are_equal_only_where_one_graph_serves_both():
    assert Variant(special=(("s", 0.0),)) != Variant(special=(("s", -0.0),))
    assert Variant(special=(("s", 1),)) != Variant(special=(("s", True),))
    assert Variant(special=(("s", (1, 2)),)) == Variant(special=(("s", (1, 2)),))
    assert Variant(special=(("s", math.nan),)) == Variant(special=(("s", math.nan),))
    assert len({Variant(), Variant(frozenset()), Variant(frozenset({"m"}))}) == 2


def test_where_nothing_varies_a_plan_has_one_variant_without_a_name():
    plan = plan_of(DECODER)
    assert (plan.variants, str(plan.variants[0]), plan.unlisted) == ((Variant(),), "", ())


def test_on_cuda_an_update_that_asks_for_it_makes_a_graph_for_each_choice():
    text = VARIANTS.replace("outputs: y}", "outputs: y, updates: [UPDATE]}").replace(
        "k: {type: int, ", "k: {type: int, "
    )
    text = text.replace("default: 2, specialize: true", "default: 2")
    text = text.replace("UPDATE", "{op: aten::mul, arg: other, from: k, strategy: specialize}")
    assert [len(plan_of(text + f"    device: {each}\n").variants) for each in ("cuda", "npu", "cpu")] == [18, 6, 6]


# Choosing a bucket


def sequence_over(sizes, *, exact=False):
    spec = spec_with({"a": (["x"], ["v"])}, x=rows())
    return compile_spec(replace(spec, dims={"n": Buckets(sizes, exact)})).sequences["replay"]


@pytest.mark.parametrize(("size", "taken"), [(0, 1), (1, 1), (2, 2), (3, 4), (8, 8)])
def test_a_run_takes_the_smallest_bucket_that_fits(size, taken):
    assert choose(sequence_over((1, 2, 4, 8)), {"n": size}) == Bucket((("n", taken),))


def test_a_run_larger_than_every_bucket_has_none():
    assert choose(sequence_over((1, 2, 4, 8)), {"n": 9}) is None


@pytest.mark.parametrize(("size", "taken"), [(64, 64), (96, 96), (80, None)])
def test_an_exact_dim_takes_only_its_own_sizes(size, taken):
    chosen = choose(sequence_over((64, 96), exact=True), {"n": size}, {"n"})
    assert chosen == (None if taken is None else Bucket((("n", taken),)))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, unique=True),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_among_listed_combinations_the_fitting_one_with_the_fewest_elements_is_taken(listed, real):
    spec = spec_with({"a": (["x"], ["v"])}, x=Buffer("", shape=(DimSize("n"), DimSize("m")), dtype="int64"))
    dims = {"n": Buckets(tuple(range(1, 7))), "m": Buckets(tuple(range(1, 7)))}
    combinations = tuple({"n": n, "m": m} for n, m in listed)
    sequence = compile_spec(replace(spec, dims=dims, buckets=combinations)).sequences["replay"]
    chosen = choose(sequence, {"n": real[0], "m": real[1]})
    fitting = [n * m for n, m in listed if n >= real[0] and m >= real[1]]
    assert (chosen.elements if chosen else None) == min(fitting, default=None)


def test_a_missing_size_is_an_error_that_names_the_dim():
    with pytest.raises(InputError, match="needs a size for dim 'n'"):
        choose(sequence_over((1, 2)), {})


def test_a_missing_size_is_no_matter_where_the_buckets_leave_no_choice():
    assert choose(sequence_over((4,)), {"other": 3}) == Bucket((("n", 4),))


# Growth


def chain(regions, buckets):
    """Regions in one pool, each reading the one before and the first."""
    made = {f"r{i}": ([f"v{i - 1}", "v0"][: 2 if i > 1 else 1] if i else ["x"], [f"v{i}"]) for i in range(regions)}
    return spec_with(made, sizes=tuple(range(1, buckets + 1)), pools={"p": tuple(made)}, x=rows())


def calls_of(spec):
    profile = cProfile.Profile()
    profile.runcall(compile_spec, spec)
    return pstats.Stats(profile).total_calls


def test_the_work_grows_linearly_with_the_regions():
    assert calls_of(chain(1000, 1)) < 11 * calls_of(chain(100, 1))


@pytest.mark.parametrize(("regions", "buckets"), [(1000, 1), (48, 50)])
def test_a_large_spec_has_every_graph(regions, buckets):
    assert len(compile_spec(chain(regions, buckets)).graphs) == regions * buckets


def test_inline_regions_have_a_pool_but_no_graph_until_they_are_met():
    spec = spec_with(
        {"a": (["x"], ["v"]), "layers": ([], [])}, {"replay": ("a",)}, pools={"p": ("layers", "a")}, x=flat()
    )
    inline = replace(spec.regions["layers"], inline=True)
    plan = compile_spec(replace(spec, regions={**spec.regions, "layers": inline}))
    assert graphs_of(plan) == [("a", "")]
    assert plan.pools == {"p": ("a", "layers")}


def test_a_spec_of_inline_regions_alone_has_a_plan():
    spec = spec_with({"layers": ([], [])}, {"replay": ()})
    plan = compile_spec(replace(spec, sequences={}))
    assert (plan.graphs, plan.sequences) == ((), {})

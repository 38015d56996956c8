"""The published schema: complete, in step with the dataclasses, and one finding for each mistake."""

import json
import re
from dataclasses import fields

import jsonschema
import pytest
import yaml

from graphspec import document, published, schema, spec
from graphspec.build_spec import build
from graphspec.plan import ITEM_BYTES

HEAD = "graphspec: 1\nmodel: {factory: model.py:build}\n"
REGION = "regions: {f: {call: model, inputs: [x], outputs: y}}\n"
PUBLISHED = schema.published()

# Every key of the format, as its design lists it.
EXAMPLE = """\
graphspec: 1
name: decoder-step
model:
  factory: model.py:build
  args: {layers: 4, max_len: {dim: cache}, device: {device: true}}
  weights: weights.safetensors
  dtype: float32
  mode: eval
device: auto
seed: 0
dims:
  batch: [1, 2, 4, 8]
  cache: 64
params:
  kv_lens: {type: int, shape: [batch], min: 1, max: cache, default: 1, pad: 1}
  scale:   {type: float, default: 0.125}
  adapter: {type: str, choices: [none, lora], default: none, specialize: true}
buffers:
  tokens:  {shape: [batch, 1], dtype: int64, pad: 0, sample: {randint: [0, 1000]}}
  state:   {role: state,  shape: [batch, 64], dtype: float32, init: 0}
  kv:      {role: state,  attr: "model.layers.*.k_cache"}
  lens:    {shape: [batch], dtype: int64, from: kv_lens}
  logits:  {role: output, shape: [batch, 1000], dtype: float32}
pools:
  step: [embed, decode]
regions:
  embed:
    call: model.embed
    inputs: [tokens]
    outputs: hidden
  decode:
    call: model.decode
    inputs: {hidden: hidden, state: state, causal: {const: true}}
    outputs: {logits: logits}
    warmup: 3
    on_miss: error
    updates:
      - {op: "npu::npu_fused_infer_attention_score", arg: actual_seq_lengths_kv, from: kv_lens}
  sample:
    call: model.sample
    inputs: [logits]
    outputs: next_tokens
    eager: true
replay: [embed, decode, sample]
capture: {error_mode: global, gc: false, memory_budget: 2GiB, max_graphs: 512}
check: {rtol: 1.0e-5, atol: 1.0e-6}
"""


def found(text):
    return [(each.code, each.path) for each in schema.check(document.parse(text, "spec.yaml"))]


def properties(name):
    return set(PUBLISHED["$defs"][name]["properties"])


def names(cls, **renamed):
    return {renamed.get(field.name, field.name) for field in fields(cls)} - {None}


def test_the_published_file_is_a_valid_schema():
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


def test_the_published_file_is_what_the_package_reads():
    assert json.loads(published.schema_text()) == PUBLISHED


def test_the_example_of_the_design_has_no_finding():
    assert found(EXAMPLE) == []


def test_jsonschema_alone_agrees_that_the_example_is_valid():
    data = document.parse(EXAMPLE, "spec.yaml").data
    assert list(jsonschema.Draft202012Validator(PUBLISHED).iter_errors(data)) == []


def test_the_keys_of_the_schema_are_the_fields_of_the_dataclasses():
    assert properties("buffer") == names(spec.Buffer, name=None, source="from")
    assert properties("param") == names(spec.Param, name=None)
    assert properties("region") == names(spec.Region, name=None, positional="inputs", keyword="inputs", breaks="break")
    assert properties("update") == names(spec.Update, param="from")
    assert properties("compile") == names(spec.Compile)
    top = PUBLISHED["properties"]
    renamed = {"sequences": "replay", "loops": None, "document": None}
    assert properties("step") == names(spec.Loop, condition="while", first="do", stop="do", limit="max")
    assert set(top) == names(spec.Spec, **renamed) | {"graphspec", "generators", "hooks"}
    assert set(top["model"]["properties"]) == names(spec.Model)
    assert set(top["capture"]["properties"]) == names(spec.CaptureOptions)
    assert set(top["check"]["properties"]) == names(spec.CheckOptions)
    assert set(top["npu"]["properties"]) == names(spec.NpuOptions)


def test_the_dtypes_of_the_schema_are_those_the_plan_can_size():
    assert set(PUBLISHED["$defs"]["dtype"]["enum"]) == set(ITEM_BYTES)


def test_the_defaults_of_the_schema_are_those_of_the_dataclasses():
    for name, cls in (("buffer", spec.Buffer), ("param", spec.Param), ("region", spec.Region), ("update", spec.Update)):
        defaults = {field.name: field.default for field in fields(cls)}
        for key, each in PUBLISHED["$defs"][name]["properties"].items():
            if "default" in each and key != "layout":  # contiguous is what None means
                assert each["default"] == defaults[key], (name, key)


def described(each, path=""):
    """Every schema of a value, with its place."""
    if isinstance(each, dict) and not each.keys() & {"if"}:
        yield path, each
    if isinstance(each, dict):
        for keyword in ("properties", "patternProperties", "$defs"):
            for key, inner in each.get(keyword, {}).items():
                yield from described(inner, f"{path}/{key}")
        if "items" in each:
            yield from described(each["items"], f"{path}/items")


def test_every_key_has_a_title_and_a_description_for_editors():
    for path, each in described(PUBLISHED):
        if "$ref" not in each:
            assert each.get("title"), path
            assert each.get("description"), path


# Every mapping of the language once, each with a key `x-note` in it.
NOTED = """\
graphspec: 1
X-
model: {factory: model.py:build, args: {layers: 4, X-}, X-}
dims: {batch: {sizes: {from: 1, to: 2, X-}, X-}, side: [2, {from: 3, to: 4, X-}], X-}
buckets: [{batch: 1, side: 2, X-}]
params: {n: {type: int, X-}, X-}
buffers:
  x: {shape: [4], dtype: int64, sample: {randint: [0, 9], X-}, X-}
  s: {shape: [], dtype: int64, from: {size: batch, X-}}
  X-
pools: {p: [f], X-}
regions:
  f:
    call: model
    inputs: {x: x, a: {const: 1, X-}, b: {list: [{attr: model.a, X-}]}, c: {dict: {x: x, X-}, X-}, X-}
    outputs: {y: 0, X-}
    updates: [{op: aten::mul, arg: other, from: n, X-}]
    bind: {model.lr: n, X-}
    compile: {backend: inductor, X-}
    X-
  g: {call: model, inputs: [{make: model.py:f, with: {x: x, X-}, X-}], outputs: z}
  X-
replay: {both: [f, g], X-}
capture: {gc: true, X-}
check: {rtol: 0, X-}
npu: {debug_dump: d, X-}
"""
NOTES = ["1", "x", "[3, null]", "{const: 1, attr: no}"]


def noted(note):
    lines = (line.replace("X-", f"x-note: {note}") for line in NOTED.splitlines())
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("note", NOTES)
def test_keys_that_begin_with_x_are_ignored_in_every_mapping_of_the_language(note):
    parsed = document.parse(noted(note), "spec.yaml")
    assert found(noted(note)) == []
    assert "x-note" not in json.dumps(parsed.data)
    without = document.parse(re.sub(r"^ *X-\n|, X-", "", NOTED, flags=re.MULTILINE), "spec.yaml")
    assert build(parsed) == build(without)


@pytest.mark.parametrize("note", NOTES)
def test_editors_ignore_them_in_the_same_places(note):
    data = yaml.safe_load(noted(note))
    assert [error.message for error in jsonschema.Draft202012Validator(PUBLISHED).iter_errors(data)] == []


def test_inside_a_literal_such_a_key_is_data_like_another():
    text = (
        "graphspec: 1\nmodel: {factory: model.py:build, args: {config: {x-rate: 2, deep: [{x-rate: 3}]}}}\n"
        "npu: {super_kernel: {x-rate: 4}}\n"
        "regions: {f: {call: model, inputs: [{const: {x-rate: 5}}, {list: [{dict: {const: {const: {x-rate: 6}}}}]}]}}\n"
    )
    assert [f"'x-rate': {value}" in str(document.parse(text, "s.yaml").data) for value in (2, 3, 4, 5, 6)] == [True] * 5


def test_a_name_that_is_a_word_of_the_language_makes_no_literal():
    text = "regions: {dict: {call: model, x-a: 1, inputs: {const: {dict: {x: x, x-b: 2}}, args: {list: [x], x-c: 3}}}}"
    parsed = document.parse(HEAD + text, "spec.yaml")
    assert "x-" not in str(parsed.data)
    assert schema.check(parsed) == []


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ("[3]", "GS103", (0,)),
        ("[{const: 1, attr: model.x}]", "GS109", (0,)),
        ("[{list: [{dict: {a: 1}}]}]", "GS103", (0, "list", 0, "dict", "a")),
        ("[{make: nowhere, with: {a: x}}]", "GS105", (0, "make")),
        ("[{}]", "GS108", (0,)),
        ("{a: {lst: [x]}}", "GS101", ("a", "lst")),
        ("{a: [x]}", "GS103", ("a",)),
    ],
)
def test_one_mistake_in_a_value_of_several_kinds_is_one_finding_at_its_place(text, code, path):
    spec_text = HEAD + f"regions: {{f: {{call: model, inputs: {text}, outputs: y}}}}"
    assert found(spec_text) == [(code, ("regions", "f", "inputs", *path))]


@pytest.mark.parametrize("text", ["5", "[1, 0]", "[x]", "1.0", "{sizes: 1}", "{from: 1}", "{exact: true}", "{step: 2}"])
def test_a_wrong_dim_is_one_finding(text):
    assert len(found(HEAD + REGION + f"dims: {{batch: {text}}}")) == (0 if text == "5" else 1)


def test_a_blank_value_where_none_may_stand_is_found_too():
    text = HEAD + REGION + "dims: {batch: {sizes: ~, from: 1, to: 2}}"
    assert {code for code, _ in found(text)} == {"GS107", "GS109"}


@pytest.mark.parametrize("text", ["", "~", "null"])
def test_a_blank_value_is_an_error_that_names_the_key(text):
    (finding,) = schema.check(document.parse(HEAD + REGION + f"seed: {text}\n", "spec.yaml"))
    assert finding.code == "GS107"
    assert "`seed`" in finding.message


def test_blank_is_a_value_inside_literals_and_arguments_of_the_factory():
    text = "graphspec: 1\nmodel: {factory: model.py:build, args: {a: null}}\n"
    assert found(text + "regions: {f: {call: model, inputs: [{const: null}], outputs: y}}") == []


@pytest.mark.parametrize("text", ["4, 8", "(4, 8)", "4 8", "'[4, 8]'"])
def test_a_shape_that_is_no_list_is_shown_how_to_be_written(text):
    parsed = document.parse(HEAD + REGION + f"buffers:\n  x:\n    shape: {text}\n    dtype: int64\n", "spec.yaml")
    (finding,) = schema.check(parsed)
    assert text.strip("'") in finding.message
    assert "[4, 8]" in finding.hint


@pytest.mark.parametrize("word", ["yes", "no", "on", "off"])
def test_a_word_for_a_boolean_is_read_as_text_and_says_so(word):
    (finding,) = schema.check(document.parse(HEAD + REGION + f"capture: {{gc: {word}}}\n", "spec.yaml"))
    assert f"the text '{word}'" in finding.message
    assert "true or false" in finding.hint


def test_a_run_of_sizes_that_would_fill_the_memory_is_refused():
    assert found(HEAD + REGION + "dims: {n: {from: 1, to: 100000000000}}") == [("GS106", ("dims", "n"))]

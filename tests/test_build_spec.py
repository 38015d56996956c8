"""A checked document as the values of the language: every way to write a thing is one thing."""

import copy
from pathlib import Path

import pytest

import graphspec
from graphspec import document, schema
from graphspec.build_spec import build
from graphspec.spec import (
    Attr,
    Buckets,
    Const,
    Constant,
    DictOf,
    DimSize,
    FromParam,
    FromSize,
    ListOf,
    Make,
    Name,
    Sample,
)

HEAD = "graphspec: 1\nmodel: {factory: model.py:build}\n"
REGION = "regions: {f: {call: model, inputs: [x], outputs: y}}\n"


def built(text, region=REGION, name="decoder.yaml"):
    parsed = document.parse(HEAD + region + text, name)
    assert [str(each) for each in schema.check(parsed)] == []
    return build(parsed)


def region(text):
    return built("", f"regions: {{f: {{call: model, {text}}}}}\n").regions["f"]


def test_a_spec_without_a_name_has_that_of_its_file():
    assert built("").name == "decoder"


def test_the_only_region_is_the_replay_where_none_is_given():
    assert built("").sequences == {"replay": ("f",)}


def test_several_regions_without_replay_have_no_sequence():
    assert built("", "regions: {f: {call: model}, g: {call: model}}\n").sequences == {}


def test_an_inline_region_is_in_no_sequence():
    assert built("", "regions: {f: {call: model}, g: {call: model, inline: true}}\n").sequences == {"replay": ("f",)}


def test_a_bare_replay_is_the_sequence_named_replay():
    assert built("replay: [f, f]").sequences == {"replay": ("f", "f")}
    assert built("replay: {x-note: 1, a: [f]}").sequences == {"a": ("f",)}


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("64", Constant(64)),
        ("[8, 4, 4]", Buckets((4, 8))),
        ("{from: 16, to: 48, step: 16}", Buckets((16, 32, 48))),
        ("{from: 1, to: 3}", Buckets((1, 2, 3))),
        ("[1, {from: 4, to: 8, step: 4}]", Buckets((1, 4, 8))),
        ("{sizes: [64, 96], exact: true}", Buckets((64, 96), exact=True)),
        ("{sizes: {from: 2, to: 4, step: 2}}", Buckets((2, 4))),
        ("{from: 2, to: 4, step: 2, exact: true}", Buckets((2, 4), exact=True)),
    ],
)
def test_every_way_to_write_a_dim(text, dim):
    assert built(f"dims: {{batch: {text}}}").dims["batch"] == dim


def test_axes_are_sizes_dims_and_multiples_of_dims():
    shape = built("buffers: {x: {shape: [4, batch, 2*batch, '3 * batch'], dtype: int8}}").buffers["x"].shape
    assert shape == (4, DimSize("batch"), DimSize("batch", 2), DimSize("batch", 3))


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5KiB", 1536), ("10KB", 10_000), ("7B", 7), ("4096", 4096)],
)
def test_memory_is_a_number_of_bytes(text, count):
    assert built(f"capture: {{memory_budget: {text}}}").capture.memory_budget == count


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("y", {"y": ""}),
        ("[y, z]", {"y": "0", "z": "1"}),
        ("{y: 0.keys, z: 1, w: ''}", {"y": "0.keys", "z": "1", "w": ""}),
    ],
)
def test_outputs_are_names_with_paths(text, outputs):
    assert region(f"outputs: {text}").outputs == outputs


def test_arguments_of_every_kind():
    made = region(
        "inputs: [x, {const: [1, null]}, {attr: model.c}, {list: [x, {const: 1}]}, {dict: {a: x}},"
        " {make: 'model.py:B', with: {ids: x}}, {make: package.module:C}]"
    )
    assert made.keyword == {}
    assert made.positional == (
        Name("x"), Const([1, None]), Attr("model.c"), ListOf((Name("x"), Const(1))), DictOf({"a": Name("x")}),
        Make("model.py:B", {"ids": Name("x")}), Make("package.module:C", {}),
    )  # fmt: skip


def test_a_mapping_of_inputs_is_keyword():
    made = region("inputs: {a: x}")
    assert (made.positional, made.keyword) == ((), {"a": Name("x")})


def test_generators_and_hooks_of_the_spec_are_the_defaults_of_its_regions():
    spec = built(
        "generators: [model.a]\nhooks: allow\n",
        "regions: {f: {call: model}, g: {call: model, generators: [model.b], hooks: refuse}}\n",
    )
    assert [(each.generators, each.hooks) for each in spec.regions.values()] == [
        (("model.a",), "allow"), (("model.b",), "refuse"),
    ]  # fmt: skip


def test_a_buffer_from_a_param_or_a_size_has_their_shape_and_dtype_unless_it_says_others():
    spec = built(
        "dims: {batch: [1, 2]}\nparams: {n: {type: int, shape: [batch]}, r: {type: float}}\nbuffers:\n"
        "  a: {from: n}\n  b: {from: r, dtype: float16}\n  c: {from: {size: batch}}\n"
        "  d: {from: {bucket: batch}, dtype: int32, shape: [1]}\n"
    )
    a, b, c, d = spec.buffers.values()
    assert (a.source, a.shape, a.dtype) == (FromParam("n"), (DimSize("batch"),), "int64")
    assert (b.source, b.shape, b.dtype) == (FromParam("r"), (), "float16")
    assert (c.source, c.shape, c.dtype) == (FromSize("batch"), (), "int64")
    assert (d.source, d.shape, d.dtype) == (FromSize("batch", bucket=True), (1,), "int32")


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("normal", Sample("normal")),
        ("{randint: [0, 9]}", Sample("randint", [0, 9])),
        ("{value: 0}", Sample("value", 0)),
    ],
)
def test_every_way_to_write_a_sample(text, sample):
    assert built(f"buffers: {{x: {{shape: [4], dtype: int64, sample: {text}}}}}").buffers["x"].sample == sample


def test_optimizers_and_updates_are_lists_of_values():
    made = region("optimizer: model.opt, updates: [{op: aten::mul, arg: other, from: n, at: [0, 2], x-why: shown}]")
    assert made.optimizer == ("model.opt",)
    (update,) = made.updates
    assert (update.op, update.arg, update.param, update.at, update.strategy) == (
        "aten::mul", "other", "n", (0, 2), "update",
    )  # fmt: skip


def test_keys_that_are_ignored_are_not_part_of_the_spec():
    spec = built("x-a: 1\nbuffers: {x-p: {bad: 1}, x: {shape: [4], dtype: int8, x-b: 2}}\ncheck: {x-c: 3, rtol: 0}")
    assert list(spec.buffers) == ["x"]
    assert spec.check.rtol == 0


@pytest.mark.parametrize(("beside_the_link", "home"), [(False, "real"), (True, "links")])
def test_paths_are_relative_to_the_spec_or_to_what_a_link_to_it_points_at(beside_the_link, home, tmp_path):
    for name in ("real", "links"):
        (tmp_path / name).mkdir()
    (tmp_path / "real/spec.yaml").write_text(HEAD + REGION)
    (tmp_path / "real/model.py").touch()
    if beside_the_link:
        (tmp_path / "links/model.py").touch()
    (tmp_path / "links/spec.yaml").symlink_to(tmp_path / "real/spec.yaml")
    assert build(document.read(tmp_path / "real/spec.yaml")).folder == tmp_path / "real"
    assert build(document.read(tmp_path / "links/spec.yaml")).folder == tmp_path / home


def test_a_factory_that_is_nowhere_is_missed_beside_the_spec(tmp_path):
    (tmp_path / "real.yaml").write_text(HEAD + REGION)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link.yaml").symlink_to(tmp_path / "real.yaml")
    assert build(document.read(tmp_path / "folder/link.yaml")).folder == tmp_path / "folder"


def test_a_spec_read_twice_is_the_same_spec_and_shows_no_document():
    path = Path(__file__).resolve().parents[1] / "specs/pipeline/model.yaml"
    one, other = graphspec.load(path), graphspec.load(path)
    assert one == other
    assert copy.deepcopy(one) == one
    assert "Document" not in repr(one)

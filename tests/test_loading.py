"""A path to a checked spec: every mistake of a file in one pass, at its place, and nothing of the model run."""

import cProfile
import pstats
import subprocess
import sys
from pathlib import Path

import pytest

from graphspec import loading
from graphspec.errors import SpecError
from graphspec.rules import registry, support
from graphspec.rules.graphs import dropped_sizes

HEAD = "graphspec: 1\nmodel: {factory: model.py:build}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text("raise SystemExit('the model was run')\ndef build(): ...\n")
    return tmp_path


@pytest.fixture
def inspect(folder):
    def look(text, head=HEAD):
        path = folder / "spec.yaml"
        path.write_text(head + text, encoding="utf-8")
        return loading.inspect(path)[1]

    return look


def places(findings):
    return [(each.code, each.line, each.column) for each in findings]


def test_three_unrelated_mistakes_in_300_lines_come_in_one_pass_with_their_places(inspect):
    filler = "".join(f"  s{i}: {{role: state, shape: [4], dtype: float32}}\n" for i in range(300))
    text = (
        "x-base: &base {dtype: flaot32, shape: [4]}\n"
        "buffers:\n  x: {<<: *base}\n  z: {<<: *base}\n" + filler + "regions:\n"
        "  f: {call: model.f, inputs: [x, z, s7777], outputs: y, warmpu: 3}\n"
    )
    assert places(inspect(text)) == [("GS104", 3, 23), ("GS201", 308, 37), ("GS101", 308, 57)]


def test_mistakes_of_the_text_the_schema_and_the_rules_come_together(inspect):
    text = (
        "dims: {batch: [2, 1]}\nbuffers:\n  x: {shape: [bacth], dtype: float32}\n  x: {}\n"
        "regions:\n  f: {call: model, inputs: [x], outputs: y, eager: yes}\n"
    )
    assert places(inspect(text)) == [("GS401", 3, 19), ("GS210", 5, 15), ("GS006", 6, 3), ("GS103", 8, 52)]


@pytest.mark.parametrize(
    "text",
    [
        "buffers: {x: {shpae: [4], dtype: float32}}\nregions: {f: {call: model, inputs: [x], outputs: y}}",
        "buffers: {x: {role: sate, shape: [4], dtype: float32}}\nregions: {f: {call: model, inputs: [x], outputs: x}}",
        "buffers: {x: {shape: [4 4], dtype: float32}}\nregions: {f: {call: model, inputs: [x], outputs: y}}",
        "buffers: []\nregions: {f: {call: model, inputs: [x], outputs: y}}",
        "dims: 4\nbuffers: {x: {shape: [n], dtype: int8}}\nregions: {f: {call: model, inputs: [x], outputs: y}}",
        "dims: {n: x}\nparams: {p: {type: int, max: n}}\nregions: {f: {call: model, inputs: [p], outputs: y}}",
        "params: {p: {tpye: int}}\nregions: {f: {call: model, inputs: [p], outputs: y}}",
        "params: {p: {type: integer}}\nregions: {f: {call: model, inputs: [p], outputs: y}}",
        "regions: {f: {call: model, outputs: 3}, g: {call: model.g, inputs: [y]}}\nreplay: [f, g]",
        "regions: {f: {call: model, outputs: y, eager: yes}}\npools: {p: [f]}",
        "regions: {f: {inputs: [{const: 1}], outputs: y}}",
        "regions: {f: {call: model, updates: [{op: aten::mul}]}}",
        "region: {f: {call: model, outputs: y}}",
        "check: {dims: {n: 4}}\nbuffers: {x: {shape: [n], dtype: int8}}\nregions: {f: {call: model, inputs: [x]}}",
        "regions: {f: {call: model, inputs: [p], outputs: y, params: {p: {type: int}}}}",
        "capture: {buffers: {x: {shape: [4], dtype: int8}}}\nregions: {f: {call: model, inputs: [x], outputs: y}}",
        "regions: {f: {call: model, outputs: y}}\nreplay: {a: f}",
    ],
)
def test_one_mistake_brings_no_findings_that_only_follow_from_it(text, inspect):
    assert len({each.path[:3] for each in inspect(text)}) == 1


def test_an_error_in_an_anchor_is_reported_once(inspect):
    uses = "".join(f"  x{i}: *proto\n" for i in range(5))
    text = f"x-proto: &proto {{shape: [4], dtype: nope}}\nbuffers:\n{uses}regions: {{f: {{call: model}}}}"
    assert places(inspect(text)) == [("GS104", 3, 37)]


def test_load_raises_every_error_and_no_warning(folder):
    path = folder / "spec.yaml"
    path.write_text(HEAD + "dims: {unused: 4}\nseed: -1\nregions: {f: {call: modle, outputs: y}}\n")
    with pytest.raises(SpecError) as caught:
        loading.load(path)
    assert [each.code for each in caught.value.diagnostics] == ["GS106", "GS213"]
    assert caught.value.exit_code == 1


def test_load_gives_the_spec_where_there_are_only_warnings(folder):
    path = folder / "spec.yaml"
    path.write_text(HEAD + "dims: {unused: 4}\nregions: {f: {call: model, outputs: y}}\n")
    assert list(loading.load(path).regions) == ["f"]
    assert [each.code for each in loading.inspect(path)[1]] == ["GS220"]


def test_a_factory_is_looked_for_beside_the_spec_from_any_directory_and_through_links(folder, tmp_path, monkeypatch):
    (folder / "spec.yaml").write_text(HEAD + "regions: {f: {call: model, outputs: y}}\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "linked.yaml").symlink_to(folder / "spec.yaml")
    (elsewhere / "folder").symlink_to(folder)
    monkeypatch.chdir(elsewhere)
    for path in ("../spec.yaml", "linked.yaml", "folder/spec.yaml", folder / "spec.yaml"):
        assert loading.inspect(path)[1] == []


def test_a_missing_factory_shows_the_full_path_that_was_tried(folder, monkeypatch):
    (folder / "spec.yaml").write_text("graphspec: 1\nmodel: {factory: gone.py:build}\nregions: {f: {call: model}}\n")
    monkeypatch.chdir(folder)
    (finding,) = loading.inspect(Path("spec.yaml"))[1]
    assert str(folder / "gone.py") in finding.message


@pytest.mark.parametrize(
    "source",
    [
        "def build(): ...", "async def build(): ...", "class build: ...", "build = 1", "build: int = 1",
        "from a import build", "import a as build", "from a import *", "def __getattr__(name): ...",
        "if x:\n  def build(): ...", "try:\n  from a import build\nexcept E:\n  build = None", "for build in x: ...",
        "a = '\\d'\nbuild = a", "(build := 1)",
    ],
)  # fmt: skip
def test_every_way_to_define_the_factory_is_accepted_without_running_it(source, folder, recwarn):
    (folder / "model.py").write_text(source)
    (folder / "spec.yaml").write_text(HEAD + "regions: {f: {call: model, outputs: y}}\n")
    assert loading.inspect(folder / "spec.yaml")[1] == []
    assert not recwarn.list


def test_a_model_file_with_a_syntax_error_is_reported_at_the_factory_with_its_line_and_never_run(folder, inspect):
    (folder / "model.py").write_text("raise SystemExit\n\ndef build(:\n    return 1\n")
    (found,) = inspect("regions: {f: {call: model, outputs: y}}\n")
    assert (found.code, found.line, found.path) == ("GS214", 2, ("model", "factory"))
    assert "model.py is not valid Python: line 3: " in found.message
    assert f"{folder / 'model.py'}:3" in found.hint


@pytest.mark.parametrize("source", ["def built(): ...", "def f():\n  build = 1", "class A:\n  def build(self): ..."])
def test_a_name_that_is_not_at_the_top_level_is_no_factory(source, folder):
    (folder / "model.py").write_text(source)
    (folder / "spec.yaml").write_text(HEAD + "regions: {f: {call: model, outputs: y}}\n")
    assert [each.code for each in loading.inspect(folder / "spec.yaml")[1]] == ["GS214"]


def test_the_garbage_collector_is_as_it_was_after_a_failure(folder):
    import gc

    with pytest.raises(SpecError):
        loading.load(folder / "missing.yaml")
    assert gc.isenabled()


def test_no_module_of_the_front_half_imports_torch():
    probe = (
        "import sys\nfrom graphspec import loading, salvage, schema_messages\nfrom graphspec.cli import validate, "
        "explain, schema\nfrom graphspec.report import findings_text, findings_json, findings_sarif\n"
        "print(sorted({'torch', 'numpy', 'graphspec.runtime', 'asyncio', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_rule_is_registered_once_and_says_its_code():
    rules = (*registry.RULES, *registry.RESOLVED_RULES)
    assert len(set(rules)) == len(rules)
    assert all((rule.__doc__ or "").startswith("GS") for rule in rules)


def test_the_sizes_to_drop_are_those_whose_next_is_nearest():
    assert dropped_sizes((1, 2, 3, 4, 8), 2) == [1, 3]
    assert dropped_sizes((16, 32, 48, 64), 1) == [48]


@pytest.mark.parametrize("device", ["npu", "npu:1"])
def test_48_regions_of_50_buckets_are_refused_on_npu_with_the_sizes_to_drop(device, inspect):
    regions = "".join(f"  r{i}: {{call: model.l{i}, inputs: [x], outputs: y{i}}}\n" for i in range(48))
    outputs = "".join(f"  y{i}: {{role: output, shape: [n], dtype: float32}}\n" for i in range(48))
    text = f"device: {device}\ndims: {{n: {{from: 1, to: 50}}}}\nbuffers:\n  x: {{shape: [n], dtype: float32}}\n"
    text += f"{outputs}regions:\n{regions}replay: [{', '.join(f'r{i}' for i in range(48))}]\n"
    (finding,) = inspect(text)
    assert (finding.code, finding.severity) == ("GS407", "error")
    assert "2,400 graphs" in finding.message
    assert "2,048" in finding.message
    assert "drop 8 of the 50 sizes" in finding.hint
    assert inspect(text.replace(f"device: {device}", "device: cpu")) == []


def chain(count):
    """A spec of ``count`` regions in a chain, with states, pools and updates."""
    lines = ["dims: {batch: [1, 2]}", "params: {n: {type: int, shape: [batch], default: 1}}", "device: cpu", "buffers:"]
    lines += ["  v0: {shape: [batch, 8], dtype: float32}"]
    lines += [f"  s{i}: {{role: state, shape: [batch, 8], dtype: float32, init: 0}}" for i in range(0, count, 4)]
    lines += [f"  v{count}: {{role: output, shape: [batch, 8], dtype: float32}}", "pools:"]
    lines += [f"  p{i}: [{', '.join(f'r{j}' for j in range(i, min(count, i + 50)))}]" for i in range(0, count, 50)]
    lines += ["regions:"]
    for i in range(count):
        lines += [f"  r{i}:", f"    call: model.layers.{i}", f"    outputs: {{v{i + 1}: hidden}}", "    updates:"]
        lines += ["      - {op: aten::mul, arg: other, from: n}"]
        lines += [f"    inputs: {{x: v{i}, s: s{i // 4 * 4}, flag: {{const: true}}}}"]
    return "\n".join([*lines, f"replay: [{', '.join(f'r{i}' for i in range(count))}]"])


def calls(folder, count):
    """Python calls, which other work on the machine does not change."""
    path = folder / f"{count}.yaml"
    path.write_text(HEAD + chain(count))
    profile = cProfile.Profile()
    assert profile.runcall(loading.inspect, path)[1] == []
    return pstats.Stats(profile).total_calls


def test_the_work_of_reading_checking_and_ordering_grows_linearly_with_the_regions(folder):
    calls(folder, 10)  # imports
    assert calls(folder, 1000) < 4 * 1.2 * calls(folder, 250)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, value, _ in support.NOT_YET])
def test_without_the_key_that_is_not_supported_yet_a_spec_is_good(key, value, inspect):
    written = {None: "x", True: "true"}.get(value, value)
    if key == "compile":
        written = "{backend: inductor}"
    elif key in {"optimizer", "bind", "grads"}:
        written = {"optimizer": "model.opt", "bind": "{model.lr: lr}", "grads": "overwrite"}[key]
    text = (
        "buffers: {x: {shape: [4], dtype: float32}}\nparams: {lr: {type: float}}\n"
        "regions: {f: {call: model, inputs: [x, lr], outputs: yKEY}}\n"
    )
    assert {each.code for each in inspect(text.replace("KEY", f", {key}: {written}"))} >= {"GS601"}
    assert inspect(text.replace("KEY", "")) == []


READ_ONLY = (
    "buffers:\n  x: {shape: [4], dtype: float32}\n  h: {role: state, shape: [4], dtype: float32}\n"
    "regions: {f: {call: CALL, inputs: [x, h], outputs: y}}\n"
)


@pytest.mark.parametrize(
    ("model", "call", "warned"),
    [
        ("class Model:\n    def forward(self, x, h): return x + h", "model", True),
        ("class Model:\n    def step(self, x, h): return x + h", "model.step", True),
        ("import torch\nclass Model:\n    def step(self, x, h): return torch.relu(x + h.exp())", "model.step", True),
        ("class Model:\n    def forward(self, x, h): return h.add_(x)", "model", False),
        ("class Model:\n    def forward(self, x, h): h[0] = x[0]; return h", "model", False),
        ("class Model:\n    def forward(self, x, h):\n        h += x\n        return h", "model", False),
        ("import torch\nclass Model:\n    def forward(self, x, h): return torch.add(x, h, out=h)", "model", False),
        ("from cells import cell\nclass Model:\n    def forward(self, x, h): return cell(x, h)", "model", False),
        ("import kernels\nclass Model:\n    def forward(self, x, h): return kernels.step(x, h)", "model", False),
        ("import torch\nclass Model:\n    def forward(self, x, h): return torch.ops.lib.step(x, h)", "model", False),
        ("class Model:\n    def forward(self, x, h): return getattr(h, 'add' + '_')(x)", "model", False),
        ("class Model:\n    def forward(self, x, h): return x + h", "model.decoder", False),
        ("def build(:", "model", False),
    ],
)
def test_a_state_that_is_only_read_is_warned_of_where_no_line_of_the_model_can_write_it(model, call, warned, folder):
    (folder / "model.py").write_text(f"{model}\nbuild = Model\n" if "Model" in model else model)
    (folder / "spec.yaml").write_text(HEAD + READ_ONLY.replace("CALL", call))
    found = [each.code for each in loading.inspect(folder / "spec.yaml")[1] if each.code != "GS214"]
    assert found == (["GS228"] if warned else [])

"""Regions compiled on the CPU: what a recording is lowered to, where libraries are kept, and what a compiled run does.

Few of these really compile, since that takes ten seconds: the others run the very graph that would be compiled.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import graphspec
from graphspec.backends.cpu.compiling import build
from graphspec.backends.cpu.compiling.cache import LIBRARY, LibraryCache, UnwritableCacheError, cache_folder
from graphspec.backends.cpu.compiling.library import operator
from graphspec.backends.cpu.compiling.lowering import lower, obstacles, overlaps
from graphspec.cli import group
from graphspec.compilers import COMPILERS
from graphspec.errors import CaptureError, GuardError, HazardError
from graphspec.recording.calls import Recorder
from graphspec.spec import Compile

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(6, 4))

    def forward(self, x):
        y = torch.relu(self.linear(x)) + self.seen.sum()
        self.seen[1:3].add_(x[0, :4])
        self.seen[2:].mul_(0.5)
        return y, y[:, :2].t(), self.seen[0]


def build():
    return Model()
"""
SPEC = """
graphspec: 1
name: tiny
model: {factory: model.py:build}
buffers:
  x: {shape: [4, 8], dtype: float32}
  seen: {role: state, attr: model.seen}
regions:
  f: {call: model, inputs: [x], outputs: [y, z, s], compile: {backend: inductor}}
replay: [f]
"""


@pytest.fixture(autouse=True)
def _no_autograd():
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def compiled_cache(tmp_path_factory):
    """One cache for the tests that compile, shared by the workers: a library is made once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "graphspec-cache"


@pytest.fixture
def shared_cache(compiled_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(compiled_cache))
    return compiled_cache


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return LibraryCache(cache_folder())


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    (folder / "model.yaml").write_text(SPEC)
    return folder / "model.yaml"


# -- lowering


class Given:
    """What a body works on: x [4, 8], a weight [8, 8], and a state [6, 4] that it may write."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.x, self.weight, self.state = torch.randn(4, 8), torch.randn(8, 8), torch.randn(6, 4)


def plain(g):
    return [torch.relu(g.x @ g.weight.t())]


def writes_through_views(g):
    g.state[1:3].add_(g.x[0, :4])
    g.state[2:].mul_(0.5)
    return [g.state.sum(dim=0), g.state[0]]


def reads_what_it_wrote(g):
    before = g.state.clone()
    g.state.copy_(g.x[:, :6].t())
    return [before, g.state + 1, before.sum() - g.state.sum()]


def returns_views_of_one_result(g):
    y = g.x * 2
    return [y, y[:1], y.t(), y[:, 0]]


def returns_a_view_that_overlaps_itself(g):
    return [g.x.sum(dim=0, keepdim=True).expand(4, 8)]


def turns_in_place(g):
    y = g.x.clone()
    y.t_()
    y[0].zero_()
    return [y, y.unsqueeze_(0)]


def splits(g):
    first, second = torch.split(g.x + 1, 2)
    first.mul_(3)
    values, indices = second.max(dim=1)
    return [first, second, values, indices]


def works_on_lists(g):
    scaled = torch._foreach_mul([g.x, g.weight], 0.5)
    torch._foreach_add_([g.state], [g.state.clone()])
    return [torch.cat(scaled), g.state.mean()]


def mixes_numbers_and_dtypes(g):
    counted = (g.x > 0).to(torch.int64) * 3
    return [counted, g.x.to(torch.float64) / 7, torch.full((2,), 4), g.x.view(torch.int32) + 0]


def two_views_of_one_state_come_in(g):
    rows = g.rows = g.state.view(-1)[4:16] if not hasattr(g, "rows") else g.rows
    return [rows.sum(), g.state.add_(1).mean(), rows * 2]


BODIES = [
    plain,
    writes_through_views,
    reads_what_it_wrote,
    returns_views_of_one_result,
    returns_a_view_that_overlaps_itself,
    turns_in_place,
    splits,
    works_on_lists,
    mixes_numbers_and_dtypes,
    two_views_of_one_state_come_in,
]


def recorded(body, seed=0):
    """A recording of a body, the places of its results, and the bytes of what it was given, before it ran."""
    given = Given(seed)
    given.rows = given.state.view(-1)[4:16]
    before = [tensor.clone() for tensor in (given.x, given.weight, given.state)]
    recorder = Recorder("f")
    with recorder:
        outputs = body(given)
    recording = recorder.recording
    refs = [recording.ref(output) for output in outputs]
    contents = {}
    for tensor, content in zip((given.x, given.weight, given.state), before, strict=True):
        if recording.knows(tensor):
            contents[recording.ref(tensor).storage] = content
    return recording, refs, outputs, contents


def on(memory, ref):
    """The tensor of a recorded place, on other memory."""
    made = torch.empty(0, dtype=ref.dtype)
    return made.set_(memory[ref.storage].untyped_storage(), ref.offset, ref.size, ref.stride)


@pytest.mark.parametrize("body", BODIES)
def test_the_graph_of_a_recording_writes_what_eager_writes(body):
    recording, refs, outputs, contents = recorded(body)
    assert list(obstacles(recording)) == []
    lowered = lower(recording, refs)
    results = {ref.storage: torch.zeros(recording.bytes[ref.storage], dtype=torch.uint8) for ref in lowered.results}
    memory = {**contents, **results}
    lowered.module(*(on(memory, ref) for ref in lowered.arguments))
    for storage, content in contents.items():
        assert torch.equal(content.view(-1), torch.empty(0).set_(recording.outside[storage].storage))
    for ref, output in zip(refs, outputs, strict=True):
        assert torch.equal(on(memory, ref), output)


@pytest.mark.parametrize("body", BODIES)
def test_nothing_is_burned_in_and_arguments_share_no_memory(body):
    recording, refs, *_ = recorded(body)
    lowered = lower(recording, refs)
    assert {node.op for node in lowered.module.graph.nodes} <= {"placeholder", "call_function", "output"}
    assert not list(lowered.module.parameters())
    assert not list(lowered.module.buffers())
    written = [ref.storage for ref in lowered.arguments[lowered.reads :]]
    assert len(set(written)) == len(written)
    assert not set(written) & {ref.storage for ref in lowered.arguments[: lowered.reads]}


def test_two_recordings_of_one_region_are_the_same_text_and_another_number_is_another():
    def scaled(factor):
        return lambda g: [g.x * factor]

    texts = {factor: lower(*recorded(scaled(factor))[:2]).text for factor in (2.0, 3.0)}
    assert texts[2.0] == lower(*recorded(scaled(2.0), seed=1)[:2]).text
    assert texts[2.0] != texts[3.0]


def test_storages_that_share_bytes_out_of_torchs_sight_are_found():
    numbers = torch.zeros(6, 4).numpy()
    alias = torch.from_numpy(numbers)

    def body(_):
        other = torch.from_numpy(numbers[1:])
        return [alias.add_(1), other + 1]

    assert overlaps(recorded(body)[0])
    assert not overlaps(recorded(plain)[0])


def test_every_option_of_inductor_is_one_that_torch_has():
    from torch._inductor import config  # late: most tests need no compiler

    for name, option in COMPILERS["inductor"].options.items():
        default = getattr(config, name)
        wanted = {"bool": bool, "int": int, "float": float, "str": str}.get(option.kind)
        if default is not None and wanted is not None:
            assert isinstance(default, wanted), name
    known = set(torch._inductor.list_mode_options())
    assert set(COMPILERS["inductor"].modes) <= known


# -- the cache


def published(cache, digest="0" * 8, content=b"library"):
    with cache.building() as folder:
        (folder / "built").mkdir()
        (folder / "built" / LIBRARY).write_bytes(content)
        return cache.publish(digest, folder / "built")


def test_a_library_is_found_again_and_only_the_user_can_read_or_write_it(own_cache):
    path = published(own_cache)
    assert own_cache.find("0" * 8) == path
    assert own_cache.find("1" * 8) is None
    assert [oct(each.stat().st_mode & 0o777) for each in (own_cache.folder, path.parent, path)] == [
        "0o700",
        "0o700",
        "0o600",
    ]
    assert [each.name for each in own_cache.folder.iterdir()] == ["0" * 8]


@pytest.mark.parametrize("place", ["parent", "folder", "entry", "library"])
def test_a_library_that_others_could_have_written_is_refused_by_name(own_cache, place):
    path = published(own_cache)
    where = {"parent": own_cache.folder.parent, "folder": own_cache.folder, "entry": path.parent, "library": path}[
        place
    ]
    where.chmod(0o777)
    with pytest.raises(CaptureError, match=r"can be written by others \(mode 0777\)") as error:
        own_cache.find("0" * 8)
    assert str(where) in str(error.value)
    assert f"chmod go-w {where}" in error.value.hint


def test_a_link_in_the_place_of_a_library_is_refused(own_cache, tmp_path):
    path = published(own_cache)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    with pytest.raises(CaptureError, match="it is a link"):
        own_cache.find("0" * 8)


@pytest.mark.parametrize("harm", ["cut", "changed", "no manifest", "half a manifest"])
def test_a_library_that_is_not_whole_is_not_taken_and_is_made_anew(own_cache, harm):
    path = published(own_cache)
    manifest = path.with_name("manifest.json")
    match harm:
        case "cut":
            path.write_bytes(b"lib")
        case "changed":
            path.write_bytes(b"LIBRARY")
        case "no manifest":
            manifest.unlink()
        case _:
            manifest.write_text(manifest.read_text()[:20])
    assert own_cache.find("0" * 8) is None
    assert published(own_cache, content=b"anew") == path
    assert path.read_bytes() == b"anew"


def test_of_two_that_compile_at_once_the_second_takes_what_the_first_put_in_place(own_cache):
    with own_cache.building() as mine:
        (mine / "built").mkdir()
        (mine / "built" / LIBRARY).write_bytes(b"mine")
        first = published(own_cache, content=b"the first")
        assert own_cache.publish("0" * 8, mine / "built") == first
    assert first.read_bytes() == b"the first"


def test_a_build_that_fails_leaves_nothing(own_cache):
    def fails():
        with own_cache.building() as folder:
            (folder / "half").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list(own_cache.folder.iterdir()) == []


@pytest.mark.takes(6)
def test_a_killed_compilation_leaves_no_library_and_the_next_one_removes_its_rest(tiny, own_cache):
    command = [sys.executable, "-m", "graphspec", "run", str(tiny)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not list(own_cache.folder.glob(".building-*/work")):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert [each.name[:10] for each in own_cache.folder.iterdir()] == [".building-"]
    published(own_cache)
    assert [each.name for each in own_cache.folder.iterdir()] == ["0" * 8]


def test_a_cache_that_cannot_be_written_is_said(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    with pytest.raises(UnwritableCacheError), LibraryCache(cache_folder()).building():
        pass


def test_a_relative_cache_home_is_ignored_as_its_standard_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder() == Path.home() / ".cache/graphspec/compile"


def test_a_full_disk_is_said_by_name_and_leaves_nothing(own_cache, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("C++ compile error\nfatal error: error writing to /x.s: No space left on device")

    monkeypatch.setattr(torch._inductor, "aot_compile", full)
    with pytest.raises(CaptureError, match=r"the disk is full .*error writing") as error:
        build.build(lower(*recorded(plain)[:2]), Compile("inductor"), "f")
    assert "XDG_CACHE_HOME" in error.value.hint
    assert list(own_cache.folder.iterdir()) == []


# -- what is refused


@pytest.mark.usefixtures("own_cache")
def test_without_a_cxx_compiler_the_error_says_so_and_no_compile_runs(tiny, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CaptureError, match="CXX names no-such-compiler, which cannot be run") as error:
        graphspec.open(tiny, device="cpu")
    assert "--no-compile" in error.value.hint
    result = CliRunner().invoke(group, ["run", str(tiny), "--no-compile", "--steps", "2", "--format", "json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["graphs"][0]["operators"] > 1
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no C++ compiler (g++) on the PATH" in CliRunner().invoke(group, ["doctor"]).stdout


def test_a_compiler_that_the_device_lacks_is_said_once_and_the_region_runs(tiny):
    tiny.write_text(SPEC.replace("inductor", "npugraph_ex"))
    spec = graphspec.load(tiny)
    with graphspec.open(spec, device="cpu") as runner:
        assert runner.warnings == ("region 'f' captured uncompiled: npugraph_ex is run on npu, not on cpu",)
        assert runner.graphs[0].compile_s is None


@pytest.mark.usefixtures("own_cache")
def test_an_operator_that_draws_nothing_when_asked_to_is_no_random_one(tiny, monkeypatch):
    attention = "torch.nn.functional.scaled_dot_product_attention"
    text = MODEL.replace(
        "torch.relu(self.linear(x))", f"{attention}(x[None, None], x[None, None], x[None, None])[0, 0]"
    )
    monkeypatch.setenv("CXX", "no-such-compiler")
    tiny.with_name("model.py").write_text(text)
    with pytest.raises(CaptureError, match="no-such-compiler"):
        graphspec.open(tiny, device="cpu")
    tiny.with_name("model.py").write_text(text.replace("x[None, None])[0, 0]", "x[None, None], dropout_p=0.5)[0, 0]"))
    with pytest.raises(HazardError, match="draws other numbers than eager"):
        graphspec.open(tiny, device="cpu")


# -- compiled


@pytest.mark.takes(25)
@pytest.mark.usefixtures("shared_cache")
def test_a_compiled_region_matches_eager_on_every_run_states_included(tiny):
    with graphspec.open(tiny, device="cpu") as runner:
        (graph,) = runner.graphs
        assert (graph.operators, graph.compile_s is not None) == (1, True)
        eager = type(runner.model)()
        eager.load_state_dict(runner.model.state_dict())
        for step in range(20):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
            expected = eager(x.clone())
            results = runner.run(x=x)
            for name, want in zip("yzs", expected, strict=True):
                torch.testing.assert_close(results[name], want)
        torch.testing.assert_close(runner.model.seen, eager.seen)


@pytest.mark.takes(15)
@pytest.mark.usefixtures("shared_cache")
def test_new_weights_are_seen_and_moved_ones_are_named(tiny):
    with graphspec.open(tiny, device="cpu") as runner:
        x = torch.randn(4, 8)
        runner.model.linear.weight.mul_(-2)
        want = torch.relu(runner.model.linear(x)) + runner.model.seen.sum()
        torch.testing.assert_close(runner.run(x=x)["y"], want)
        runner.model.linear.weight.data = runner.model.linear.weight.data.clone()
        with pytest.raises(GuardError, match=r"model\.linear\.weight"):
            runner.run(x=x)
        runner.recapture()
        assert runner.graphs[0].compile_s == 0  # the same library, on other addresses
        runner.run(x=x)


@pytest.mark.takes(15)
@pytest.mark.usefixtures("shared_cache")
def test_the_operator_reads_and_writes_what_its_schema_says_and_nothing_else(tiny):
    with graphspec.open(tiny, device="cpu") as runner:
        (issue,) = runner.graph("f").graph.issues
        number, reads, writes = issue.args
        assert issue.op is operator()
        given = [[torch.randn(64).as_strided(ref.size, ref.stride) for ref in refs] for refs in (reads, writes)]
        before = [[tensor.clone() for tensor in tensors] for tensors in given]
        operator()(number, *given)
        assert all(map(torch.equal, given[0], before[0]))
        assert not any(map(torch.equal, given[1], before[1]))
    marked = [argument.name for argument in operator()._schema.arguments if argument.alias_info is not None]
    assert marked == ["writes"]


@pytest.mark.takes(15)
@pytest.mark.usefixtures("shared_cache")
def test_run_times_three_ways_and_a_second_run_loads_no_compiler(tiny):
    graphspec.open(tiny, device="cpu").close()
    code = (
        "import sys; from graphspec.cli import group\n"
        f"try: group(['run', {str(tiny)!r}, '--steps', '3', '--format', 'json'])\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "assert 'torch._inductor.compile_fx' not in sys.modules, 'a compiler was loaded'"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert report["check"]["status"] == "match"
    assert report["graphs"][0]["compile_s"] == 0
    assert all(report[way]["median_us"] > 0 for way in ("eager", "recorded", "replay"))
    text = CliRunner().invoke(group, ["run", str(tiny), "--steps", "3"]).stdout
    assert "recorded" in text
    assert "from the cache" in text

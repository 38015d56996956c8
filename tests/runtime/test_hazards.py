"""Every hazard is found, by name and line, and nothing else is: see graphspec/hazards.py for the table."""
# ruff: noqa: PLW0108, ARG005 - a lambda is the model here: its line is what a finding must name

import concurrent.futures
import contextlib
import copy
import io
import math
import multiprocessing.pool
import pickle
import random
import threading
import types
from concurrent.futures.process import ProcessPoolExecutor

import numpy as np
import pytest
import torch
import torch._dynamo.eval_frame
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - as models write it

from graphspec.hazards import CALLS, CODES, FUNCTIONS, HINTS, ON_HOST_NUMBERS, ON_HOST_TENSORS, OPERATORS
from graphspec.recording.calls import Recorder
from graphspec.runtime.hazards import (
    TraceEnded,
    capturing,
    hook_findings,
    hooked_modules,
    inside_capture,
    watch,
)
from graphspec.runtime.hazards.conditions import CONDITIONS

X = torch.arange(1.0, 4.0)
S = torch.tensor(2.0)
I = torch.tensor([1, 0, 2])  # noqa: E741
K = torch.tensor(1)
MASK = X > 1
A = torch.eye(3)
POOL = concurrent.futures.ThreadPoolExecutor(1)
THREADS = multiprocessing.pool.ThreadPool(1)
COMPILED = torch.compile(lambda x: x + 1, backend="eager")


@pytest.fixture(autouse=True, scope="module")
def _close_the_pools():
    yield
    POOL.shutdown()
    THREADS.terminate()
    THREADS.join()


def found(call, **options):
    """The findings of one call."""
    with watch("decode", **options) as session:
        call()
    return session.findings


def ended(call, **options):
    """The findings of one call that may end in an error of its own."""
    # What a CPU build cannot do is found before it fails.
    with watch("decode", **options) as session, contextlib.suppress(Exception):
        call()
    return session.findings


# Each row: the row of the table it tests, what the model does, and the code and operator of the one finding.
READS = [
    ("Tensor.item", lambda: S.item(), "GS701", "Tensor.item"),
    ("Tensor.tolist", lambda: X.tolist(), "GS701", "Tensor.tolist"),
    ("Tensor.numpy", lambda: X.numpy(), "GS701", "Tensor.numpy"),
    ("Tensor.__array__", lambda: np.asarray(X), "GS701", "Tensor.__array__"),
    ("Tensor.__bool__", lambda: 1 if S else 2, "GS701", "Tensor.__bool__"),
    ("Tensor.__bool__", lambda: (X > 0).all() and 1, "GS701", "Tensor.__bool__"),
    ("Tensor.__bool__", lambda: sorted([S, S]), "GS701", "Tensor.__bool__"),
    ("Tensor.__bool__", lambda: torch.distributions.Normal(S, S, validate_args=True), "GS701", "Tensor.__bool__"),
    ("Tensor.__int__", lambda: int(S), "GS701", "Tensor.__int__"),
    ("Tensor.__float__", lambda: float(S), "GS701", "Tensor.__float__"),
    ("Tensor.__float__", lambda: math.sqrt(S), "GS701", "Tensor.__float__"),
    ("Tensor.__complex__", lambda: complex(S), "GS701", "Tensor.__complex__"),
    ("Tensor.__index__", lambda: range(K), "GS701", "Tensor.__index__"),
    ("Tensor.__index__", lambda: [1, 2][K], "GS701", "Tensor.__index__"),
    ("Tensor.__contains__", lambda: 1.0 in X, "GS701", "Tensor.__contains__"),
    ("Tensor.__format__", lambda: f"{X}", "GS701", "Tensor.__format__"),
    ("Tensor.__format__", lambda: f"{S:.2f}", "GS701", "Tensor.__format__"),
    ("Tensor.__repr__", lambda: str(X), "GS701", "Tensor.__repr__"),
    ("Tensor.__repr__", lambda: print(X, file=io.StringIO()), "GS701", "Tensor.__repr__"),
    ("Tensor.__repr__", lambda: repr({"x": [X]}), "GS701", "Tensor.__repr__"),
    ("Tensor.equal", lambda: X.equal(X), "GS701", "Tensor.equal"),
    ("equal", lambda: torch.equal(X, X), "GS701", "torch.equal"),
    ("Tensor.allclose", lambda: X.allclose(X), "GS701", "Tensor.allclose"),
    ("allclose", lambda: torch.allclose(X, X), "GS701", "torch.allclose"),
    ("Tensor.is_nonzero", lambda: S.is_nonzero(), "GS701", "Tensor.is_nonzero"),
    ("is_nonzero", lambda: torch.is_nonzero(S), "GS701", "torch.is_nonzero"),
    ("Tensor.apply_", lambda: X.clone().apply_(lambda v: v), "GS701", "Tensor.apply_"),
    ("Tensor.map_", lambda: X.clone().map_(X, lambda a, _: a), "GS701", "Tensor.map_"),
    ("Tensor.map2_", lambda: X.clone().map2_(X, X, lambda a, _b, _c: a), "GS701", "Tensor.map2_"),
    ("Tensor.__dlpack__", lambda: np.from_dlpack(X), "GS701", "Tensor.__dlpack__"),
    ("functional.tensordot", lambda: torch.tensordot(A, A, torch.zeros(2, 1).long()), "GS701", "torch.tensordot"),
    ("tensor_split", lambda: torch.tensor_split(X, I[:1]), "GS701", "torch.tensor_split"),
    ("Tensor.tensor_split", lambda: X.tensor_split(I[:1]), "GS701", "Tensor.tensor_split"),
    ("nn.functional.one_hot", lambda: F.one_hot(I), "GS701", "torch.nn.functional.one_hot"),
    ("Tensor.cpu", lambda: X.cpu(), "GS711", "Tensor.cpu"),
    ("Tensor.to", lambda: X.to("cpu"), "GS711", "Tensor.to"),
    ("Tensor.to", lambda: X.to(device="cpu", dtype=torch.float64), "GS711", "Tensor.to"),
    ("Tensor.to", lambda: torch.tensor(2.0).to(X.device), "GS703", "Tensor.to"),
    ("Tensor.pin_memory", lambda: X.pin_memory(), "GS711", "Tensor.pin_memory"),
    ("aten::_local_scalar_dense", lambda: torch.full((2,), S), "GS701", "torch.full (aten::_local_scalar_dense)"),
    ("aten::_local_scalar_dense", lambda: X[K], "GS701", "Tensor.__getitem__ (aten::_local_scalar_dense)"),
    ("aten::_local_scalar_dense", lambda: X[:K], "GS701", "Tensor.__getitem__ (aten::_local_scalar_dense)"),
    ("aten::_local_scalar_dense", lambda: torch.arange(K), "GS701", "torch.arange (aten::_local_scalar_dense)"),
    ("aten::_local_scalar_dense", lambda: X.expand(K, 3), "GS701", "Tensor.expand (aten::_local_scalar_dense)"),
    ("aten::_local_scalar_dense", lambda: torch.add(X, X, alpha=S), "GS701", "torch.add (aten::_local_scalar_dense)"),
    ("aten::_local_scalar_dense", lambda: F.dropout(X, S / 4), "GS701", "torch.nn.functional.dropout"),
    ("aten::equal", lambda: torch.cov(A), "GS701", "torch.cov (aten::equal)"),
    ("aten::normal", lambda: torch.normal(X, X), "GS701", "torch.normal (aten::normal)"),
    ("aten::histc", lambda: torch.histc(X), "GS701", "torch.histc (aten::histc)"),
    ("aten::linspace", lambda: torch.linspace(S, 1.0, 4), "GS701", "torch.linspace (aten::linspace)"),
    ("aten::logspace", lambda: torch.logspace(S, 1.0, 4), "GS701", "torch.logspace (aten::logspace)"),
    ("aten::masked_fill", lambda: X.masked_fill(MASK, S), "GS701", "Tensor.masked_fill (aten::masked_fill)"),
    (
        "aten::masked_fill_",
        lambda: X.clone().masked_fill_(MASK, S),
        "GS701",
        "Tensor.masked_fill_ (aten::masked_fill_)",
    ),
    ("aten::_linalg_check_errors", lambda: torch.linalg.inv(A), "GS701", "torch.linalg.inv"),
    ("aten::_linalg_eigh", lambda: torch.linalg.eigh(A), "GS701", "torch.linalg.eigh"),
    ("aten::linalg_eig", lambda: torch.linalg.eig(A), "GS701", "torch.linalg.eig"),
    ("aten::_linalg_eigvals", lambda: torch.linalg.eigvals(A), "GS701", "torch.linalg.eigvals"),
    ("aten::_linalg_svd", lambda: torch.linalg.svd(A), "GS701", "torch.linalg.svd"),
    ("aten::linalg_lstsq", lambda: torch.linalg.lstsq(A, A), "GS701", "torch.linalg.lstsq"),
    ("aten::_ctc_loss", lambda: F.ctc_loss(A[:, None].log(), I[None, :1], K[None] + 2, K[None]), "GS701", "ctc_loss"),
]
SIZES = [
    ("aten::nonzero", lambda: X.nonzero(), "GS702", "Tensor.nonzero (aten::nonzero)"),
    ("aten::nonzero", lambda: torch.where(MASK), "GS702", "torch.where (aten::nonzero)"),
    ("aten::nonzero", lambda: torch.argwhere(X), "GS702", "torch.argwhere (aten::nonzero)"),
    ("aten::masked_select", lambda: torch.masked_select(X, MASK), "GS702", "torch.masked_select"),
    ("aten::masked_select", lambda: torch.combinations(X), "GS702", "torch.combinations (aten::masked_select)"),
    ("aten::index", lambda: X[MASK], "GS702", "Tensor.__getitem__ (aten::index)"),
    ("aten::index", lambda: A[:, MASK], "GS702", "Tensor.__getitem__ (aten::index)"),
    ("aten::index", lambda: X[MASK.to(torch.uint8)], "GS702", "Tensor.__getitem__ (aten::index)"),
    ("aten::_unsafe_index", lambda: torch.ops.aten._unsafe_index(X, [MASK]), "GS702", "aten::_unsafe_index"),
    ("aten::_unique2", lambda: X.unique(), "GS702", "Tensor.unique (aten::_unique2)"),
    ("aten::_unique", lambda: torch._unique(X), "GS702", "aten::_unique"),
    ("aten::unique_dim", lambda: A.unique(dim=0), "GS702", "aten::unique_dim"),
    ("aten::unique_consecutive", lambda: X.unique_consecutive(), "GS702", "aten::unique_consecutive"),
    (
        "aten::unique_dim_consecutive",
        lambda: torch.ops.aten.unique_dim_consecutive(A, 0),
        "GS702",
        "aten::unique_dim_consecutive",
    ),
    ("aten::repeat_interleave", lambda: X.repeat_interleave(I), "GS702", "Tensor.repeat_interleave"),
    ("aten::bincount", lambda: torch.bincount(I), "GS702", "torch.bincount"),
    ("aten::_to_sparse", lambda: A.to_sparse(), "GS702", "Tensor.to_sparse"),
    ("aten::_coalesce", lambda: torch.sparse_coo_tensor(I[None], X, (3,)).coalesce(), "GS702", "Tensor.coalesce"),
    ("aten::index_put_", lambda: X.clone().__setitem__(MASK, X[:2]), "GS702", "Tensor.__setitem__ (aten::index_put_)"),
    ("aten::index_put_", lambda: X.clone().__setitem__(MASK, S), "GS702", "Tensor.__setitem__ (aten::index_put_)"),
    ("aten::index_put_", lambda: X.clone().__setitem__(MASK, 2.0), "GS701", "Tensor.__setitem__ (aten::index_put_)"),
    ("aten::index_put", lambda: X.index_put((MASK,), S), "GS702", "Tensor.index_put (aten::index_put)"),
    ("aten::_index_put_impl_", lambda: torch._index_put_impl_(X.clone(), [MASK], S), "GS702", "aten::_index_put_impl_"),
    (
        "aten::_unsafe_index_put",
        lambda: torch.ops.aten._unsafe_index_put(X, [MASK], S),
        "GS702",
        "aten::_unsafe_index_put",
    ),
]
BORN = [
    ("aten::lift_fresh", lambda: X + torch.tensor([1.0, 2.0, 3.0], device=X.device), "GS703", "torch.tensor"),
    ("aten::lift_fresh", lambda: torch.tensor([1.0, 2.0]), "GS703", "torch.tensor"),
    ("aten::lift_fresh", lambda: torch.tensor(1.0, device=X.device), "GS703", "torch.tensor"),
    ("aten::lift_fresh", lambda: torch.tensor([S, S]), "GS703", "torch.tensor"),
    ("aten::lift_fresh", lambda: torch.as_tensor([1.0]), "GS703", "torch.as_tensor"),
    ("aten::lift_fresh", lambda: torch.as_tensor(1.0, device=X.device), "GS703", "torch.as_tensor"),
    ("aten::lift_fresh", lambda: torch.asarray(np.ones(2)), "GS703", "torch.asarray"),
    ("aten::lift_fresh", lambda: torch.from_numpy(np.ones(2)), "GS703", "torch.from_numpy"),
    ("aten::lift_fresh", lambda: torch.Tensor([1.0, 2.0]), "GS703", "torch.Tensor(...)"),
    ("aten::lift_fresh", lambda: torch.LongTensor([1]), "GS703", "torch.Tensor(...)"),
    ("aten::lift_fresh", lambda: X.new_tensor(1.0), "GS703", "Tensor.new_tensor"),
    ("aten::lift_fresh", lambda: X.new([1.0]), "GS703", "Tensor.new"),
    ("aten::lift_fresh", lambda: X[[0, 1]], "GS703", "Tensor.__getitem__"),
    ("aten::lift_fresh", lambda: A[np.array([0, 1])], "GS703", "Tensor.__getitem__"),
    ("aten::lift_fresh", lambda: X.clone().__setitem__([0, 1], 1.0), "GS703", "Tensor.__setitem__"),
    ("aten::copy_", lambda: X.clone().__setitem__(0, 2.0), "GS703", "Tensor.__setitem__ (aten::copy_)"),
    ("torch.frombuffer", lambda: torch.frombuffer(bytearray(8), dtype=torch.float32), "GS703", "torch.frombuffer"),
    ("torch.load", lambda: torch.load(io.BytesIO(b"")), "GS703", "torch.load"),
    ("torch.from_file", lambda: torch.from_file("/nowhere", size=1), "GS703", "torch.from_file"),
    ("torch.serialization._save", lambda: torch.save(X, io.BytesIO()), "GS701", "torch.save"),
    ("torch.serialization._legacy_save", lambda: pickle.dumps(X), "GS701", "torch.save"),
]
OUTSIDE = [
    ("torch.cuda.manual_seed_all", lambda: torch.manual_seed(0), "GS705", "torch.manual_seed"),
    ("torch.get_rng_state", lambda: torch.get_rng_state(), "GS705", "torch.get_rng_state"),
    ("torch.set_rng_state", lambda: torch.set_rng_state(STATE), "GS705", "torch.set_rng_state"),
    ("torch.random.get_rng_state", lambda: torch.random.get_rng_state(), "GS705", "torch.random.get_rng_state"),
    ("torch.random.set_rng_state", lambda: torch.random.fork_rng().__enter__(), "GS705", "torch.random.fork_rng"),
    ("torch.cuda.get_rng_state", lambda: torch.cuda.get_rng_state(), "GS705", "torch.cuda.get_rng_state"),
    ("torch.cuda.set_rng_state", lambda: torch.cuda.set_rng_state(STATE), "GS705", "torch.cuda.set_rng_state"),
    ("threading.Thread.start", lambda: threading.Thread(target=len, args=("",)).start(), "GS706", "Thread.start"),
    ("concurrent.futures.thread.ThreadPoolExecutor.submit", lambda: POOL.submit(len, ""), "GS706", "submit"),
    ("concurrent.futures.thread.ThreadPoolExecutor.submit", lambda: list(POOL.map(len, [""])), "GS706", "submit"),
    ("multiprocessing.pool.Pool.apply_async", lambda: THREADS.apply(len, ("",)), "GS706", "Pool.apply_async"),
    ("multiprocessing.pool.Pool._map_async", lambda: THREADS.map(len, [""]), "GS706", "Pool.map"),
    (
        "torch.accelerator.synchronize",
        lambda: torch.accelerator.synchronize(),
        "GS708",
        "torch.accelerator.synchronize",
    ),
    ("torch.cpu.synchronize", lambda: torch.cpu.synchronize(), "GS708", "torch.cpu.synchronize"),
    ("torch.cpu.Event.synchronize", lambda: torch.cpu.Event().synchronize(), "GS708", "torch.cpu.Event.synchronize"),
    ("torch.cpu.Event.query", lambda: torch.cpu.Event().query(), "GS708", "torch.cpu.Event.query"),
    ("torch.cuda.synchronize", lambda: torch.cuda.synchronize(), "GS708", "torch.cuda.synchronize"),
    ("torch.cuda.graph.__init__", lambda: torch.cuda.graph(None), "GS707", "torch.cuda.graph.__init__"),
    (
        "torch.cuda.make_graphed_callables",
        lambda: torch.cuda.make_graphed_callables(len, (X,)),
        "GS707",
        "torch.cuda.make_graphed_callables",
    ),
    ("torch._dynamo.eval_frame._callback_from_stance", lambda: COMPILED(X), "GS710", "torch.compile"),
]
STATE = torch.get_rng_state()
ROWS = READS + SIZES + BORN + OUTSIDE


@pytest.mark.parametrize(("row", "call", "code", "operator"), ROWS, ids=[f"{r[0]}-{i}" for i, r in enumerate(ROWS)])
def test_each_hazard_is_one_finding_with_its_operator_and_the_line_of_the_model(row, call, code, operator):
    findings = ended(call)
    assert [finding.code for finding in findings] == [code], (row, findings)
    finding = findings[0]
    assert operator in finding.message
    assert (finding.file, finding.line) == (__file__, call.__code__.co_firstlineno)
    assert finding.message.startswith("region 'decode' ")
    assert f"test_hazards.py:{finding.line}" in finding.message
    assert finding.hint


#: What a CPU build of torch cannot call: these rows are one loop over devices in the table.
DEVICE_ONLY = ("torch.npu.", "torch.cuda.Stream.", "torch.cuda.Event.", "torch.cpu.Stream.", "torch.cuda.CUDAGraph")
UNREACHED = {
    "aten::item",  # composite: seen as _local_scalar_dense unless another backend keeps it whole
    "aten::is_nonzero",
    "aten::allclose",
    "aten::argwhere",
    "aten::_pin_memory",
    "torch.accelerator.Graph.capture_begin",
    "torch.accelerator.Graph.replay",
    "torch.cuda.graph.__enter__",
    "concurrent.futures.process.ProcessPoolExecutor.submit",  # its own test
}


def test_every_row_of_the_table_has_a_test():
    rows = {*FUNCTIONS, *ON_HOST_NUMBERS, *OPERATORS, *(row for row in CALLS if not row.startswith(DEVICE_ONLY))}
    assert rows - UNREACHED == {row for row, *_ in ROWS}


def test_the_table_names_known_codes_and_conditions_and_gives_advice():
    rows = [
        *FUNCTIONS.values(),
        *ON_HOST_NUMBERS.values(),
        *ON_HOST_TENSORS.values(),
        *CALLS.values(),
        *(r for rows in OPERATORS.values() for r in rows),
    ]
    assert {row.code for row in rows} <= set(CODES)
    assert {row.when for row in rows} - {None} == set(CONDITIONS)
    assert all(row.hint for row in rows)
    assert {operator for operator, _ in HINTS} <= set(OPERATORS)


@pytest.mark.parametrize(
    "call",
    [
        lambda: X + torch.tensor(2.0),
        lambda: X * torch.tensor(2, dtype=X.dtype),
        lambda: X * torch.tensor(np.float32(2)),
        lambda: X * torch.as_tensor(2.0),
        lambda: X * torch.scalar_tensor(2.0),
        lambda: torch.tensor(2.0).item(),
        lambda: float(torch.tensor(2.0).sqrt()),
        lambda: torch.tensor(2.0, device="cpu").to(torch.float64),
        lambda: int(torch.tensor(2.0) * torch.tensor(3.0)),
        lambda: X.masked_fill(MASK, torch.tensor(0.0)),
        lambda: X.clone().__setitem__(MASK, torch.tensor(0.0)),
        lambda: X.clone().__setitem__(slice(0, 2), 2.0),
        lambda: X.clone().__setitem__(..., 2.0),
        lambda: A.clone().__setitem__((I, I), X),
        lambda: torch.tensor(X),
        lambda: torch.as_tensor(X),
        lambda: torch.tensor([]),
        lambda: torch.full((2,), 1.0, device=X.device),
        lambda: torch.arange(3, device=X.device),
        lambda: torch.where(MASK, X, 0.0),
        lambda: torch.where(X > S, X, S),
        lambda: X.masked_fill(MASK, 0.0),
        lambda: X.masked_scatter(MASK, X),
        lambda: F.one_hot(I, 3),
        lambda: X.repeat_interleave(I, output_size=3),
        lambda: X.repeat_interleave(2),
        lambda: X.index_select(0, I),
        lambda: X[I],
        lambda: X[None, ..., 0],
        lambda: A[:, I],
        lambda: torch.nonzero_static(X, size=3),
        lambda: torch.histc(X, min=0, max=3),
        lambda: torch.quantile(X, S / 4),
        lambda: torch.multinomial(X, 1),
        lambda: torch.linalg.inv_ex(A),
        lambda: list(X),
        lambda: len(X),
        lambda: X.shape[0] + X.numel() + X.dim(),
        lambda: X.data_ptr(),
        lambda: hash(X),
        lambda: X is None or {X: 1},
        lambda: copy.copy(X) is copy.deepcopy(X),
        lambda: X.to(X.device, torch.float64),
        lambda: X.to(A),
        lambda: X.float().double(),
        lambda: F.cross_entropy(A, I),
        lambda: F.embedding(I, A),
        lambda: F.scaled_dot_product_attention(A[None], A[None], A[None], is_causal=True),
        lambda: F.interpolate(A[None, None], scale_factor=2.0),
        lambda: F.dropout(X, 0.5),
        lambda: torch.einsum("ij,j->i", A, X),
        lambda: torch.rand(3, generator=torch.default_generator),
        lambda: torch.stack([torch.tensor(1.0), torch.tensor(2.0)]),
        lambda: nn.utils.clip_grad_norm_([WEIGHT], 1.0),
        lambda: torch.inference_mode().__enter__() and None,
        lambda: random.random(),  # noqa: S311
    ],
)
def test_what_a_device_captures_is_no_hazard(call):
    assert found(call) == []


WEIGHT = nn.Parameter(torch.ones(3))
WEIGHT.grad = torch.ones(3)


def test_all_hazards_of_a_region_come_at_once_and_each_line_once():
    def forward():
        for _ in range(3):
            X.tolist()
            X[MASK]
        return X.sum().item()

    first = forward.__code__.co_firstlineno
    assert [(f.code, f.line - first) for f in found(forward)] == [("GS701", 2), ("GS702", 3), ("GS701", 4)]


def test_a_message_reads_as_one_sentence_with_its_place_and_its_fix():
    call = lambda: S.item()
    (finding,) = found(call)
    line = call.__code__.co_firstlineno
    assert (
        finding.message == f"region 'decode' reads a tensor's value on the host: Tensor.item at test_hazards.py:{line}"
    )
    assert finding.hint.startswith("keep it a 0-d tensor")


@pytest.mark.parametrize(
    ("call", "device"),
    [
        (lambda: X.clone().__setitem__(MASK, 2.0), "npu"),
        (lambda: X.masked_fill(MASK, S), "cuda"),
        (lambda: X.clone().__setitem__(0, 2.0), "cuda"),
    ],
)
def test_what_one_device_refuses_is_an_error_there_a_warning_on_the_cpu_and_nothing_elsewhere(call, device):
    other = {"npu": "cuda", "cuda": "npu"}[device]
    assert [f.severity for f in found(call, device_label=f"{device}:1")] == ["error"]
    assert [f.severity for f in found(call)] == ["warning"]
    assert f"a capture on {device} refuses it" in found(call)[0].message
    assert found(call, device_label=other) == []


def test_a_data_sized_result_in_train_mode_names_the_submodule():
    class Block(nn.Module):
        def forward(self, x):
            if self.training:
                x = x[x.abs() >= 0].view_as(x)
            return x

    model = nn.Sequential(nn.Identity(), Block())
    assert found(lambda: model.eval()(X), root=model) == []
    (finding,) = found(lambda: model.train()(X), root=model)
    assert finding.message.endswith(", which came from train mode of model.1")
    assert "multiply by the mask" in finding.hint


@pytest.mark.parametrize(
    ("call", "says", "never"),
    [
        (lambda: X[:K], "the bound of a slice is a size", "(x, 0,"),
        (lambda: A[:, K], "index_select(x, AXIS", "(x, 0,"),
        (lambda: A.clone().__setitem__((slice(None), K), 0.0), "index_copy_(AXIS", "(0,"),
        (lambda: np.asarray(X), "leave it a tensor", "of the same name;"),
        (lambda: X.numpy(), "leave it a tensor", "of the same name;"),
        (lambda: torch.add(X, X, alpha=S), "a tensor given for it is read", "keep it a 0-d tensor"),
        (lambda: 1 if S else 2, "a loop that ends by a value is one of the host", "_"),
        (lambda: torch.tensor([1.0]) + X, "keep it with self.register_buffer", "use_cache"),
        (lambda: COMPILED(X), "the function that torch.compile was given", "key `compile`"),
    ],
)
def test_the_advice_can_be_followed_where_it_is_given(call, says, never):
    hints = [finding.hint for finding in ended(call)]
    assert any(says in hint for hint in hints)
    assert not any(never in hint for hint in hints if never != "_")


def test_an_undeclared_generator_is_refused_by_the_name_of_its_attribute():
    noise = torch.Generator()
    draw = lambda: torch.rand(3, generator=noise)
    (finding,) = found(draw, name_of=lambda generator: "model.noise" if generator is noise else None)
    assert finding.code == "GS704"
    assert "model.noise" in finding.message
    assert "`generators: [model.noise]`" in finding.hint
    assert found(draw, allowed_generators=[noise]) == []
    model = nn.Sequential(nn.Identity())
    model[0].source = noise
    assert "model.0.source" in found(draw, root=model)[0].message
    assert "generators: [model.NAME]" in found(draw)[0].hint
    assert [f.code for f in found(lambda: torch.empty(3).normal_(generator=noise))] == ["GS704"]


def test_a_seed_call_through_an_early_import_is_found():
    from torch import manual_seed

    (finding,) = found(lambda: manual_seed(3))
    assert finding.code == "GS705"
    assert "torch.manual_seed at test_hazards.py" in finding.message


def test_seeding_the_default_generator_itself_is_found_without_a_line():
    seed = torch.initial_seed()
    try:
        (finding,) = found(lambda: torch.default_generator.manual_seed(seed + 1))
    finally:
        torch.manual_seed(seed)
    assert (finding.code, finding.line) == ("GS705", None)


def test_work_given_to_another_process_is_found():
    pool = ProcessPoolExecutor(1)
    pool.shutdown()
    assert [f.code for f in ended(lambda: pool.submit(len, ""))] == ["GS706"]


def test_a_backward_pass_is_watched_inside_autograd_functions_and_hooks():
    class Peek(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 1

        @staticmethod
        def backward(_ctx, grad):
            grad.tolist()
            return grad

    leaf = torch.ones(3, requires_grad=True)
    for run in (lambda y: y.backward(), lambda y: torch.autograd.grad(y, leaf), lambda y: torch.autograd.backward(y)):
        findings = found(lambda run=run: run(Peek.apply(leaf).sum()))
        assert [f.code for f in findings] == ["GS701"]
        assert findings[0].line == Peek.backward.__code__.co_firstlineno + 2


def test_activation_checkpointing_that_keeps_the_seed_is_found_where_something_draws_and_without_it_passes():
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(3, requires_grad=True)
    step = lambda what, keep: checkpoint(what, x, use_reentrant=False, preserve_rng_state=keep).sum().backward()
    assert {f.code for f in found(lambda: step(F.dropout, True))} == {"GS705"}
    assert found(lambda: step(F.dropout, False)) == found(lambda: step(torch.sin, True)) == []


def training_step(make, momentum=0.1):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=momentum), nn.Dropout(0.5))
    optimizer = make(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(A), I)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    step()
    return found(step, root=model)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True),
        lambda p: torch.optim.RMSprop(p),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), fused=True),
    ],
)
def test_a_whole_training_step_with_an_optimizer_that_reads_nothing_has_no_hazard(make):
    assert training_step(make) == []


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
def test_an_optimizer_that_reads_its_step_count_is_refused_naming_the_option(kind):
    (finding,) = training_step(kind)
    assert finding.code == "GS701"
    assert "fused=True" in finding.hint
    assert "capturable=True" in finding.hint


def test_batch_norm_with_a_cumulative_average_is_refused_by_the_name_of_its_module():
    (finding,) = training_step(lambda p: torch.optim.SGD(p, 0.1), momentum=None)
    assert finding.message.endswith("which came from train mode of model.1")


def test_a_distribution_that_validates_its_arguments_is_refused_naming_the_option():
    (finding,) = found(lambda: torch.distributions.Normal(S, S, validate_args=True))
    assert "validate_args=False" in finding.hint
    assert found(lambda: torch.distributions.Normal(S, S, validate_args=False).rsample()) == []


def test_side_streams_must_fork_and_join():
    side, main = torch.cpu.Stream(), torch.cpu.current_stream()

    def work(*, fork, join):
        if fork:
            side.wait_stream(main)
        with torch.cpu.stream(side):
            X.add(1)
        if join:
            main.wait_stream(side)

    assert found(lambda: work(fork=True, join=True)) == []
    assert ["waits for" in f.message for f in found(lambda: work(fork=True, join=False))] == [True]
    (unforked,) = found(lambda: work(fork=False, join=True))
    assert unforked.code == "GS709"
    assert "does not wait for the capturing stream" in unforked.message


def test_a_disabled_function_is_not_a_compiled_one():
    disabled = torch._dynamo.disable(lambda: X + 1)
    assert found(disabled) == []


def test_a_thread_that_is_not_watched_goes_unreported_and_unchanged():
    gate, result = threading.Event(), []

    def other():
        gate.wait(5)
        torch.manual_seed(torch.initial_seed())
        result.append(capturing())

    thread = threading.Thread(target=other)
    thread.start()

    def region():
        gate.set()
        thread.join(5)

    assert found(region) == []
    assert result == [None]


def test_every_wrapped_function_is_put_back_also_after_an_error_and_with_watches_in_two_threads():
    def functions():
        return [
            threading.Thread.start, torch.manual_seed, torch.get_rng_state, torch.save, torch.load, torch.frombuffer,
            torch.cuda.synchronize, torch.cuda.manual_seed_all, torch.cpu.Stream.wait_stream,
            torch.autograd._engine_run_backward, torch.cuda.is_current_stream_capturing, torch.serialization._save,
        ]  # fmt: skip

    before = functions()
    with pytest.raises(ZeroDivisionError):
        found(lambda: 1 / 0)
    assert functions() == before

    opened, close = threading.Event(), threading.Event()

    def second():
        with watch("other"):
            opened.set()
            close.wait(5)

    thread = threading.Thread(target=second)
    thread.start()
    opened.wait(5)
    assert [f.code for f in found(lambda: torch.cpu.synchronize())] == ["GS708"]
    close.set()
    thread.join(5)
    assert functions() == before


def test_a_region_says_that_it_is_captured_and_models_that_ask_are_told_so():
    original = torch.cuda.is_current_stream_capturing
    assert capturing() is None
    with watch("decode"):
        assert capturing() == "decode"
        assert torch.cuda.is_current_stream_capturing()
    with inside_capture("prefill"):
        assert capturing() == "prefill"
        assert torch.cuda.is_current_stream_capturing()
    assert capturing() is None
    assert torch.cuda.is_current_stream_capturing is original


def test_a_recording_mode_outside_or_inside_sees_the_same_and_so_does_the_watch():
    def region():
        X[MASK]
        return (X + 1).sum().item()

    outside, inside = Recorder("decode"), Recorder("decode")
    with outside, watch("decode") as first:
        region()
    with watch("decode") as second, inside:
        region()
    assert [c.name for c in outside.recording.calls] == [c.name for c in inside.recording.calls]
    assert [str(f) for f in first.findings] == [str(f) for f in second.findings]
    assert len(first.findings) == 2


FAKE = [
    (lambda x, s, i: s.item(), "GS701"),
    (lambda x, s, i: x.tolist(), "GS701"),
    (lambda x, s, i: x.numpy(), "GS701"),
    (lambda x, s, i: 1 if s > 0 else 2, "GS701"),
    (lambda x, s, i: x[x > 0], "GS702"),
    (lambda x, s, i: x.nonzero(), "GS702"),
    (lambda x, s, i: x.unique(), "GS702"),
    (lambda x, s, i: x[i[0]], "GS701"),
    (lambda x, s, i: F.one_hot(i), "GS701"),
]


@pytest.mark.parametrize(("call", "code"), FAKE)
def test_fake_tensors_give_the_same_finding_and_end_the_trace_without_a_traceback_of_torch(call, code):
    def forward(*values):
        try:
            return call(*values)
        except Exception:  # noqa: BLE001 - a model that tries something else
            return None

    with FakeTensorMode():
        values = torch.ones(3), torch.ones(()), torch.zeros(3, dtype=torch.int64)
        with pytest.raises(TraceEnded), watch("decode") as session:
            forward(*values)
    assert [f.code for f in session.findings] == [code]
    assert session.findings[0].line == call.__code__.co_firstlineno


def test_fake_tensors_take_what_a_device_takes():
    with FakeTensorMode():
        i = torch.zeros(3, dtype=torch.int64)
        with watch("decode") as session:
            assert F.one_hot(i, 4).shape == (3, 4)
            assert torch.tensor(3.0).item() == 3.0
            torch.ones(3).__setitem__(i > 0, torch.tensor(1.0))
    assert session.findings == []


def test_hooks_are_listed_with_their_module_and_kind_but_not_those_that_torch_uses_for_itself():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    nn.utils.weight_norm(model[1])
    assert hooked_modules(model) == []
    handles = [
        model[0].register_forward_hook(lambda *_: None),
        model.register_forward_pre_hook(lambda *_: None),
        model[1].register_full_backward_hook(lambda *_: None),
        model[0].weight.register_hook(lambda grad: grad),
        model[0].bias.register_post_accumulate_grad_hook(lambda _: None),
        nn.modules.module.register_module_forward_hook(lambda *_: None),
    ]
    try:
        assert hooked_modules(model) == [
            ("(every module)", "forward hook"),
            ("model", "forward pre-hook"),
            ("model.0", "forward hook"),
            ("model.1", "full backward hook"),
            ("model.0.weight", "gradient hook"),
            ("model.0.bias", "post-accumulate gradient hook"),
        ]
        (*_, last) = hook_findings(model)
        assert last.code == "GS712"
        assert last.message.startswith("model.0.bias has a hook")
        assert "hooks: allow" in last.hint
    finally:
        for handle in handles:
            handle.remove()
    assert hooked_modules(model) == hooked_modules(object()) == []


def test_hooks_are_found_on_optimizers_and_through_plain_objects():
    holder = types.SimpleNamespace(net=nn.Linear(2, 2))
    holder.optimizer = torch.optim.SGD(holder.net.parameters(), 0.1)
    assert hooked_modules(holder) == []
    holder.net.register_forward_hook(lambda *_: None)
    holder.net.weight.register_hook(lambda grad: grad)
    holder.optimizer.register_step_post_hook(lambda *_: None)
    assert hooked_modules(holder) == [
        ("model.net", "forward hook"),
        ("model.net.weight", "gradient hook"),
        ("model.optimizer", "step post-hook"),
    ]


def test_a_hook_that_a_package_puts_on_its_own_modules_is_part_of_the_model():
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes))

    def collect(*_):
        return None

    handle = model.model.layers[0].register_forward_hook(collect)
    assert [name for name, _ in hooked_modules(model)] == ["model.model.layers.0"]
    handle.remove()
    collect.__module__ = modeling_llama.__name__
    model.model.layers[0].register_forward_hook(collect)
    assert hooked_modules(model) == []

"""What a captured callable may not do, as one table. A new hazard is a new row.

A graph repeats kernels on fixed addresses. What the host reads, decides, sizes or copies while it is captured happens
once and is frozen. Rows name a torch function, a dispatcher operator or a Python call; ``graphspec.runtime.hazards``
finds them. Nothing here imports torch.

Where a row names the device that refuses (``refused_by``), the source of the fact stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Hazard:
    """One thing a region may not do.

    ``does`` completes "region 'decode' ..."; ``hint`` says what to do instead. ``when`` names the condition that must
    hold of the call, none for always. ``refused_by`` lists the devices whose capture fails: with one of those labels
    it is an error; on the CPU it is an error if every device refuses, and a warning otherwise.
    """

    code: str
    does: str
    hint: str
    when: str | None = None
    refused_by: tuple[str, ...] = ("cuda", "npu")
    warns: bool = False


#: What each code stands for, in one sentence.
CODES: Mapping[str, str] = {
    "GS701": "A region reads a tensor's value on the host; the value it saw at capture would be used for ever.",
    "GS702": "A region makes a result whose size depends on data; a graph has fixed sizes.",
    "GS703": "A region builds a tensor from host data; a capture cannot copy from ordinary host memory.",
    "GS704": "A region draws from a random generator that is not declared under `generators`.",
    "GS705": "A region seeds, saves or restores a random generator; a replay would not.",
    "GS706": "A region gives work to another thread; a capture follows one thread.",
    "GS707": "A region captures or replays a graph of its own.",
    "GS708": "A region waits for the device; nothing executes during a capture.",
    "GS709": "A region works on a side stream that does not fork from, or is not joined with, the capturing stream.",
    "GS710": "A region calls a compiled function; it is recorded as eager code, or as one opaque call.",
    "GS711": "A region copies between host and device.",
    "GS712": "A captured module has hooks; their Python code would run at capture only.",
    "GS714": "A region calls an operator that torch marks as unsafe in a graph.",
    "GS715": "A region calls a custom operator whose kernel is Python code; what that reads cannot be seen.",
    "GS761": "A region computes gradients of the model and does not say so; a replay leaves `.grad` as it is.",
}

_EAGER = "move it out of the model's call, or into a region with `eager: true`"
#: Nobody edits a library: what it does in every call is mostly something that an argument of the call leaves out.
IN_A_LIBRARY = (
    "this is a library's code: switch off what needs it by an input of the call, such as `use_cache: {const: false}`; "
    "or call it in a region with `eager: true`"
)
#: Findings whose own advice is another way to write the line.
REWRITTEN = ("GS701", "GS702", "GS703")

_READ = Hazard(
    "GS701",
    "reads a tensor's value on the host",
    f"keep the value in a 0-d tensor and compute with that, or pass it in as a param; {_EAGER}",
)
_BRANCH = replace(
    _READ,
    hint="compute both sides and choose with torch.where(condition, a, b); a choice of the host is a param with "
    "`specialize: true`; a loop that ends by a value is one of the host: its body is a region that returns the "
    "value, and `replay` has the loop, `{while: VALUE, do: [...]}`",
)
_NUMBER = replace(
    _READ, hint="keep it a 0-d tensor: torch operators take one where they take a number; or pass the number as a param"
)
#: An argument that is a number of the host: a tensor given for it, 0-d or not, is read.
_ARGUMENT = replace(
    _READ,
    hint="this argument takes a number of the host, so a tensor given for it is read: compute with the tensor instead "
    "(x + s * y for alpha=s), or pass the number as a param",
)
_ARRAY = replace(_READ, hint=f"use the torch operator of the same name; or {_EAGER}")
_NUMPY = replace(
    _READ,
    hint="leave it a tensor: torch has most functions of numpy under the same names, and they run on the device; "
    f"or {_EAGER}",
)
_LIST = replace(_READ, hint=f"index with the tensor itself, or pass the list as a param; or {_EAGER}")
_PRINT = replace(
    _READ,
    does="formats a tensor, which reads its values on the host",
    hint="print shapes and dtypes only, or return the tensor as an output and print that",
)
_SAVE = replace(
    _READ, does="saves or pickles a tensor, which reads its values on the host", hint=f"return it; {_EAGER}"
)
_COPY = Hazard(
    "GS711",
    "copies a tensor to the host",
    f"leave the tensor on its device, and return it as an output if the host needs it; or {_EAGER}",
)
_SOLVER = replace(
    _READ,
    does="reads the error code of a solver on the host",
    hint="call the variant that returns the code as a tensor (torch.linalg.inv_ex, cholesky_ex, solve_ex); "
    f"where there is none, {_EAGER}",
)
_SIZED = Hazard(
    "GS702",
    "makes a result whose size depends on data",
    "keep the full size: multiply by the mask, or use torch.where(mask, a, b)",
)
_UNIQUE = replace(_SIZED, hint=f"sort, and mark what equals its neighbour; or {_EAGER}")
_NONZERO = replace(
    _SIZED,
    hint="keep the full size: multiply by the mask, or use torch.where(mask, a, b); torch.nonzero_static(x, size=N) "
    "has a fixed size",
)
_BORN = Hazard(
    "GS703",
    "builds a tensor from host data",
    "build it once in __init__ and keep it with self.register_buffer; a value that changes is an input or a param",
)
_FILE = replace(_BORN, does="loads a tensor from a file or from host memory", hint="load it once in __init__")
_RNG = Hazard(
    "GS705",
    "changes or copies the state of a random generator",
    "seed before the run, outside of the region",
)
#: Of a draw inside of activation checkpointing, which saves the state of the generator and restores it.
REPEATED = replace(
    _RNG,
    does="draws random numbers within activation checkpointing, which restores the state to draw them again",
    hint="leave dropout out of what is checkpointed; preserve_rng_state=False draws others in the backward",
)
_THREAD = Hazard("GS706", "gives work to another thread", f"do the work in the region's own thread; or {_EAGER}")
_NESTED = Hazard("GS707", "captures or replays a graph of its own", "declare the inner part as a region of the spec")
_SYNC = Hazard(
    "GS708",
    "waits for the device",
    "remove it: operators of one stream run in order; time and synchronize around the run",
)
_COMPILED = Hazard(
    "GS710",
    "calls a function made by torch.compile, which is recorded as eager code",
    "call the function that torch.compile was given: a graph takes the same cost off the host without it",
    warns=True,
)

#: Torch functions by the name torch.overrides gives them, without the leading ``torch.``.
FUNCTIONS: Mapping[str, Hazard] = {
    "Tensor.item": _NUMBER,
    "Tensor.__int__": _NUMBER,
    "Tensor.__float__": _NUMBER,
    "Tensor.__complex__": _NUMBER,
    "Tensor.__index__": replace(
        _NUMBER, hint="use torch.index_select or torch.gather with the tensor; a size or a range needs a param"
    ),
    "Tensor.__bool__": _BRANCH,
    "Tensor.is_nonzero": _BRANCH,
    "is_nonzero": _BRANCH,
    "Tensor.equal": _BRANCH,
    "equal": _BRANCH,
    "Tensor.allclose": _BRANCH,
    "allclose": _BRANCH,
    "Tensor.__contains__": replace(_BRANCH, hint="compute it as a tensor: (x == value).any(), chosen with torch.where"),
    "Tensor.tolist": _LIST,
    "Tensor.numpy": _NUMPY,
    "Tensor.__array__": _NUMPY,
    "Tensor.apply_": _ARRAY,
    "Tensor.map_": _ARRAY,
    "Tensor.map2_": _ARRAY,
    "Tensor.__format__": _PRINT,
    "Tensor.__repr__": _PRINT,
    "Tensor.__dlpack__": replace(_ARRAY, does="hands a tensor to another library, which may read it on the host"),
    "functional.tensordot": replace(_LIST, when="tensor_dims", hint="give dims as Python integers"),
    "tensor_split": replace(_LIST, when="tensor_sections", hint="give the split points as Python integers"),
    "Tensor.tensor_split": replace(_LIST, when="tensor_sections", hint="give the split points as Python integers"),
    "nn.functional.one_hot": replace(
        _READ, when="one_hot_without_classes", hint="give num_classes: F.one_hot(x, num_classes=N)"
    ),
    "Tensor.cpu": _COPY,
    "Tensor.to": replace(_COPY, when="to_host"),
    "Tensor.pin_memory": replace(_COPY, hint="pin host memory outside of the region"),
}

_MADE_ON_HOST = replace(
    _BORN,
    does="copies a tensor that was made on the host to the device",
    when="host_to_device",
    hint="make it on the device: torch.arange(n, device=x.device); or once in __init__, with self.register_buffer",
)

#: The same names, for what was made in the region without a device, out of nothing but numbers.
ON_HOST_TENSORS: Mapping[str, Hazard] = {
    "Tensor.to": _MADE_ON_HOST,
    "Tensor.type_as": _MADE_ON_HOST,
    "Tensor.cuda": _MADE_ON_HOST,
    "Tensor.npu": _MADE_ON_HOST,
}

#: The same names, for host numbers: 0-d tensors made by torch.tensor(NUMBER) without a device.
ON_HOST_NUMBERS: Mapping[str, Hazard] = {
    "Tensor.to": replace(
        _BORN,
        does="copies a host number to the device",
        when="number_to_device",
        hint="leave it a 0-d tensor without a device, which every operator takes as a number; "
        "or build it once in __init__ with self.register_buffer",
    ),
}

# TensorAdvancedIndexing.cpp: a boolean index is expanded with nonzero(), except that one mask and one host number
# become masked_fill_. op-plugin calls value.item() there, and setitem makes its number on the NPU.
_MASK_WRITE = (
    replace(_SIZED, when="mask_write", hint="use torch.where(mask, value, x), which keeps the full size"),
    replace(_READ, when="mask_write_number", refused_by=("npu",), hint="use x.masked_fill_(mask, NUMBER)"),
)

_SCALAR = "aten::_local_scalar_dense"
_LIFT = "aten::lift_fresh"

#: Dispatcher operators, without their overload.
OPERATORS: Mapping[str, tuple[Hazard, ...]] = {
    _SCALAR: (_ARGUMENT,),
    "aten::item": (_NUMBER,),
    "aten::is_nonzero": (_BRANCH,),
    "aten::equal": (_BRANCH,),
    "aten::allclose": (_BRANCH,),
    # DistributionTemplates.h: CHECK_NORMAL_TENSOR_STD reads std.min() on every device.
    "aten::normal": (replace(_READ, when="tensor_std", hint="use mean + std * torch.randn_like(mean)"),),
    # RangeFactories.cpp: bounds given as tensors are read with item() on every device.
    **{
        f"aten::{name}": (
            replace(_READ, when="tensor_bounds", hint="scale a fixed ramp: a + (b - a) * torch.linspace(0, 1, N)"),
        )
        for name in ("linspace", "logspace")
    },
    "aten::histc": (replace(_READ, when="histogram_without_range", hint="give min and max"),),
    # cuda/Indexing.cu: masked_fill_ with a tensor value calls value.item(); the NPU operator takes the tensor.
    "aten::masked_fill": (
        replace(_READ, when="fill_with_tensor", refused_by=("cuda",), hint="use torch.where(mask, value, x)"),
    ),
    "aten::masked_fill_": (
        replace(_READ, when="fill_with_tensor", refused_by=("cuda",), hint="use torch.where(mask, value, x)"),
    ),
    # BatchLinearAlgebra.cpp: _linalg_check_errors reads the info tensor, also from inside eigh, eig and svd.
    "aten::_linalg_check_errors": (_SOLVER,),
    "aten::_linalg_eigh": (_SOLVER,),
    "aten::linalg_eig": (_SOLVER,),
    "aten::_linalg_eigvals": (_SOLVER,),
    "aten::_linalg_svd": (_SOLVER,),
    "aten::linalg_lstsq": (_SOLVER,),
    "aten::nonzero": (_NONZERO,),
    "aten::argwhere": (_NONZERO,),
    "aten::masked_select": (_SIZED,),
    "aten::index": (replace(_SIZED, when="mask_index"),),
    "aten::_unsafe_index": (replace(_SIZED, when="mask_index"),),
    "aten::_unique": (_UNIQUE,),
    "aten::_unique2": (_UNIQUE,),
    "aten::unique_dim": (_UNIQUE,),
    "aten::unique_consecutive": (_UNIQUE,),
    "aten::unique_dim_consecutive": (_UNIQUE,),
    "aten::repeat_interleave": (
        replace(_SIZED, when="repeats_without_size", hint="give output_size, or repeat by an integer"),
    ),
    "aten::bincount": (replace(_SIZED, hint="use torch.zeros(N, ...).scatter_add_(0, x, ones), whose size is fixed"),),
    "aten::_to_sparse": (replace(_SIZED, hint="stay dense in a captured region"),),
    "aten::_coalesce": (replace(_SIZED, hint="coalesce before the run"),),
    "aten::_ctc_loss": (replace(_LIST, when=None, hint=f"the lengths are read on the host; {_EAGER}"),),
    "aten::index_put": _MASK_WRITE,
    "aten::index_put_": _MASK_WRITE,
    "aten::_index_put_impl_": _MASK_WRITE,
    "aten::_unsafe_index_put": _MASK_WRITE,
    # indexing.h: copy_to() fills for a number, but copies it when source and target have the same (0-d) shape.
    "aten::copy_": (
        replace(
            _BORN,
            does="copies a host number into one element of a tensor",
            when="element_write_number",
            refused_by=("cuda",),
            hint="fill instead: x[i].fill_(NUMBER), or x[i:i + 1] = NUMBER",
        ),
    ),
    _LIFT: (replace(_BORN, when="host_data"),),
    "aten::_pin_memory": (replace(_COPY, hint="pin host memory outside of the region"),),
}
#: Any other operator that torch tags so, also of other libraries.
TAGGED: Mapping[str, Hazard] = {"dynamic_output_shape": _SIZED, "data_dependent_output": _READ}

_SLICE = (
    "the bound of a slice is a size: keep the full size and mask it (torch.arange(N, device=x.device) < n), or make "
    "the bound a param with `specialize: true`"
)
#: Better advice where the function that the model called is known: (operator, function) to hint.
HINTS: Mapping[tuple[str, str], str] = {
    (_SCALAR, "Tensor.__getitem__"): f"index with a 1-d tensor: torch.index_select(x, AXIS, i.reshape(1)); {_SLICE}",
    (_SCALAR, "Tensor.__setitem__"): f"use x.index_copy_(AXIS, i.reshape(1), value); {_SLICE}",
    (_SCALAR, "full"): "use torch.ones(shape) * value, or value.expand(shape)",
    (_SCALAR, "arange"): "the length of a range is a size: give it as a param or a dim",
    ("aten::nonzero", "where"): "give both values: torch.where(mask, a, b)",
    (_LIFT, "Tensor.__getitem__"): "index with a slice, or with an index tensor built once in __init__",
    (_LIFT, "Tensor.__setitem__"): "index with a slice, or with an index tensor built once in __init__",
    (_LIFT, "tensor"): f"{_BORN.hint}; a single number needs no device: torch.tensor(NUMBER), or the number itself",
}

#: Better advice where a part of torch reads values for itself: the folder of torch to the hint.
PARTS: Mapping[str, str] = {
    "amp": "let the scaler step an optimizer that takes what it has found: SGD, Adam, AdamW or Adagrad with fused=True",
    "distributions": "make the distribution with validate_args=False",
}

#: Python calls that reach neither kind of mode: where they are looked up, by dotted path.
CALLS: Mapping[str, Hazard] = {
    "threading.Thread.start": _THREAD,
    "concurrent.futures.thread.ThreadPoolExecutor.submit": _THREAD,
    "concurrent.futures.process.ProcessPoolExecutor.submit": _THREAD,
    "multiprocessing.pool.Pool.apply_async": _THREAD,
    "multiprocessing.pool.Pool._map_async": _THREAD,
    "torch.serialization._save": _SAVE,
    "torch.serialization._legacy_save": _SAVE,
    "torch.load": _FILE,
    "torch.frombuffer": _FILE,
    "torch.from_file": _FILE,
    "torch.cuda.manual_seed_all": _RNG,
    "torch.get_rng_state": _RNG,
    "torch.set_rng_state": _RNG,
    "torch.random.get_rng_state": _RNG,
    "torch.random.set_rng_state": _RNG,
    "torch._dynamo.eval_frame._callback_from_stance": _COMPILED,
    "torch.accelerator.synchronize": _SYNC,
    "torch.accelerator.Graph.capture_begin": _NESTED,
    "torch.accelerator.Graph.replay": _NESTED,
    **{
        f"torch.{device}.{name}": hazard
        for device in ("cpu", "cuda", "npu")
        for name, hazard in {
            "synchronize": _SYNC,
            "Stream.synchronize": _SYNC,
            "Stream.query": _SYNC,
            "Event.synchronize": _SYNC,
            "Event.query": _SYNC,
        }.items()
    },
    **{
        f"torch.{device}.{name}": _NESTED
        for device in ("cuda", "npu")
        for name in ("graph.__init__", "graph.__enter__", "make_graphed_callables")
    },
    "torch.cuda.CUDAGraph.capture_begin": _NESTED,
    "torch.cuda.CUDAGraph.replay": _NESTED,
    "torch.npu.NPUGraph.capture_begin": _NESTED,
    "torch.npu.NPUGraph.replay": _NESTED,
    **{f"torch.{device}.{name}_rng_state": _RNG for device in ("cuda", "npu") for name in ("get", "set")},
    "torch.npu.manual_seed_all": _RNG,
}

#: What torch tags ``cudagraph_unsafe``, or its inductor keeps out of graphs; that list is read where it stands.
UNSAFE = Hazard("GS714", "calls an operator that torch marks as unsafe in a graph", f"replace it; or {_EAGER}")

PYTHON_KERNEL = Hazard(
    "GS715",
    "calls an operator whose kernel is Python code, which fake tensors do not look into",
    "`graphspec run` records what that code calls; until then, pass everything that it reads as an argument, and read "
    "no value on the host in it",
    warns=True,
)

GENERATOR = Hazard(
    "GS704",
    "draws from an undeclared random generator",
    "declare it on the region, by the attribute that holds it: `generators: [model.NAME]`",
)
SEEDED = _RNG
UNFORKED = Hazard(
    "GS709",
    "works on a side stream that does not wait for the capturing stream",
    "call side.wait_stream(current_stream()) before the block, and current_stream().wait_stream(side) after it",
)
UNJOINED = replace(
    UNFORKED,
    does="works on a side stream that the capturing stream never waits for",
    hint="call current_stream().wait_stream(side) after the block",
)
BACKWARD = Hazard(
    "GS761",
    "adds to the gradients of the model, and does not say so",
    "write `optimizer: model.optimizer` on the region if it steps one, else `grads: accumulate` or `grads: overwrite`",
)
HOOKED = Hazard(
    "GS712",
    "has a hook, whose Python code would run at capture and at no replay",
    "remove it, or say `hooks: allow` on the region if it only calls operators on tensors",
)

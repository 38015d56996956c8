"""npugraph_ex and TorchAir, the compilers of torch_npu: options as of torch_npu 2.13."""

from __future__ import annotations

from typing import Final

from graphspec.compilers.option import Compiler, Option, table

_STEERS = "it steers a capture of the compiler's own, and graphspec captures the compiled call"
_ADDRESSES = "a weight that is moved later would be read at its old address, without an error"
_OVERWRITTEN = "results that are kept would be overwritten by the next run"
_FILES = "it writes every tensor to files while the device waits"
_LATER = "say it under `npu: {super_kernel: ...}`, which is for the graph that graphspec captures"
_CACHED = "what is loaded from this cache checks nothing, and is a pickle: other sizes, modes and attributes go unseen"
_INTERNAL = "it is internal to one serving system"

_SHARED: Final = (
    Option("remove_noop_ops", "bool", "Removes operators without effect."),
    Option("remove_cat_ops", "bool", "Lets the parts of a cat be written where the whole lies."),
    Option("inplace_pass", "bool", "Operators write into values that nobody needs again."),
    Option("input_inplace_pass", "bool", "The same for inputs that are written at the end."),
    Option("pattern_fusion_pass", "bool", "Replaces known patterns by one operator."),
    Option("post_grad_custom_pre_pass", "function", "A pass over the FX graph before the compiler's."),
    Option("post_grad_custom_post_pass", "function", "A pass over the FX graph after the compiler's."),
    Option("static_kernel_compile", "bool", "Kernels for these very shapes; needs CANN's operator compiler."),
    Option("force_eager", "bool", "Runs what was compiled without a capture of its own.",
           refused="graphspec sets it: `engine: graph` is the compiled call in graphspec's own graph"),
    Option("frozen_parameter", "bool", "Does not look at the addresses of parameters.", refused=_ADDRESSES),
    Option("clone_input", "bool", "Captures on copies of the inputs.", refused=_STEERS),
    Option("clone_output", "bool", "Hands out copies of the results.", refused=_STEERS),
    Option("capture_limit", "int", "After how many captures it runs eagerly for good.", least=1, refused=_STEERS),
    Option("use_graph_pool", "str", "The memory pool of its captures.", refused=_STEERS),
    Option("reuse_graph_pool_in_same_fx", "bool", "Its captures share memory.", refused=_OVERWRITTEN),
    Option("dump_tensor_data", "bool", "Writes tensors to files.", refused=_FILES),
    Option("data_dump_stage", "str", "At which stage.", choices=("original", "optimized"), refused=_FILES),
    Option("data_dump_dir", "str", "Into which folder.", refused=_FILES),
    Option("super_kernel_optimize", "bool", "Joins kernels of the graph.", refused=_LATER),
    Option("super_kernel_optimize_options", "mapping", "How.", refused=_LATER),
    Option("super_kernel_debug_options", "mapping", "What it reports.", refused=_LATER),
    Option("cache_dir", "str", "Where compiled code is cached.", refused=_CACHED),
    Option("_vllm_aclnn_static_kernel_sym_index", "int", "Which symbol says the size.", refused=_INTERNAL),
    Option("_vllm_aclnn_static_kernel_sym_range", "str", "Which sizes get kernels.", refused=_INTERNAL),
)  # fmt: skip

NPUGRAPH_EX: Final = Compiler(
    "npugraph_ex",
    ("npu",),
    table(
        *_SHARED,
        Option("disable_static_kernel_compile_cache", "bool", "Compiles such kernels anew each time."),
        Option("record_statistics_debug_info", "bool", "Counts what was compiled."),
        Option("deadlock_check", "bool", "Looks for streams that wait for each other.", refused=_STEERS),
        Option("capture_error_mode", "str", "What else may run while it captures.",
               choices=("global", "thread_local", "relaxed"), refused="say it under `capture: {error_mode: ...}`"),
        Option("force_recapture", "bool", "Captures anew on every run.", refused=_STEERS),
        Option("unsafe_skip_npugraph_capture_validation", "bool", "Does not check its captures.", refused=_ADDRESSES),
        Option("mode", "str", "The mode.", refused="say it as `mode:` beside `options:`"),
    ),
    {"npugraph_ex": None},
    captures=("npu",),
)  # fmt: skip

TORCHAIR: Final = Compiler(
    "torchair",
    ("npu",),
    table(*_SHARED),
    {
        "reduce-overhead": None,
        "max-autotune": "it builds graphs of the graph engine, which no capture can hold",
    },
    captures=("npu",),
)

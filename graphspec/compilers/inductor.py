"""Inductor, the compiler of torch: options by the names of ``torch._inductor.config``, as of torch 2.13."""

from __future__ import annotations

from typing import Final

from graphspec.compilers.option import Compiler, Option, table

_CAPTURES = "it captures by itself, and graphspec captures the compiled call"
_BAKES = "it burns the weights in, and a weight that is loaded later would not be seen"
_PLACES = "graphspec says where libraries are kept and how they are packed"
_WRITES = "it writes files beside the run; set TORCH_COMPILE_DEBUG for one process instead"
_PASSES = "a pass of one's own is code that no digest of the library covers"

INDUCTOR: Final = Compiler(
    "inductor",
    ("cpu",),
    table(
        Option("max_autotune", "bool", "Tries several kernels for matrix products and keeps the fastest."),
        Option("max_autotune_pointwise", "bool", "The same for elementwise kernels."),
        Option("max_autotune_gemm", "bool", "The same for matrix products alone."),
        Option("max_autotune_gemm_backends", "str", "Which kinds of kernels are tried, such as 'ATEN,CPP'."),
        Option("coordinate_descent_tuning", "bool", "Goes on tuning what was found. GPUs only."),
        Option("epilogue_fusion", "bool", "Joins elementwise operators to the product before them."),
        Option("prologue_fusion", "bool", "Joins elementwise operators to the product after them."),
        Option("pattern_matcher", "bool", "Replaces known patterns, attention among them, by one operator."),
        Option("split_cat_fx_passes", "bool", "Simplifies chains of split and cat."),
        Option("batch_fusion", "bool", "Joins like small products into one."),
        Option("group_fusion", "bool", "Joins unlike small products into one."),
        Option("permute_fusion", "bool", "Joins transpositions to products."),
        Option("reorder_for_locality", "bool", "Moves operators near to those that use them."),
        Option("pick_loop_orders", "bool", "Orders loops by the strides they read."),
        Option("loop_ordering_after_fusion", "bool", "Orders loops once more for kernels that were joined."),
        Option("inplace_buffers", "bool", "Lets a kernel write into an input that nobody needs again."),
        Option("allow_buffer_reuse", "bool", "Gives the memory of dead intermediates to later ones."),
        Option("memory_planning", "bool", "Lays intermediates out in one allocation."),
        Option("max_fusion_size", "int", "How many operators one kernel may hold.", least=1),
        Option("realize_opcount_threshold", "int", "From how many operators on a value is stored.", least=0),
        Option("realize_reads_threshold", "int", "From how many reads on a value is stored.", least=0),
        Option("unroll_reductions_threshold", "int", "Up to which length a reduction is unrolled.", least=0),
        Option("layout_optimization", "bool", "Convolutions in channels-last where that pays."),
        Option("conv_1x1_as_mm", "bool", "Pointwise convolutions as products."),
        Option("shape_padding", "bool", "Pads products to better sizes. GPUs only."),
        Option("keep_output_stride", "bool", "Results keep the strides they have in eager."),
        Option("online_softmax", "bool", "Softmax in one pass over its row."),
        Option("emulate_precision_casts", "bool", "Rounds between half-precision operators as eager does."),
        Option("use_fast_math", "bool", "Faster and less exact functions. GPUs only."),
        Option("fallback_random", "bool", "Random operators draw the numbers that eager draws."),
        Option("deterministic", "bool", "Does without choices that are made by timing."),
        Option("size_asserts", "bool", "Checks the sizes of what operators return."),
        Option("nan_asserts", "bool", "Checks results for NaN and infinity."),
        Option("cpp.threads", "int", "How many threads the kernels use; -1: as many as torch.", least=-1),
        Option("cpp.dynamic_threads", "bool", "The number of threads is read at each run."),
        Option("cpp.simdlen", "int", "Bits of a vector register; 1: no vectors.", least=0),
        Option("cpp.min_chunk_size", "int", "The least work given to a thread.", least=1),
        Option("cpp.max_horizontal_fusion_size", "int", "How many loops stand side by side in one kernel.", least=1),
        Option("cpp.gemm_max_k_slices", "int", "How often a product is split along its sum; 0: no limit.", least=0),
        Option("cpp.enable_floating_point_contract_flag", "str", "Joins a product and a sum into one rounding.",
               choices=("off", "on", "fast")),
        Option("cpp.enable_unsafe_math_opt_flag", "bool", "Lets the C++ compiler reorder sums."),
        Option("cpp.enable_tiling_heuristics", "bool", "Chooses by a rule of thumb what is vectorized."),
        Option("cpp.enable_loop_tail_vec", "bool", "Vectorizes the rest of a loop too."),
        Option("cpp.enable_concat_linear", "bool", "Joins linear layers that read the same input."),
        Option("cpp.fallback_scatter_reduce_sum", "bool", "Sums that scatter are left to eager's kernel."),
        Option("cpp.use_decompose_tanh", "bool", "tanh by exp."),
        Option("cpp.force_inline_kernel", "bool", "Inlines every kernel."),
        Option("triton.cudagraphs", "bool", "Captures what was compiled.", refused=_CAPTURES),
        Option("triton.cudagraph_trees", "bool", "Shares memory between such captures.", refused=_CAPTURES),
        Option("freezing", "bool", "Weights become constants.", refused=_BAKES),
        Option("freezing_discard_parameters", "bool", "And the module loses its own.", refused=_BAKES),
        Option("always_keep_tensor_constants", "bool", "Keeps constants that nobody reads.", refused=_BAKES),
        Option("cpp.weight_prepack", "bool", "Weights in the layout of the kernel, when frozen.", refused=_BAKES),
        Option("aot_inductor.use_runtime_constant_folding", "bool", "Folds constants at the start.", refused=_BAKES),
        Option("aot_inductor.package_constants_in_so", "bool", "Constants inside of the library.", refused=_PLACES),
        Option("aot_inductor.force_mmap_weights", "bool", "Constants behind the library.", refused=_PLACES),
        Option("aot_inductor.output_path", "str", "Where the library is written.", refused=_PLACES),
        Option("aot_inductor.package", "bool", "A package in place of a library.", refused=_PLACES),
        Option("cpp_wrapper", "bool", "Calls kernels from C++.", refused="on the CPU they always are"),
        Option("fx_graph_cache", "bool", "Inductor's own cache.", refused="graphspec has a cache of whole libraries"),
        Option("force_disable_caches", "bool", "No cache.", refused="graphspec has a cache of whole libraries"),
        Option("debug", "bool", "Writes what is compiled.", refused=_WRITES),
        Option("trace.enabled", "bool", "Writes what is compiled.", refused=_WRITES),
        Option("post_grad_custom_pre_pass", "function", "A pass before Inductor's.", refused=_PASSES),
        Option("post_grad_custom_post_pass", "function", "A pass after Inductor's.", refused=_PASSES),
    ),
    {
        "default": None,
        "max-autotune-no-cudagraphs": None,
        "reduce-overhead": _CAPTURES,
        "max-autotune": f"{_CAPTURES}: `max-autotune-no-cudagraphs` tunes without",
    },
)  # fmt: skip

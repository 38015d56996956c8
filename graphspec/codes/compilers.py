"""GS602 to GS607, GS770 to GS772: regions that a compiler works on."""

from __future__ import annotations

from typing import Final

from graphspec.codes.entry import Code

CODES: Final = (
    Code("GS602", "A compiler has no such option or mode.",
         "The options that graphspec hands on are known by name; a misspelt one is never silently ignored.",
         "compile: {backend: inductor, options: {epilog_fusion: false}}",
         "compile: {backend: inductor, options: {epilogue_fusion: false}}"),
    Code("GS603", "An option of a compiler has a value of another kind.",
         "The compiler would fail at the capture, minutes later, or take it for something else.",
         "compile: {backend: inductor, options: {cpp.threads: four}}",
         "compile: {backend: inductor, options: {cpp.threads: 4}}"),
    Code("GS604", "An option or a mode of a compiler is refused.",
         "It would be silently wrong under a graph (frozen weights, results that the next run overwrites, a cache that"
         " checks nothing), or it steers a capture that graphspec makes itself. The message says which.",
         "compile: {backend: npugraph_ex, options: {frozen_parameter: true}}", "compile: {backend: npugraph_ex}"),
    Code("GS605", "The device does not have this compiler.",
         "With `device: auto` the region is captured uncompiled there, and a warning says so.",
         "device: cpu\n# in a region: compile: {backend: npugraph_ex}",
         "device: auto\n# in a region: compile: {backend: npugraph_ex}"),
    Code("GS606", "`engine` does not go with the region's compiler.",
         "`graph`, the default: graphspec captures the compiled call. `compiled`: the compiler captures by itself,"
         " which not every compiler does on every device.",
         "compile: {backend: inductor}\nengine: compiled", "compile: {backend: inductor}"),
    Code("GS607", "A compiled region updates a param.",
         "Inductor makes one library of the whole region, with every number of it inside: there is no argument left to"
         " refresh before a replay.",
         "compile: {backend: inductor}\nupdates: [{op: aten::mul, arg: other, from: scale}]",
         "compile: {backend: inductor}  # and params: {scale: {type: float, specialize: true}}"),
    Code("GS770", "A compiled region draws random numbers.",
         "Compiled kernels draw other numbers than eager does from the same seed, so that nothing could be compared.",
         "compile: {backend: inductor}  # the region calls dropout",
         "compile: {backend: inductor, options: {fallback_random: true}}"),
    Code("GS771", "A compiled region does what the compiler cannot be given.",
         "The region is recorded, and the recording is compiled to one library whose arguments are the tensors it reads"
         " and writes. The message says what does not fit into that.",
         "compile: {backend: inductor}  # in the region: x.add(torch.rand(4, generator=self.noise))",
         "compile: {backend: inductor}  # and noise: {shape: [4], dtype: float32}, an input"),
    Code("GS772", "A compiler took away an operator that is updated.",
         "It joined several into one, or replaced it by another, so that an argument to refresh is gone. Counted are"
         " the calls of the uncompiled callable and those of the compiled one.",
         "compile: {backend: npugraph_ex, options: {post_grad_custom_pre_pass: passes.py:merge}}  # two become one",
         "compile: {backend: npugraph_ex}"),
)  # fmt: skip

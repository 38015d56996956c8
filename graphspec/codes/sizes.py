"""GS3xx and GS4xx: the order of replay, and bucket sizes."""

from __future__ import annotations

from typing import Final

from graphspec.codes.entry import Code

CODES: Final = (
    Code("GS301", "A value is read after its memory was reused.",
         "Graphs of one pool share memory in the order they were captured. A replay in another order overwrites a"
         " value before its reader comes: nothing would raise, the numbers would be wrong.",
         "pools: {p: [a, b, c]}  # c reads what a made\nreplay: {warm: [a, c, b], run: [a, b, c]}",
         "pools: {p: [a, c]}  # b has memory of its own\nreplay: {warm: [a, c, b], run: [a, b, c]}"),
    Code("GS302", "A value is read before it is made.",
         "The graph would read whatever is at the address.", "replay: [decode, embed]  # decode reads what embed makes",
         "replay: [embed, decode]"),
    Code("GS303", "A value is read by a region that is captured before its producer.",
         "The reader is captured against the producer's address, which must exist first.",
         "replay: {step: [decode], first: [embed, decode]}", "replay: {first: [embed, decode], step: [decode]}"),
    Code("GS304", "A result without a copy is overwritten before the run returns.",
         "`copy: false` hands out the graph's own memory. A region of the same pool that was captured earlier and is"
         " replayed later in the run uses that memory again, so whoever gets the result could never read it.",
         "pools: {p: [a, b]}\nbuffers: {y: {role: output, copy: false}}  # of b\n"
         "replay: {first: [a, b], second: [b, a]}",
         "pools: {p: [b]}  # a has memory of its own\nbuffers: {y: {role: output, copy: false}}\n"
         "replay: {first: [a, b], second: [b, a]}"),
    Code("GS305", "Nothing in a loop changes what it goes by.",
         "The value is read before each turn. What the caller gives, or a region outside of the loop makes, is the same"
         " in every turn: the loop would run for ever, or not at all.",
         "replay: [start, {while: active, do: [step]}]  # start makes active",
         "replay: [start, {while: active, do: [step]}]  # step makes active, a state"),
    Code("GS306", "A loop does not go by one bool.",
         "The host reads the value before each turn. Of several elements nothing says which one decides, and of a"
         " number nothing says when it is enough.",
         "active: {role: state, shape: [batch], dtype: bool}", "active: {role: state, shape: [1], dtype: bool}"),
    Code("GS307", "Loops nest too deep.",
         "The order of what may follow what is proven for up to 4 loops in each other.",
         "", ""),
    Code("GS401", "Bucket sizes do not ascend.", "A list out of order is usually a slip in one of its numbers.",
         "batch: [8, 4, 2]", "batch: [2, 4, 8]"),
    Code("GS402", "A bucket size is listed twice.", "Each size is one graph.", "batch: [2, 4, 4]", "batch: [2, 4]"),
    Code("GS403", "A run of sizes is empty, or does not end where it says.", "`to` is included.",
         "batch: {from: 16, to: 100, step: 16}", "batch: {from: 16, to: 96, step: 16}"),
    Code("GS404", "A bucket combination does not fit the dims.",
         "Each has one of the sizes of every bucketed dim, and is listed once.",
         "dims: {batch: [1, 2]}\nbuckets: [{batch: 3}]", "dims: {batch: [1, 2]}\nbuckets: [{batch: 2}]"),
    Code("GS405", "Integers with a bucketed dim need `pad`.",
         "A run with 3 rows takes the bucket of 4, and the fourth row must be harmless. For tokens, indices and lengths"
         " no number is always so.",
         "tokens: {shape: [batch, 1], dtype: int64}", "tokens: {shape: [batch, 1], dtype: int64, pad: 0}"),
    Code("GS406", "A result with a bucketed dim needs a shape.",
         "Results are cut back to the rows of the run, and nothing else says which axis holds them.",
         "regions: {f: {call: model, inputs: [x], outputs: y}}",
         "buffers: {y: {role: output, shape: [batch, 8], dtype: float32}}\n"
         "regions: {f: {call: model, inputs: [x], outputs: y}}"),
    Code("GS407", "The buckets lead to too many graphs.",
         "Every region is captured once for each bucket. An NPU has about 2,048 streams, one for each graph, and"
         " reports their end as a lack of storage.",
         "dims: {batch: {from: 1, to: 5000}}", "dims: {batch: [1, 2, 4, 8, 16, 32]}"),
    Code("GS408", "`on_miss: eager` cannot work here.",
         "A state is allocated for the largest bucket, so it has no rows for a larger run.",
         "s: {role: state, shape: [batch, 4], dtype: float32}\n# in its region: on_miss: eager",
         "s: {role: state, shape: [batch, 4], dtype: float32}\n# in its region: on_miss: error"),
    Code("GS409", "The static buffers alone are larger than `capture.memory_budget`.",
         "They are allocated once, at the largest size of each dim, before anything is captured. The memory of the"
         " graphs comes on top, and is compared with the budget when they are captured.",
         "x: {shape: [4096, 1024], dtype: float32}  # 16 MiB\ncapture: {memory_budget: 8MiB}",
         "x: {shape: [1024, 1024], dtype: float32}  # 4 MiB\ncapture: {memory_budget: 8MiB}"),
    Code("GS410", "An eager region reads padded rows that nothing tells from real ones.",
         "It sees the real rows of a run, which are cut from what a graph made. Without a declared shape the axis is"
         " found by comparing the captures of several sizes; one size shows nothing.",
         "dims: {batch: [8]}\nregions:\n  f: {call: model.f, inputs: [x], outputs: h}\n"
         "  g: {call: model.g, inputs: [h], outputs: y, eager: true}",
         "dims: {batch: [8]}\nbuffers: {h: {role: output, shape: [batch, 4], dtype: float32}}\nregions:\n"
         "  f: {call: model.f, inputs: [x], outputs: h}\n  g: {call: model.g, inputs: [h], outputs: y, eager: true}"),
    Code("GS411", "Only the caller can say how large a dim is.",
         "A run takes the smallest bucket that holds its sizes, and reads them off its inputs and params. Of a dim that"
         ' only a result has every run must state the size: `runner.run(..., sizes={"patches": 16})`.',
         "dims: {patches: [16, 64]}\nbuffers: {y: {role: output, shape: [patches, 8], dtype: float32}}",
         "dims: {patches: 64}\nbuffers: {y: {role: output, shape: [patches, 8], dtype: float32}}"),
    Code("GS412", "Rows that a bucket adds may reach a state.",
         "A state without an axis for them keeps what the region computed of all rows, the added ones included, and the"
         " next runs go on from it. `pad` says what they hold; a buffer `from: {size: DIM}` says how many are real.",
         "x: {shape: [frames, 8], dtype: float32}\nh: {role: state, shape: [8], dtype: float32}\n"
         "# inputs: [x, h], outputs: [y, h]",
         "x: {shape: [frames, 8], dtype: float32}\nn: {shape: [], dtype: int64, from: {size: frames}}\n"
         "h: {role: state, shape: [8], dtype: float32}\n# inputs: [x, n, h], outputs: [y, h]"),
    Code("GS413", "Rows that a bucket adds would train the model.",
         "They take part in the loss, in its gradients, and so in every parameter: a region that trains runs at the"
         " very sizes that it was captured for.",
         "dims: {batch: [4, 8]}\nregions:\n  step: {call: model.step, inputs: [x], optimizer: model.optimizer}",
         "dims: {batch: {sizes: [4, 8], exact: true}}\nregions:\n"
         "  step: {call: model.step, inputs: [x], optimizer: model.optimizer}"),
    Code("GS416", "An axis `_` stands where a size is needed.",
         "`_` is whatever comes, for an axis of a result or an intermediate that no bucket pads. What is allocated, and"
         " what a caller gives, has a size on every axis.",
         "x: {shape: [batch, _], dtype: float32}", "y: {role: output, shape: [batch, _], dtype: float32}"),
)  # fmt: skip

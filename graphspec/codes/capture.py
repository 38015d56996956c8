"""GS7xx: what a region may not do while it is captured. Found by running or tracing it."""

from __future__ import annotations

from typing import Final

from graphspec.codes.entry import Code
from graphspec.hazards import CODES as TRACED

_FROZEN = "Nothing of it runs at a replay: a graph repeats operators on fixed memory, not Python."

CODES: Final = (
    *(Code(code, title, _FROZEN) for code, title in TRACED.items()),
    Code("GS720", "A region reads a tensor that is made anew on every run.",
         "It is made from host data, by another thread or by another region, so the graph would read the first one"
         " for ever.", "def forward(self, x): return x + torch.tensor([1.0, 2.0])",
         "def __init__(self): self.offset = torch.tensor([1.0, 2.0])\ndef forward(self, x): return x + self.offset"),
    Code("GS721", "A region does not call the same operators on every run.",
         "A branch or a size depends on a value, and a graph has one path.",
         "return x * 2 if self.count % 2 else x", "return torch.where(flag, x * 2, x)"),
    Code("GS722", "A host value that changes between runs is frozen into the graph.",
         "A number computed on the host is part of the recorded call.", "x * (scale ** 2)  # scale is a param",
         "x * scale_squared  # a param of its own, declared under updates"),
    Code("GS723", "On other inputs the graph gives other values than eager.",
         "Something the region uses is not an operator on tensors: host state, another library or another thread."),
    Code("GS724", "A region writes into its input.",
         "Eager would change the caller's tensor, a graph only its own copy.", "x.mul_(2)", "x = x * 2"),
    Code("GS725", "A region changes a Python attribute of the model.",
         "A graph freezes the value it was captured with.", "self.pos += 1", "self.pos_buffer.add_(1)"),
    Code("GS726", "A region reads a tensor of the model and puts another one in its place.",
         "The graph goes on reading the old one.", "self.state = self.state + x", "self.state.add_(x)"),
    Code("GS727", "A region draws random numbers on the host.", "A graph freezes what Python or numpy drew.",
         "random.random()", "torch.rand((), device=x.device)"),
    Code("GS728", "A tensor changed in a way no operator says.",
         "A kernel with a wrong schema, numpy or another thread wrote it, so it cannot be put back."),
    Code("GS729", "A region writes into a result of the run.",
         "The result was copied out before; eager would show the change.", "y.add_(1)", "z = y + 1"),
    Code("GS730", "A region computes something else while it is captured than in eager.",
         "Code may ask whether it is captured, to leave out a read of a value. Where the other way gives other results,"
         " graphs would give those.",
         "return x if torch.cuda.is_current_stream_capturing() else x * self.mask", "return x * self.mask"),
    Code(
        "GS740",
        "The model has nothing at this path.",
        "The factory was called, and what it returned has no such attribute.",
        "call: model.decode  # the method is named step",
        "call: model.step",
    ),
    Code("GS741", "The call of a region failed.", "The model's own exception is shown, at the innermost of its lines."),
    Code(
        "GS742",
        "A result is not what the spec declares.",
        "Its shape, its dtype, or the path to it is another one.",
        "y: {role: output, shape: [batch, 8], dtype: float32}  # the call returns float16",
        "y: {role: output, shape: [batch, 8], dtype: float16}",
    ),
    Code(
        "GS743",
        "An operator has no fake kernel.",
        "A dry run knows shapes and no values, and an operator says them through its fake kernel. What comes after it"
        " is checked with the declared shapes, or not at all.",
    ),
    Code(
        "GS744",
        "A region could not be traced, or only in part.",
        "An eager region reads values, which a dry run has not. Its outputs are taken as they are declared.",
    ),
    Code(
        "GS745",
        "A region puts something new into an attribute on every call.",
        "A replay runs no Python, so the attribute keeps what the last capture left there.",
        "self.last = x * 3",
        "return {'y': y, 'last': x * 3}",
    ),
    Code(
        "GS746",
        "A tensor of the host meets tensors of the device.",
        "A capture cannot copy from ordinary host memory, and a graph would freeze a single number.",
        "self.offset = torch.zeros(4)",
        "self.register_buffer('offset', torch.zeros(4), persistent=False)",
    ),
    Code(
        "GS747",
        "An operator works across rows that a bucket may pad.",
        "A sum, mean or normalization along such an axis would mix padded rows into real ones.",
        "return x.mean(dim=0)",
        "return (x * mask).sum(dim=0) / mask.sum()",
    ),
    Code(
        "GS748",
        "A region has nothing to replay.",
        "It calls no operator and returns no tensor, so its graph would be empty.",
        "def forward(self, x): return 1",
        "leave it out of `replay`, or mark it `eager: true`",
    ),
    Code(
        "GS749",
        "A region calls an operator that no graph can hold.",
        "It works on a sparse, nested or quantized tensor, or resizes in place what it reads: a replay has dense"
        " tensors of fixed sizes at fixed addresses.",
        "return x.to_sparse() @ w",
        "mark the region `eager: true`",
    ),
    Code(
        "GS750",
        "A region changes or hands on what an eager region made, of which it has a copy.",
        "A graph reads addresses, so it has a copy of what an eager region returned: made when it is read, and followed"
        " by nobody. Eager would show the change through every name.",
        "def look(self): return self.count  # eager; and a captured region does self.count.add_(1); return count",
        "def look(self): return self.count.clone()",
    ),
    Code(
        "GS751",
        "An eager region changes the shape of a value that a captured one reads afterwards.",
        "A graph reads a value at the address and in the shape in which it was made.",
        "h.unsqueeze_(-1)",
        "h = h.unsqueeze(-1)",
    ),
    Code(
        "GS752",
        "A region writes what the model owns in rows that a bucket adds.",
        "Those rows are nobody's: eager leaves them as they were. Where a state with that `attr` declares its shape,"
        " the runtime keeps them; `pad_rows` names slots that padded rows may write.",
        "def forward(self, x): return self.h[: x.shape[0]].add_(x) * 1",
        "h: {role: state, attr: model.h, shape: [batch, 2]}",
    ),
    Code(
        "GS753",
        "Rows that a bucket adds change what a run gives.",
        "A run with 3 rows in a bucket of 4 must give what eager gives with 3. Each bucket is run padded when a spec is"
        " opened, once as eager does it and with two contents of the padded rows.",
        "return torch.cat([x, x * 10])  # [2*batch, 2]: padded rows lie between real ones",
        "return torch.stack([x, x * 10], 1).flatten(0, 1)",
    ),
    Code("GS754", "What is to stay eager is not called.",
         "`break` names operators as the model calls them, and modules by their paths. A name that nothing answers to"
         " would promise a part that runs eagerly, and all of it would be in the graph.",
         "break: [model.layers.*.attention]  # it is called attn", "break: [model.layers.*.attn]"),
    Code("GS755", "A part that stays eager is given a host value that changes.",
         "What captured code computes on the host is computed once. A param is handed on anew in every run, and so is"
         " what the eager part reads by itself.",
         "self.attn(q, k, v, Metadata(lengths))  # in captured code", "self.attn(q, k, v)  # which makes the metadata"),
    Code(
        "GS760",
        "A region uses gradients that `grads: overwrite` says it ignores.",
        "Its own code adds to what it finds in `.grad`, or reads it, so the two would differ where something is there.",
        "loss.backward()\nself.optimizer.step()\nself.optimizer.zero_grad()  # grads: overwrite",
        "self.optimizer.zero_grad()\nloss.backward()\nself.optimizer.step()",
    ),
)  # fmt: skip

"""Statements no graph can repeat. A draw that holds one must be refused, by name, whatever else it holds."""

from __future__ import annotations

from collections.abc import Mapping

#: What each is, with its statements; ``{f}`` is a floating tensor, ``{input}`` an input buffer, ``{P}`` a float param.
HAZARDS: Mapping[str, tuple[str, ...]] = {
    "item": ("{o} = {f} * {f}.sum().item()",),
    "float": ("{o} = {f} * float({f}.mean())",),
    "branch": ("{o} = {f} * 2 if {f}.sum() > 0 else {f} * 10",),
    "all": ("{o} = {f} + 1 if ({f} > 0).all() else {f} - 1",),
    "tolist": ("{o} = {f} + {f}.flatten().tolist()[0]",),
    "to numpy": ("{o} = {f} + float({f}.detach().float().numpy().sum())",),
    "text": ("{o} = {f} * len(str({f}))",),
    "equal": ("{o} = {f} * 2 if torch.equal({f}, {f} * 1) else {f}",),
    "mask": ("{o} = {f}[{f} > 0].sum()",),
    "nonzero": ("{o} = {f}.nonzero().sum()",),
    "unique": ("{o} = {f}.unique().sum()",),
    "select": ("{o} = torch.masked_select({f}, {f} > 0).sum()",),
    "literal": ("{o} = {f}.sum() + torch.tensor([1.0, 2.0])",),
    "counter": ("self.steps += 1", "{o} = {f} + self.steps"),
    "list": ("self.seen.append(1)", "{o} = {f} + len(self.seen)"),
    "rebind": ("{o} = {f}.sum() + self.mean0", "self.mean0 = {o} * 0.5"),
    "swap": ("{o} = {f}.sum() + self.ping", "self.ping, self.pong = self.pong, self.ping"),
    "python random": ("{o} = {f} * random.random()",),
    "numpy random": ("{o} = {f} * float(np.random.rand())",),
    "clock": ("{o} = {f} * time.perf_counter_ns()",),
    "write input": ("{input}.copy_({input} * 1)",),
    "write view of input": ("{input}.view(-1)[:1] = {input}.view(-1)[:1] * 1",),
    "int of a tensor": ("{o} = {f} + int({f}.abs().sum())",),
    "range": ("for _ in range(1 + int({f}.sum() > 0)): {o} = {f} + 1",),
    "contains": ("{o} = {f} * (1.0 in {f})",),
    "param": ("{o} = {f} * {P}",),
    "param squared": ("{o} = {f} * {P} ** 2",),
    "param plus one": ("{o} = {f} + ({P} + 1)",),
    "param negated": ("{o} = {f} * -{P}",),
    "param as int": ("{o} = {f} * int({P} * 10)",),
    "param in a tensor": ("{o} = {f} * torch.tensor({P})",),
    "param branch": ("{o} = {f} * 2 if {P} > 1 else {f} * 10",),
    "param text": ("{o} = {f} * len(str({P}))",),
    "seed": ("torch.manual_seed(3)",),
    "dynamic size": ("{o} = torch.zeros(int({f}.abs().sum()) + 1).sum()",),
    "repeats": ("{o} = {f}.repeat_interleave(({f}.flatten()[:1].abs() + 1).long().expand({f}.shape[0]), 0).sum()",),
    "assert": ("assert {f}.sum() > -1e9",),
    "write at an index": ("self.buf[self.count % 2] = 1.0",),
    "cpu copy": ("{o} = {f}.cpu() + 1",),
    "cumulative attribute": ("self.total0 = self.total0 + {f}.sum()", "{o} = {f} + self.total0"),
}  # fmt: skip

"""A plan as a Mermaid flowchart: regions inside their pools, static buffers, and the values between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphspec.plan import BufferPlan, Plan, RegionPlan, Wire
from graphspec.spec import FromParam


def render(plan: Plan) -> str:
    """The source of a flowchart, for a Markdown block or a Mermaid renderer.

    A full arrow is read in place, a dotted one is a copy. Names appear only as quoted labels, so that no name of a
    spec can be a keyword of Mermaid.
    """
    nodes = _Nodes(plan)
    lines = ["flowchart LR", *_pools(plan, nodes), *_buffers(plan, nodes), *_params(nodes)]
    lines += _copies_of_params(plan, nodes)
    lines += [edge for region in plan.regions.values() for edge in _edges(nodes, region)]
    lines += _loops(plan, nodes)
    return "\n".join(lines) + "\n"


class _Nodes:
    """The id of every node: numbered, because names of a spec may hold any character."""

    def __init__(self, plan: Plan) -> None:
        self.region = {name: f"r{index}" for index, name in enumerate(plan.regions)}
        self.buffer = {name: f"b{index}" for index, name in enumerate(plan.buffers)}
        params = dict.fromkeys(param for sequence in plan.sequences.values() for param in sequence.params)
        params |= dict.fromkeys(_drawn_params(plan))  # those of regions that no sequence replays
        self.param = {name: f"p{index}" for index, name in enumerate(params)}


def _drawn_params(plan: Plan) -> Iterator[str]:
    """The params that something drawn is filled from."""
    for region in plan.regions.values():
        yield from (wire.value for wire in region.reads if wire.source == "param")
        yield from (update.param for update in region.updates)
    yield from (buffer.source.param for buffer in _touched(plan) if isinstance(buffer.source, FromParam))


def _pools(plan: Plan, nodes: _Nodes) -> Iterator[str]:
    sets, graphs = len(plan.opened), Counter(graph.region for graph in plan.graphs)
    for index, (pool, order) in enumerate(plan.pools.items()):
        yield f"  subgraph pool{index}[{_label(f'pool {pool}')}]"
        yield from (f"    {nodes.region[name]}[{_label(name, _graphs(sets * graphs[name]))}]" for name in order)
        yield "  end"
    eager = (region.name for region in plan.regions.values() if region.eager)
    yield from (f"  {nodes.region[name]}([{_label(name, 'eager')}])" for name in eager)


def _graphs(count: int) -> str:
    return f"{count} graph" if count == 1 else f"{count} graphs"


def _buffers(plan: Plan, nodes: _Nodes) -> Iterator[str]:
    for buffer in _touched(plan):
        shape = "" if buffer.shape is None else f"[{', '.join(map(str, buffer.shape))}]"
        label = _label(buffer.name, " ".join(part for part in (buffer.dtype, shape) if part))
        opening, closing = _OUTLINES[buffer.role]
        yield f"  {nodes.buffer[buffer.name]}{opening}{label}{closing}"


_OUTLINES = {
    "input": ("[/", "/]"), "state": ("[(", ")]"), "output": ("[\\", "\\]"), "intermediate": ("[", "]"),
}  # fmt: skip


def _touched(plan: Plan) -> Iterator[BufferPlan]:
    """The buffers that some region reads or makes."""
    names = {name for region in plan.regions.values() for name in region.outputs}
    names |= {wire.value for region in plan.regions.values() for wire in region.reads} | plan.conditions
    return (buffer for buffer in plan.buffers.values() if buffer.name in names)


def _params(nodes: _Nodes) -> Iterator[str]:
    yield from (f"  {node}{{{{{_label(name, 'param')}}}}}" for name, node in nodes.param.items())


def _copies_of_params(plan: Plan, nodes: _Nodes) -> Iterator[str]:
    for buffer in _touched(plan):
        if isinstance(buffer.source, FromParam):
            yield f"  {nodes.param[buffer.source.param]} -.-> {nodes.buffer[buffer.name]}"


def _edges(nodes: _Nodes, region: RegionPlan) -> Iterator[str]:
    node = nodes.region[region.name]
    for wire in region.reads:
        yield f"  {_read(nodes, wire, region)} {node}"
    for update in region.updates:
        yield f"  {nodes.param[update.param]} -. {_label(update.arg)} .-> {node}"
    for name in region.write_back:
        yield f"  {node} -. {_label('written back')} .-> {nodes.buffer[name]}"
    for name in region.results:
        if name in nodes.buffer and name not in region.write_back:
            arrow = f"-->|{_label('handed out')}|" if name in region.borrowed else f"-. {_label('copied out')} .->"
            yield f"  {node} {arrow} {nodes.buffer[name]}"


def _loops(plan: Plan, nodes: _Nodes) -> Iterator[str]:
    """A loop asks its value before each turn, and goes on with the first of its steps."""
    loops = [(sequence, loop) for sequence in plan.sequences.values() for loop in sequence.loops]
    for index, (sequence, loop) in enumerate(loops):
        most = "" if loop.limit is None else f"at most {loop.limit:,} times"
        yield f"  l{index}{{{_label(f'while {loop.condition}', most)}}}"
        made = plan.condition(loop.condition)
        if loop.condition in nodes.buffer and made.source == "buffer":
            yield f"  {nodes.buffer[loop.condition]} --> l{index}"
        elif made.producer is not None:
            yield f"  {nodes.region[made.producer]} -->|{_label(loop.condition)}| l{index}"
        yield f"  l{index} -. {_label('again')} .-> {nodes.region[sequence.steps[loop.first]]}"


def _read(nodes: _Nodes, wire: Wire, reader: RegionPlan) -> str:
    """The source and the arrow of one read."""
    if wire.source == "param":
        return f"{nodes.param[wire.value]} -->"
    if wire.producer is None or wire.source == "buffer":
        return f"{nodes.buffer[wire.value]} -->"
    if wire.source == "eager" and not reader.eager:
        return f"{nodes.region[wire.producer]} -. {_label(wire.value, 'copied')} .->"
    return f"{nodes.region[wire.producer]} -->|{_label(wire.value)}|"


def _label(*lines: str) -> str:
    """A quoted label; a quote inside one is written as an entity."""
    return '"' + "<br>".join(line.replace("&", "&amp;").replace('"', "#quot;") for line in lines if line) + '"'

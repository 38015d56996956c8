"""GS3xx: reads that come too late, by example and against a brute-force memory."""

from __future__ import annotations

from collections import defaultdict
from textwrap import dedent

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphspec.build_spec import build
from graphspec.compiler import _lower, compile_spec, order
from graphspec.document import parse
from graphspec.errors import SpecError
from graphspec.places import step_places
from graphspec.spec import Buckets, Buffer, DimSize, Loop, Model, Name, Region, Spec

ABC = """
graphspec: 1
model: {factory: "model.py:build"}
buffers:
  x: {shape: [4], dtype: float32}
  y: {role: output, shape: [4], dtype: float32}
pools:
  main: [A, B, C]
regions:
  A: {call: model.a, inputs: [x], outputs: a}
  B: {call: model.b, inputs: [x], outputs: b}
  C: {call: model.c, inputs: [a], outputs: y}
"""


def spec_of(text):
    return build(parse(dedent(text), "spec.yaml"))


def refused(text):
    with pytest.raises(SpecError) as caught:
        compile_spec(spec_of(text))
    return caught.value.diagnostics


def test_a_read_after_the_memory_was_reused_is_refused_with_expected_and_actual_order():
    (finding,) = refused(ABC + "replay: {first: [A, C, B], second: [A, B, C]}\n")
    assert finding.code == "GS301"
    assert finding.path == ("replay", "second", 2)
    assert finding.message == (
        "region 'C' reads 'a' of region 'A' after 'B' has reused its memory in pool 'main': "
        "expected A, C, B (the order of capture), got A, B, C"
    )
    assert finding.hint == "replay 'B' after region 'C', or take it out of the pool 'main'"


def test_the_finding_points_at_the_step_that_reads_too_late():
    (finding,) = refused(ABC + "replay:\n  first: [A, C, B]\n  second: [A, B, C]\n")
    assert (finding.file, finding.line, finding.column) == ("spec.yaml", 15, 18)


def test_independent_regions_of_a_pool_may_be_replayed_in_reverse_order():
    plan = compile_spec(spec_of(ABC + "replay: {first: [A, C, B], second: [B, A, C]}\n"))
    assert [graph.region for graph in plan.graphs] == ["A", "C", "B"]


def test_a_value_stays_readable_across_the_captures_made_before_its_last_consumer():
    compile_spec(spec_of(ABC + "replay: {first: [A, B, C], second: [A, C, B]}\n"))


def test_a_region_captured_before_the_producer_overwrites_too():
    (finding,) = refused(ABC + "replay: {first: [B, A, C], second: [A, B, C]}\n")
    assert "expected B, A, C (the order of capture), got A, B, C" in finding.message
    assert finding.hint.startswith("replay 'B' before 'A'")


def test_a_second_replay_of_the_producer_makes_the_value_again():
    compile_spec(spec_of(ABC + "replay: {first: [A, C, B], second: [A, B, A, C]}\n"))


def test_another_pool_does_not_overwrite():
    text = ABC.replace("main: [A, B, C]", "main: [A, C]")
    compile_spec(spec_of(text + "replay: {first: [A, C, B], second: [A, B, C]}\n"))


def test_a_held_result_survives_every_later_capture():
    text = ABC.replace("buffers:\n", "buffers:\n  a: {role: output, copy: false}\n")
    compile_spec(spec_of(text + "replay: {first: [A, C, B], second: [A, B, C]}\n"))


LENT = ABC.replace("dtype: float32}\npools", "dtype: float32, copy: false}\npools")


@pytest.mark.parametrize(
    ("order", "dead"),
    [("[A, C]", None), ("[A, C, B]", None), ("[B, A, C]", None), ("[A, C, A]", 2), ("[A, C, A, C]", None),
     ("[A, C, B, A]", 3)],
)  # fmt: skip
def test_a_result_without_a_copy_must_outlive_the_run_that_hands_it_out(order, dead):
    text = LENT + f"replay: {{first: [A, C, B], second: {order}}}\n"
    if dead is None:
        compile_spec(spec_of(text))
        return
    (finding,) = refused(text)
    assert (finding.code, finding.path) == ("GS304", ("replay", "second", dead))
    assert "the result 'y' of region 'C' is handed out without a copy, and 'A' reuses its memory" in finding.message
    for way_out in (text.replace(", copy: false", ""), text.replace("main: [A, B, C]", "main: [B, C]")):
        compile_spec(spec_of(way_out))


def test_a_static_output_is_out_of_reach_of_its_pool():
    text = ABC.replace("buffers:\n", "buffers:\n  a: {role: output, static: true, shape: [4], dtype: float32}\n")
    compile_spec(spec_of(text + "replay: {first: [A, C, B], second: [A, B, C]}\n"))


def test_a_state_is_out_of_reach_of_its_pool():
    text = ABC.replace("buffers:\n", "buffers:\n  a: {role: state, shape: [4], dtype: float32}\n")
    compile_spec(spec_of(text + "replay: {first: [A, C, B], second: [C, B, A]}\n"))


def test_an_eager_reader_keeps_the_value_alive_to_each_of_its_places():
    text = ABC.replace("outputs: y}", "outputs: y, eager: true}").replace("main: [A, B, C]", "main: [A, B]")
    compile_spec(spec_of(text + "replay: {first: [A, C, B], second: [A, B, C]}\n"))


def test_an_eager_reader_after_a_region_captured_before_the_producer_is_refused():
    text = ABC.replace("outputs: y}", "outputs: y, eager: true}").replace("main: [A, B, C]", "main: [A, B]")
    (finding,) = refused(text + "replay: {first: [B, A, C], second: [A, B, C]}\n")
    assert "region 'C' reads 'a' of region 'A' after 'B' has reused its memory" in finding.message


MIXED = """
graphspec: 1
model: {factory: "model.py:build"}
dims: {batch: [1, 2]}
buffers:
  x: {shape: [4], dtype: float32}
  rows: {shape: [batch, 4], dtype: float32}
pools:
  main: [A, B, C]
"""


def test_a_value_without_buckets_outlives_what_is_captured_for_every_bucket_before_its_reader():
    regions = """
regions:
  A: {call: model.a, inputs: [x], outputs: a}
  B: {call: model.b, inputs: [rows], outputs: b}
  C: {call: model.c, inputs: [a], outputs: c}
replay: [A, B, C]
"""
    plan = compile_spec(spec_of(MIXED + regions))
    assert [(graph.region, graph.index) for graph in plan.graphs] == [("A", 0), ("B", 1), ("C", 2), ("B", 3)]
    assert [(span.first, span.last) for span in plan.spans if span.value == "a"] == [(0, 3)]


def test_a_region_without_buckets_between_bucketed_ones_of_its_pool_is_refused_at_the_smaller_buckets():
    regions = """
regions:
  A: {call: model.a, inputs: [rows], outputs: a}
  B: {call: model.b, inputs: [x], outputs: b}
  C: {call: model.c, inputs: [a], outputs: c}
replay: [A, B, C]
"""
    (finding,) = refused(MIXED + regions)
    assert finding.path == ("replay", 2)
    assert finding.message.endswith("expected B, A, C (the order of capture), got A, B, C (at batch=1)")
    assert finding.hint == "replay 'B' before 'A', or take it out of the pool 'main'"


def test_a_value_of_another_sequence_may_be_read():
    compile_spec(spec_of(ABC + "replay: {first: [A], second: [C], third: [B]}\n"))


def test_a_value_of_another_sequence_is_lost_to_what_is_replayed_before_the_read():
    (finding,) = refused(ABC + "replay: {first: [A, C, B], second: [B, C]}\n")
    assert finding.path == ("replay", "second", 1)
    assert "expected A, C, B (the order of capture), got A, B, C" in finding.message


def test_a_value_that_its_own_sequence_overwrites_cannot_be_read_by_another():
    (finding,) = refused(ABC + "replay: {first: [B], second: [A, B], third: [C]}\n")
    assert finding.path == ("replay", "third", 0)
    assert "expected B, A, C (the order of capture), got A, B, C" in finding.message


def test_a_value_is_readable_when_one_of_the_sequences_that_make_it_leaves_it_intact():
    compile_spec(spec_of(ABC + "replay: {zeroth: [B], first: [A, B], second: [A], third: [C]}\n"))


def test_a_read_before_the_value_is_made_is_refused():
    (finding,) = refused(ABC + "replay: [C, A, B]\n")
    assert (finding.code, finding.path) == ("GS302", ("replay", 0))
    assert finding.message == "region 'C' reads 'a' of region 'A', which comes later in the sequence"


def test_a_read_of_what_no_sequence_makes_is_refused():
    (finding,) = refused(ABC + "replay: [B, C]\n")
    assert finding.message == "region 'C' reads 'a' of region 'A', which no sequence replays"


def test_a_region_that_reads_its_own_output_needs_a_state():
    text = ABC.replace("{call: model.a, inputs: [x], outputs: a}", "{call: model.a, inputs: [a], outputs: a}")
    (finding,) = refused(text + "replay: [A, B, C]\n")
    assert finding.message == "region 'A' reads its own output 'a' before it has made it"
    assert "role: state" in finding.hint


def test_a_reader_captured_before_the_producer_of_another_sequence_is_refused_once():
    (finding,) = refused(ABC + "replay: {first: [C], second: [A], third: [C, B]}\n")
    assert (finding.code, finding.path) == ("GS303", ("replay", "first", 0))
    assert finding.hint == "list a sequence that replays 'A' before 'C' first"


def test_all_findings_come_at_once():
    text = ABC + "  D: {call: model.d, inputs: [d], outputs: d}\n"
    found = refused(text + "replay: {first: [A, C, B], second: [A, B, C], third: [D]}\n")
    assert [finding.code for finding in found] == ["GS301", "GS302"]


def test_a_long_way_from_producer_to_reader_is_shortened_to_who_matters():
    names = [f"r{index}" for index in range(20)]
    text = ABC.replace("[A, B, C]", f"[A, B, C, {', '.join(names)}]")
    text += "".join(f"  {name}: {{call: model.r, inputs: [x], outputs: o{name}}}\n" for name in names)
    (finding,) = refused(
        text + f"replay: {{first: [A, {', '.join(names)}, C, B], second: [A, {', '.join(names)}, B, C]}}\n"
    )
    assert finding.message.endswith("expected A, C, B (the order of capture), got A, B, C")


# Against brute force: one cell of memory for every value, and a graph that uses as scratch every cell that is free
# when it is captured. Some allocator does exactly that, and no allocator can overwrite more.

POOLS = ("left", "right", None)
INPUTS = {"plain": (), "rows": ("batch",), "both": ("batch", "cache")}


@st.composite
def specs(draw):
    count = draw(st.integers(1, 6))
    names = [f"r{index}" for index in range(count)]
    regions = {}
    pools = defaultdict(list)
    for index, name in enumerate(names):
        values = (
            [f"v{other}" for other in range(count)] if draw(st.integers(0, 9)) == 0 else [f"v{i}" for i in range(index)]
        )
        read = draw(st.lists(st.sampled_from(values), max_size=2, unique=True)) if values else []
        inputs = [draw(st.sampled_from(sorted(INPUTS))), *read]
        eager = draw(st.integers(0, 4)) == 0
        regions[name] = Region(name, "model.f", tuple(map(Name, inputs)), outputs={f"v{index}": ""}, eager=eager)
        pool = draw(st.sampled_from(POOLS))
        if pool is not None and not eager:
            pools[pool].append(name)
    lists = st.lists(st.sampled_from(names), min_size=1, max_size=7)
    sequences = {"whole": tuple(names)} if draw(st.booleans()) else {}
    sequences |= {f"s{index}": tuple(draw(lists)) for index in range(draw(st.integers(1, 3)))}
    buffers = {name: Buffer(name, shape=tuple(map(DimSize, dims)), dtype="float32") for name, dims in INPUTS.items()}
    dims = {"batch": Buckets((1, 2)), "cache": Buckets((8, 16))}
    return Spec(
        "s",
        Model("m.py:f"),
        regions,
        sequences,
        dims=dims,
        buffers=buffers,
        pools={p: tuple(r) for p, r in pools.items()},
    )


class Memory:
    """Cells of a greedy allocator, and what they hold while graphs are replayed."""

    def __init__(self, plan):
        self.plan = plan
        self.graphs = {(graph.region, graph.bucket): graph for graph in plan.graphs}
        self.cells = {(span.value, span.bucket): span for span in plan.spans}

    def replay(self, holds, region, bucket):
        graph = self.graphs.get((region, bucket.project(self.plan.regions[region].dims)))
        if graph is None:
            return
        for key, span in self.cells.items():
            alive = span.first <= graph.index and (span.last is None or graph.index <= span.last)
            if span.pool == graph.pool and (span.first == graph.index or not alive):
                holds[key] = key if span.first == graph.index else "scratch"

    def late(self, holds, sequence, bucket, skip):
        """The (step, value) of every read that finds something else than the value; ``holds`` is changed."""
        found = set()
        for step, region in enumerate(sequence.steps):
            for wire in self.plan.regions[region].reads:
                if wire.source == "graph" and (sequence.name, step, wire.value) not in skip:
                    key = wire.value, bucket.project(self.plan.regions[wire.producer].dims)
                    if holds.get(key) != key:
                        found.add((sequence.name, step, wire.value))
            self.replay(holds, region, bucket)
        return found


def unmade_by_hand(spec, plan):
    """(sequence, step, value) of reads of nothing, and (region, value) of reads of no address."""
    first = list(dict.fromkeys(step for steps in spec.sequences.values() for step in steps))
    nothing, no_address = set(), set()
    for name, steps in spec.sequences.items():
        for step, region in enumerate(steps):
            for wire in plan.regions[region].reads:
                if wire.producer is None or wire.producer in steps[:step]:
                    continue
                if not any(wire.producer in other for label, other in spec.sequences.items() if label != name):
                    nothing.add((name, step, wire.value))
                elif first.index(wire.producer) >= first.index(region):
                    no_address.add((region, wire.value))
    return nothing, no_address


def late_by_hand(plan, skip):
    """(sequence, step, value) of reads that some bucket cannot serve, whatever ran before the sequence."""
    memory = Memory(plan)
    found = set()
    for sequence, bucket in ((each, bucket) for each in plan.sequences.values() for bucket in each.buckets):
        found |= memory.late(everything_intact(plan), sequence, bucket, skip)
        for step, region in enumerate(sequence.steps):
            for wire in plan.regions[region].reads:
                key = (sequence.name, step, wire.value)
                if wire.source != "graph" or wire.producer in sequence.steps[:step] or key in skip:
                    continue
                before = makers(plan, wire, bucket)
                if all(key in late_after(memory, other, sequence, bucket, skip) for other in before):
                    found.add(key)
    return found


def everything_intact(plan):
    return {(span.value, span.bucket): (span.value, span.bucket) for span in plan.spans}


def makers(plan, wire, bucket):
    """Every run that makes the value at the address this bucket reads."""
    dims = plan.regions[wire.producer].dims
    return [
        (sequence, other)
        for sequence in plan.sequences.values()
        if wire.producer in sequence.steps
        for other in sequence.buckets
        if other.project(dims) == bucket.project(dims)
    ]


def late_after(memory, run, sequence, bucket, skip):
    holds = {}
    for region in run[0].steps:
        memory.replay(holds, region, run[1])
    return memory.late(holds, sequence, bucket, skip)


@settings(max_examples=250, deadline=None)
@given(specs())
def test_exactly_the_reads_that_a_greedy_allocator_overwrites_are_refused(spec):
    plan = _lower(spec)
    nothing, no_address = unmade_by_hand(spec, plan)
    every = {(name, step, wire.value) for name, steps in spec.sequences.items() for step, region in enumerate(steps)
             for wire in plan.regions[region].reads if (region, wire.value) in no_address}  # fmt: skip
    expected = late_by_hand(plan, nothing | every)
    found = order.check(spec, plan)
    got = {finding.path[1:] for finding in found if finding.code == "GS301"}
    assert got == {(name, step) for name, step, _ in expected}
    assert {finding.path[1:] for finding in found if finding.code == "GS302"} == {(n, s) for n, s, _ in nothing}
    assert len([finding for finding in found if finding.code == "GS303"]) == len(no_address)


@settings(max_examples=100, deadline=None)
@given(specs(), st.randoms(use_true_random=False))
def test_no_accepted_order_reads_overwritten_memory_under_any_placement(spec, random):
    assume(not order.check(spec, plan := _lower(spec)))
    placed = place(plan, random)
    for sequence in plan.sequences.values():
        for bucket in sequence.buckets:
            memory, made = {}, set()
            for region in sequence.steps:
                for wire in plan.regions[region].reads:
                    key = wire.value, bucket.project(plan.regions[wire.producer].dims) if wire.producer else bucket
                    if wire.source == "graph" and wire.producer in made:
                        pool, cell = placed.cell[key]
                        assert memory[pool, cell] == key
                made.add(region)
                replay_placed(plan, placed, memory, region, bucket)


class Placed:
    def __init__(self):
        self.cell = {}
        self.scratch = {}


def place(plan, random):
    """A random allocator: every value and scratch block takes any cell that is free when its graph is captured."""
    placed = Placed()
    for graph in plan.graphs:
        spans = [span for span in plan.spans if span.pool == graph.pool]
        alive = [span for span in spans if span.first < graph.index and (span.last is None or graph.index <= span.last)]
        free = sorted(set(range(8)) - {placed.cell[span.value, span.bucket][1] for span in alive})
        assume(len(free) >= 2)
        random.shuffle(free)
        made = [span for span in spans if span.first == graph.index]
        for span in made:
            placed.cell[span.value, span.bucket] = graph.pool, free.pop()
        placed.scratch[graph.region, graph.bucket] = [(graph.pool, cell) for cell in free[: random.randint(0, 8)]]
    return placed


def replay_placed(plan, placed, memory, region, bucket):
    seen = bucket.project(plan.regions[region].dims)
    for where in placed.scratch.get((region, seen), ()):
        memory[where] = "scratch"
    for value in plan.regions[region].outputs:
        if (value, seen) in placed.cell:
            memory[placed.cell[value, seen]] = (value, seen)


@settings(max_examples=100, deadline=None)
@given(specs())
def test_a_value_is_allocated_whenever_a_captured_region_reads_its_address(spec):
    plan = _lower(spec)
    graphs = {(graph.region, graph.bucket): place for place, graph in enumerate(plan.graphs)}
    spans = {(span.value, span.bucket): span for span in plan.spans}
    for place_of_reader, reader in enumerate(plan.graphs):
        for wire in plan.regions[reader.region].reads:
            if wire.source != "graph":
                continue
            seen = reader.bucket.project(plan.regions[wire.producer].dims)
            if graphs.get((wire.producer, seen), place_of_reader) < place_of_reader:
                span = spans[wire.value, seen]
                made = [graph.index for graph in plan.graphs[: place_of_reader + 1] if graph.pool == span.pool]
                assert span.last >= max(made)


@settings(max_examples=100, deadline=None)
@given(specs())
def test_a_single_sequence_in_order_with_one_bucket_is_never_refused(spec):
    names = tuple(spec.regions)
    one = Spec("s", spec.model, spec.regions, {"replay": names}, dims={"batch": Buckets((2,)), "cache": Buckets((8,))},
               buffers=spec.buffers, pools=spec.pools)  # fmt: skip
    assert not [finding for finding in order.check(one, _lower(one)) if finding.code != "GS302"]


# Loops against every way through them with up to two turns each, as a run without loops.


@st.composite
def programs(draw):
    """A spec with one sequence that has loops, in loops too, mostly in one pool; they go by a state."""
    count = draw(st.integers(2, 5))
    names = [f"r{index}" for index in range(count)]
    regions = {}
    for index, name in enumerate(names):
        made = [f"v{other}" for other in range(index)]
        read = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True)) if made else []
        inputs = [draw(st.sampled_from(["plain", "plain", "rows"])), *read]
        eager = draw(st.integers(0, 6)) == 0
        regions[name] = Region(name, "model.f", tuple(map(Name, inputs)), outputs={f"v{index}": ""}, eager=eager)
    captured = [name for name in names if not regions[name].eager]
    shared = captured if draw(st.booleans()) else [name for name in captured if draw(st.booleans())]
    steps = (*names, *draw(st.lists(st.sampled_from(names), max_size=3)))
    loops = []
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, len(steps) - 1))
        loops.append(Loop("go", first, draw(st.integers(first + 1, len(steps)))))
    loops = sorted(set(loops), key=lambda each: (each.first, -each.stop))
    nested = [loop for at, loop in enumerate(loops)
              if all(loop.stop <= other.stop or loop.first >= other.stop for other in loops[:at])]  # fmt: skip
    plain, rows = Buffer("plain", shape=(), dtype="float32"), Buffer("rows", shape=(DimSize("batch"),), dtype="float32")
    buffers = {"plain": plain, "rows": rows, "go": Buffer("go", role="state", shape=(), dtype="bool")}
    return Spec("s", Model("m.py:f"), regions, {"s": steps}, dims={"batch": Buckets((1, 2))}, buffers=buffers,
                pools={"p": tuple(shared)} if shared else {}, loops={"s": tuple(nested)})  # fmt: skip


def ways(program):
    """Every way through a program with up to two turns of each loop."""
    found = [()]
    for item in program:
        if isinstance(item, int):
            found = [(*way, item) for way in found]
        else:
            turns = ways(item.body)
            turned = [(), *turns, *((*one, *other) for one in turns for other in turns)]
            found = [(*way, *turn) for way in found for turn in turned][:4000]
    return found


@settings(max_examples=150, deadline=None)
@given(programs())
def test_a_loop_is_refused_exactly_where_some_number_of_turns_reads_what_is_not_there(spec):
    plan = _lower(spec)
    sequence, memory = plan.sequences["s"], Memory(plan)
    expected = set()
    for way in ways(sequence.program):
        for bucket in sequence.buckets:
            holds, ran = {}, set()
            for step in way:
                for wire in plan.regions[sequence.steps[step]].reads:
                    if wire.producer is not None and wire.producer not in ran:
                        expected.add((step, "GS302"))
                    elif wire.source == "graph":
                        key = wire.value, bucket.project(plan.regions[wire.producer].dims)
                        if holds[key] != key:
                            expected.add((step, "GS301"))
                memory.replay(holds, sequence.steps[step], bucket)
                ran.add(sequence.steps[step])
    found = order.check(spec, plan)
    places = {place: step for step, place in enumerate(step_places(spec, "s"))}
    got = {(places[each.path], each.code) for each in found}
    unmade = {step for step, code in got if code == "GS302"}
    assert unmade == {step for step, code in expected if code == "GS302"}
    assert {each for each in got if each[0] not in unmade} == {each for each in expected if each[0] not in unmade}

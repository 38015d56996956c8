"""The named values of one bucket in one pass, and the calls of regions on them: what all passes share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from graphspec.errors import HazardError
from graphspec.plan import Bucket, Event
from graphspec.runtime.capture.outputs import check_output
from graphspec.runtime.capture.write_back import StaleViews, apart, leaves_of
from graphspec.runtime.context import Context, Variant
from graphspec.runtime.holdings.preserve import Session
from graphspec.runtime.values.trees import Tree


@dataclass
class Values:
    """The named values of one bucket in one pass. ``origins`` says which value a storage was made for."""

    env: dict[str, Any]
    params: dict[str, Any]
    origins: dict[int, str] = field(default_factory=dict)
    stale: StaleViews = field(default_factory=StaleViews)


class Calls:
    """Starts passes, and calls regions on their values. ``created_eagerly``: what eager regions made on the model."""

    def __init__(self, context: Context, variant: Variant, session: Session) -> None:
        self._context = context
        self._variant = variant
        self._special = dict(variant.special)
        self._session = session
        self._results = context.plan.results
        self.created_eagerly: set[str] = set()

    def start(self, bucket: Bucket, *, run: int) -> Values:
        """Fresh inputs in the static buffers, and every name a region of this bucket can read before any has run.

        ``run`` 1 and 2 have other inputs and other params.
        """
        context = self._context
        params = self.params(bucket, run=run)
        env: dict[str, Any] = dict(params)
        given = tuple(
            name
            for name, buffer in context.plan.buffers.items()
            if buffer.role == "input" and buffer.source is None and name not in self._variant.absent
        )
        made = context.sample_inputs(given, dict(bucket.sizes), seed=context.plan.seed + run)
        for name in context.buffers.static:  # static outputs too: their views must not be made inside a recording
            if name in self._variant.absent:
                env[name] = None
                continue
            env[name] = context.buffers.view(name, bucket).detach()  # an alias: x.t_() in a region stays its own
            if name in made:
                env[name].copy_(made[name])
        context.buffers.refresh(dict(bucket.sizes), bucket, params)
        return Values(env, params)

    def params(self, bucket: Bucket, *, run: int) -> dict[str, Any]:
        """The params of a pass: their defaults in the first, others within their range in the second."""
        full = self._context.full_bucket(bucket)
        params = self._context.default_params(full, self._special)
        return params if run == 1 else self._context.other_params(params, full, self._special)

    def taken(self, event: Event) -> frozenset[str]:
        """The params that a region is given and that may change between replays of its graph."""
        wires = self._context.plan.regions[event.region].reads
        return frozenset(wire.value for wire in wires if wire.source == "param").difference(self._special)

    def read(self, event: Event, values: Values) -> list[torch.Tensor]:
        """The tensors that a region is given."""
        read = [values.env.get(wire.value) for wire in self._context.plan.regions[event.region].reads]
        return [leaf for value in read for leaf in leaves_of(value)]

    def call(self, event: Event, values: Values) -> dict[str, Any]:
        """Call a region on named values, write back its states, and make its outputs known."""
        context = self._context
        plan = context.plan.regions[event.region]
        if stale := list(values.stale.findings(event.region, [wire.value for wire in plan.reads])):
            raise HazardError(stale)
        with self._eager_creations() if event.graph is None else nullcontext():
            returned = context.regions[event.region](values.env)
        statics = context.buffers.static
        written = {name: context.buffers.view(name, event.bucket) for name in returned if name in statics}
        outputs = apart(returned, written) if written else returned
        for name, value in outputs.items():
            buffer = context.plan.buffers.get(name)
            if buffer is None:
                values.env[name] = value
                continue
            check_output(event.region, buffer, value, context.shape(buffer.shape or (), event.bucket))
            if name in written:
                outputs[name] = written[name].copy_(value).detach()  # an alias, which a later region may reshape
            values.env[name] = outputs[name]
        values.stale.note(event.region, outputs.keys(), written, values.env)
        return outputs

    def note_origins(self, trees: Mapping[str, Tree], values: Values) -> None:
        """Remember which value the memory of each output was made for, to recognise it where another region reads it.

        Of several outputs in one memory it is a result, if one of them is.
        """
        for name, tree in trees.items():
            for leaf in tree.leaves:
                key = leaf.untyped_storage()._cdata
                if key not in values.origins or (name in self._results and values.origins[key] in trees):
                    values.origins[key] = name

    @contextmanager
    def _eager_creations(self) -> Iterator[None]:
        """What an eager region creates on the model goes again after the capture: its first run is the caller's."""
        before = set(self._session.changes().created)
        yield
        self.created_eagerly.update(set(self._session.changes().created) - before)

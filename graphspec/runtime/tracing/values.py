"""The named values of one pass on fake tensors, and the calls of regions on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from graphspec.errors import CaptureError, Diagnostic
from graphspec.plan import Bucket
from graphspec.runtime.capture.outputs import check_output
from graphspec.runtime.capture.write_back import StaleViews, apart
from graphspec.runtime.context import Context
from graphspec.runtime.tracing import findings
from graphspec.runtime.values.trees import UnknownTypeError, flatten


class Values:
    """Every name a region of one bucket can read. ``found`` is told what does not fit.

    ``origins`` says which region made a storage, by the storage's identity.
    """

    def __init__(
        self, context: Context, bucket: Bucket, params: Mapping[str, Any], found: Callable[[Diagnostic], None]
    ) -> None:
        self._context = context
        self._bucket = bucket
        self._found = found
        self._stale = StaleViews()
        self.origins: dict[int, str] = {}
        self.environment: dict[str, Any] = dict(params) | dict(self._static())

    def missing(self, region: str) -> list[str]:
        """What a region reads and nobody has made."""
        reads = self._context.plan.regions[region].reads
        return [wire.value for wire in reads if wire.value not in self.environment]

    def call(self, region: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a region, write back its states, and make its outputs known. ``given`` values go before the pass's own.

        Raises ModelError, and CaptureError for a result that cannot be taken apart or is not where its path leads.
        """
        context = self._context
        reads = [wire.value for wire in context.plan.regions[region].reads]
        for each in self._stale.findings(region, reads):
            self._found(findings.in_region(context.plan, region, each))
        returned = context.regions[region]({**self.environment, **(given or {})})
        static = [output for output in returned if output in context.buffers.static]
        written = {output: context.buffers.view(output, self._bucket) for output in static}
        outputs = apart(returned, written)
        for output, value in outputs.items():
            self._take(region, output, value, written.get(output))
        self._stale.note(region, outputs.keys(), written, self.environment)
        return outputs

    def use_declared(self, region: str, made: Collection[str] = ()) -> None:
        """Make the outputs of a region known that it has not ``made``, as far as they are declared."""
        for output in self._context.plan.regions[region].declared.outputs:
            if output not in made:
                self._declare(output)

    def note_origins(self, outputs: Mapping[str, Any]) -> None:
        """Remember which output each storage belongs to."""
        for name, value in outputs.items():
            for leaf in flatten(value).leaves:
                self.origins.setdefault(leaf.untyped_storage()._cdata, name)

    def _static(self) -> Iterator[tuple[str, Any]]:
        for name, buffer in self._context.plan.buffers.items():
            if buffer.role != "output" and buffer.declared.attr is None:
                # An alias: a region that transposes or resizes it in place changes its own.
                yield name, self._context.buffers.view(name, self._bucket).detach()

    def _take(self, region: str, output: str, value: Any, view: torch.Tensor | None) -> None:
        """Make one output known, if it is as declared; else as it is declared."""
        context, buffer = self._context, self._context.plan.buffers.get(output)
        self.environment[output] = value
        if buffer is None:
            try:
                flatten(value, place=f"output '{output}'")
            except UnknownTypeError as error:
                raise CaptureError(f"region '{region}': {error}") from None
            return
        try:
            check_output(region, buffer, value, context.shape(buffer.shape or (), self._bucket))
        except CaptureError as error:
            self._found(findings.other_result(context, region, error, output))
            self._declare(output)
            return
        if view is not None:
            self.environment[output] = view.copy_(value)

    def _declare(self, output: str) -> None:
        """A fake tensor of the declared shape and dtype; nothing if they are not declared."""
        buffer = self._context.plan.buffers.get(output)
        self.environment.pop(output, None)
        if output in self._context.buffers.static:
            self.environment[output] = self._context.buffers.view(output, self._bucket)
        elif buffer is not None and buffer.shape is not None and buffer.dtype is not None:
            shape = self._context.shape(buffer.shape, self._bucket)
            dtype = getattr(torch, buffer.dtype)
            self.environment[output] = torch.empty(shape, dtype=dtype, device=self._context.device)
            self.note_origins({output: self.environment[output]})

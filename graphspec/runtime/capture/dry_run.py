"""The dry run of one region, under watch: its hazards, its operators, and its results on one set of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from graphspec import spec as language
from graphspec.backends.updates import update_findings
from graphspec.errors import CaptureError, Diagnostic, GraphSpecError, HazardError, ModelError
from graphspec.plan import Event
from graphspec.recording.calls import Recorder, Recording
from graphspec.recording.source import ModuleNames
from graphspec.runtime.capture import effects
from graphspec.runtime.capture.calls import Calls, Values
from graphspec.runtime.capture.eager_copies import EagerCopies
from graphspec.runtime.capture.handed_on import overtaken
from graphspec.runtime.capture.kept import KeptInputs
from graphspec.runtime.capture.outputs import trees_of
from graphspec.runtime.context import Context
from graphspec.runtime.hazards import Watch, inside_capture, watch
from graphspec.runtime.holdings.code_names import CodeNames
from graphspec.runtime.holdings.preserve import Session
from graphspec.runtime.regions import attribute


@dataclass
class DryRun:
    """What one region did on the first set of inputs: its calls, and copies of its results by output name.

    ``origins`` are those of the storages that were there before it ran.
    """

    recording: Recording
    results: dict[str, list[torch.Tensor]]
    constants: dict[str, tuple[Any, ...]]
    origins: dict[int, str]


@dataclass
class Seen:
    """What one pass has seen by now of captured regions: their calls, and what they changed on the host.

    ``names`` are changes that are noted already, or no captured region's to answer for.
    """

    names: set[str] = field(default_factory=set)
    recordings: dict[str, Recording] = field(default_factory=dict)
    host: effects.HostChanges = field(default_factory=effects.HostChanges)


class DryRunner:
    """Runs regions under watch. ``code`` collects the names that they load, ``kept`` the inputs that they keep."""

    def __init__(self, context: Context, calls: Calls, copies: EagerCopies, names: ModuleNames) -> None:
        self._context = context
        self._calls = calls
        self._copies = copies
        self._names = names
        self.code = CodeNames()
        self.kept = KeptInputs()

    def run(self, event: Event, values: Values, session: Session, seen: Seen) -> tuple[DryRun, list[Diagnostic]]:
        """Call a region. What it did, and the findings that refuse it; warnings go to the context.

        Raises ModelError or CaptureError if it fails, and HazardError with what it did before that and may not.
        """
        context, region = self._context, self._context.plan.regions[event.region].declared
        recorder = Recorder(region.name, self._names)
        before, read = effects.layouts(context, region.name, values.env), self._calls.read(event, values)
        with inside_capture(region.name), self._watch(region) as watched:
            try:
                with recorder, self.code.watching():
                    outputs = self._calls.call(event, values)
            except GraphSpecError as error:
                refused = [finding for finding in watched.findings if finding.severity == "error"]
                if refused:  # what the region did before it failed explains more than how it failed
                    raise HazardError(refused) from error
                raise
        recording = recorder.recording
        trees = trees_of(region.name, outputs)
        if not recording.calls and not any(tree.leaves for tree in trees.values()):
            message = f"region '{region.name}' records no operator and returns no tensor: there is nothing to replay"
            raise CaptureError(message, hint="mark it `eager: true`, or leave it out of `replay`")
        done = DryRun(
            recording,
            {name: [leaf.detach().clone() for leaf in tree.leaves] for name, tree in trees.items()},
            {name: tree.constants for name, tree in trees.items()},
            dict(values.origins),
        )
        refused = [finding for finding in watched.findings if finding.severity == "error"]
        second = self._calls.params(event.bucket, run=2)
        refused += update_findings(region, recording, values.params, second, context.backend)
        refused += effects.input_writes(context, region, recording)
        refused += effects.input_shapes(region.name, before, effects.layouts(context, region.name, values.env))
        refused += effects.copy_writes(region.name, recording, self._copies.storages())
        refused += overtaken(context, region.name, trees, values.origins)
        refused += effects.result_writes(context, region, recording, values.origins, context.plan.results)
        refused += self.kept.findings(region.name, recording, read)
        self.kept.note(recording, read)
        seen.recordings[region.name] = recording
        seen.host += effects.host_changes(
            region.name, session, seen.recordings, seen.names, self.code.loaded(), context.buffers.input_storages
        )
        context.warn(*(str(finding) for finding in watched.findings if finding.severity == "warning"))
        self._calls.note_origins(trees, values)
        return done, refused

    def _watch(self, region: language.Region) -> AbstractContextManager[Watch]:
        return watch(
            region=region.name,
            device_label=self._context.backend.name,
            allowed_generators=declared_generators(self._context.model, region),
            root=self._context.model,
        )


def declared_generators(model: Any, region: language.Region) -> Sequence[torch.Generator]:
    """The objects that ``region.generators`` names. Raises ModelError for what is no torch.Generator."""
    found = []
    for path in region.generators:
        generator = attribute(model, path, f"region '{region.name}'")
        if not isinstance(generator, torch.Generator):
            message = f"region '{region.name}': {path} is a {type(generator).__name__}, "
            message += "and `generators` names torch.Generator objects"
            raise ModelError(message, hint="give the path of the attribute that holds the generator")
        found.append(generator)
    return found

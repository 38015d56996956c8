"""The model of a spec on fake tensors: the factory as it is, without weights, memory or a device."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from graphspec.errors import ModelError
from graphspec.plan import Plan
from graphspec.recording.source import site_of
from graphspec.runtime.building.build import build_model, tells_device
from graphspec.runtime.fake.constants import HostConstants, HostReads
from graphspec.runtime.fake.placement import Placement
from graphspec.runtime.fake.tensors import FakeTensors, without_initialisers
from graphspec.runtime.hazards.fake import lacks_value
from graphspec.runtime.importing.references import import_object


def build_fake(plan: Plan, tensors: FakeTensors, placement: Placement) -> Any:
    """What the factory returns, built inside ``tensors``. Raises ModelError, the user's exception as its cause."""
    # Imported outside: what libraries make at their import stays real, for whoever uses them after us.
    factory = import_object(plan.model.factory, plan.folder)
    constants = HostConstants()

    @functools.wraps(factory)
    def made(*args: Any, **kwargs: Any) -> Any:
        with placement.making():
            return factory(*args, **kwargs)

    if tells_device(plan.model.args):
        placement.note_asked()  # what it makes of the device it is told, be it a text, is where the graphs are
    with tensors.entered(), placement.building(), without_initialisers(), constants, HostReads(constants):
        try:
            return build_model(replace(plan, model=replace(plan.model, weights=None)), torch.device("cpu"), made)
        except ModelError as error:
            if "UninitializedParameter" in error.message:
                message = f"the factory {plan.model.factory} makes a lazy module, whose parameters have no shape"
                raise ModelError(message, hint="give all sizes: nn.Linear(in_features, out_features)") from None
            if error.__cause__ is None or not lacks_value(error.__cause__):
                raise
            hint = "compute it from numbers, with math or numpy, or guard it; `check` builds models without values"
            place = site_of(error.__cause__)
            where = f", at {place}" if place.line else ""
            message = f"the factory {plan.model.factory} reads the value of a tensor, and fake tensors have none{where}"
            raise ModelError(message, hint=hint) from None

"""Plan and model to a running thing: rehearsal, laws, capture, buffers, replay, guards, statistics."""

import graphspec.recording  # noqa: F401 - it imports torch, without the extensions of devices

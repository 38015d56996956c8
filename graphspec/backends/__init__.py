"""What captures and replays: one backend a kind of device."""

import graphspec.recording  # noqa: F401 - it imports torch, without the extensions of devices

"""What captures and replays: one backend a kind of device."""

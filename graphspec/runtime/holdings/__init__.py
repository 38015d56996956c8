"""What the user's objects hold: found by name, guarded while graphs read it, put back after a capture."""

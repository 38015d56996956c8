"""What a capture refuses, and why: one registry of small functions that judge what was seen."""

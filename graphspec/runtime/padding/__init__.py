"""Rows that a bucket adds are nobody's: shown when a spec is opened, and by `run`."""

"""What `graphspec run` does with an opened spec: check it against eager, prove its padding, time it."""

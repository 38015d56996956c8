"""Random small models and specs, and the one law they are held against.

`draw` makes a `Draw` from a seed, trying every statement in `worlds` of several sizes; `interpret` turns a draw into a
Python module and a spec; `reference` runs it in plain PyTorch; `judge` compares; `shrink` drops what is not needed.
"""

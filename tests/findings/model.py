"""The model of these specs; it is read for its names, never run."""


def build():
    raise AssertionError

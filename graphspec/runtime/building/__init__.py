"""From the spec's `model` to the thing that regions call: its factory, its dtype, its mode, its weights."""

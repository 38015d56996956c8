"""Plan and model to a running thing: buffers, capture, replay, guards, statistics. The first layer that imports torch."""

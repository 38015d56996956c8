"""Regions called to see what they do, in one of two worlds: on the real tensors, or on fake ones."""

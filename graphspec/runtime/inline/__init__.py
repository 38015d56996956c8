"""Inline regions: modules of a model that replay graphs wherever the user's own loop calls them."""

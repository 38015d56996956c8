"""YAML text to nodes, and nodes to plain data: what `graphspec.document` is made of."""

"""The fake world: shapes, dtypes and memory without bytes, in which `check` builds and rehearses any model."""

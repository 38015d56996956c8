"""Random programs over values: specs of several sequences, and what is run of them, against a plain interpreter."""

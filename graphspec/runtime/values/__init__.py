"""The named values of a spec: static buffers, inputs and their checks, samples, structured results, files."""

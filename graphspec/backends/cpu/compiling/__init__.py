"""Compiled regions on the CPU: a recording becomes an FX graph, the graph one library, the library one operator."""

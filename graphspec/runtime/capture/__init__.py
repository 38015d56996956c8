"""From callables to graphs: recording, the four passes, what they refuse, and what may be updated later."""

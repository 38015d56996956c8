"""One run of an opened spec: its request checked, its route bound, its graphs replayed in order."""

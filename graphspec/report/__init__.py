"""Dumb printers of finished values: each module renders one value in one format, as text."""

"""What a captured region leaves eager (`break`): found while it is called, and run between its graphs."""

"""GPTs on real text."""

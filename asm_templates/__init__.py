"""How each kernel is emitted: one file a family, one table of all (`table.py`)."""

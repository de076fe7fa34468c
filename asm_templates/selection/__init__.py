"""Rows of tables by index, and the places of large elements."""

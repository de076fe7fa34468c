"""Rows of the table of ATen operators, with what is torch's alone."""

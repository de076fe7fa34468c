"""Ensembles of decision trees: trees as lanes for one row, rows as lanes for many."""

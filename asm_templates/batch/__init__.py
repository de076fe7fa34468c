"""Batches: panels, tiles and transposes."""

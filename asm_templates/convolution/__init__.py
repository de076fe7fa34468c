"""Convolutions that read an image in its own layout: by channel and row, positions as lanes."""

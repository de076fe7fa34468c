"""Convolutions on images as they lie: channel after channel, row after row, positions as lanes."""

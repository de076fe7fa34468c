"""Operators of networks over time: recurrent layers, gates, draws of samples."""

"""Smaller, faster models from trained ones and samples of their inputs, without training."""

"""The processor: its instruction sets, its caches, and the cost of work on it."""

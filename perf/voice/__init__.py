"""Networks that make a sample at a time: measured whole, by part, and beside peers."""

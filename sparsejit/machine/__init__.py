"""What the processor offers."""

"""Memory for machine code, and calls into it: what both writing code and running it need."""

"""Which thread runs what, and the code that keeps threads together."""

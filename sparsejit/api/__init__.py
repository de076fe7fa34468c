"""From weights to a callable kernel, and from models to native functions."""

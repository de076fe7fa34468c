"""Memory of values: buffers, views of them, and the bytes that views share."""

"""Where values lie: buffers, views of them, what these share."""

"""The peers: libraries in this process, and engines in their own processes."""

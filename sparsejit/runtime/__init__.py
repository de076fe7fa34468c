"""Executable memory, calls into it, worker threads, and native timing."""

"""Calls into machine code, worker threads, and native timing."""

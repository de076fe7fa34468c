"""Executable memory and calls into it, for the code writer and the runtime."""

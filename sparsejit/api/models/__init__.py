"""Compiled models: from a source to native functions, their files, and models in parts."""

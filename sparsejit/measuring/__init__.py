"""Measure the speed of this machine by timing native code."""

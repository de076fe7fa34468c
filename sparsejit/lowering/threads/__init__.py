"""Schedules of steps on threads, and the code that synchronises threads."""

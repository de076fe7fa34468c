"""A module of data for each design of core that was measured, and one for any other."""

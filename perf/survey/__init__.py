"""Survey of the planner: its choices and predictions beside measured times."""

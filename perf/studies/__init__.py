"""Studies and surveys with what they recorded: run from a checkout, and no part of the package."""

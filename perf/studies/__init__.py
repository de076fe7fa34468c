"""Studies and surveys with their records: run from a checkout, and no part of the package."""

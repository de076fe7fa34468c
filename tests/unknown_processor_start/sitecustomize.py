"""Python runs this at its start where the folder is on PYTHONPATH: see unknown_processor.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import unknown_processor

unknown_processor.install()

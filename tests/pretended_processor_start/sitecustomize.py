"""Python runs this at its start where the folder is on PYTHONPATH: see pretended_processor.py."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import pretended_processor

pretended_processor.install(os.environ[pretended_processor.VARIABLE])

"""Settings that every test shares."""

import os
import tempfile

from hypothesis import settings

# What an earlier calibration or tuning of this machine left behind must not sway the planner.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="sparsejit-tests-")

# An example may compile a kernel or wait for a busy core; that is not a failure.
settings.register_profile("sparsejit", deadline=None)
settings.load_profile("sparsejit")

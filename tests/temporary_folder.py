"""A temporary folder for one run: everything that the run leaves there goes with it."""

from __future__ import annotations

import os
import tempfile


def own_temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Make the folder, and make it TMPDIR for this process and its children.

    `cleanup`, or the end of the process, removes it. A run within a run has a folder beside the
    other one: Ray's sockets need short paths.
    """
    outer = os.environ.setdefault("SPARSEJIT_TESTS_TMPDIR", tempfile.gettempdir())
    tempfile.tempdir = outer
    folder = tempfile.TemporaryDirectory(prefix="sparsejit-", ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = folder.name
    tempfile.tempdir = None  # Python reads TMPDIR anew
    return folder

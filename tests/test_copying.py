"""The results of copy, deepcopy and pickle for everything that holds machine code."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from copied_things import ANOTHER, ITSELF, KINDS, WAYS, estimator

REFUSED = r"an? \w+ holds addresses .* cannot be copied or pickled; \w+.*"
GENERATOR = "cannot pickle 'generator' object"
# The copies of each kind, and the result of pickling it.
WANTED = {
    "kernel": (ITSELF, ANOTHER),
    "kernel on threads": (ITSELF, ANOTHER),
    "model": (ITSELF, ANOTHER),
    "estimator": (ITSELF, ANOTHER),
    "method": (ANOTHER, ANOTHER),
    "voice": (ITSELF, ANOTHER),
    "voice in int8": (ITSELF, ANOTHER),
    "torch.compile": (ANOTHER, ANOTHER),
    "bound kernel": (ITSELF, REFUSED),
    "bound model": (ITSELF, REFUSED),
    "variant": (ITSELF, REFUSED),
    "native call": (ITSELF, REFUSED),
    "code": (ITSELF, REFUSED),
    "sample loop": (ITSELF, REFUSED),
    "sampler": (REFUSED, REFUSED),
    "stream": (ANOTHER, ANOTHER),
    "bound stream": (ITSELF, REFUSED),
    "voice's stream": (GENERATOR, GENERATOR),
}
NEEDS = {
    "torch": (
        *("model", "torch.compile", "bound model", "variant", "native call"),
        *("stream", "bound stream"),
    ),
    "sklearn": ("estimator", "method"),
}
LACKING = {kind for name, kinds in NEEDS.items() if find_spec(name) is None for kind in kinds}


def test_copies_outlive_their_originals() -> None:
    """One program makes them all, as its start takes longest."""
    kinds = [kind for kind in KINDS if kind not in LACKING]
    program = Path(__file__).with_name("copied_things.py")
    done = subprocess.run(
        [sys.executable, str(program), *kinds],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    wrong = {}
    for kind in kinds:
        copied, pickled = WANTED[kind]
        for way in WAYS:
            if not re.fullmatch(pickled if way == "pickle" else copied, found[kind][way]):
                wrong[kind, way] = found[kind][way]
    assert wrong == {} and set(KINDS) == set(WANTED)


def test_scikit_learn_clones_and_joblib_carries_an_estimator() -> None:
    pytest.importorskip("sklearn")
    import joblib
    import numpy as np
    from sklearn.base import clone

    compiled, X = estimator(), np.eye(30, dtype=np.float32)
    assert clone(compiled) is compiled
    parts = joblib.Parallel(n_jobs=2)(joblib.delayed(compiled.predict)(X[n::2]) for n in (0, 1))
    for n, labels in enumerate(parts):
        np.testing.assert_array_equal(labels, compiled.predict(X[n::2]))

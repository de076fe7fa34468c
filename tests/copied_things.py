"""Copies everything that holds machine code, drops the original and uses the copy.

Run as a program it prints {kind: {way: what came of it}}. Each is tried in a child of its own, for
code that does not live as long as what calls it ends the process.
"""

import copy
import gc
import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import sparsejit
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.voice.spec.sample_loop import Sampler

RNG = np.random.default_rng(0)
W = RNG.standard_normal((20, 30)) * (RNG.random((20, 30)) < 0.4)
X = RNG.standard_normal((3, 30)).astype(np.float32)
MEL = np.full((80, 2), -4.0)
ITSELF, ANOTHER = "itself", "another"

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda made: pickle.loads(pickle.dumps(made)),
}


class Kind(NamedTuple):
    """A way to make a thing, and the values that it gives when it is used."""

    make: Callable[[], Any]
    use: Callable[[Any], Any]


def kernel(**options: Any) -> sparsejit.Kernel:
    return sparsejit.compile_matrix(W, **options)


def torch_model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.ReLU()).eval()


def model() -> CompiledModel:
    import torch

    compiled: CompiledModel = sparsejit.compile(torch_model(), (torch.zeros(1, 30),))
    return compiled


def stream() -> Any:
    """A cell whose only result is its state."""
    import torch

    torch.manual_seed(0)
    cell = torch.nn.GRUCell(30, 20).eval()
    fast = sparsejit.compile(cell, (torch.zeros(1, 30), torch.zeros(1, 20)), state={1: 0})
    return fast.stream()


def state_after_a_step(made: Any) -> np.ndarray:
    made.reset()
    made(X[:1])
    (state,) = made.state.values()
    return np.asarray(state)


def for_dynamo() -> Any:
    import torch

    return torch.compile(torch_model(), backend="sparsejit")


def under_no_grad(compiled: Any) -> np.ndarray:
    import torch

    with torch.no_grad():
        result: np.ndarray = compiled(torch.from_numpy(X)).numpy()
    return result


def estimator() -> sparsejit.CompiledEstimator:
    from sklearn.linear_model import LogisticRegression

    samples = np.random.default_rng(1).standard_normal((60, 30))
    labels = np.array(["apple", "pear"])[(samples.sum(1) > 0).astype(int)]
    compiled: sparsejit.CompiledEstimator = sparsejit.compile(
        LogisticRegression().fit(samples, labels)
    )
    return compiled


def voice(**options: Any) -> sparsejit.WaveRNN:
    return sparsejit.WaveRNN.from_pretrained(**options)


def speak(made: sparsejit.WaveRNN) -> np.ndarray:
    return made.generate(MEL, seed=1)


KINDS = {
    "kernel": Kind(kernel, lambda made: made(X[0])),
    "kernel on threads": Kind(lambda: kernel(batch=3, threads=2), lambda made: made(X)),
    "model": Kind(model, lambda made: made(X)),
    "estimator": Kind(estimator, lambda made: made.predict(X)),
    "method": Kind(lambda: estimator().predict_proba, lambda made: made(X)),
    "voice": Kind(voice, speak),
    "voice in int8": Kind(lambda: voice(dtype="int8", post_filter=False), speak),
    "torch.compile": Kind(for_dynamo, under_no_grad),
    "bound kernel": Kind(
        lambda: kernel().bind(X[0], np.zeros(20, np.float32)), lambda made: made()
    ),
    "bound model": Kind(
        lambda: model().bind([X[:1]], [np.zeros((1, 20), np.float32)]), lambda made: made()
    ),
    "variant": Kind(lambda: model().parts.variants[0], lambda made: made.call.run(X)[0]),
    "native call": Kind(lambda: model().parts.variants[0].call.run, lambda made: made(X)[0]),
    "code": Kind(lambda: kernel().program.memory, lambda made: made.size),
    "stream": Kind(stream, state_after_a_step),
    "bound stream": Kind(lambda: stream().bind([X[:1]], []), lambda made: made()),
    "sample loop": Kind(lambda: voice().loop, lambda made: made.workspace_bytes),
    "sampler": Kind(lambda: Sampler(voice().loop, 0), lambda made: None),
    "voice's stream": Kind(lambda: voice().stream([MEL]), lambda made: None),
}


def tried(kind: Kind, box: list[Any], way: Callable[[Any], Any]) -> str:
    """ITSELF or ANOTHER, as the copy of the thing in the box is, or why there is none."""
    made = box.pop()
    before = kind.use(made)
    try:
        copied = way(made)
    except TypeError as error:
        return str(error)
    kept, made = id(made), None
    gc.collect()
    filler = [sparsejit.compile_matrix(W + n) for n in range(5)]  # where freed code was
    np.testing.assert_array_equal(kind.use(copied), before)
    return ITSELF if id(copied) == kept and filler else ANOTHER


def in_a_child(kind: Kind, box: list[Any], way: Callable[[Any], Any]) -> str:
    """The word of `tried`, or the end of its process."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = tried(kind, box, way)
        except BaseException as error:
            said = repr(error)
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return said if status == 0 else f"ended by signal {status}"


def main(names: list[str]) -> None:
    if "torch.compile" in names:
        pass  # once, before all children
    results = {}
    for name in names:
        kind = KINDS[name]
        box = [kind.make()]
        results[name] = {way: in_a_child(kind, box, copied) for way, copied in WAYS.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])

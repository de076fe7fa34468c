"""Whole models against their peers, for `bench check`: each in a process of its own, in turn."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

from sparsejit.errors import CompileError, MissingDependency
from sparsejit.perf.model_contest import Contestant, checked_error
from sparsejit.perf.models import OURS, ModelTask
from sparsejit.perf.peers.model_peers import MODEL_PEERS, ModelPeer
from sparsejit.perf.peers.peer_process import PeerFailed
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.perf.zoo import ZOO
from sparsejit.runtime.native_timing import pinned

DENSITY = 0.1
_CALLED, _BOUND = OURS


class ModelSubject(NamedTuple):
    """The subject of a claim about a model: its calls, or its bound calls, at one batch size."""

    model: str
    batch: int = 1
    is_bound: bool = False


MODEL_SUBJECTS = {
    "mlp at 90 %": ModelSubject("mlp"),
    "mlp at 90 %, batch 64": ModelSubject("mlp", 64),
    "gru-tagger at 90 %": ModelSubject("gru-tagger"),
    "transformer-encoder at 90 %": ModelSubject("transformer-encoder"),
    "mobilenet-v1 at 90 %": ModelSubject("mobilenet-v1"),
    "resnet-18 at 90 %": ModelSubject("resnet-18"),
    "depthwise of 32 channels, 112x112": ModelSubject("depthwise-32-112-1"),
    "depthwise of 384 channels, 14x14": ModelSubject("depthwise-384-14-1"),
    "deep-and-wide, bound": ModelSubject("deep-and-wide", is_bound=True),
}


def model_against_peer(subject: str, against: str) -> "ModelContest":
    """Make the contest and check its outputs against float64.

    Raises MissingDependency where the peer is absent or cannot run the model.
    """
    with pinned() as core:
        return ModelContest(MODEL_SUBJECTS[subject], MODEL_PEERS[against], core)


class ModelContest:
    """sparsejit and a peer, each in its own process for as long as this object lives."""

    def __init__(self, subject: ModelSubject, peer: ModelPeer, core: int) -> None:
        stack = ExitStack()
        self.close = finalize(self, stack.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparsejit-check-")))
        task = ModelTask(ZOO[subject.model], subject.batch, DENSITY, folder)
        ours = _BOUND if subject.is_bound else _CALLED
        self._ours = stack.enter_context(Contestant(ours, core))
        self._theirs = stack.enter_context(Contestant(peer, core))
        for side in (self._ours, self._theirs):
            try:
                side.prepare(task)
                checked_error(side.run(folder), task.exact)
            except PeerFailed as problem:
                kind = CompileError if side is self._ours else MissingDependency
                raise kind(f"{side.name}: {problem}") from problem

        self._turns = RoundsInTurn({side: side.times for side in (self._ours, self._theirs)})

    def __call__(self) -> float:
        """Run one round; return the peer's least time over ours."""
        ns = self._turns.round()
        return ns[self._theirs] / ns[self._ours]

"""Contests of networks that make one sample at a time: against peers and real time."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from weakref import finalize

from sparsejit.errors import MissingDependency
from sparsejit.perf.voice.voice_times import NetworkContest
from sparsejit.runtime.native_timing import pinned

REAL_TIME = "real time"


class NetworkSubject:
    """A network in one dtype against a peer or real time, for as long as this object lives."""

    def __init__(self, name: str, dtype: str, against: str) -> None:
        """Raises MissingDependency where the peer, or the network's files, are absent."""
        stack = ExitStack()
        self.close = finalize(self, stack.close)
        self._dtype, self._against = dtype, against
        is_library = against != REAL_TIME and not against.startswith("C ")
        with pinned() as core:
            peers = [against] if is_library else []
            self._contest = NetworkContest(stack, core, name, None, [dtype], peers)
        if against in self._contest.skipped:
            raise MissingDependency(self._contest.skipped[against])

    def __call__(self) -> float:
        """Run a round; return the other side's microseconds over ours, each the least of three."""
        self._contest.forget()
        with pinned():
            for number in range(3):
                self._contest.round(number)
        ours = min(self._contest.us[self._dtype])
        if self._against == REAL_TIME:
            return 1e6 / (self._contest.network.sample_rate * ours)
        theirs = {one.name: one.us_min for one in self._contest.peer_times()}
        return theirs[self._against] / ours


# By subject and `against` of the claim.
CONTESTS: dict[tuple[str, str], Callable[[], Callable[[], float]]] = {
    (f"{name} in {dtype}", against): partial(NetworkSubject, name, dtype, against)
    for name, dtype, against in (
        ("deck", "float32", "C float32"),
        ("deck", "bfloat16", "C bfloat16"),
        ("deck", "int8", "C bfloat16"),
        ("wavernn-16k", "float32", "torch"),
        ("wavernn-16k", "float32", "onnxruntime"),
        ("lpcnet", "int8", REAL_TIME),
    )
}

"""Batches in an order that a resumed run repeats."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from sparsejit.errors import InvalidInput


class Batches:
    """A workload's batches without end, in an order that can be resumed exactly.

    Random numbers that batches draw from torch's generator, or a DataLoader from its own, depend on
    the seed and the number of the pass alone, not on numbers that the model draws meanwhile.
    """

    def __init__(self, source: Iterable[Any], seed: int) -> None:
        self._source = source
        self._seed = seed
        self._pass, self._taken = -1, 0
        self._iterator: Iterator[Any] = iter(())
        self._random_state = torch.get_rng_state()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch; raises InvalidInput where a pass yields nothing."""
        with self._own_generator():
            batch = next(self._iterator, self)
            if batch is self:
                self._start(self._pass + 1)
                batch = next(self._iterator, self)
        if batch is self:
            raise InvalidInput(
                f"batches yielded nothing in pass {self._pass + 1}: give an iterable "
                "that can start again, such as a DataLoader or a list, with at least one batch"
            )
        self._taken += 1
        return batch

    def position(self) -> dict[str, int]:
        """The position for `restore`: the number of the pass, and of batches taken from it."""
        return {"pass": self._pass, "taken": self._taken}

    def restore(self, position: Mapping[str, int]) -> None:
        """Resume at a `position`: start its pass again, and skip the batches taken."""
        if position["pass"] < 0:
            return
        with self._own_generator():
            self._start(position["pass"])
        for _ in range(position["taken"]):
            next(self)

    def _start(self, number: int) -> None:
        # torch's CPU generator takes no more than 32 bits of a seed.
        seed = zlib.crc32(f"{self._seed} {number}".encode())
        torch.manual_seed(seed)
        own = getattr(self._source, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(seed)
        self._pass, self._taken, self._iterator = number, 0, iter(self._source)

    @contextmanager
    def _own_generator(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self._random_state)
        try:
            yield
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(outside)

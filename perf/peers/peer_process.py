"""Requests to a peer that runs in its own process; see `peer_worker.py`."""

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from sparsejit.errors import SparseJitError

PATIENCE_S = 600.0  # a compiler that packs and tunes may well take a minute
_LONGEST_WORD = 300


class PeerFailed(SparseJitError):
    """A peer cannot load a model, has ended, or does not answer: its error, or its exit status."""


class PeerProcess:
    """A worker that answers one request after another, and ends with the `with` block.

    environment: the variables it gets, and no others.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Raises PeerFailed where the command cannot be started."""
        self._patience_s = patience_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
            )
        except OSError as problem:
            self._errors.close()
            raise PeerFailed(
                f"{command[0]} cannot be started ({problem.strerror}); remove its folder and "
                "install the peer again"
            ) from problem

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and return the reply.

        Raises PeerFailed for an error in the reply, for an ended process, and for no reply in time.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(self._last_words()) from None
        ready, _, _ = select.select([self._process.stdout], [], [], self._patience_s)
        if not ready:
            self.close()
            raise PeerFailed(f"no answer to {request['do']!r} in {self._patience_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerFailed(" ".join(reply["error"].split())[:_LONGEST_WORD])
        return reply

    def close(self) -> None:
        """Kill the process, which holds nothing that could be lost."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "in silence")
        return f"it ended with exit status {status}: {words}"[:_LONGEST_WORD]

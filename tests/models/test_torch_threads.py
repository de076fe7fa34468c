"""Models exported and compiled from several threads at once."""

from __future__ import annotations

from threading import Barrier, Lock, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sparsejit
from sparsejit.frontends.torch_export import export, tracing


def at_once(count: int, work: Any) -> None:
    """Run work(0), work(1) ... each in a thread; raise what one raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_one_export_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    exporting, started = Lock(), Barrier(3)
    traced = tracing._exported

    def alone(*args: Any) -> Any:
        assert exporting.acquire(blocking=False), "another export is at work"
        try:
            return traced(*args)
        finally:
            exporting.release()

    monkeypatch.setattr(tracing, "_exported", alone)
    torch.backends.mha.set_fastpath_enabled(True)
    model = nn.Linear(4, 2).eval()

    def work(number: int) -> None:
        started.wait()
        export(model, (torch.randn(number + 2, 4),))

    at_once(3, work)
    assert type(model.weight) is nn.Parameter
    assert torch.backends.mha.get_fastpath_enabled()


class Scores(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


def test_a_new_shape_is_compiled_once() -> None:
    model = sparsejit.compile(Scores().eval(), (torch.randn(2, 5),), free_shapes=True)
    compile_for, compiled, started = model._compile_for, [], Barrier(3)
    assert compile_for is not None

    def counting(arrays: Any) -> Any:
        compiled.append(arrays[0].shape)
        return compile_for(arrays)

    model._compile_for = counting
    x = torch.randn(3, 7)

    def work(number: int) -> None:
        started.wait()
        np.testing.assert_allclose(model(x), x.softmax(-1), rtol=1e-5)

    at_once(3, work)
    assert compiled == [(3, 7)]

"""Memory that a call is to write is full of NaN before it, so that what is left unwritten shows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import sparsejit
from sparsejit.ir.ops.views import Concat
from sparsejit.lowering.context import lowerings
from sparsejit.lowering.memory.storage import concat_parts
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime import call_stub
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.python_objects import ArrayType
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, rax, rcx, rdx, rsi


@pytest.fixture(params=["native", "python"], autouse=True)
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub, and what takes its place where it cannot be used."""
    if request.param == "python":
        monkeypatch.setattr(call_stub, "layout_is_known", lambda: False)


def first_only() -> ExecutableMemory:
    """`run` that writes its workspace's first 8 bytes to each output's first, and nothing else."""
    asm = Assembler(Target.detect())
    asm.emit("mov", rax, Memory(rdx))
    for number in range(2):
        asm.emit("mov", rcx, Memory(rsi, 8 * number))
        asm.emit("mov", Memory(rcx), rax)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)


def call_of(rows: int | None) -> NativeCall:
    taken = [ArrayType("float32", (rows, 2), "x")]
    made = [ArrayType("float64", (rows, 5), "y"), ArrayType("int64", (rows, 3), "z")]
    return NativeCall(first_only(), taken, made, 64)


def by_call(call: NativeCall, x: np.ndarray) -> list[np.ndarray]:
    return call([x])


def by_binding(call: NativeCall, x: np.ndarray) -> list[np.ndarray]:
    outputs = [np.zeros((len(x), 5)), np.zeros((len(x), 3), np.int64)]
    call.bind([x], outputs)()
    return outputs


@pytest.mark.parametrize("rows", [4, None])
@pytest.mark.parametrize("run", [by_call, by_binding])
def test_an_output_and_a_workspace_left_unwritten_show(
    run: Callable[[NativeCall, np.ndarray], list[np.ndarray]], rows: int | None
) -> None:
    call = call_of(rows)
    for _ in range(3):
        y, z = run(call, np.ones((4, 2), np.float32))
        assert np.isnan(y).all() and (z == -1).all()


def test_memory_is_left_as_it_is_without_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSEJIT_FILL")
    y, z = by_binding(call_of(4), np.ones((4, 2), np.float32))
    assert (y.ravel()[1:] == 0).all() and (z.ravel()[1:] == 0).all()


def test_a_kernel_finds_its_result_filled() -> None:
    asm = Assembler(Target.detect())
    asm.emit("ret")
    kinds = [ArrayType("float32", (8,), "x")], [ArrayType("float32", (8,), "y")]
    call = NativeCall(ExecutableMemory(asm.finish().data), *kinds, None)
    x, given = np.ones(8, np.float32), np.zeros(8, np.float32)
    assert np.isnan(call.run(x)).all()
    assert np.isnan(call.run(x, given)).all()
    call.bind([x], [bound := np.zeros(8, np.float32)])()
    assert np.isnan(bound).all()


class Joined(torch.nn.Module):
    """`flip` keeps the parts from being written in place."""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cat([x, x.flip(1)], 1)


@pytest.mark.parametrize("batch", [3, 8])
def test_an_operator_that_leaves_memory_unwritten_is_found(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    x = torch.rand(3, 5)
    assert not torch.isnan(sparsejit.compile(Joined().eval(), (x,))(x)).any()
    monkeypatch.setitem(lowerings(), Concat, first_part_only)
    y = sparsejit.compile(Joined().eval(), (x,))(torch.rand(batch, 5))
    assert not torch.isnan(y[:, :5]).any() and torch.isnan(y[:, 5:]).all()


def first_part_only(low: Any, node: Any) -> None:
    """Lower a concat, and forget all operands but the first."""
    view = low.result(node.output)
    part = next(iter(concat_parts(node, view)))
    low.copy(low.view(node.inputs[0]), part, node.output.origin)

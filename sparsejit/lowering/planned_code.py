"""Append the code of kernels that the planner chose."""

from sparsejit.errors import CompileError
from sparsejit.planner.plan import Plan
from sparsejit.planner.split import Split
from sparsejit.runtime.workers import NativePart, pool
from sparsejit.x86.assembler import Assembler


def emit_plan(asm: Assembler, plan: Plan) -> None:
    """Append the chosen kernel, without a return. Raises CompileError for a record."""
    if plan.lowered is None:
        raise CompileError("this plan is a record of a kernel, without code; plan the layer again")
    plan.chosen.template.emit(asm, plan.lowered)


def emit_split(asm: Assembler, split: Split) -> None:
    """Append void kernel(x, y) of all parts without its last `vzeroupper` and return."""
    if len(split.parts) == 1:
        emit_plan(asm, split.parts[0].plan)
        return
    labels = {id(part.plan): asm.label("part") for part in split.parts}
    natives = [
        NativePart(labels[id(part.plan)], part.y_bytes, part.x_bytes) for part in split.parts
    ]
    workers = pool()
    workers.require(len(natives) - 1)
    workers.emit_dispatcher(asm, natives, split.saved_ns)
    for number, part in enumerate({id(part.plan): part for part in split.parts}.values()):
        if number:
            asm.emit("vzeroupper")
            asm.emit("ret")
        asm.align(64)
        asm.bind(labels[id(part.plan)])
        emit_plan(asm, part.plan)

"""`sparsejit calibrate`: measure the rates that the planner predicts with."""

from dataclasses import asdict

from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    check_outputs,
    console,
    hand_over,
    say,
)


def calibrate(as_json: JsonOption = False, out: JsonFileOption = None) -> None:
    """Measure the speed of this processor, and keep the rates for the planner."""
    from sparsejit.machine.target import Target
    from sparsejit.planner.calibration import TRICKS
    from sparsejit.planner.calibration import calibrate as measure

    check_outputs(out)
    core = measure(Target.detect())
    steps = {" ".join(key): price.cycles for key, price in core.steps.items()}
    tricks = {name: getattr(core, name) for name in TRICKS}
    report = {
        "microarchitecture": core.key,
        **asdict(core.rates),
        "steps": steps,
        **tricks,
        "shared_way": core.shared_way,
        "barrier_ns": core.sharing.barrier_ns,
        "crossing_bytes": core.sharing.crossing_bytes,
        "origin": core.origin,
    }
    if hand_over(report, as_json, out):
        return
    rates = core.rates
    console.print(f"{core.key}, {rates.cycles_per_ns:.2f} GHz")
    for kind, levels in (("data", rates.data), ("code", rates.code)):
        figures = ", ".join(f"{level} {rate:.1f}" for level, rate in levels.items())
        console.print(f"{kind}, bytes a cycle: {figures}")
    figures = ", ".join(f"{name} {cycles:.2f}" for name, cycles in steps.items())
    console.print(f"steps, cycles: {figures}")
    console.print(", ".join(f"{name} {'on' if on else 'off'}" for name, on in tricks.items()))
    barrier, crossing = core.sharing[:2]
    console.print(f"another core: {barrier:.0f} ns a barrier, {crossing:.1f} bytes a ns cross")
    say(core.origin)

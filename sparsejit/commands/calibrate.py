"""`sparsejit calibrate`: measure what the planner reckons with."""

from dataclasses import asdict

from sparsejit.commands.console import JsonOption, console, print_json
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrate as measure_rates


def calibrate(as_json: JsonOption = False) -> None:
    """Measure this core's rates and keep them for the planner."""
    rates = measure_rates(Target.detect())
    if as_json:
        print_json(asdict(rates))
        return
    console.print(f"{rates.cycles_per_ns:.2f} GHz")
    for kind, levels in (("data", rates.data), ("code", rates.code)):
        figures = ", ".join(f"{level} {rate:.1f}" for level, rate in levels.items())
        console.print(f"{kind}, bytes a cycle: {figures}")

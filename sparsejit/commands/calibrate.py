"""`sparsejit calibrate`: measure what the planner reckons with."""

from dataclasses import asdict

from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    check_outputs,
    console,
    hand_over,
)
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrate as measure_rates
from sparsejit.planner.calibration import calibrated, rates_origin


def calibrate(as_json: JsonOption = False, out: JsonFileOption = None) -> None:
    """Measure this core's rates and keep them for the planner."""
    check_outputs(out)
    target = Target.detect()
    rates = measure_rates(target)
    report = {**asdict(rates), "origin": rates_origin(calibrated(target))}
    if hand_over(report, as_json, out):
        return
    console.print(f"{rates.cycles_per_ns:.2f} GHz")
    for kind, levels in (("data", rates.data), ("code", rates.code)):
        figures = ", ".join(f"{level} {rate:.1f}" for level, rate in levels.items())
        console.print(f"{kind}, bytes a cycle: {figures}")
    console.print(report["origin"], soft_wrap=True, markup=False)

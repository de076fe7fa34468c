"""`sparsejit calibrate`: measure what the planner reckons with."""

from dataclasses import asdict

from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    console,
    print_json,
    write_json,
)
from sparsejit.files import check_writable
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrate as measure_rates
from sparsejit.planner.calibration import rates_origin


def calibrate(as_json: JsonOption = False, out: JsonFileOption = None) -> None:
    """Measure this core's rates and keep them for the planner."""
    if out is not None:
        check_writable(out)
    target = Target.detect()
    rates = measure_rates(target)
    report = {**asdict(rates), "origin": rates_origin(target)}
    if out is not None:
        write_json(out, report)
    if as_json:
        print_json(report)
        return
    console.print(f"{rates.cycles_per_ns:.2f} GHz")
    for kind, levels in (("data", rates.data), ("code", rates.code)):
        figures = ", ".join(f"{level} {rate:.1f}" for level, rate in levels.items())
        console.print(f"{kind}, bytes a cycle: {figures}")
    console.print(report["origin"], soft_wrap=True, markup=False)

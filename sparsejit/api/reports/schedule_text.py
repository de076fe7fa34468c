"""Schedule of threads as text: a bar for each thread of a wave, as long as the thread is busy.

    wave 3   51.2 us   0 ######################## linear_1 (columns 0 to 15), gelu ...
                       1 ######################## linear_1 (columns 16 to 31), gelu ...
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsejit.api.models.variant import Variant
from sparsejit.lowering.threads.waves import ScheduledStep, Wave

_BAR, _LABEL = 24, 90  # characters


def schedule_lines(variant: Variant) -> list[str]:
    """Return lines of `explain`: the work of several threads, or samples that one takes together.

    Threads take turns with tiles of samples, or share the steps of waves, which get a bar each.
    On one thread, samples of a batch take turns with each layer, or are computed together.
    """
    threads = variant.options.threads
    if threads == 1:
        return [*_turn_lines(variant), *_end_lines(variant)]
    if variant.options.shares_tiles:
        samples = "1 sample" if variant.tile == 1 else f"{variant.tile} samples"
        return [f"{threads} threads take turns with tiles of {samples}; none waits for another"]
    shared = [wave for wave in variant.waves if wave.is_shared]
    if not shared:
        return [f"one thread of {threads}: no step is predicted to gain by another"]
    alone = sum(wave.alone_ns for wave in variant.waves)
    together = sum(wave.ns for wave in variant.waves)
    return [
        f"{threads} threads, {len(shared)} waves shared of {len(variant.waves)}: "
        f"{together / 1e3:,.1f} us predicted where one thread takes {alone / 1e3:,.1f}",
        *(
            line
            for number, wave in enumerate(variant.waves, 1)
            for line in _wave_lines(number, wave)
        ),
    ]


def _turn_lines(variant: Variant) -> list[str]:
    turns = variant.planned.turns
    if turns is None or turns.samples == 1:
        return []
    first = variant.steps[turns.first].origin.name
    return [
        f"from {first} on {turns.samples} samples of a batch take turns with each layer, whose "
        "code then comes from memory once for all"
    ]


def _end_lines(variant: Variant) -> list[str]:
    end = variant.planned.end
    if end is None:
        return []
    alone_ns = sum(step.ns for step in variant.steps[end.first :])
    return [
        f"from {variant.steps[end.first].origin.name} on {end.fewest} to {end.samples} samples of "
        f"a batch are computed together: {end.ns / 1e3:,.1f} us predicted where one takes "
        f"{alone_ns / 1e3:,.1f}"
    ]


def _wave_lines(number: int, wave: Wave) -> list[str]:
    heading = f"wave {number:<3} {wave.ns / 1e3:8,.1f} us  "
    starts = [heading, *[" " * len(heading)] * (len(wave.threads) - 1)]
    return [
        f"{start} {thread} {_bar(steps, wave.ns):{_BAR}} {_label(steps)}"
        for thread, (start, steps) in enumerate(zip(starts, wave.threads, strict=True))
    ]


def _bar(steps: Sequence[ScheduledStep], wave_ns: float) -> str:
    busy = sum(each.step.ns for each in steps)
    return "#" * max(1, round(_BAR * min(1.0, busy / wave_ns))) if wave_ns else ""


def _label(steps: Sequence[ScheduledStep]) -> str:
    """Return the names of the steps in the model, each once, cut to `_LABEL` characters."""
    names = dict.fromkeys(
        f"{step.origin.name} ({step.share})" if step.share else step.origin.name
        for _, step in steps
    )
    text = ", ".join(names)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 4]} ..."

"""Instruction sets that a process must ask the system for, though the processor has them.

Only runtime may make the system call: what asks registers itself here.
"""

from collections.abc import Callable, Iterable

# Says why the system refuses, with the remedy, or None where it allows.
Question = Callable[[], str | None]

_questions: dict[str, Question] = {}


def must_ask(instruction_sets: Iterable[str], question: Question) -> None:
    """From here on these sets are offered only where `question` is answered with None."""
    _questions.update(dict.fromkeys(instruction_sets, question))


def refusals(instruction_sets: frozenset[str]) -> dict[str, str]:
    """The sets, of those the processor has, that the system refuses this process, and why."""
    answers = {name: _questions[name]() for name in instruction_sets & _questions.keys()}
    return {name: why for name, why in answers.items() if why is not None}

"""Instruction sets that a process must ask the system for, though the processor has them.

Only `runtime` may make the system call; it registers a function for that here.
"""

from collections.abc import Callable, Iterable

# Asks the system; returns the reason of a refusal, with the remedy, or None where it allows.
Question = Callable[[], str | None]

_questions: dict[str, Question] = {}


def must_ask(instruction_sets: Iterable[str], question: Question) -> None:
    """Offer these sets from now on only where `question` returns None."""
    _questions.update(dict.fromkeys(instruction_sets, question))


def refusals(instruction_sets: frozenset[str]) -> dict[str, str]:
    """Return the sets among these that the system refuses this process, with the reasons."""
    answers = {name: _questions[name]() for name in instruction_sets & _questions.keys()}
    return {name: why for name, why in answers.items() if why is not None}

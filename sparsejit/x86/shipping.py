"""Forms that ship: requested forms, with any general registers in their addresses."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from sparsejit.errors import CompileError
from sparsejit.x86 import form_table
from sparsejit.x86.form_table import KeptForm
from sparsejit.x86.forms import Key
from sparsejit.x86.general_registers import family
from sparsejit.x86.instructions import instruction_sets
from sparsejit.x86.learning import learned_form


def ship(keys: Iterable[Key]) -> int:
    """Add these forms, and all that differ in general registers, to the table; return its length.
    """
    wanted = dict.fromkeys(each for key in keys for each in family(key))
    missing = [key for key in wanted if form_table.kept(key) is None]
    return form_table.add(_learned(missing))


def _learned(keys: Iterable[Key]) -> Iterator[KeptForm]:
    for key in keys:
        with suppress(CompileError):  # some registers do not exist there, such as rsp as an index
            yield KeptForm(learned_form(key), instruction_sets(key))

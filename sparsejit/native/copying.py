"""What copy, deepcopy and pickle make of objects that hold machine code, or addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from sparsejit.errors import NotCopyable

if TYPE_CHECKING:
    from typing import Self


class NotCopied:
    """An object with addresses of its own, or a place in a stream, that a copy would share.

    Raises:
        NotCopyable: a TypeError, with `instead_of_copying`, which is what to do
    """

    instead_of_copying = "pickle what it was compiled from, and compile that again"

    def __reduce__(self) -> Any:
        self.refuse_a_copy()

    def refuse_a_copy(self) -> NoReturn:
        """What copy and pickle come to."""
        raise NotCopyable(
            f"a {type(self).__name__} holds addresses of this process and cannot be copied or "
            f"pickled; {self.instead_of_copying}"
        )


class SharedCode(NotCopied):
    """An object with machine code, which never changes: its copies are the object itself.

    So the code lives as long as any of them. Pickling is refused, but where `__reduce__` says what
    it is compiled from.
    """

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

"""Behaviour of copy, deepcopy and pickle for objects that hold machine code or addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from sparsejit.errors import NotCopyable

if TYPE_CHECKING:
    from typing import Self


class NotCopied:
    """Base of objects that refuse copy and pickle: a copy would share addresses or a stream.

    Raises:
        NotCopyable: a TypeError; its message ends with the remedy, `instead_of_copying`
    """

    instead_of_copying = "pickle its weights or its model, and compile again"

    def __reduce__(self) -> Any:
        self.refuse_a_copy()

    def refuse_a_copy(self) -> NoReturn:
        """Raise NotCopyable, for copy and for pickle."""
        raise NotCopyable(
            f"a {type(self).__name__} holds addresses of this process and cannot be copied or "
            f"pickled; {self.instead_of_copying}"
        )


class SharedCode(NotCopied):
    """Base of objects with machine code, which never changes: a copy is the object itself.

    So the code lives as long as any reference. Pickling is refused, except in classes whose
    `__reduce__` returns the data to compile from.
    """

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

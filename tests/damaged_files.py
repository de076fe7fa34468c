"""Files that are not quite right, as a cache may come to hold them."""

import copy
import json
from collections.abc import Iterator
from typing import Any

WRONG = {
    "zero": 0,
    "negative": -1.0,
    "nan": float("nan"),
    "infinity": float("inf"),
    "huge": 1e300,
    "beyond float": 10**400,
    "tiny": 1e-320,
    "text": "3.5",
    "null": None,
    "true": True,
    "list": [[1.0]],
    "table": {},
}
DEEP = "[" * 200_000


def mutants(right: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Files that are not quite `right`, each with a name."""
    for path in list(_paths(right)):
        yield f"without {path}", as_json(changed_copy(right, path))
        for name, value in WRONG.items():
            yield f"{path} {name}", as_json(changed_copy(right, path, value))
    yield "one key more", as_json({**right, "unknown": 1.0})
    whole = as_json(right)
    for end in range(0, len(whole), max(1, len(whole) // 40)):
        yield f"cut at {end}", whole[:end]
    for name, value in WRONG.items():
        yield f"only {name}", as_json(value)
    yield "binary", bytes(range(256))
    yield "nested deeply", DEEP.encode()
    yield "nested deeply in a field", whole.replace(b"{", b'{"deep": ' + DEEP.encode() + b", ", 1)


def _paths(value: Any, *above: str) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*above, key)
        if isinstance(inner, dict):
            yield from _paths(inner, *above, key)


def changed_copy(right: dict[str, Any], path: tuple[str, ...], *value: Any) -> dict[str, Any]:
    """A copy with the value there replaced, or taken away where none is given."""
    changed = copy.deepcopy(right)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    for given in value:
        inner[path[-1]] = given
    return changed


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()

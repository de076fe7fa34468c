"""Python code that a command line names: a function without arguments, imported and called."""

import importlib.util
import inspect
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sparsejit.errors import InvalidInput, suggest


def call_factory(reference: str) -> Any:
    """Import and call "path/to/file.py:factory" or "package.module:factory"; return its result.

    Raises InvalidInput where file, module or factory do not exist, and for a factory that needs
    arguments; exceptions of its own code come through.
    """
    factory = named_function(reference, "factory")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise InvalidInput(f"{reference}: {error}; name a function of no arguments") from error
    return factory()


def named_function(reference: str, role: str) -> Any:
    """The function that "path/to/file.py:name" or "package.module:name" names; it is imported.

    Raises InvalidInput where file, module or function do not exist.
    """
    module_name, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier():
        raise InvalidInput(
            f"{reference!r} does not end in ':' and the name of a {role}: write "
            f"path/to/file.py:{role} or package.module:{role}"
        )
    module = _import(module_name)
    factory = getattr(module, name, None)
    if not callable(factory):
        own = [
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__ and callable(value)
        ]
        raise InvalidInput(f"{module_name} has no function {name!r}: {suggest(name, own)}")
    return factory


def _import(name: str) -> ModuleType:
    """The module of a file or of a dotted name; its own imports see its folder or this one."""
    is_file = name.endswith(".py")
    if not is_file and Path(name).is_file():
        raise InvalidInput(f"{name} is no Python file; write path/to/file.py:function")
    sys.path.insert(0, str((Path(name).parent if is_file else Path()).resolve()))
    if is_file:
        return _import_file(Path(name))
    try:
        module: ModuleType = pkgutil.resolve_name(f"{name}:")
    except (ModuleNotFoundError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module imports
        raise InvalidInput(f"there is no module {name}: check the name") from error
    return module


def _import_file(path: Path) -> ModuleType:
    # Under a name of its own, or a file called json.py would take json's place.
    spec = importlib.util.spec_from_file_location(f"sparsejit_factory_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidInput(f"there is no file {path}: check the path")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

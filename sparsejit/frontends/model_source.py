"""A model as a command line names it, with the sizes, numbers and arrays given beside it.

    call_factory     Python code that a command line names: a function without arguments, imported
                     and called
    read_source      the model and its example inputs
    imported_states  states of a model that was read
    example_arrays   arrays for inputs, read or random
    shrink_command   the command that makes zeros in the model
"""

import importlib.util
import inspect
import pkgutil
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput, UnsupportedOperator, suggest
from sparsejit.frontends.files import read_arrays
from sparsejit.frontends.onnx import (
    DeclaredInput,
    ImportedModel,
    declared_inputs,
    import_onnx,
    is_onnx,
)
from sparsejit.frontends.states import GivenStates, states_of
from sparsejit.frontends.torch_export import Exported, export, read_program
from sparsejit.ir.state import State


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
    """Import the module of a .py file, or of a dotted name, and return it.

    Its own imports also look in the file's folder, or in the working directory.
    """
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


_DEVIATION, _MOST_WHOLE = 0.5, 50  # of random inputs


@dataclass(frozen=True)
class NamedModel:
    """A model as `sparsejit.compile` takes it, and its example inputs.

    model: the path of an ONNX file, an ExportedProgram, a torch module or an estimator.
    args, kwargs: example inputs; none for an ONNX file that keeps its own sizes.
    constants: numbers in place of inputs of an ONNX file.
    inputs: all inputs that an ONNX file declares, `constants` among them.
    fallback: the engine that runs nodes of an ONNX file that are not compiled.
    """

    reference: str
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[DeclaredInput, ...] = ()
    fallback: str | None = None

    def imported(self) -> Exported | ImportedModel:
        """The model's graphs. Raises the errors of `import_onnx` and of torch's `export`."""
        return self.read_at(self.args, free_batch=True)

    def read_at(self, args: tuple[Any, ...], free_batch: bool) -> Exported | ImportedModel:
        """The model's graphs for other arguments. Raises as `imported` does."""
        if is_onnx(self.model):
            return import_onnx(self.model, args, free_batch, self.constants)
        return export(self.model, args, self.kwargs, free_batch)

    @contextmanager
    def advising(self) -> Iterator[None]:
        """Context that adds to an UnsupportedOperator error the inputs that might be constants."""
        single = [
            each.name
            for each in self.inputs
            if each.name not in self.constants and all(size == 1 for size in each.shape)
        ]
        try:
            yield
        except UnsupportedOperator as error:
            advice = (
                f"\ninput {name} is one number: where it never changes, --constant {name}=... "
                "leaves out the operators that depend on it"
                for name in single
            )
            raise UnsupportedOperator(f"{error}{''.join(advice)}") from error


def imported_states(
    found: Exported | ImportedModel, given: GivenStates | None
) -> tuple[State, ...]:
    """The states of a model that was read. Raises the errors of `states_of`."""
    tile = found.example_batch if found.batch_is_free else None
    return states_of(given, found.interface, found.graph(), tile)


def read_source(
    reference: str,
    shapes: Sequence[str] | None = None,
    constants: Sequence[str] | None = None,
    *,
    batch: int | None = None,
    data: Path | None = None,
    always_inputs: bool = False,
) -> NamedModel:
    """Read a command line's model; inputs of an ONNX file are random or from a .npz file.

    Raises InvalidInput for malformed sizes and numbers, and for names that no input has.
    """
    numbers = constants_of(constants)
    if is_onnx(reference):
        declared = declared_inputs(reference)
        left = [each for each in declared if each.name not in numbers]
        args = _onnx_inputs(left, shapes, batch, data, always_inputs)
        return NamedModel(reference, reference, args, {}, numbers, tuple(declared))
    if not is_opened(reference):
        raise InvalidInput(f"{reference!r} is no model: {_remedy(reference)}")
    if shapes or numbers or batch or data:
        options = {"--shape": shapes, "--constant": constants, "--batch": batch, "--data": data}
        given = [f"{name} {_words(value)}" for name, value in options.items() if value]
        raise InvalidInput(
            f"{reference} brings its own inputs; leave out {', '.join(given)}, which ONNX files "
            "take"
        )
    if reference.endswith(".pt2"):
        program, args, kwargs = read_program(reference)
        return NamedModel(reference, program, args, kwargs)
    made = call_factory(reference)
    if not isinstance(made, tuple) or len(made) != 2:
        raise InvalidInput(
            f"{reference} returned a {type(made).__name__}; return a torch module and a tuple of "
            "its example inputs"
        )
    model, inputs = made
    if hasattr(model, "state_dict") and hasattr(model, "eval"):
        model = model.eval()
    args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return NamedModel(reference, model, args, {})


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def is_opened(model: Any) -> bool:
    """Whether `read_source` makes a model and its inputs of it: a .pt2 file, or a factory."""
    if not isinstance(model, str | Path) or str(model).endswith((".onnx", ".sjit")):
        return False
    return str(model).endswith(".pt2") or ":" in str(model)


def _remedy(reference: str) -> str:
    """The remedy in the error for a path that names no model."""
    if reference.endswith(".sjit"):
        return "it is compiled already; give the model that it was compiled from"
    if reference.endswith(".py"):
        return f"name the function that returns one, {reference}:make"
    return "give an .onnx or .pt2 file, or path/to/file.py:factory"


def constants_of(texts: Sequence[str] | None) -> dict[str, Any]:
    """Numbers by name, from texts such as sr=16000. Raises InvalidInput for malformed texts."""
    return dict(_named(text, "--constant", _numbers) for text in texts or ())


def _onnx_inputs(
    inputs: Sequence[DeclaredInput],
    shapes: Sequence[str] | None,
    batch: int | None,
    data: Path | None,
    always: bool,
) -> tuple[Any, ...]:
    """Example arrays for these inputs; none if no option asks for them and no size is open."""
    sizes = dict(_named(text, "--shape", _sizes) for text in shapes or ())
    if not (sizes or batch or data or always or any(map(_is_open, inputs))):
        return ()
    odd = sizes.keys() - {each.name for each in inputs}
    if odd:
        names = ", ".join(each.name for each in inputs)
        raise InvalidInput(f"--shape {min(odd)}=...: the model's inputs are {names}")
    return example_arrays(inputs, sizes, batch, data)


def example_arrays(
    inputs: Sequence[DeclaredInput],
    sizes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    batch: int | None = None,
    data: Path | None = None,
) -> tuple[Any, ...]:
    """An array for each input: from a .npz file, by name, or random numbers of its sizes.

    Raises InvalidInput for sizes that stay open, and for names in the file that no input has.
    """
    held = {} if data is None else read_arrays(data, [each.name for each in inputs])
    for each in inputs:
        if each.name in held and not _fits(held[each.name].shape, each.shape):
            wanted = " x ".join(str(size or "?") for size in each.shape)
            raise InvalidInput(
                f"{data} has {each.name} of shape {held[each.name].shape}, and the model takes "
                f"({wanted}); give an array of these sizes"
            )
    _check_sizes([each for each in inputs if each.name not in held and each.name not in sizes])
    generator = np.random.default_rng(0)
    return tuple(
        held[each.name] if each.name in held else _random(generator, each, sizes, batch)
        for each in inputs
    )


def _fits(shape: tuple[int, ...], declared: Sequence[int | str | None]) -> bool:
    """Whether an array has the declared number of axes, and the sizes that are not open."""
    return len(shape) == len(declared) and all(
        not isinstance(size, int) or size == given
        for given, size in zip(shape, declared, strict=True)
    )


def _is_open(declared: DeclaredInput) -> bool:
    """Whether a size other than the batch is open."""
    return any(not isinstance(size, int) for size in declared.shape[1:])


def _check_sizes(inputs: Sequence[DeclaredInput]) -> None:
    """Raise InvalidInput where an input has an open size other than the batch."""
    asked = {}
    for each in filter(_is_open, inputs):
        sizes = [size or "?" for size in each.shape]
        if not isinstance(each.shape[0], int):
            sizes[0] = 1
        asked[each.name] = f"--shape {each.name}={'x'.join(map(str, sizes))}"
    if asked:
        have = "inputs {} have" if len(asked) > 1 else "input {} has"
        raise InvalidInput(
            f"{have.format(', '.join(asked))} open sizes; give {' '.join(asked.values())}"
        )


def _random(
    generator: np.random.Generator,
    declared: DeclaredInput,
    sizes: Mapping[str, tuple[int, ...]],
    batch: int | None,
) -> np.ndarray[Any, Any]:
    """Random numbers: normal with a deviation of 0.5, whole from 0 to 49, or bools."""
    shape = sizes.get(declared.name)
    if shape is None:
        given = (size if isinstance(size, int) else batch or 1 for size in declared.shape)
        shape = tuple(given)
    if declared.dtype.kind == "f":
        return (_DEVIATION * generator.standard_normal(shape)).astype(declared.dtype)
    most = 2 if declared.dtype.kind == "b" else _MOST_WHOLE
    return generator.integers(0, most, shape).astype(declared.dtype)


def _named(text: str, option: str, read: Any) -> tuple[str, Any]:
    name, equals, value = text.rpartition("=")
    try:
        if not equals or not name:
            raise ValueError
        return name, read(value)
    except ValueError:
        example = "x=1x576" if option == "--shape" else "sr=16000"
        raise InvalidInput(f"{option} {text} is not valid; write it as {example}") from None


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split("x")) if text else ()
    if any(size < 1 for size in sizes):
        raise ValueError
    return sizes


def _numbers(text: str) -> float | list[float]:
    """A number, or a list of several between commas; whole numbers are int."""
    numbers = [int(part) if part.lstrip("-").isdigit() else float(part) for part in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


# Weights of the smallest layer in which `shrink` makes zeros.
LEAST_SHRUNK = 512


def shrink_command(reference: str, constants: Sequence[str], suffix: str) -> str:
    """The command that makes zeros in the model; the file of samples is the user's to make.

    It does not write over the model.
    """
    given = [word for text in constants for word in ("--constant", text)]
    words = "sparsejit", "shrink", reference, "--data", "samples.npz", *given
    name = "smaller" if Path(reference).stem == "small" else "small"
    return shlex.join([*words, "--out", f"{name}{suffix}"])


def onnx_shrinking(model: Any, constants: Mapping[str, Any]) -> str:
    """The command that makes zeros in an ONNX file, or the call where no command can name it."""
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    if not isinstance(model, str | Path) or any(array.ndim > 1 for array in arrays.values()):
        given = ", constants=constants" if constants else ""
        return f"sparsejit.shrink(model, samples{given})"
    texts = [f"{name}={','.join(map(str, x.ravel().tolist()))}" for name, x in arrays.items()]
    return shrink_command(str(model), texts, Path(model).suffix)

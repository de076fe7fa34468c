"""The house rules of docs/architecture.md and CONTRIBUTING.md, read from the source itself.

Who may import what, how long files and functions are, and which words do not belong in the code.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# A room imports only from its left. A room is a folder or a file of sparsejit/; "sparsejit" is the
# public surface, sparsejit/__init__.py.
ROOMS = (
    *("errors", "whole_numbers", "files", "install_peachpy", "attention_masks"),
    *("machine", "native", "x86", "runtime", "ir", "passes"),
    *("asm_templates", "measuring", "planner", "lowering", "artefact", "frontends", "api"),
    *("estimators", "compiling", "loading", "onnxruntime"),
    *("prune", "voice", "selftest", "sparsejit", "perf", "commands", "__main__"),
)
# The same within rooms. The two tables, last of the templates, name every kernel of the rooms
# before; "voice" is what it offers, voice/__init__.py.
TEMPLATE_ROOMS = (
    *("scheduling", "lowered", "shared", "pointwise", "broadcast", "gather", "batch"),
    *("selection", "attention", "forest", "dense_product", "convolution", "families"),
    "batch_families",
)
LOWERING_ROOMS = (
    *("memory", "step", "chain_step", "probes", "threads"),
    *("memory_plan", "kept_weights", "feature_major", "context"),
    *("products", "convolution", "recurrence", "chains", "estimators", "selection", "views"),
    *("model_schedule", "tiles", "lower_graph", "model_code", "sample_loop", "token_loop"),
    *("function", "lowering"),
)
VOICE_ROOMS = (
    *("resampling", "features", "prediction", "spec", "weights", "bundled"),
    *("speak", "train", "voice"),
)
INNER_ROOMS = {
    "asm_templates": TEMPLATE_ROOMS,
    "lowering": LOWERING_ROOMS,
    "voice": VOICE_ROOMS,
}

# Modules that prices are made of: a core's data, and counts of cycles.
PARTS_OF_PRICES = {"core", "rates", "cycles", "cycles_per_ns"}
# Names of prices. Rooms that compare none, because `planner/cheapest_row.py` does, and modules that
# compare them to tell users about times, not to choose code.
PRICE = re.compile(r"_?([a-z0-9]+_)*(ns|cost|price)s?")
CHOOSE_BY_ROWS = {"lowering", "passes", "api"}
TELL_OF_TIMES = {
    *("report", "layers_report", "timed_layers", "advisor", "parted_report", "schedule_text"),
}
# Modules that make native code beside `x86`.
WRITERS = {"sparsejit.runtime.program", "sparsejit.native.executable_memory"}

# Modules that only some rooms may import. perf calls MKL, a rival measured beside us, by ctypes.
ONLY_IN = {
    "peachpy": {"x86"},
    "mmap": {"native", "runtime"},
    "ctypes": {"native", "runtime", "perf"},
    "torch": {"frontends", "prune", "voice", "perf"},
}
# Instructions are learned in one place, and its ELF writer is used in one.
WITH_PEACHPY = {"learning"}
PROCESSOR_QUESTIONS = ("cpuinfo", "__cpu_features__", "get_cpu_capability")

# Packages that only the extras of pyproject.toml bring, and the rooms that may need them.
EXTRAS = (
    *("torch", "scipy", "soundfile", "matplotlib", "threadpoolctl", "pystoi", "mkl", "sklearn"),
    *("ruamel", "jinja2", "ray", "sounddevice", "treelite", "lightgbm", "xgboost"),
    "onnxruntime",
)
NEEDS_EXTRAS = {"prune", "perf", "voice"}


# Files whose functions import modules of ours, and why; commands import what they run.
LATE_IMPORTS = {
    "sparsejit/__init__.py": "a name's module is imported when somebody asks for the name",
    "sparsejit/api/compiled.py": "a file's module is imported when the file is loaded",
    "sparsejit/lowering/context.py": "all submodules register their lowerings at the first use",
    "sparsejit/x86/instructions.py": "PeachPy is imported when a form is learned",
    "sparsejit/frontends/torch_export/packed_sequences.py": "code that torch's functions run",
    "perf/peers/peer_worker.py": "a process imports what its engine needs",
}


def sources() -> list[Path]:
    rooms = (ROOT / name for name in ("sparsejit", "asm_templates", "prune", "perf"))
    return sorted(path for room in rooms for path in room.rglob("*.py") if not _under_symlink(path))


def _under_symlink(path: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "sparsejit" else ("sparsejit", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str, depth: int = 1) -> str:
    """The part of a dotted name at that depth, or the last there is."""
    parts = module.split(".")
    return parts[min(depth, len(parts) - 1)]


class Facts(NamedTuple):
    """The facts about a file that the rules need, from one walk over its syntax."""

    imports: list[ast.Import | ast.ImportFrom | ast.Call]
    # Names after a dot and strings, each with its line.
    attributes: list[tuple[str, int]]
    strings: list[tuple[str, int]]
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef]
    classes: list[str]
    docstring: str


@cache
def facts_of(path: Path) -> Facts:
    tree = ast.parse(path.read_text())
    facts = Facts([], [], [], [], [], ast.get_docstring(tree) or "")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            facts.attributes.append((node.attr, node.lineno))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            facts.strings.append((node.value, node.lineno))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            facts.functions.append(node)
        elif isinstance(node, ast.ClassDef):
            facts.classes.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Call) and _is_import_call(node)
        ):
            facts.imports.append(node)
    return facts


def imports_of(path: Path) -> Iterator[str]:
    """Every module that `path` names in an import, resolved, wherever the import stands."""
    for node in facts_of(path).imports:
        yield from _named(node, path)


def _named(node: ast.Import | ast.ImportFrom | ast.Call, path: Path) -> Iterator[str]:
    """The modules that an import of the file names."""
    own = module_name(path).split(".")
    package = own if path.name == "__init__.py" else own[:-1]
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*start, *filter(None, [node.module])])
        named = (f"{base}.{alias.name}" for alias in node.names)
        yield from (module if module in MODULES else base for module in named)
    else:
        yield _imported_by_call(node.args[0], ".".join(package), path)


def _imported_by_call(argument: ast.expr, package: str, path: Path) -> str:
    """A name, or the package of which a module imports all modules, or one by name.

    A registry that imports the modules registered in it, at its first use, imports itself.
    """
    registered = ("_module.name", "module.name", "__package__", "LOADER_MODULES[kind]")
    if ast.unparse(argument) in registered:
        return package if path.name == "__init__.py" else module_name(path)
    if isinstance(argument, ast.JoinedStr):
        first = argument.values[0]
        own = "__name__" if path.name == "__init__.py" else "__package__"
        assert isinstance(first, ast.FormattedValue) and ast.unparse(first.value) == own, path
        return package
    assert isinstance(argument, ast.Constant), f"{path}: import of a computed name"
    return str(argument.value)


def _is_import_call(node: ast.Call) -> bool:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in {"import_module", "__import__"}


SOURCES = sources()
MODULES = frozenset(map(module_name, SOURCES))


def test_every_room_exists_and_is_walked() -> None:
    assert {room_of(module) for module in MODULES} == set(ROOMS)
    for room, inner in INNER_ROOMS.items():
        assert {room_of(m, 2) for m in MODULES if room_of(m) == room} - {room} == {*inner} - {room}


def test_imports_come_from_the_left() -> None:
    found = []
    for path in SOURCES:
        module = module_name(path)
        inner = INNER_ROOMS.get(room_of(module), ())
        for imported in imports_of(path):
            if imported.split(".")[0] != "sparsejit":
                continue
            left = is_to_the_left(ROOMS, room_of(imported), room_of(module))
            if left and inner and room_of(imported) == room_of(module):
                left = is_to_the_left(inner, room_of(imported, 2), room_of(module, 2))
            if not left:
                found.append(f"{house_path(path)} imports {imported}, which lies to its right")
    assert not found, "\n".join(found)


def test_no_modules_import_each_other() -> None:
    """Nor through others, be it in a function or for types alone."""
    graph = {module_name(path): {*imports_of(path)} - {module_name(path)} for path in SOURCES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_functions_import_no_modules_of_ours() -> None:
    found = {
        house_path(path): name
        for path in SOURCES
        if room_of(module_name(path)) != "commands"
        for function in facts_of(path).functions
        for node in ast.walk(function)
        if node in facts_of(path).imports
        for name in _named(node, path)
        if name in MODULES
    }
    assert found.keys() == LATE_IMPORTS.keys(), found


def test_lowering_never_prices() -> None:
    """It asks the planner."""
    found = [
        each
        for path in in_room("lowering")
        for each in attributes(path, PARTS_OF_PRICES.__contains__)
    ]
    assert not found, "\n".join(found)


def test_every_choice_goes_through_the_planner() -> None:
    """So that each is recorded, and has a runner-up: elsewhere no two prices are compared."""
    found = [
        f"{house_path(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in SOURCES
        if room_of(module_name(path)) in CHOOSE_BY_ROWS and path.stem not in TELL_OF_TIMES
        for node in ast.walk(ast.parse(path.read_text()))
        if compares_prices(node)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "compares"),
    [
        ("a.ns < 0.9 * fewer_ns", True),
        ("saved_ns(end) >= share * whole_ns", True),
        ("min(plans, key=lambda plan: plan.cost.ns)", True),
        ("sorted(prices)", True),
        ("least_ns is None", False),
        ("step.ns < _LEAST_NS", False),
        ("max(alone_ns, together_ns)", False),
        ("min(columns, key=len)", False),
    ],
)
def test_comparisons_of_prices_are_recognised(text: str, compares: bool) -> None:
    nodes = ast.walk(ast.parse(text))
    assert any(map(compares_prices, nodes)) is compares


def compares_prices(node: ast.AST) -> bool:
    """Whether an expression chooses by price; the time of parallel steps is a `max`."""
    if isinstance(node, ast.Compare):
        return sum(map(has_price, (node.left, *node.comparators))) > 1
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    by_key = any(each.arg == "key" for each in node.keywords)
    chooses = name in {"min", "sorted", "sort"} or (name == "max" and by_key)
    return chooses and any(map(has_price, (*node.args, *(each.value for each in node.keywords))))


def has_price(node: ast.AST) -> bool:
    names = (getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(node))
    return any(PRICE.fullmatch(name) for name in names)


def test_steps_of_a_level_are_named_by_the_table_of_kernels() -> None:
    """So that a kernel of an operator has a row, or is refused."""
    found = lines_with(re.compile(r"-\{\w*\.?target\.isa\}"), in_room("lowering"))
    assert not found, "\n".join(found)


def test_planner_never_emits() -> None:
    """`measuring` writes the data that the planner has measured."""
    found = []
    for path in in_room("planner"):
        code = [name for name in imports_of(path) if room_of(name) == "x86" or name in WRITERS]
        found += [f"{house_path(path)}: {name}" for name in code]
        found += attributes(path, lambda name: name.startswith("emit") and name != "emitter")
    assert not found, "\n".join(found)


def in_room(room: str) -> list[Path]:
    return [path for path in SOURCES if room_of(module_name(path)) == room]


def attributes(path: Path, wanted: Callable[[str], bool]) -> list[str]:
    """The attributes that are wanted, with their places."""
    return [
        f"{house_path(path)}:{line}: .{name}"
        for name, line in facts_of(path).attributes
        if wanted(name)
    ]


def is_to_the_left(order: tuple[str, ...], imported: str, room: str) -> bool:
    """Whether a room may import another, or itself."""
    return order.index(imported) <= order.index(room)


def test_rooms_keep_to_themselves() -> None:
    found = []
    for path in SOURCES:
        room = room_of(module_name(path))
        for imported in imports_of(path):
            top = imported.split(".")[0]
            trains = room_of(module_name(path), 2) == "train"
            if room not in ONLY_IN.get(top, {room}) or (
                (room == "voice" and top == "torch" and not trains)  # speaking needs none
                or (top == "peachpy" and path.stem not in WITH_PEACHPY)
            ):
                found.append(f"{house_path(path)} imports {imported}")
            if top in {"prune", "perf", "asm_templates"}:
                found.append(f"{house_path(path)}: write sparsejit.{imported}")
    assert not found, "\n".join(found)


def test_only_the_machine_room_asks_about_the_processor() -> None:
    """The others ask sparsejit.machine.target."""
    found = [
        f"{house_path(path)}:{line}: {text}"
        for path in SOURCES
        if not module_name(path).startswith("sparsejit.machine.")
        for text, line in (*facts_of(path).attributes, *facts_of(path).strings)
        if any(word in text for word in PROCESSOR_QUESTIONS)
    ]
    assert not found, "\n".join(found)


def test_the_core_imports_without_the_extras() -> None:
    rooms = set(ROOMS) - NEEDS_EXTRAS
    modules = [name for path in SOURCES if room_of(name := module_name(path)) in rooms]
    modules += ["sparsejit.voice.speak.wavernn", "sparsejit.voice.bundled"]
    script = f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))\n"
    script += "".join(f"import {name}\n" for name in modules)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ["prune", "perf", "asm_templates"])
def test_a_room_is_not_importable_under_its_short_name(room: str) -> None:
    if not (ROOT / room).is_dir():
        pytest.skip("the sdist has this room in sparsejit/ only")
    done = subprocess.run(
        [sys.executable, "-c", f"import {room}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"sparsejit.{room}" in done.stderr.splitlines()[-1]


MOST_LINES_A_FUNCTION, MOST_LINES_OF_OPENING = 50, 40
# Readers have neither the plan nor the tracker: say the fact, or point at a page of docs/.
ELSEWHERE = re.compile(r"\bDESIGN\b|\bissue #?[0-9]")
PROCESSORS = re.compile(
    r"\bzen\b|\bzen ?[0-9]|golden cove|(sapphire|emerald|granite) rapids|\b(ice|alder) lake"
    r"|skylake|haswell|broadwell|\bepyc|\bryzen|\bxeon",
    re.IGNORECASE,
)
# Rooms where figures and data of single processors belong.
MAY_NAME_PROCESSORS = (*("perf/", "tests/", "sparsejit/machine/"),)


def house_path(path: Path) -> str:
    """The path in the checkout, also where the rooms lie in sparsejit/ only, as in the sdist."""
    text = path.relative_to(ROOT).as_posix()
    return re.sub("^sparsejit/(asm_templates|prune|perf)/", r"\1/", text)


def python_files() -> list[Path]:
    beside = (path for room in ("tests", "examples") for path in (ROOT / room).rglob("*.py"))
    return [*SOURCES, *sorted(beside)]


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{house_path(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{house_path(path)}:{node.lineno}": lines_without_docstring(node)
        for path in python_files()
        for node in facts_of(path).functions
    }
    assert not {at: length for at, length in lengths.items() if length > MOST_LINES_A_FUNCTION}


def lines_without_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A public docstring has a line for each parameter."""
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return lines


def test_templates_open_with_a_picture_and_not_with_an_essay() -> None:
    lengths = {
        house_path(path): len(facts_of(path).docstring.splitlines())
        for path in python_files()
        if house_path(path).startswith("asm_templates/")
    }
    assert not {path: length for path, length in lengths.items() if length > MOST_LINES_OF_OPENING}


def test_nothing_points_at_what_readers_do_not_have() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    paths = [path for path in [*python_files(), *pages] if path != Path(__file__)]
    found = lines_with(ELSEWHERE, paths)
    assert not found, "\n".join(found)


def test_only_the_machine_room_and_measurements_name_processors() -> None:
    paths = [
        path for path in python_files() if not house_path(path).startswith(MAY_NAME_PROCESSORS)
    ]
    found = lines_with(PROCESSORS, paths)
    assert not found, "\n".join(found)


def test_tables_are_made_in_one_place() -> None:
    found = lines_with(re.compile(r"\bTable\("), SOURCES)
    assert {line.split(":")[0] for line in found} == {
        "sparsejit/api/reports/shown.py"
    }, "\n".join(found)


def test_a_class_name_is_used_once() -> None:
    """Or a reader must ask which is meant."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in facts_of(path).classes:
            places.setdefault(name.lstrip("_"), []).append(house_path(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}

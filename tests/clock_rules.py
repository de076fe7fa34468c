"""Finds where a test looks at a clock, or puts measured times in order."""

import ast
import re
from collections.abc import Iterator

# Functions of Python's modules that tell the time, or how much of it was used.
CLOCKS = {
    "time": {
        *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"),
        *("process_time", "process_time_ns", "thread_time", "thread_time_ns"),
        *("clock_gettime", "clock_gettime_ns"),
    },
    "timeit": {"timeit", "repeat", "default_timer", "Timer"},
    "datetime": {"now", "utcnow", "today"},
    "resource": {"getrusage"},
    "os": {"times"},
}
_MODULES_OF_CLASSES = {"datetime": "datetime", "date": "datetime"}

A_TIME = "a time in ns"

# Names of measured times and of values made of them.
MEASURED = {
    *("min_ns", "median_ns", "ns_min", "ns_median", "ns_python", "ns_by_place", "measured_ns"),
    *("ns_alone", "ns_shared", "barrier_ns", "kernel_ns", "us_min", "us_median", "us_torch"),
    *("measured_us", "planned_us", "in_turn_us", "in_turn_ns", "compile_ms", "speed_up"),
    *("real_time_factor", "growth"),
    *("bytes_a_cycle", "cycles_per_ns", "clock_ghz", "fma_gflops", "real_gflops"),
    *("effective_gflops", "l1_bytes_per_ns", "l2_bytes_per_ns", "l3_bytes_per_ns"),
    *("memory_bytes_per_ns", "elapsed"),
    # A field called ns, except in a planner's cost, which is predicted from counts.
    A_TIME,
}
# Functions that measure: what they return is a time as well.
MEASURING = {
    *("time_native", "time_in_turn", "time_copies", "time_python", "time_at_places"),
    *("median_of_least", "least_ns", "load_bandwidth", "time_synthesis", "us_in_turn"),
}
# Fixtures that make times known: a test that takes one of these compares exactly. So does one
# that is marked as reading recordings.
FAKES = {"steady_clock", "fake_clock", "pretended"}

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_IN_TEXT = re.compile(r"\b(perf_counter|monotonic|process_time|thread_time|time\.time)(_ns)?\b")


def breaches(source: str) -> list[str]:
    """Each line of a test's source that is against the rule."""
    tree = ast.parse(source)
    found = [*_clocks(tree), *_texts(tree), *_orders(tree, known=False)]
    return [f"line {line}: {what}" for line, what in sorted(set(found))]


def _clocks(tree: ast.AST) -> Iterator[tuple[int, str]]:
    aliases = dict(_aliases(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in CLOCKS:
            for alias in node.names:
                if alias.name in CLOCKS[node.module]:
                    yield node.lineno, f"imports {node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            module = aliases.get(owner, _MODULES_OF_CLASSES.get(owner, ""))
            if node.attr in CLOCKS.get(module, ()):
                yield node.lineno, f"uses {module}.{node.attr}"


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Scripts that other processes run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in _IN_TEXT.finditer(node.value):
                yield node.lineno, f"has a script that uses {match.group()}"


def _orders(tree: ast.AST, known: bool) -> Iterator[tuple[int, str]]:
    """Comparisons of measured times by size, outside what makes them known."""
    measured = MEASURED | MEASURING | _named_after_measuring(tree)
    yield from _orders_of(tree, known, measured)


def _orders_of(node: ast.AST, known: bool, measured: set[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef):
        known = known or any(argument.arg in FAKES for argument in node.args.args)
        known = known or any("mark.recordings" in ast.unparse(one) for one in node.decorator_list)
    if isinstance(node, ast.Compare) and not known:
        words = {word for part in (node.left, *node.comparators) for word in _words(part)}
        if any(isinstance(one, _ORDERS) for one in node.ops) and words & measured:
            yield node.lineno, f"orders {', '.join(sorted(words & measured))}"
    for child in ast.iter_child_nodes(node):
        yield from _orders_of(child, known, measured)


def _named_after_measuring(tree: ast.AST) -> set[str]:
    """Variables that are given measured times, or lists that these are appended to."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value: ast.AST | None = node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "append":
            targets, value = [node.func.value], node.args[0]
        else:
            continue
        if value is not None and set(_words(value)) & (MEASURED | MEASURING):
            names |= {part.id for one in targets for part in ast.walk(one) if hasattr(part, "id")}
    return names


def _words(node: ast.AST) -> Iterator[str]:
    """Names, attributes and keys in an expression, except objects asked for keys or length."""
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in {"keys", "len", "isinstance"}:
            return
    for field in ("id", "attr", "value"):
        word = getattr(node, field, None)
        if isinstance(word, str):
            yield word
    if isinstance(node, ast.Attribute) and node.attr == "ns" and _words_end(node.value) != "cost":
        yield A_TIME
    for child in ast.iter_child_nodes(node):
        yield from _words(child)


def _words_end(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))

"""Options of sessions and of calls, with the names and defaults of ONNX Runtime."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Any

from sparsejit.errors import InvalidInput
from sparsejit.planner.split import AUTO, parse_threads

LOGGER = logging.getLogger("sparsejit.onnxruntime")
# A set of sizes is compiled at its n-th call, and run by ONNX Runtime before.
COMPILE_AT_USE = "sparsejit.compile_at_use"
_WARNING = 2  # ONNX Runtime's number of a severity
_ACCEPTED = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "enable_profiling": False,
    "inter_op_num_threads": 0,
    "intra_op_num_threads": 0,
    "log_severity_level": -1,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "profile_file_prefix": "onnxruntime_profile_",
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}


class GraphOptimizationLevel(IntEnum):
    """Amount by which ONNX Runtime changes a graph; compiled code does not depend on it."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


_KEEPING_LAYOUTS = GraphOptimizationLevel.ORT_ENABLE_EXTENDED


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs branches of a graph at once; compiled code does not."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order of nodes in ONNX Runtime; compiled code has its own."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_ACCEPTED.update(
    graph_optimization_level=GraphOptimizationLevel.ORT_ENABLE_ALL,
    execution_mode=ExecutionMode.ORT_SEQUENTIAL,
    execution_order=ExecutionOrder.DEFAULT,
)


class DefaultSettings:
    """Settings of all sessions that have none of their own.

    Attributes:
        severity: the least severe messages that are logged: 0 verbose, 1 information, 2 warnings,
            3 errors, 4 fatal errors
        entries: configuration entries by key
    """

    severity = _WARNING
    entries: dict[str, str] = {}  # noqa: RUF012, shared by all sessions


class SessionOptions:
    """Options of a session.

    `intra_op_num_threads` and `log_severity_level` are followed, and 0 threads are one a core.
    A session that profiles, or has custom operators, given initialisers or fixed dimensions is ONNX
    Runtime's, which also writes an optimised model, in the file's layouts. Other options change
    nothing.
    """

    __slots__ = (*_ACCEPTED, "_calls", "_entries")

    def __init__(self) -> None:
        for name, value in _ACCEPTED.items():
            setattr(self, name, value)
        self._entries: dict[str, str] = {}
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set an entry of the configuration; keys that begin with "sparsejit." are ours.

        Args:
            key: the entry's name
            value: its value, a string
        """
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"add_session_config_entry({key!r}, {value!r}): give two strings")
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry. Raises RuntimeError where it has not been set."""
        if key not in self._entries:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return self._entries[key]

    def __getattr__(self, name: str) -> Any:
        """Return a method of ONNX Runtime, whose calls are repeated on ONNX Runtime's options."""
        if not name.startswith(("add_", "register_", "set_")):
            raise AttributeError(f"SessionOptions has no attribute {name!r}")

        def record(*args: Any) -> None:
            self._calls.append((name, args))

        return record

    @property
    def needs_runtime(self) -> bool:
        """Whether only a session of ONNX Runtime has the options that were asked for."""
        return bool(self._calls or self.enable_profiling)

    def of_runtime(self, runtime: Any) -> Any:
        """Return the same options as ONNX Runtime's own object.

        A model that it writes has no nodes in layouts of its own, which a later session would have
        to leave to it.
        """
        options = runtime.SessionOptions()
        for name in _ACCEPTED:
            own, given = getattr(options, name, None), getattr(self, name)
            if own is not None and own != given:
                setattr(options, name, type(own)(int(given)) if _is_enum(own) else given)
        level = options.graph_optimization_level
        if self.optimized_model_filepath and int(level) > _KEEPING_LAYOUTS:
            options.graph_optimization_level = type(level)(int(_KEEPING_LAYOUTS))
        if self.log_severity_level < 0:
            options.log_severity_level = DefaultSettings.severity
        for key, value in self._entries.items():
            if not key.startswith("sparsejit."):
                options.add_session_config_entry(key, value)
        for name, args in self._calls:
            getattr(options, name)(*args)
        return options


class RunOptions:
    """Options of a call; all are accepted, and none changes a result."""

    def __init__(self) -> None:
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.only_execute_path_to_fetches = self.terminate = False
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set an entry of the configuration.

        Args:
            key: the entry's name
            value: its value
        """
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry. Raises RuntimeError where it has not been set."""
        if key not in self._entries:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}")
        return self._entries[key]


def is_of_runtime(options: Any) -> bool:
    """Whether options are ONNX Runtime's own object."""
    return type(options).__module__.startswith("onnxruntime.")


def threads_of(options: Any) -> int | str:
    """Return the number of threads that options ask for, at most one a core."""
    asked = options.intra_op_num_threads
    return AUTO if asked < 1 else min(asked, parse_threads(AUTO))


def uses_before_compiling(options: Any) -> int:
    """Return the number of calls with the same sizes that ONNX Runtime runs before code is made."""
    own = {} if is_of_runtime(options) else options._entries
    text = own.get(COMPILE_AT_USE) or DefaultSettings.entries.get(COMPILE_AT_USE, "1")
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"{COMPILE_AT_USE}={text!r}; give a number of at least 1")
    return int(text) - 1


def say(options: Any, level: int, message: str) -> None:
    """Log a message of a level of `logging`, unless the session's severity is above warnings.

    Below, the logger's own level decides.
    """
    own = options.log_severity_level
    severity = DefaultSettings.severity if own < 0 else own
    if severity <= _WARNING:
        LOGGER.log(level, message)


def _is_enum(value: Any) -> bool:
    return hasattr(type(value), "__members__")

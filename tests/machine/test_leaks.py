"""Kernels on several threads leave nothing behind when dropped, and let the interpreter end."""

import json
import subprocess
import sys
import textwrap

WARM_UP, CYCLES = 200, 1500
# The allocator may still take a little after the warm-up; a page a cycle would be 1300 of each.
MOST_PAGES, MOST_MAPPINGS = 400, 20

PREPARED = """
    import gc, json, os, sys, threading
    from pathlib import Path
    import numpy as np
    import sparsejit
    from sparsejit.machine.price_records import SharingPrices
    from sparsejit.planner import sharing
    from sparsejit.native.executable_memory import ExecutableMemory

    sharing.sharing_prices = lambda target: SharingPrices(0.0, 1e9)  # small layers are shared too
    weights = np.random.default_rng(0).standard_normal((48, 16))
    x = np.ones(16, np.float32)

    def make():
        kernel = sparsejit.compile_matrix(weights, threads=2, strategy="dense")
        assert kernel.stats["threads"] == 2
        return kernel
"""

MEASURED = """
    def compile_call_and_drop(kept):
        kernel = make()
        kernel(x)
        kernel.bind(x, np.empty(48, np.float32))()

    def keep_a_page(kept):
        kept.append(ExecutableMemory(b"ret"))

    def resident_pages_and_mappings():
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        return resident, len(Path("/proc/self/maps").read_text().splitlines())

    kept = []
    found = []
    for cycles in ({warm_up}, {cycles} - {warm_up}):
        for _ in range(cycles):
            {cycle}(kept)
        found.append(resident_pages_and_mappings())
    print(json.dumps(found))
"""

EXIT = """
    sparsejit.compile_matrix(weights, strategy="dense")  # forms of instructions are learned once
    for _ in range({attempts}):
        child = os.fork()
        if not child:
            break
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"ended with status {{status:#x}}")
    else:
        sys.exit()

    def call_forever(call, running):
        call()
        running.set()
        while True:
            call()

    kernel, outputs = make(), np.zeros((4, 48), np.float32)
    calls = [
        kernel.bind(x, outputs[0]),
        lambda: kernel(x, out=outputs[1]),
        lambda: kernel(x, out=outputs[2]),
        lambda: make()(x),
    ]
    for call in calls:
        running = threading.Event()
        threading.Thread(target=call_forever, args=(call, running), daemon=True).start()
        running.wait()
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREPARED) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
    )


def left_behind(cycle: str) -> tuple[int, int]:
    """The number of resident pages and mappings that come with the cycles after the warm-up."""
    done = run(MEASURED.format(warm_up=WARM_UP, cycles=CYCLES, cycle=cycle))
    assert done.returncode == 0, done.stderr
    (pages, mappings), (more_pages, more_mappings) = json.loads(done.stdout)
    return more_pages - pages, more_mappings - mappings


def test_kernels_on_two_threads_leave_nothing_behind() -> None:
    pages, mappings = left_behind("compile_call_and_drop")
    assert pages < MOST_PAGES
    assert mappings < MOST_MAPPINGS


def test_a_page_left_behind_would_be_seen() -> None:
    pages, _ = left_behind("keep_a_page")
    assert pages > 2 * MOST_PAGES


def test_the_interpreter_ends_while_daemon_threads_run_kernels() -> None:
    """Each attempt is a fork of a process that has imported all, but has one thread."""
    done = run(EXIT.format(attempts=20))
    assert (done.returncode, done.stderr) == (0, "")

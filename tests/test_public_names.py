"""The names and modules that `import sparsejit` brings, and when."""

import subprocess
import sys


def run(script: str) -> None:
    """In a process that has imported nothing yet."""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_loads_nothing_but_errors() -> None:
    run(
        "import sys, sparsejit\n"
        "ours = {name for name in sys.modules if name.startswith('sparsejit')}\n"
        "assert ours == {'sparsejit', 'sparsejit.errors'}, ours\n"
        "assert 'numpy' not in sys.modules"
    )


def test_every_name_is_there_when_it_is_asked_for() -> None:
    run(
        "import sparsejit\n"
        "missing = [n for n in sparsejit.__all__ if getattr(sparsejit, n, None) is None]\n"
        "assert not missing, missing\n"
        "from sparsejit.compiling import compile_model\n"
        "assert sparsejit.compile is compile_model\n"
        "assert sparsejit.attention_masks and sparsejit.voice\n"
        "assert set(dir(sparsejit)) > {*sparsejit.__all__, 'prune'}\n"
        "assert not hasattr(sparsejit, 'prunes')"
    )


def test_prune_needs_torch_only_when_it_is_asked_for() -> None:
    run(
        "import sys, sparsejit\n"
        "assert 'torch' not in sys.modules\n"
        "assert sparsejit.prune.Pruner and 'torch' in sys.modules"
    )

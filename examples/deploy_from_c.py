"""A pruned layer called from C: no Python, no library, one object file.

Run with `python examples/deploy_from_c.py [folder]`; it needs a C compiler. It prunes a matrix,
exports it as layer.o and layer.h, writes main.c, compiles both, and compares the program's output
with that of the same kernel in Python.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import sparsejit

MAIN = r"""
#include <stdio.h>
#include "layer.h"

int main(void)
{
    static float x[LAYER_X_SIZE], y[LAYER_Y_SIZE];
    int i;
    for (i = 0; i < LAYER_X_SIZE; i++)
        x[i] = (float)i / LAYER_X_SIZE;
    if (layer_run(x, y) != LAYER_OK) {
        fprintf(stderr, "layer.o was made for another processor\n");
        return 1;
    }
    for (i = 0; i < LAYER_Y_SIZE; i++)
        printf("%.9g\n", y[i]);
    return 0;
}
"""


def pruned(weights: np.ndarray, density: float) -> np.ndarray:
    """The weights with only the largest ones left, a share of `density`."""
    threshold = np.quantile(np.abs(weights), 1 - density)
    return np.where(np.abs(weights) >= threshold, weights, 0).astype(np.float32)


def main(folder: Path) -> None:
    """Export, compile, run and compare in `folder`."""
    generator = np.random.default_rng(0)
    weights = pruned(generator.standard_normal((256, 512)), density=0.1)
    bias = generator.standard_normal(256)
    # target="avx2" would make an object file for older processors too.
    kernel = sparsejit.compile_matrix(weights, bias, activation="relu")
    kernel.export(folder / "layer.o", header=folder / "layer.h")
    (folder / "main.c").write_text(MAIN)

    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit(f"layer.o and layer.h are in {folder}; install a C compiler to run main.c")
    program = folder / "main"
    sources = folder / "main.c", folder / "layer.o"
    subprocess.run([compiler, "-O2", *sources, "-o", program], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()

    x = np.arange(512, dtype=np.float32) / np.float32(512)
    assert np.array_equal(np.array(lines, np.float32), kernel(x))
    size = (folder / "layer.o").stat().st_size
    print(f"C and Python agree in all bits of {len(lines)} outputs; layer.o has {size:,} bytes")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "deploy_from_c")
    target.mkdir(parents=True, exist_ok=True)
    main(target)

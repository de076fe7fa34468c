"""A whole pruned model called from C: no Python, no library, one object file.

Run with `python examples/deploy_from_c.py [folder]`; it needs a C compiler. It exports a perceptron
as digits.o and digits.h, writes main.c, compiles both, compares the program's output with the
same model's in Python, and its time with torch's.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from comparing import compare, prune_by_magnitude
from torch import nn

import sparsejit

MAIN = r"""
#include <stdio.h>
#include "digits.h"

static float x[DIGITS_INPUT_0_SIZE], y[DIGITS_OUTPUT_0_SIZE];
/* Calls at one time need a workspace each. */
static char workspace[DIGITS_WORKSPACE_BYTES]
    __attribute__((aligned(DIGITS_WORKSPACE_ALIGNMENT)));

int main(void)
{
    const float *inputs[] = {x};
    float *outputs[] = {y};
    int i;
    for (i = 0; i < DIGITS_INPUT_0_SIZE; i++)
        x[i] = (float)i / DIGITS_INPUT_0_SIZE;
    if (digits_run(inputs, outputs, workspace) != DIGITS_OK) {
        fprintf(stderr, "digits.o was made for another processor\n");
        return 1;
    }
    for (i = 0; i < DIGITS_OUTPUT_0_SIZE; i++)
        printf("%.9g\n", y[i]);
    return 0;
}
"""


def main(folder: Path) -> None:
    """Export, compile, run and compare in `folder`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10), nn.Softmax(-1))
    prune_by_magnitude(model, 0.9)
    x = np.arange(512, dtype=np.float32)[None] / np.float32(512)
    # Without a free batch, run takes no number of samples. target="avx2" would make an object file
    # for older processors too.
    fast = sparsejit.compile(model, (x,), free_batch=False)
    fast.export(folder / "digits.o", header=folder / "digits.h")
    (folder / "main.c").write_text(MAIN)

    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit(f"digits.o and digits.h are in {folder}; install a C compiler to run main.c")
    program = folder / "main"
    sources = folder / "main.c", folder / "digits.o"
    subprocess.run([compiler, "-O2", *sources, "-o", program], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()

    assert np.array_equal(np.array(lines, np.float32), fast(x)[0])
    size = (folder / "digits.o").stat().st_size
    print(f"C and Python agree in all bits of {len(lines)} outputs; digits.o has {size:,} bytes")
    compare(model, fast, torch.from_numpy(x))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "deploy_from_c")
    target.mkdir(parents=True, exist_ok=True)
    main(target)

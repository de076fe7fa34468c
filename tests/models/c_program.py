"""C programs around exported kernels and models, which run on two threads at once."""

from pathlib import Path

from system_tools import GCC, MINGW, run_tool

import sparsejit

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "model.h"
#ifdef OPENED
#include <dlfcn.h>
static __typeof__(model_run) *run;
#else
#define run model_run
#endif

#define SAMPLES %(samples)d
#ifndef MODEL_WORKSPACE_BYTES
#define MODEL_WORKSPACE_BYTES 1
#define MODEL_WORKSPACE_ALIGNMENT 1
#endif
#define ALIGNED __attribute__((aligned(MODEL_WORKSPACE_ALIGNMENT)))

%(arrays)s
static void *const given[] = {%(inputs)s};
static const size_t given_bytes[] = {%(input_bytes)s}, made_bytes[] = {%(output_bytes)s};

struct call {
    char workspace[MODEL_WORKSPACE_BYTES] ALIGNED;
    %(output_arrays)s
    int status;
};

static struct call calls[2];

static void *work(void *mine)
{
    struct call *call = mine;
    %(pointee_out)s *made[] = {%(outputs)s};
    int i;
    for (i = 0; i < 300; i++) {
        memset(call->workspace, i, sizeof call->workspace);
        call->status |= run(%(arguments)s);
    }
    return NULL;
}

int main(int count, char **names)
{
    pthread_t threads[2];
    FILE *file = fopen(names[1], "rb");
    struct call *call = calls;
    void *const made[] = {%(outputs)s};
    size_t i;
    for (i = 0; i < sizeof given / sizeof *given; i++)
        if (fread(given[i], 1, given_bytes[i], file) != given_bytes[i])
            return 102;
    fclose(file);
#ifdef OPENED
    *(void **)&run = dlsym(dlopen(OPENED, RTLD_NOW), "model_run");
#endif
    for (i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work, &calls[i]);
    for (i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    file = fopen(names[2], "wb");
    for (i = 0; i < sizeof made / sizeof *made; i++) {
        ptrdiff_t between = (char *)&calls[1] - (char *)&calls[0];
        if (memcmp(made[i], (char *)made[i] + between, made_bytes[i]))
            return 103;
        fwrite(made[i], 1, made_bytes[i], file);
    }
    return fclose(file) || count != 3 ? 104 : calls[0].status | calls[1].status;
}
"""


def program(compiled: sparsejit.Kernel | sparsejit.CompiledModel, samples: int) -> str:
    """C that runs it on the arrays in one file, and writes its outputs to another."""
    if isinstance(compiled, sparsejit.Kernel):
        elements, is_free = [["float32"], ["float32"]], False
        lengths = [["4 * MODEL_X_SIZE"], ["4 * MODEL_Y_SIZE"]]
        arguments = "(const float *)given[0], made[0]"
    else:
        graph, is_free = compiled.graph, compiled.tile is not None
        sides = (("INPUT", graph.inputs), ("OUTPUT", graph.outputs))
        elements = [[value.type.element.value for value in values] for _, values in sides]
        shared = [n for n in range(len(graph.inputs)) if graph.is_shared(n)]
        lengths = [
            [
                f"{1 if side == 'INPUT' and n in shared else 'SAMPLES'} * MODEL_{side}_{n}_BYTES"
                for n in range(len(values))
            ]
            for side, values in sides
        ]
        arguments = "(const %s *const *)given, made, call->workspace"
        arguments += ", SAMPLES" if is_free else ""
    taken, made = ("float" if {*each} == {"float32"} else "void" for each in elements)
    return PROGRAM % {
        "samples": samples if is_free else 1,
        "arrays": "\n".join(f"static char x{n}[{s}];" for n, s in enumerate(lengths[0])),
        "inputs": ", ".join(f"x{n}" for n in range(len(lengths[0]))),
        "input_bytes": ", ".join(lengths[0]),
        "output_bytes": ", ".join(lengths[1]),
        "output_arrays": "\n    ".join(f"char y{n}[{s}];" for n, s in enumerate(lengths[1])),
        "outputs": ", ".join(f"(void *)call->y{n}" for n in range(len(lengths[1]))),
        "pointee_out": made,
        "arguments": arguments.replace("%s", taken),
    }


def built(
    compiled: sparsejit.Kernel | sparsejit.CompiledModel, folder: Path, samples: int, kind: str
) -> Path:
    """The program linked with model.o, model.so or model.obj, or one that opens the shared object.
    """
    library = folder / f"model.{'so' if kind == 'opened' else kind}"
    system = "windows" if kind == "obj" else "linux"
    compiled.export(library, header=folder / "model.h", system=system)
    (folder / "main.c").write_text(program(compiled, samples))
    how: dict[str, list[str | Path]] = {
        "o": [library],
        "so": [library, f"-Wl,-rpath,{folder}"],
        "opened": [f'-DOPENED="{library}"', "-ldl"],
        "obj": [library, "-static"],
    }
    warnings = ("-Wall", "-Wextra", "-Werror")
    output = folder / f"main-{kind}{'.exe' if kind == 'obj' else ''}"
    compiler = MINGW if kind == "obj" else GCC
    run_tool(compiler, *warnings, folder / "main.c", *how[kind], "-pthread", "-o", output)
    return output

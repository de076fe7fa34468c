"""A C program that steps an exported model, and dies at system calls and allocations."""

PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>
#include "model.h"

static int is_armed;

#ifndef SANITIZED
void *__libc_malloc(size_t size);
void __libc_free(void *place);
void *malloc(size_t size) { return is_armed ? (abort(), NULL) : __libc_malloc(size); }
void free(void *place) { is_armed ? abort() : __libc_free(place); }
#endif

static char state[MODEL_STATE_BYTES] __attribute__((aligned(MODEL_STATE_ALIGNMENT)));
static char workspace[MODEL_WORKSPACE_BYTES] __attribute__((aligned(MODEL_WORKSPACE_ALIGNMENT)));
static const size_t in_bytes[] = {%(in_bytes)s}, out_bytes[] = {%(out_bytes)s};

/* The bytes of a file, all in memory. */
static char *opened(const char *name, int flags, size_t *size)
{
    struct stat about;
    int file = open(name, flags);
    if (file < 0 || fstat(file, &about))
        exit(101);
    *size = about.st_size;
    return mmap(NULL, about.st_size, flags == O_RDONLY ? PROT_READ : PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_POPULATE, file, 0);
}

static void forbid_calls(void)
{
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {4, lines};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &filter))
        exit(102);
}

int main(int count, char **names)
{
    size_t room, made, k;
    char *x = opened(names[1], O_RDONLY, &room), *y = opened(names[2], O_RDWR, &made);
    char *end = x + room;
    struct rusage before, after;
    unsigned control = _mm_getcsr() & ~0x3Fu;
    int status = 0;
    if (count != 4 || model_prepare(workspace) || model_state_init(state))
        exit(103);
    for (k = 0; k < made; k += 4096)
        y[k] = 0;
    getrusage(RUSAGE_SELF, &before);
    getrusage(RUSAGE_SELF, &before);
    if (names[3][0] == 'f') {
        forbid_calls();
        if (names[3][1] == 'f')
            getrusage(RUSAGE_SELF, &after);
    }
    is_armed = 1;
    while (x < end && !status) {
        const float *inputs[MODEL_INPUTS];
        float *outputs[MODEL_OUTPUTS];
        for (k = 0; k < MODEL_INPUTS; x += in_bytes[k++])
            inputs[k] = (const void *)x;
        for (k = 0; k < MODEL_OUTPUTS; y += out_bytes[k++])
            outputs[k] = (void *)y;
        status = model_step(inputs, outputs, state, workspace);
    }
    if ((_mm_getcsr() & ~0x3Fu) != control)
        _exit(104);
    if (names[3][0] == 'p') {
        getrusage(RUSAGE_SELF, &after);
        _exit(after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt);
    }
    _exit(status ? 105 : 0);
}
"""


def stream_program(inputs: int, outputs: int) -> str:
    """C: PROGRAM inputs outputs MODE, for arrays of floats.

    Mode f: a system call kills it; ff: it makes one, after which it must be dead; p: its status is
    the number of page faults; n: none of these.
    """
    sizes = {
        f"{side.lower()}_bytes": ", ".join(f"MODEL_{side}PUT_{n}_BYTES" for n in range(count))
        for side, count in (("IN", inputs), ("OUT", outputs))
    }
    return PROGRAM % sizes

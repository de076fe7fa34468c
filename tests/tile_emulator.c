/* Runs the instructions of AMX on a processor without them, for tests: a handler of SIGILL.
 *
 * Semantics are those of Intel's Software Developer's Manual, volume 2. What would raise an
 * exception there ends the process here. A thread's tiles are its own.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, CONFIGURATION_BYTES = 64 };

typedef struct {
    uint8_t configuration[CONFIGURATION_BYTES]; /* palette 0: none */
    uint8_t rows[TILES][ROWS][ROW_BYTES];
} State;

static __thread State state;
static __thread long executed;

/* ucontext's numbers of the registers 0 to 15. */
static const int GENERAL[] = {
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
};

typedef struct {
    int prefix, opcode, is_memory, reg, rm, vvvv, length;
    uint8_t *address;
    int64_t stride;
} Instruction;

static int rows_of(int tile) { return state.configuration[48 + tile]; }

static int bytes_of(int tile)
{
    return state.configuration[16 + 2 * tile] | state.configuration[17 + 2 * tile] << 8;
}

/* VEX.128.W0 of map 0F38, opcodes 49, 4B and 5E; 0 for anything else. */
static int decode(const uint8_t *code, const greg_t *registers, Instruction *found)
{
    int extended_reg = ~code[1] >> 7 & 1, index_high = ~code[1] >> 6 & 1, base_high = ~code[1] >> 5 & 1;
    if (code[0] != 0xC4 || (code[1] & 31) != 2 || code[2] & 0x84 || extended_reg)
        return 0;
    found->prefix = code[2] & 3;
    found->vvvv = ~code[2] >> 3 & 15;
    found->opcode = code[3];
    if (found->opcode != 0x49 && found->opcode != 0x4B && found->opcode != 0x5E)
        return 0;
    int mode = code[4] >> 6;
    found->reg = code[4] >> 3 & 7;
    found->rm = code[4] & 7;
    found->length = 5;
    found->is_memory = mode != 3;
    if (!found->is_memory)
        return 1;
    int base = found->rm | base_high << 3;
    found->stride = 0;
    if (found->rm == 4) {
        int sib = code[found->length++], index = (sib >> 3 & 7) | index_high << 3;
        base = (sib & 7) | base_high << 3;
        if (index != 4)
            found->stride = registers[GENERAL[index]] << (sib >> 6);
    } else if (found->opcode == 0x4B) {
        return 0;
    }
    int64_t displacement = 0;
    if (mode == 0 && (base & 7) == 5)
        return 0; /* without a base: no kernel does so */
    if (mode == 1) {
        displacement = (int8_t)code[found->length++];
    } else if (mode == 2) {
        int32_t wide;
        memcpy(&wide, code + found->length, 4);
        displacement = wide;
        found->length += 4;
    }
    found->address = (uint8_t *)(registers[GENERAL[base]] + displacement);
    if (found->opcode == 0x49) /* ldtilecfg, sttilecfg: the index belongs to the address */
        found->address += found->stride;
    return 1;
}

static int configure(const uint8_t *wanted)
{
    State next;
    memset(&next, 0, sizeof next);
    if (wanted[0] > 1)
        return 0;
    if (wanted[0] == 1) {
        memcpy(next.configuration, wanted, CONFIGURATION_BYTES);
        for (int byte = 1; byte < 16; byte++) /* start_row, which none continues at, and reserved */
            if (wanted[byte])
                return 0;
        for (int byte = 32; byte < 64; byte++)
            if (wanted[byte] && (byte < 48 || byte >= 48 + TILES))
                return 0;
        for (int tile = 0; tile < TILES; tile++) {
            int bytes = wanted[16 + 2 * tile] | wanted[17 + 2 * tile] << 8, rows = wanted[48 + tile];
            if (bytes > ROW_BYTES || rows > ROWS || !bytes != !rows)
                return 0;
        }
    }
    state = next;
    return 1;
}

/* Opcode 49: configurations, tilerelease, tilezero. */
static int set_up(const Instruction *found)
{
    if (found->is_memory && found->reg == 0 && found->prefix == 0)
        return configure(found->address);
    if (found->is_memory && found->reg == 0 && found->prefix == 1) {
        memcpy(found->address, state.configuration, CONFIGURATION_BYTES);
        return 1;
    }
    if (!found->is_memory && found->prefix == 0 && found->reg == 0 && found->rm == 0) {
        memset(&state, 0, sizeof state);
        return 1;
    }
    if (!found->is_memory && found->prefix == 3 && found->rm == 0 && rows_of(found->reg)) {
        memset(state.rows[found->reg], 0, sizeof state.rows[0]);
        return 1;
    }
    return 0;
}

/* Opcode 4B: tileloadd, tilestored. */
static int move(const Instruction *found)
{
    int tile = found->reg, rows = rows_of(tile), bytes = bytes_of(tile);
    if (!found->is_memory || !rows)
        return 0;
    if (found->prefix == 2) {
        for (int row = 0; row < rows; row++)
            memcpy(found->address + row * found->stride, state.rows[tile][row], bytes);
        return 1;
    }
    if (found->prefix != 3)
        return 0;
    uint8_t loaded[ROWS][ROW_BYTES];
    memset(loaded, 0, sizeof loaded);
    for (int row = 0; row < rows; row++)
        memcpy(loaded[row], found->address + row * found->stride, bytes);
    memcpy(state.rows[tile], loaded, sizeof loaded);
    return 1;
}

/* Opcode 5E: tdpbssd (F2), tdpbsud (F3), tdpbusd (66), tdpbuud. */
static int multiply(const Instruction *found)
{
    int sums = found->reg, first = found->rm, second = found->vvvv;
    int first_signed = found->prefix >= 2, second_signed = found->prefix == 3 || found->prefix == 1;
    if (found->is_memory || second >= TILES || sums == first || sums == second || first == second)
        return 0;
    if (!rows_of(sums) || rows_of(sums) != rows_of(first) || bytes_of(sums) != bytes_of(second))
        return 0;
    if (bytes_of(sums) % 4 || bytes_of(first) != 4 * rows_of(second))
        return 0;
    int rows = rows_of(sums), depths = bytes_of(first);
    int right[ROW_BYTES][ROWS] = {{0}}; /* by depth, then column */
    for (int depth = 0; depth < depths; depth++)
        for (int column = 0; column < bytes_of(second) / 4; column++) {
            uint8_t value = state.rows[second][depth / 4][4 * column + depth % 4];
            right[depth][column] = second_signed ? (int8_t)value : value;
        }
    for (int row = 0; row < rows; row++) {
        uint32_t total[ROWS];
        memcpy(total, state.rows[sums][row], sizeof total);
        for (int depth = 0; depth < depths; depth++) {
            uint8_t value = state.rows[first][row][depth];
            int left = first_signed ? (int8_t)value : value;
            for (int column = 0; column < ROWS; column++)
                total[column] += (uint32_t)(left * right[depth][column]);
        }
        memcpy(state.rows[sums][row], total, sizeof total);
    }
    for (int row = rows_of(sums); row < ROWS; row++)
        memset(state.rows[sums][row], 0, ROW_BYTES);
    return 1;
}

static int execute(const Instruction *found)
{
    if (found->opcode == 0x49)
        return set_up(found);
    return found->opcode == 0x4B ? move(found) : multiply(found);
}

/* Runs the instruction that faulted, and those of AMX that follow it: signals are slow. */
static void handle(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    long before = executed;
    Instruction found;
    (void)info;
    while (decode((const uint8_t *)registers[REG_RIP], registers, &found) && execute(&found)) {
        registers[REG_RIP] += found.length;
        executed++;
    }
    if (executed == before) /* the instruction is tried again, and ends the process */
        signal(number, SIG_DFL);
}

/* Handle SIGILL from here on; 0 where that works. */
int emulate_tiles(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGILL, &action, 0);
}

/* How many instructions were emulated for this thread. */
long emulated_instructions(void) { return executed; }

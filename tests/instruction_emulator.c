/* Runs instructions of AMX and AVX512-FP16 on a processor without them, for tests: a handler of
 * SIGILL.
 *
 * Semantics are those of Intel's Software Developer's Manual, volume 2. What would raise an
 * exception there ends the process here. A thread's tiles are its own; its zmm registers are the
 * signal frame's.
 */
#define _GNU_SOURCE
#include <cpuid.h>
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

/* `is_evex`: of AVX512-FP16, else of AMX. */
typedef struct {
    int is_evex, prefix, opcode, is_memory, reg, rm, vvvv, length;
    uint8_t *address;
    int64_t stride;
} Instruction;

static int rows_of(int tile) { return state.configuration[48 + tile]; }

static int bytes_of(int tile)
{
    return state.configuration[16 + 2 * tile] | state.configuration[17 + 2 * tile] << 8;
}

/* The memory operand whose ModRM byte ends `found`; `unit` bytes a step of an 8-bit displacement.
 * The index is left in `stride`. 0 for an address without a base: no kernel has one. */
static int locate(const uint8_t *code, const greg_t *registers, int high, int unit, Instruction *found)
{
    int mode = code[found->length - 1] >> 6, base = found->rm | (high & 1) << 3;
    found->stride = 0;
    if (found->rm == 4) {
        int sib = code[found->length++], index = (sib >> 3 & 7) | (high & 2) << 2;
        base = (sib & 7) | (high & 1) << 3;
        if (index != 4)
            found->stride = registers[GENERAL[index]] << (sib >> 6);
    }
    int64_t displacement = 0;
    if (mode == 0 && (base & 7) == 5)
        return 0;
    if (mode == 1) {
        displacement = (int8_t)code[found->length++] * unit;
    } else if (mode == 2) {
        int32_t wide;
        memcpy(&wide, code + found->length, 4);
        displacement = wide;
        found->length += 4;
    }
    found->address = (uint8_t *)(registers[GENERAL[base]] + displacement);
    return 1;
}

/* VEX.128.W0 of map 0F38, opcodes 49, 4B and 5E; 0 for anything else. */
static int decode_tiles(const uint8_t *code, const greg_t *registers, Instruction *found)
{
    int extended_reg = ~code[1] >> 7 & 1, high = ~code[1] >> 5 & 3;
    if (code[0] != 0xC4 || (code[1] & 31) != 2 || code[2] & 0x84 || extended_reg)
        return 0;
    found->is_evex = 0;
    found->prefix = code[2] & 3;
    found->vvvv = ~code[2] >> 3 & 15;
    found->opcode = code[3];
    if (found->opcode != 0x49 && found->opcode != 0x4B && found->opcode != 0x5E)
        return 0;
    found->reg = code[4] >> 3 & 7;
    found->rm = code[4] & 7;
    found->length = 5;
    found->is_memory = code[4] >> 6 != 3;
    if (!found->is_memory)
        return 1;
    if (found->opcode == 0x4B && found->rm != 4)
        return 0;
    if (!locate(code, registers, high, 1, found))
        return 0;
    if (found->opcode == 0x49) /* ldtilecfg, sttilecfg: the index belongs to the address */
        found->address += found->stride;
    return 1;
}

enum { ADD = 0x58, MULTIPLY_ADD = 0xB8 };

/* EVEX.512.W0 without mask, broadcast and rounding: MAP5 58 vaddph, 66.MAP6 B8 vfmadd231ph. */
static int decode_halves(const uint8_t *code, const greg_t *registers, Instruction *found)
{
    if (code[0] != 0x62 || code[1] & 8 || code[2] & 0x80 || (code[3] & ~8) != 0x40)
        return 0;
    int map = code[1] & 7, high = ~code[1] >> 5 & 3;
    found->is_evex = 1;
    found->prefix = code[2] & 3;
    found->opcode = code[4];
    if (!(map == 5 && found->prefix == 0 && found->opcode == ADD) &&
        !(map == 6 && found->prefix == 1 && found->opcode == MULTIPLY_ADD))
        return 0;
    found->vvvv = (~code[2] >> 3 & 15) | (~code[3] & 8) << 1;
    found->reg = (code[5] >> 3 & 7) | (~code[1] >> 4 & 8) | (~code[1] & 16);
    found->rm = code[5] & 7;
    found->length = 6;
    found->is_memory = code[5] >> 6 != 3;
    if (!found->is_memory) {
        found->rm |= high << 3;
        return 1;
    }
    if (!locate(code, registers, high, 64, found))
        return 0;
    found->address += found->stride;
    return 1;
}

static int decode(const uint8_t *code, const greg_t *registers, Instruction *found)
{
    return decode_tiles(code, registers, found) || decode_halves(code, registers, found);
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

static int execute_tiles(const Instruction *found)
{
    if (found->opcode == 0x49)
        return set_up(found);
    return found->opcode == 0x4B ? move(found) : multiply(found);
}

/* zmm registers in a signal frame: the format of XSAVE, in which each component has a place. */
enum { SSE = 1, HIGH_YMM = 2, HIGH_ZMM = 6, MORE_ZMM = 7, COMPONENTS = 8 };
enum { MXCSR = 24, XMM = 160, USED = 464, HEADER = 512, LANES = 32 };
static uint32_t place_of[COMPONENTS], bytes_of_component[COMPONENTS];

static int find_components(void)
{
    for (int number = HIGH_YMM; number < COMPONENTS; number++) {
        uint32_t rest[2];
        if (!__get_cpuid_count(13, number, &bytes_of_component[number], &place_of[number], rest,
                               rest + 1))
            return 0;
    }
    return 1;
}

/* Whether the frame has all of the zmm registers; those that it omits become zeros. */
static int complete(uint8_t *frame)
{
    const uint64_t wanted = 1 << SSE | 1 << HIGH_YMM | 1 << HIGH_ZMM | 1 << MORE_ZMM;
    uint64_t usable, present;
    uint32_t magic;
    memcpy(&magic, frame + USED, 4);
    memcpy(&usable, frame + USED + 8, 8);
    memcpy(&present, frame + HEADER, 8);
    if (magic != 0x46505853 || (usable & wanted) != wanted)
        return 0;
    if (!(present >> SSE & 1))
        memset(frame + XMM, 0, 256);
    for (int number = HIGH_YMM; number < COMPONENTS; number++)
        if ((wanted & ~present) >> number & 1)
            memset(frame + place_of[number], 0, bytes_of_component[number]);
    present |= wanted;
    memcpy(frame + HEADER, &present, 8);
    return 1;
}

static void parts_of(uint8_t *frame, int zmm, uint8_t *parts[3])
{
    parts[0] = frame + XMM + 16 * zmm;
    parts[1] = frame + place_of[HIGH_YMM] + 16 * zmm;
    parts[2] = frame + place_of[HIGH_ZMM] + 32 * zmm;
    if (zmm >= 16) {
        parts[0] = frame + place_of[MORE_ZMM] + 64 * (zmm - 16);
        parts[1] = parts[0] + 16;
        parts[2] = parts[0] + 32;
    }
}

static void read_zmm(uint8_t *frame, int zmm, uint16_t lanes[LANES])
{
    uint8_t *parts[3];
    parts_of(frame, zmm, parts);
    memcpy(lanes, parts[0], 16);
    memcpy(lanes + 8, parts[1], 16);
    memcpy(lanes + 16, parts[2], 32);
}

static void write_zmm(uint8_t *frame, int zmm, const uint16_t lanes[LANES])
{
    uint8_t *parts[3];
    parts_of(frame, zmm, parts);
    memcpy(parts[0], lanes, 16);
    memcpy(parts[1], lanes + 8, 16);
    memcpy(parts[2], lanes + 16, 32);
}

enum { INFINITE = 0x7C00, NO_NUMBER = 0x7E00, ONE = 0x3C00 };

static int is_finite(uint16_t half) { return (half & INFINITE) != INFINITE; }

static int is_nan(uint16_t half) { return (half & 0x7FFF) > INFINITE; }

/* A finite float16 in units of 2^-24: a whole number below 2^40. */
static int64_t units(uint16_t half)
{
    int exponent = half >> 10 & 31;
    int64_t magnitude = exponent ? (int64_t)((half & 1023) | 1024) << (exponent - 1) : half & 1023;
    return half >> 15 ? -magnitude : magnitude;
}

enum { NEAREST, DOWN, UP, TO_ZERO }; /* as in MXCSR */

/* A whole number of units of 2^-48, below 2^82, rounded to float16; to the nearest: ties to even. */
static uint16_t rounded(__int128 sum, int sign_of_zero, int mode)
{
    int sign = sum ? sum < 0 : sign_of_zero, bits = 0;
    unsigned __int128 magnitude = sum < 0 ? -(unsigned __int128)sum : (unsigned __int128)sum;
    while (bits < 127 && magnitude >> bits)
        bits++;
    int shift = bits - 11 > 24 ? bits - 11 : 24;
    uint32_t found = (uint32_t)(magnitude >> shift);
    unsigned __int128 rest = magnitude - ((unsigned __int128)found << shift);
    unsigned __int128 tie = (unsigned __int128)1 << (shift - 1);
    int away = mode == (sign ? DOWN : UP);
    if (mode == NEAREST)
        found += rest > tie || (rest == tie && found & 1);
    else
        found += rest && away;
    found += (uint32_t)(shift - 24) << 10; /* a carry reaches the exponent */
    if (found >= INFINITE)
        found = mode == NEAREST || away ? INFINITE : INFINITE - 1;
    return (uint16_t)(sign << 15 | found);
}

/* a * b + c with one rounding. */
static uint16_t multiplied(uint16_t a, uint16_t b, uint16_t c, int mode)
{
    int sign = (a ^ b) >> 15;
    if (is_nan(a) || is_nan(b) || is_nan(c))
        return NO_NUMBER;
    if (!is_finite(a) || !is_finite(b)) {
        int no_product = !(a & 0x7FFF) || !(b & 0x7FFF);
        return no_product || (!is_finite(c) && sign != c >> 15) ? NO_NUMBER : sign << 15 | INFINITE;
    }
    if (!is_finite(c))
        return c;
    __int128 sum = (__int128)units(a) * units(b) + ((__int128)units(c) << 24);
    int differ = sign != c >> 15; /* a sum of both signs that is 0 */
    return rounded(sum, differ ? mode == DOWN : sign, mode);
}

static int execute_halves(const Instruction *found, uint8_t *frame)
{
    uint16_t to[LANES], first[LANES], second[LANES];
    uint32_t control;
    memcpy(&control, frame + MXCSR, 4);
    if (!complete(frame))
        return 0;
    int mode = control >> 13 & 3;
    read_zmm(frame, found->reg, to);
    read_zmm(frame, found->vvvv, first);
    if (found->is_memory)
        memcpy(second, found->address, sizeof second);
    else
        read_zmm(frame, found->rm, second);
    for (int lane = 0; lane < LANES; lane++)
        to[lane] = found->opcode == ADD ? multiplied(first[lane], ONE, second[lane], mode)
                                        : multiplied(first[lane], second[lane], to[lane], mode);
    write_zmm(frame, found->reg, to);
    return 1;
}

static int execute(const Instruction *found, uint8_t *frame)
{
    return found->is_evex ? execute_halves(found, frame) : execute_tiles(found);
}

/* Runs the instruction that faulted, and those that follow it and are known: signals are slow. */
static void handle(int number, siginfo_t *info, void *context)
{
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
    greg_t *registers = machine->gregs;
    long before = executed;
    Instruction found;
    (void)info;
    while (decode((const uint8_t *)registers[REG_RIP], registers, &found) &&
           execute(&found, (uint8_t *)machine->fpregs)) {
        registers[REG_RIP] += found.length;
        executed++;
    }
    if (executed == before) /* the instruction is tried again, and ends the process */
        signal(number, SIG_DFL);
}

/* Handle SIGILL from here on; 0 where that works. */
int emulate(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return !find_components() || sigaction(SIGILL, &action, 0);
}

/* How many instructions were emulated for this thread. */
long emulated_instructions(void) { return executed; }

/* The deck's network by hand: AVX-512 intrinsics over 16x1 blocks, gates and draw in the same loop.

   Compiled with -DHOP=..., and with -DSHORT_WEIGHTS for bfloat16, whose blocks lie in pairs: of 32
   numbers in a row, the even ones are one block's and the odd ones the next one's. Activations and
   sums are float32. What the conditioning adds is multiplied before, once a frame. */

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16, HIDDEN = 1024, DENSE = 1024, CLASSES = 256, VECTORS = CLASSES / LANES };

#ifdef SHORT_WEIGHTS
typedef uint16_t weight;
#else
typedef float weight;
#endif

/* Blocks first[g] to first[g + 1] - 1 belong to outputs 16 g to 16 g + 15. */
typedef struct {
    const int32_t *first;
    const uint16_t *inputs;
    const weight *values;
} blocks;

typedef struct {
    blocks recurrent, dense, output;
    const float *recurrent_bias; /* of the new gate, (HIDDEN,) */
    const float *output_bias;
    const float *gate_column, *dense_column; /* what the last sample is multiplied with */
    const float *gate_terms, *dense_terms;   /* of each frame, (3 * HIDDEN,) and (DENSE,) */
} network;

static inline __m512 times(__m512 sum, const float *x, uint16_t input, __m512 values) {
    return _mm512_fmadd_ps(values, _mm512_set1_ps(x[input]), sum);
}

/* Eight sums, since an addition takes four cycles and two start in each. */
static inline __m512 product(const blocks *m, int group, const float *x, __m512 start) {
    int block = m->first[group], end = m->first[group + 1];
    __m512 sum[8] = {start};
    for (int k = 1; k < 8; k++) sum[k] = _mm512_setzero_ps();
#ifdef SHORT_WEIGHTS
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
#define PAIR(k)                                                                              \
    do {                                                                                     \
        __m512i two = _mm512_loadu_si512(m->values + (int64_t)LANES * (block + (k)));        \
        __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(two, 16));                       \
        __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(two, high));                       \
        sum[(k)] = times(sum[(k)], x, m->inputs[block + (k)], even);                         \
        sum[(k) + 1] = times(sum[(k) + 1], x, m->inputs[block + (k) + 1], odd);              \
    } while (0)
    for (; block + 8 <= end; block += 8) {
        PAIR(0);
        PAIR(2);
        PAIR(4);
        PAIR(6);
    }
    for (; block < end; block += 2) PAIR(0);
#else
#define ONE(k)                                                                               \
    sum[k] = times(sum[k], x, m->inputs[block + (k)],                                        \
                   _mm512_loadu_ps(m->values + (int64_t)LANES * (block + (k))))
    for (; block + 8 <= end; block += 8) {
        ONE(0);
        ONE(1);
        ONE(2);
        ONE(3);
        ONE(4);
        ONE(5);
        ONE(6);
        ONE(7);
    }
    for (; block < end; block++) ONE(0);
#endif
    __m512 first = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    __m512 second = _mm512_add_ps(_mm512_add_ps(sum[4], sum[5]), _mm512_add_ps(sum[6], sum[7]));
    return _mm512_add_ps(first, second);
}

/* 14 bits, and one step of Newton's method. */
static inline __m512 reciprocal(__m512 x) {
    __m512 guess = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(2)));
}

/* Source: the rational function of Eigen's ptanh. */
static inline __m512 hyperbolic_tangent(__m512 x) {
    const __m512 limit = _mm512_set1_ps(7.90531110763549805f);
    x = _mm512_max_ps(_mm512_min_ps(x, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
    __m512 square = _mm512_mul_ps(x, x), p, q;
    p = _mm512_set1_ps(-2.76076847742355e-16f);
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.00018790482477e-13f));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-8.60467152213735e-11f));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(5.12229709037114e-08f));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(1.48572235717979e-05f));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(6.37261928875436e-04f));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(4.89352455891786e-03f));
    q = _mm512_set1_ps(1.19825839466702e-06f);
    q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(1.18534705686654e-04f));
    q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(2.26843463243900e-03f));
    q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(4.89352518554385e-03f));
    return _mm512_mul_ps(_mm512_mul_ps(x, p), reciprocal(q));
}

static inline __m512 sigmoid(__m512 x) {
    const __m512 half = _mm512_set1_ps(0.5f);
    return _mm512_fmadd_ps(hyperbolic_tangent(_mm512_mul_ps(x, half)), half, half);
}

/* 2^x by Taylor's series of the fraction in [-1/2, 1/2]. */
static inline __m512 power_of_two(__m512 x) {
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole), p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

/* State from `before` to `after`, 16 units at a time: three sums and their gates. */
static inline void advance(const network *net, const float *terms, float last, const float *before,
                           float *after) {
    const __m512 sample = _mm512_set1_ps(last);
    for (int unit = 0; unit < HIDDEN; unit += LANES) {
        __m512 gate[3];
        for (int k = 0; k < 3; k++)
            gate[k] = _mm512_fmadd_ps(_mm512_loadu_ps(net->gate_column + k * HIDDEN + unit), sample,
                                      _mm512_loadu_ps(terms + k * HIDDEN + unit));
        int group = unit / LANES, groups = HIDDEN / LANES;
        __m512 bias = _mm512_loadu_ps(net->recurrent_bias + unit);
        __m512 reset = sigmoid(product(&net->recurrent, group, before, gate[0]));
        __m512 update = sigmoid(product(&net->recurrent, groups + group, before, gate[1]));
        __m512 state = product(&net->recurrent, 2 * groups + group, before, bias);
        __m512 candidate = hyperbolic_tangent(_mm512_fmadd_ps(reset, state, gate[2]));
        __m512 kept = _mm512_sub_ps(_mm512_loadu_ps(before + unit), candidate);
        _mm512_storeu_ps(after + unit, _mm512_fmadd_ps(update, kept, candidate));
    }
}

static inline void logits_of(const network *net, const float *terms, float last, const float *state,
                             float *dense, float *logits) {
    const __m512 sample = _mm512_set1_ps(last), zero = _mm512_setzero_ps();
    for (int row = 0; row < DENSE; row += LANES) {
        __m512 start = _mm512_fmadd_ps(_mm512_loadu_ps(net->dense_column + row), sample,
                                       _mm512_loadu_ps(terms + row));
        __m512 sum = product(&net->dense, row / LANES, state, start);
        _mm512_storeu_ps(dense + row, _mm512_max_ps(sum, zero));
    }
    for (int row = 0; row < CLASSES; row += LANES) {
        __m512 bias = _mm512_loadu_ps(net->output_bias + row);
        _mm512_storeu_ps(logits + row, product(&net->output, row / LANES, dense, bias));
    }
}

/* The first class at which the sum of weights exceeds the share `uniform` of all. */
static inline int64_t draw(const float *logits, float uniform) {
    __m512 most = _mm512_loadu_ps(logits), weights[VECTORS], all = _mm512_setzero_ps();
    for (int k = 1; k < VECTORS; k++)
        most = _mm512_max_ps(most, _mm512_loadu_ps(logits + LANES * k));
    const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    const __m512 log2_e = _mm512_set1_ps(1.44269504f);
    for (int k = 0; k < VECTORS; k++) {
        __m512 below = _mm512_sub_ps(_mm512_loadu_ps(logits + LANES * k), largest);
        weights[k] = power_of_two(_mm512_mul_ps(below, log2_e));
        all = _mm512_add_ps(all, weights[k]);
    }
    float wanted = uniform * _mm512_reduce_add_ps(all), sum = 0, lanes[LANES];
    int vector = 0;
    for (; vector < VECTORS - 1; vector++) {
        float own = _mm512_reduce_add_ps(weights[vector]);
        if (sum + own > wanted) break;
        sum += own;
    }
    _mm512_storeu_ps(lanes, weights[vector]);
    int lane = 0;
    for (; lane < LANES - 1; lane++) {
        sum += lanes[lane];
        if (sum > wanted) break;
    }
    return LANES * vector + lane;
}

static inline uint64_t splitmix(uint64_t word) {
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    word = (word ^ word >> 27) * 0x94d049bb133111ebu;
    return word ^ word >> 31;
}

/* `count` samples from silence. With `given`, those classes are taken for the drawn ones; with
   `logits`, (count, CLASSES), these are told. */
void deck_samples(const network *net, uint64_t seed, int64_t count, const int64_t *given,
                  float *logits, int64_t *classes) {
    float states[2][HIDDEN] = {{0}}, dense[DENSE], own[CLASSES], last = 0;
    const uint64_t key = splitmix(seed);
    const unsigned int control = _mm_getcsr();
    _mm_setcsr(control | 0x8040); /* denormal numbers are zero */
    for (int64_t t = 0; t < count; t++) {
        const float *gate_terms = net->gate_terms + t / HOP * 3 * HIDDEN;
        const float *dense_terms = net->dense_terms + t / HOP * DENSE;
        float *found = logits ? logits + t * CLASSES : own, *after = states[(t + 1) & 1];
        advance(net, gate_terms, last, states[t & 1], after);
        logits_of(net, dense_terms, last, after, dense, found);
        uint64_t word = splitmix(key + (uint64_t)(t + 1) * 0x9e3779b97f4a7c15u);
        int64_t chosen = draw(found, (float)(word >> 40) * 0x1p-24f);
        classes[t] = given ? given[t] : chosen;
        last = (float)classes[t] * (2.0f / (CLASSES - 1)) - 1;
    }
    _mm_setcsr(control);
}

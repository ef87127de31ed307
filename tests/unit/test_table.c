/*  test_table.c - every operation x reduction x dtype x size x number of ranks x transport against
    a serial reference

    test_table [seed N] [all]     a sample that differs by seed (0: a random one) and always has
                                  every combination of operation, reduction, dtype, number of ranks
                                  and transport; `all`: with every size, in place and not, in even
                                  and uneven parts (of those with more than 5 ranks and 70,000
                                  elements each transport gets one form)

    Integers are any bits, floats any floats: in some cells NaN, infinities, denormals and signed
    zeros among them. The reference knows nothing of the library's kernels or algorithms: it follows
    the rules that cdp.h states, with 16-bit floats decoded and rounded by definition, and combines
    in the order that is written down here; every bit is compared. Transports: a hub with a thread
    per rank, a hub whose ranks are polled in turn, TCP over loopback, memory that is shared as
    between processes, and TCP in the simulator with delays, cut segments and small buffers. */
#define CDP_IMPLEMENTATION
#define CDP__BLOCK_BYTES 3000u /* so that most operations take all connections of a link */
#include "cdp_store.h"
#include "own.h"

#include "cdp_tcp.h"

#include "test.h"

#include "sim/sim.h"
#include "ports.h"
#include "group_memory.h"

#include <math.h>
#include <pthread.h>

#define RANKS_MAX 16u
#define GUARD 32u
#define BATCH 24u

#if defined(__SANITIZE_THREAD__)
#define HAS_SIM 0 /* ThreadSanitizer does not know about stacks that are switched */
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_SIM 0
#endif
#endif
#ifndef HAS_SIM
#define HAS_SIM 1
#endif

typedef enum transport {
    HUB,
    POLLED,
    TCP,
    MEMORY,
    SIMULATED,
    TRANSPORTS
} transport;
static const char *const transport_names[TRANSPORTS] = {
    "hub", "polled hub", "TCP", "shared memory", "simulated TCP"};

static uint64_t seed = 1, cells_run[TRANSPORTS], exposures_seen;
static bool everything;

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t s = a * 0x9e3779b97f4a7c15u + b;
    return test_random(&s);
}

/* ---- dtypes, by definition ------------------------------------------------------------------- */

static bool is_half(cdp_dtype t) {
    return t == CDP_DTYPE_F16 || t == CDP_DTYPE_BF16;
}
static bool is_float(cdp_dtype t) {
    return t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64 || is_half(t);
}

/* What exists, in the words of the documentation. */
static bool exists(cdp_dtype t, cdp_reduce_op op) {
    if (t == CDP_DTYPE_CF32 || t == CDP_DTYPE_CF64)
        return op == CDP_REDUCE_SUM || op == CDP_REDUCE_AVG || op == CDP_REDUCE_PRODUCT
            || op == CDP_REDUCE_PREMUL_SUM;
    const bool real = is_float(t) || t == CDP_DTYPE_F8E4M3 || t == CDP_DTYPE_F8E5M2;
    if (op == CDP_REDUCE_BAND || op == CDP_REDUCE_BOR || op == CDP_REDUCE_BXOR) return !real;
    if (op == CDP_REDUCE_PREMUL_SUM) return real;
    return !(t == CDP_DTYPE_BOOL && op == CDP_REDUCE_AVG);
}

static double exact_half(uint16_t h, bool bf) { /* of all but NaN and infinity */
    const int bits = bf ? 7 : 10, bias = bf ? 127 : 15, exponent = h >> bits & (bf ? 255 : 31);
    const double fraction = (double)(h & ((1 << bits) - 1)) / (1 << bits);
    double v = exponent ? 1 + fraction : fraction;
    for (int i = exponent ? exponent : 1; i < bias; ++i)
        v /= 2;
    for (int i = bias; i < exponent; ++i)
        v *= 2;
    return h & 0x8000 ? -v : v;
}

static float half_values[2][65536];

static void half_tables(void) {
    for (uint32_t bf = 0; bf < 2; ++bf)
        for (uint32_t h = 0; h < 65536; ++h) {
            const uint32_t mag = h & 0x7fff, inf = bf ? 0x7f80 : 0x7c00;
            half_values[bf][h] = NAN;
            if (mag == inf) half_values[bf][h] = h & 0x8000 ? -INFINITY : INFINITY;
            if (mag < inf) half_values[bf][h] = (float)exact_half((uint16_t)h, bf);
        }
}

/* To the nearest, to the even one of two that are as near; NaN is always the same. */
static uint16_t to_half(double v, bool bf) {
    const int bits = bf ? 7 : 10, low = bf ? -126 : -14, high = bf ? 127 : 15;
    const uint16_t sign = signbit(v) ? 0x8000u : 0;
    uint64_t raw;
    int e;
    double step, n;
    if (isnan(v)) return bf ? 0x7fc0 : 0x7e00;
    v = fabs(v);
    memcpy(&raw, &v, 8);
    e = (int)(raw >> 52) - 1023;
    if (e < low) e = low;
    if (e > high) return (uint16_t)(sign | (bf ? 0x7f80 : 0x7c00));
    raw = (uint64_t)(e - bits + 1023) << 52;
    memcpy(&step, &raw, 8);
    n = v / step + 4503599627370496.0; /* 2^52: only whole numbers from here on */
    n -= 4503599627370496.0;
    /* a carry into the exponent is as it should be */
    return (uint16_t)(sign | (uint16_t)(((uint64_t)(e - low) << bits) + (uint64_t)n));
}

/* l[i] = l[i] OP r[i] */
#define EACH(EXPR)                   \
    for (uint64_t i = 0; i < n; ++i) \
    l[i] = (EXPR)
#define INT_COMBINE(T)                                  \
    {                                                   \
        T *l = (T *)l_;                                 \
        const T *r = (const T *)r_;                     \
        if (op == CDP_REDUCE_MIN)                       \
            EACH(l[i] < r[i] ? l[i] : r[i]);            \
        else if (op == CDP_REDUCE_MAX)                  \
            EACH(l[i] > r[i] ? l[i] : r[i]);            \
        else if (op == CDP_REDUCE_PRODUCT)              \
            EACH((T)((uint64_t)l[i] * (uint64_t)r[i])); \
        else if (op == CDP_REDUCE_BAND)                 \
            EACH((T)(l[i] & r[i]));                     \
        else if (op == CDP_REDUCE_BOR)                  \
            EACH((T)(l[i] | r[i]));                     \
        else if (op == CDP_REDUCE_BXOR)                 \
            EACH((T)(l[i] ^ r[i]));                     \
        else                                            \
            EACH((T)((uint64_t)l[i] + (uint64_t)r[i])); \
        return;                                         \
    }
/* Of equal ones, as 0 and -0 are, the left. */
static double lower(double l, double r) {
    if (isnan(l) || isnan(r)) return NAN;
    return r < l ? r : l;
}
static double higher(double l, double r) {
    if (isnan(l) || isnan(r)) return NAN;
    return r > l ? r : l;
}
#define ONE_NAN(T, v) (isnan(v) ? (T)NAN : (v))
#define FLOAT_COMBINE(T)                   \
    {                                      \
        T *l = (T *)l_;                    \
        const T *r = (const T *)r_;        \
        if (op == CDP_REDUCE_MIN)          \
            EACH((T)lower(l[i], r[i]));    \
        else if (op == CDP_REDUCE_MAX)     \
            EACH((T)higher(l[i], r[i]));   \
        else if (op == CDP_REDUCE_PRODUCT) \
            EACH(ONE_NAN(T, l[i] * r[i])); \
        else                               \
            EACH(ONE_NAN(T, l[i] + r[i])); \
        return;                            \
    }

static void combine(cdp_dtype t, cdp_reduce_op op, void *l_, const void *r_, uint64_t n) {
    switch (t) {
    case CDP_DTYPE_F32: FLOAT_COMBINE(float)
    case CDP_DTYPE_F64: FLOAT_COMBINE(double)
    case CDP_DTYPE_I8: INT_COMBINE(int8_t)
    case CDP_DTYPE_I16: INT_COMBINE(int16_t)
    case CDP_DTYPE_I32: INT_COMBINE(int32_t)
    case CDP_DTYPE_I64: INT_COMBINE(int64_t)
    case CDP_DTYPE_U8: INT_COMBINE(uint8_t)
    case CDP_DTYPE_U16: INT_COMBINE(uint16_t)
    case CDP_DTYPE_U32: INT_COMBINE(uint32_t)
    case CDP_DTYPE_U64: INT_COMBINE(uint64_t)
    case CDP_DTYPE_BOOL: {
        uint8_t *l = (uint8_t *)l_;
        const uint8_t *r = (const uint8_t *)r_;
        if (op == CDP_REDUCE_BXOR)
            EACH(l[i] != r[i]);
        else if (op == CDP_REDUCE_PRODUCT || op == CDP_REDUCE_MIN || op == CDP_REDUCE_BAND)
            EACH(l[i] && r[i]);
        else
            EACH(l[i] || r[i]);
        return;
    }
    default: {
        const bool bf = t == CDP_DTYPE_BF16;
        uint16_t *l = (uint16_t *)l_;
        const uint16_t *r = (const uint16_t *)r_;
        for (uint64_t i = 0; i < n; ++i) {
            const float a = half_values[bf][l[i]], b = half_values[bf][r[i]];
            float v = a + b;
            if (op == CDP_REDUCE_MIN)
                v = (float)lower(a, b);
            else if (op == CDP_REDUCE_MAX)
                v = (float)higher(a, b);
            else if (op == CDP_REDUCE_PRODUCT)
                v = a * b;
            l[i] = to_half((double)v, bf);
        }
    }
    }
}

static int64_t nearest(int64_t v, uint32_t by) {
    const int64_t left = v % by;
    if (2 * (left < 0 ? -left : left) < by) return v / by;
    return v / by + (left < 0 ? -1 : 1);
}
static uint64_t nearest_u(uint64_t v, uint32_t by) {
    return v / by + (2 * (v % by) >= by);
}

/* Divided by the number of ranks, or multiplied by a factor (of floats). */
static void finish(cdp_dtype t, void *data, uint64_t n, uint32_t ranks, double factor) {
    for (uint64_t i = 0; i < n; ++i)
        switch (t) {
        case CDP_DTYPE_F32:
            ((float *)data)[i] =
                ranks ? ((float *)data)[i] / (float)ranks : ((float *)data)[i] * (float)factor;
            break;
        case CDP_DTYPE_F64:
            ((double *)data)[i] =
                ranks ? ((double *)data)[i] / ranks : ((double *)data)[i] * factor;
            break;
        case CDP_DTYPE_I8: ((int8_t *)data)[i] = (int8_t)nearest(((int8_t *)data)[i], ranks); break;
        case CDP_DTYPE_I16:
            ((int16_t *)data)[i] = (int16_t)nearest(((int16_t *)data)[i], ranks);
            break;
        case CDP_DTYPE_I32:
            ((int32_t *)data)[i] = (int32_t)nearest(((int32_t *)data)[i], ranks);
            break;
        case CDP_DTYPE_I64:
            ((int64_t *)data)[i] = (int64_t)nearest(((int64_t *)data)[i], ranks);
            break;
        case CDP_DTYPE_U8:
            ((uint8_t *)data)[i] = (uint8_t)nearest_u(((uint8_t *)data)[i], ranks);
            break;
        case CDP_DTYPE_U16:
            ((uint16_t *)data)[i] = (uint16_t)nearest_u(((uint16_t *)data)[i], ranks);
            break;
        case CDP_DTYPE_U32:
            ((uint32_t *)data)[i] = (uint32_t)nearest_u(((uint32_t *)data)[i], ranks);
            break;
        case CDP_DTYPE_U64:
            ((uint64_t *)data)[i] = (uint64_t)nearest_u(((uint64_t *)data)[i], ranks);
            break;
        case CDP_DTYPE_BOOL: break;
        default: {
            const bool bf = t == CDP_DTYPE_BF16;
            uint16_t *h = (uint16_t *)data + i;
            *h = to_half(ranks ? (double)(half_values[bf][*h] / (float)ranks)
                               : (double)(half_values[bf][*h] * (float)factor),
                bf);
        }
        }
}

/* ---- cells ----------------------------------------------------------------------------------- */

typedef enum size_class {
    S_0,
    S_1,
    S_FEW,
    S_MORE,
    S_PRIME,
    S_THOUSANDS,
    S_LARGE,
    SIZES
} size_class;
typedef enum way {
    W_CALL,
    W_ASYNC,
    W_TOGETHER,
    WAYS
} way;

typedef struct cell {
    cdp_coll_kind kind;
    cdp_dtype dtype;
    cdp_reduce_op op;
    size_class size;
    /* uneven: part of each rank; alltoall: from, to */
    uint64_t count, counts[RANKS_MAX], table[RANKS_MAX][RANKS_MAX];
    uint32_t root, n;
    way how;
    bool in_place, uneven, special, accumulate;
    uint64_t salt;
} cell;

static bool kind_reduces(cdp_coll_kind k) {
    return k == CDP_COLL_ALLREDUCE || k == CDP_COLL_REDUCE || k == CDP_COLL_REDUCE_SCATTER;
}
static bool has_parts(cdp_coll_kind k) {
    return k == CDP_COLL_ALLGATHER || k == CDP_COLL_GATHER || k == CDP_COLL_SCATTER
        || k == CDP_COLL_REDUCE_SCATTER || k == CDP_COLL_ALLTOALL;
}
/* can be in place or not */
static bool has_place(cdp_coll_kind k) {
    return k != CDP_COLL_ALLTOALL && k != CDP_COLL_BROADCAST && k != CDP_COLL_BARRIER;
}

static void cell_counts(cell *c) {
    const uint32_t n = c->n;
    const uint64_t counts[SIZES] = {
        0, 1, n > 2 ? n - 1 : 2, n + 1, 257, 4999, has_parts(c->kind) ? (70000 + n) / n : 70001};
    c->count = counts[c->size];
    for (uint32_t i = 0; i < n; ++i) {
        c->counts[i] = mix(c->salt, 100 + i) % 4 ? mix(c->salt, 200 + i) % (c->count + 3) : 0;
        for (uint32_t k = 0; k < n; ++k)
            c->table[i][k] = mix(c->salt, 1000 + i * n + k) % 3
                ? mix(c->salt, 2000 + i * n + k) % (c->count / n + 2)
                : 0;
    }
    if (c->size == S_LARGE) { /* one of the parts is very large */
        c->counts[mix(c->salt, 5) % n] = 70001;
        c->table[mix(c->salt, 6) % n][mix(c->salt, 7) % n] = 70001;
    }
}

/* Combination i of operation, reduction and dtype. False: there are no more, or this one does
   not exist. */
/* the last one that is reduced here */
#define COMBINATIONS (9u * (CDP_REDUCE_COUNT - 1) * CDP_DTYPE_BOOL)
static bool cell_combination(uint32_t i, cell *c) {
    c->kind = (cdp_coll_kind)(1 + i % 9);
    c->op = (cdp_reduce_op)(1 + i / 9 % (CDP_REDUCE_COUNT - 1));
    c->dtype = (cdp_dtype)(1 + i / 9 / (CDP_REDUCE_COUNT - 1));
    if (!kind_reduces(c->kind) && c->op != CDP_REDUCE_SUM) return false;
    if (c->kind == CDP_COLL_BARRIER && c->dtype != CDP_DTYPE_F32) return false;
    return !kind_reduces(c->kind) || exists(c->dtype, c->op);
}

static uint64_t part(const cell *c, uint32_t r) {
    return c->uneven ? c->counts[r] : c->count;
}
static uint64_t offset(const cell *c, uint32_t r) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < r; ++i)
        at += part(c, i);
    return at;
}
static uint64_t pair(const cell *c, uint32_t from, uint32_t to) {
    return c->uneven ? c->table[from][to] : c->count;
}

static void lengths(const cell *c, uint32_t r, uint64_t *in, uint64_t *out) {
    const uint64_t all = offset(c, c->n), own = part(c, r);
    const bool root = r == c->root;
    *in = *out = c->kind == CDP_COLL_BARRIER ? 0 : c->count;
    if (c->kind == CDP_COLL_ALLGATHER || c->kind == CDP_COLL_GATHER) {
        *in = own;
        *out = c->kind == CDP_COLL_ALLGATHER || root ? all : own;
    }
    if (c->kind == CDP_COLL_SCATTER) {
        *in = root ? all : 0;
        *out = root && c->in_place ? all : own;
    }
    if (c->kind == CDP_COLL_REDUCE_SCATTER) {
        *in = all;
        *out = c->in_place ? all : own;
    }
    if (c->kind == CDP_COLL_BROADCAST && !root) *in = 0;
    if (c->kind == CDP_COLL_ALLTOALL) {
        *in = *out = 0;
        for (uint32_t i = 0; i < c->n; ++i) {
            *in += pair(c, r, i);
            *out += pair(c, i, r);
        }
    }
}

static double factor_of(uint32_t r) {
    return r % 4 == 1 ? 1 : 0.3 * (r + 1) - (double)(r % 3);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Bits of a float with `exponents` exponent bits and `bits` fraction bits. */
static uint64_t float_bits(uint64_t raw, uint32_t bits, uint32_t exponents, bool special) {
    const uint64_t fraction = raw & ((1ull << bits) - 1), sign = (raw >> 63) << (bits + exponents),
                   ones = ((1ull << exponents) - 1) << bits;
    const uint32_t range = exponents > 6 ? 13 : 7;
    if (special) switch (raw >> 53 & 31) {
        /* NaN of any kind */
        case 0: return sign | ones | (fraction ? fraction : 1);
        case 1: return sign | ones;
        case 2: return sign;
        case 3: return 1;
        case 4:
            return sign | fraction; /* denormal */
        /* the largest of them */
        case 5: return sign | ((1ull << bits) - 1);
        /* largest of all */
        case 6: return sign | (ones - 1);
        case 7: return sign | 1ull << bits;
        case 8: return sign | 3ull << (bits + exponents - 3) | fraction;
        default: break;
        }
    return sign | ((1ull << (exponents - 1)) - 1 - range / 2 + (raw >> 58 & 31) % range) << bits
        | fraction;
}

static void fill(const cell *c, uint32_t r, void *at, uint64_t n) {
    const uint64_t bytes = cdp_dtype_size(c->dtype);
    uint64_t state = mix(c->salt, r + 7);
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t raw = test_random(&state);
        switch (c->dtype) {
        case CDP_DTYPE_F32: raw = float_bits(raw, 23, 8, c->special); break;
        case CDP_DTYPE_F64: raw = float_bits(raw, 52, 11, c->special); break;
        case CDP_DTYPE_F16: raw = float_bits(raw, 10, 5, c->special); break;
        case CDP_DTYPE_BF16: raw = float_bits(raw, 7, 8, c->special); break;
        case CDP_DTYPE_BOOL: raw = raw >> 7 & 1; break;
        default:
            if (raw >> 60 == 0) raw = raw >> 59 & 1 ? 0 : ~0ull;
            /* the smallest or largest signed one */
            else if (raw >> 60 == 1)
                raw = (1ull << (8 * bytes - 1)) - (raw >> 59 & 1);
            else if (raw >> 60 == 2)
                raw &= 1;
            break;
        }
        memcpy((char *)at + i * bytes, &raw, bytes); /* little-endian machines */
    }
}

/* ---- the reference --------------------------------------------------------------------------- */

typedef struct answer { /* of a cell; what is not used is NULL */
    uint8_t *in[RANKS_MAX];
    uint8_t *reduced, *joined; /* the reduction of all; all parts one after the other */
} answer;

/* a reduction in progress: elements [off, off + len) of every rank's (scaled) input */
typedef struct sum {
    const cell *c;
    uint8_t *const *in;
    uint64_t off, len;
} sum;

static const uint8_t *operand(const sum *s, uint32_t r) {
    return s->in[r] + s->off * cdp_dtype_size(s->c->dtype);
}
static uint64_t sum_bytes(const sum *s) {
    return s->len * cdp_dtype_size(s->c->dtype);
}

/* The ranks from `first` on, upwards or downwards, one after the other from the left. */
static void sum_chain(const sum *s, uint32_t first, bool up, uint8_t *out) {
    const uint32_t n = s->c->n;
    memcpy(out, operand(s, first), sum_bytes(s));
    for (uint32_t k = 1; k < n; ++k)
        combine(
            s->c->dtype, s->c->op, out, operand(s, (up ? first + k : first + n - k) % n), s->len);
}

/* Neighbours (0,1), (2,3), ... first while there are more ranks than a power of two; then halves
   of what is left. */
static void sum_halves(const sum *s, uint32_t lo, uint32_t hi, uint32_t extra, uint8_t *out) {
    if (hi - lo > 1) {
        uint8_t *right = (uint8_t *)malloc(sum_bytes(s) + 1);
        sum_halves(s, lo, lo + (hi - lo) / 2, extra, out);
        sum_halves(s, lo + (hi - lo) / 2, hi, extra, right);
        combine(s->c->dtype, s->c->op, out, right, s->len);
        free(right);
    } else {
        memcpy(out, operand(s, lo < extra ? 2 * lo : lo + extra), sum_bytes(s));
        if (lo < extra) combine(s->c->dtype, s->c->op, out, operand(s, 2 * lo + 1), s->len);
    }
}

/* The same folding; then those whose numbers differ in the highest bit first, neighbours at
   last. */
static void sum_strides(const sum *s, uint32_t first, uint32_t step, uint32_t two, uint8_t *out) {
    if (step < two) {
        uint8_t *right = (uint8_t *)malloc(sum_bytes(s) + 1);
        sum_strides(s, first, 2 * step, two, out);
        sum_strides(s, first + step, 2 * step, two, right);
        combine(s->c->dtype, s->c->op, out, right, s->len);
        free(right);
    } else {
        sum_halves(s, first, first + 1, s->c->n - two, out);
    }
}

/* A binomial tree, ranks counted from the root: v has the sum of v .. v + span - 1. */
static void sum_binomial(const sum *s, uint32_t v, uint32_t span, uint8_t *out) {
    const uint32_t n = s->c->n;
    if (span == 1) {
        memcpy(out, operand(s, (v + s->c->root) % n), sum_bytes(s));
        return;
    }
    sum_binomial(s, v, span / 2, out);
    if (v + span / 2 < n) {
        uint8_t *right = (uint8_t *)malloc(sum_bytes(s) + 1);
        sum_binomial(s, v + span / 2, span / 2, right);
        combine(s->c->dtype, s->c->op, out, right, s->len);
        free(right);
    }
}

/* small_bytes IN_ORDER: every kind in the order of small allreduces. */
#define IN_ORDER UINT64_MAX
/* does every rank combine its part of all vectors? */
typedef enum direct {
    NOT_DIRECT,
    DIRECT_IF_LARGE,
    DIRECT
} direct;
static void reduce_all(
    const cell *c, uint8_t *const *in, uint64_t small_bytes, direct d, uint8_t *out) {
    const uint64_t bytes = cdp_dtype_size(c->dtype);
    const uint32_t n = c->n;
    uint32_t two = 1, span = 1;
    sum s = {c, in, 0, c->count};
    while (2 * two <= n)
        two *= 2;
    while (span < n)
        span *= 2;
    if (d == DIRECT_IF_LARGE && c->kind == CDP_COLL_ALLREDUCE && small_bytes != IN_ORDER)
        small_bytes /= 4;
    if (small_bytes == IN_ORDER) {
        if (c->kind == CDP_COLL_REDUCE_SCATTER) s.len = offset(c, n);
        sum_halves(&s, 0, two, n - two, out);
    } else if (c->kind == CDP_COLL_REDUCE_SCATTER) {
        const uint64_t all = offset(c, n) * bytes;
        const bool small = all <= small_bytes && d != DIRECT
            && (d == NOT_DIRECT || n > 4 || all > small_bytes / 16),
                   paired = (n == two && d == NOT_DIRECT && all <= 1 << 20)
            || (n > 8 && d == DIRECT_IF_LARGE && all <= 4 << 20);
        for (uint32_t p = 0; p < n; ++p) {
            s.off = offset(c, p);
            s.len = part(c, p);
            if (n > 2 && (small || paired))
                sum_strides(&s, 0, 1, two, out + s.off * bytes);
            else
                sum_chain(&s, p, false, out + s.off * bytes);
        }
    } else if (c->kind == CDP_COLL_ALLREDUCE && c->count * bytes > small_bytes
        && ((n > 2 && n == two && d == NOT_DIRECT && c->count * bytes <= 1 << 20)
            || (n > 8 && d == DIRECT_IF_LARGE && c->count * bytes <= 4 << 20))) {
        sum_strides(&s, 0, 1, two, out);
    } else if (c->count * bytes > small_bytes || (d == DIRECT && c->kind == CDP_COLL_ALLREDUCE)) {
        for (uint32_t p = 0; p < n; ++p) { /* cut in n parts, the longer ones first */
            s.len = c->count / n + (p < c->count % n);
            sum_chain(&s, p, true, out + s.off * bytes);
            s.off += s.len;
        }
    } else if (c->kind == CDP_COLL_ALLREDUCE) {
        sum_halves(&s, 0, two, n - two, out);
    } else {
        sum_binomial(&s, 0, span, out);
    }
}

/* The dtype of partial results of means, and where they are accumulated. */
static cdp_dtype wide_dtype(cdp_dtype t) {
    switch (t) {
    case CDP_DTYPE_F16:
    case CDP_DTYPE_BF16: return CDP_DTYPE_F32;
    case CDP_DTYPE_I8:
    case CDP_DTYPE_I16: return CDP_DTYPE_I32;
    case CDP_DTYPE_U8:
    case CDP_DTYPE_U16: return CDP_DTYPE_U32;
    case CDP_DTYPE_I32: return CDP_DTYPE_I64;
    case CDP_DTYPE_U32: return CDP_DTYPE_U64;
    default: return t;
    }
}

/* Means of 64-bit integers, whose sum needs more bits than that: in halves of 32 bits. */
static void mean_64(const cell *c, uint8_t **in, uint64_t n, uint8_t *out) {
    const int64_t ranks = c->n;
    for (uint64_t i = 0; i < n; ++i) {
        int64_t high = 0, below;
        uint64_t low = 0, rest, mean;
        for (uint32_t r = 0; r < c->n; ++r) {
            uint64_t v;
            memcpy(&v, in[r] + 8 * i, 8);
            low += v & 0xffffffff;
            high += (int64_t)(v >> 32);
            if (c->dtype == CDP_DTYPE_I64 && v >> 63) high -= (int64_t)1 << 32;
        }
        high += (int64_t)(low >> 32);
        below = high / ranks - (high % ranks < 0); /* rounded down */
        rest = (uint64_t)(high - below * ranks) << 32 | (low & 0xffffffff);
        mean = ((uint64_t)below << 32) + rest / c->n;
        if (rest % c->n * 2 > c->n || (rest % c->n * 2 == c->n && high >= 0)) ++mean;
        memcpy(out + 8 * i, &mean, 8);
    }
}

/* Wider partial results: of large operations in the order of small ones. */
static uint64_t wide_order(const cell *w, uint64_t small_bytes, direct d) {
    const bool scatter = w->kind == CDP_COLL_REDUCE_SCATTER;
    const uint64_t bytes = (scatter ? offset(w, w->n) : w->count) * cdp_dtype_size(w->dtype);
    if (d == DIRECT && w->kind != CDP_COLL_REDUCE) return small_bytes;
    if (w->kind == CDP_COLL_ALLREDUCE) return IN_ORDER;
    return bytes <= (scatter ? small_bytes / 4 : small_bytes) ? small_bytes : IN_ORDER;
}

/* The conversions themselves are those of the library: test_reduce.c has a reference for them. */
static void wide_all(
    const cell *c, uint8_t **in, uint64_t n, uint64_t small_bytes, direct d, uint8_t *out) {
    uint8_t *wide[RANKS_MAX], *total;
    cell w = *c;
    if (c->op == CDP_REDUCE_AVG && (c->dtype == CDP_DTYPE_I64 || c->dtype == CDP_DTYPE_U64)) {
        mean_64(c, in, n, out);
        return;
    }
    w.dtype = wide_dtype(c->dtype);
    if (w.dtype != c->dtype) small_bytes = wide_order(&w, small_bytes, d);
    total = (uint8_t *)malloc(n * cdp_dtype_size(w.dtype) + 1);
    for (uint32_t r = 0; r < c->n; ++r) {
        wide[r] = (uint8_t *)malloc(n * cdp_dtype_size(w.dtype) + 1);
        cdp__convert(c->dtype, in[r], w.dtype, wide[r], n);
        if (c->op == CDP_REDUCE_PREMUL_SUM) finish(w.dtype, wide[r], n, 0, factor_of(r));
    }
    reduce_all(&w, wide, small_bytes, d, total);
    if (c->op == CDP_REDUCE_AVG) finish(w.dtype, total, n, c->n, 1);
    cdp__convert(w.dtype, total, c->dtype, out, n);
    for (uint32_t r = 0; r < c->n; ++r)
        free(wide[r]);
    free(total);
}

static void answer_make(const cell *c, uint64_t small_bytes, direct d, answer *a) {
    const uint64_t bytes = cdp_dtype_size(c->dtype);
    uint64_t in, out;
    memset(a, 0, sizeof *a);
    for (uint32_t r = 0; r < c->n; ++r) {
        lengths(c, r, &in, &out);
        a->in[r] = (uint8_t *)malloc(in * bytes + 1);
        fill(c, r, a->in[r], in);
    }
    if (kind_reduces(c->kind)) {
        uint8_t *scaled[RANKS_MAX];
        lengths(c, 0, &in, &out);
        a->reduced = (uint8_t *)malloc(in * bytes + 1);
        for (uint32_t r = 0; r < c->n; ++r) {
            scaled[r] = a->in[r];
            if (c->op != CDP_REDUCE_PREMUL_SUM || c->accumulate) continue;
            scaled[r] = (uint8_t *)malloc(in * bytes + 1);
            memcpy(scaled[r], a->in[r], in * bytes);
            finish(c->dtype, scaled[r], in, 0, factor_of(r));
        }
        if ((c->op == CDP_REDUCE_AVG || c->accumulate) && c->n > 1)
            wide_all(c, scaled, in, small_bytes, d, a->reduced);
        else
            reduce_all(c, scaled, small_bytes, d, a->reduced);
        for (uint32_t r = 0; r < c->n; ++r)
            if (scaled[r] != a->in[r]) free(scaled[r]);
    }
    if (c->kind == CDP_COLL_ALLGATHER || c->kind == CDP_COLL_GATHER) {
        a->joined = (uint8_t *)malloc(offset(c, c->n) * bytes + 1);
        for (uint32_t r = 0; r < c->n; ++r)
            memcpy(a->joined + offset(c, r) * bytes, a->in[r], part(c, r) * bytes);
    }
}

static void answer_free(const cell *c, answer *a) {
    for (uint32_t r = 0; r < c->n; ++r)
        free(a->in[r]);
    free(a->reduced);
    free(a->joined);
}

/* ---- one rank's memory for a cell ------------------------------------------------------------ */

/* Memory that other ranks view; every other cell lies there, as far as there is room. */
typedef struct arena {
    uint8_t *at;
    uint64_t used;
} arena;
#define ARENA_BYTES (8u << 20)

typedef struct buffers {
    uint8_t *in, *out, *own[2]; /* own: not in the arena */
    uint64_t in_count, out_count, counts[2][RANKS_MAX];
} buffers;

/* In place: where in `out` the input lies. */
static uint64_t input_at(const cell *c, uint32_t r) {
    return c->kind == CDP_COLL_ALLGATHER || (c->kind == CDP_COLL_GATHER && r == c->root)
        ? offset(c, r)
        : 0;
}

static uint8_t *take(const cell *c, arena *from, uint64_t bytes, uint8_t **own) {
    const uint64_t at = from ? from->used : 0;
    *own = NULL;
    if (!from || !from->at || c->salt % 2 || at + bytes > ARENA_BYTES)
        return *own = (uint8_t *)malloc(bytes);
    from->used += (bytes + 63) / 64 * 64;
    return from->at + at;
}

static cdp_request prepare(const cell *c, const answer *a, uint32_t r, buffers *b, arena *from) {
    const uint64_t e = cdp_dtype_size(c->dtype);
    cdp_request rq;
    lengths(c, r, &b->in_count, &b->out_count);
    b->in = take(c, from, b->in_count * e + GUARD, &b->own[0]);
    b->out = take(c, from, b->out_count * e + GUARD, &b->own[1]);
    memset(b->in + b->in_count * e, 0x11, GUARD);
    memset(b->out, 0x11, b->out_count * e + GUARD);
    memcpy(b->in, a->in[r], b->in_count * e);
    if (c->in_place || c->kind == CDP_COLL_BROADCAST)
        memcpy(b->out + input_at(c, r) * e, b->in, b->in_count * e);
    memset(&rq, 0, sizeof rq);
    rq.kind = c->kind;
    rq.in = b->in;
    if (c->in_place || c->kind == CDP_COLL_BROADCAST || c->kind == CDP_COLL_BARRIER)
        rq.in = mix(c->salt, 3) % 2 && has_place(c->kind) ? b->out : NULL;
    rq.out = b->out;
    rq.count = c->count;
    rq.dtype = c->dtype;
    rq.op = c->op;
    rq.root = c->root;
    rq.factor = factor_of(r);
    rq.accumulate = c->accumulate ? CDP_DTYPE_F32 : CDP_DTYPE_DEFAULT;
    for (uint32_t i = 0; i < c->n && c->uneven; ++i) {
        b->counts[0][i] = c->kind == CDP_COLL_ALLTOALL ? c->table[r][i] : c->counts[i];
        b->counts[1][i] = c->kind == CDP_COLL_ALLTOALL ? c->table[i][r] : c->counts[i];
    }
    if (c->uneven) {
        rq.in_counts = b->counts[0];
        rq.out_counts = b->counts[1];
    }
    return rq;
}

/* Elements [at, at + n) of the result; returns how many are wrong. */
static uint64_t compare(const cell *c, const buffers *b, uint64_t at, uint64_t n,
    const uint8_t *want, uint64_t *first) {
    const uint64_t e = cdp_dtype_size(c->dtype);
    uint64_t wrong = 0;
    if (n == 0 || memcmp(b->out + at * e, want, n * e) == 0) return 0;
    for (uint64_t i = 0; i < n; ++i) {
        if (memcmp(b->out + (at + i) * e, want + i * e, e) == 0) continue;
        /* of one rank's NaN the bits are not stated */
        if (c->n == 1 && c->op == CDP_REDUCE_PREMUL_SUM && is_float(c->dtype)) {
            if (c->dtype == CDP_DTYPE_F32 && isnan(((float *)(void *)b->out)[at + i])) continue;
            if (c->dtype == CDP_DTYPE_F64 && isnan(((double *)(void *)b->out)[at + i])) continue;
            if (is_half(c->dtype)
                && isnan(
                    half_values[c->dtype == CDP_DTYPE_BF16][((uint16_t *)(void *)b->out)[at + i]]))
                continue;
        }
        if (!wrong++) *first = at + i;
    }
    return wrong;
}

static uint64_t untouched(const cell *c, const buffers *b, const answer *a, uint32_t r) {
    const uint64_t e = cdp_dtype_size(c->dtype);
    uint64_t wrong = 0;
    if (c->in_place) return memcmp(b->out, a->in[r], b->out_count * e) != 0;
    for (uint64_t i = 0; i < b->out_count * e; ++i)
        wrong += b->out[i] != 0x11;
    return wrong;
}

static uint64_t result_wrong(
    const cell *c, const answer *a, uint32_t r, const buffers *b, uint64_t *first) {
    const uint64_t e = cdp_dtype_size(c->dtype), own = offset(c, r);
    uint64_t wrong = 0, at = 0;
    switch (c->kind) {
    case CDP_COLL_ALLREDUCE: return compare(c, b, 0, c->count, a->reduced, first);
    case CDP_COLL_REDUCE:
        return r == c->root ? compare(c, b, 0, c->count, a->reduced, first) : untouched(c, b, a, r);
    case CDP_COLL_REDUCE_SCATTER:
        return compare(c, b, c->in_place ? own : 0, part(c, r), a->reduced + own * e, first);
    case CDP_COLL_BROADCAST: return compare(c, b, 0, c->count, a->in[c->root], first);
    case CDP_COLL_ALLGATHER: return compare(c, b, 0, b->out_count, a->joined, first);
    case CDP_COLL_GATHER:
        return r == c->root ? compare(c, b, 0, b->out_count, a->joined, first)
                            : untouched(c, b, a, r);
    case CDP_COLL_SCATTER:
        return r == c->root && c->in_place
            ? compare(c, b, 0, b->out_count, a->in[r], first)
            : compare(c, b, 0, part(c, r), a->in[c->root] + own * e, first);
    case CDP_COLL_ALLTOALL:
        for (uint32_t p = 0; p < c->n; ++p) {
            uint64_t there = 0;
            for (uint32_t k = 0; k < r; ++k)
                there += pair(c, p, k);
            wrong += compare(c, b, at, pair(c, p, r), a->in[p] + there * e, first);
            at += pair(c, p, r);
        }
        return wrong;
    default: return 0;
    }
}

static void verify(const cell *c, const answer *a, uint32_t r, const buffers *b) {
    const uint64_t e = cdp_dtype_size(c->dtype);
    uint64_t first = 0, wrong = result_wrong(c, a, r, b, &first);
    char got[17] = "", want[17] = "";
    for (uint32_t i = 0; i < GUARD; ++i)
        wrong += b->out[b->out_count * e + i] != 0x11 || b->in[b->in_count * e + i] != 0x11;
    if (memcmp(b->in, a->in[r], b->in_count * e) != 0) ++wrong; /* inputs are only read */
    for (uint32_t i = 0; i < e && wrong && first < b->out_count; ++i) {
        snprintf(got + 2 * i, 3, "%02x", b->out[(first + 1) * e - 1 - i]);
        if (a->reduced)
            snprintf(want + 2 * i, 3, "%02x",
                a->reduced[(first + 1
                               + (c->kind == CDP_COLL_REDUCE_SCATTER && !c->in_place ? offset(c, r)
                                                                                     : 0))
                        * e
                    - 1 - i]);
    }
    test_check(!wrong, __FILE__, __LINE__,
        "rank %u/%u: %s of %llu x %s %s, root %u%s%s%s, way %d: %llu wrong, first element %llu is "
        "%s not %s",
        r, c->n, cdp_coll_name(c->kind), (unsigned long long)c->count, cdp_dtype_name(c->dtype),
        cdp_reduce_name(c->op), c->root, c->in_place ? ", in place" : "",
        c->uneven ? ", uneven" : "", c->special ? ", special values" : "", (int)c->how,
        (unsigned long long)wrong, (unsigned long long)first, got, want);
}

/* The function that a call has, where one has room for all of its arguments. */
static cdp_status call(cdp_group *g, const cdp_request *q, bool async) {
    cdp_work w = {NULL, 0};
    cdp_status st;
    switch (q->kind) {
    case CDP_COLL_ALLREDUCE:
        st = async ? cdp_allreduce_async(g, q->in, q->out, q->count, q->dtype, q->op, &w)
                   : cdp_allreduce(g, q->in, q->out, q->count, q->dtype, q->op);
        break;
    case CDP_COLL_BROADCAST:
        st = async ? cdp_broadcast_async(g, q->out, q->count, q->dtype, q->root, &w)
                   : cdp_broadcast(g, q->out, q->count, q->dtype, q->root);
        break;
    case CDP_COLL_ALLGATHER:
        st = async ? cdp_allgather_async(g, q->in, q->out, q->count, q->dtype, &w)
                   : cdp_allgather(g, q->in, q->out, q->count, q->dtype);
        break;
    case CDP_COLL_REDUCE:
        st = async ? cdp_reduce_async(g, q->in, q->out, q->count, q->dtype, q->op, q->root, &w)
                   : cdp_reduce(g, q->in, q->out, q->count, q->dtype, q->op, q->root);
        break;
    case CDP_COLL_GATHER:
        st = async ? cdp_gather_async(g, q->in, q->out, q->count, q->dtype, q->root, &w)
                   : cdp_gather(g, q->in, q->out, q->count, q->dtype, q->root);
        break;
    case CDP_COLL_SCATTER:
        st = async ? cdp_scatter_async(g, q->in, q->out, q->count, q->dtype, q->root, &w)
                   : cdp_scatter(g, q->in, q->out, q->count, q->dtype, q->root);
        break;
    case CDP_COLL_REDUCE_SCATTER:
        st = async ? cdp_reduce_scatter_async(g, q->in, q->out, q->count, q->dtype, q->op, &w)
                   : cdp_reduce_scatter(g, q->in, q->out, q->count, q->dtype, q->op);
        break;
    case CDP_COLL_ALLTOALL:
        st = async ? cdp_alltoall_async(g, q->in, q->out, q->count, q->dtype, &w)
                   : cdp_alltoall(g, q->in, q->out, q->count, q->dtype);
        break;
    default: st = async ? cdp_barrier_async(g, &w) : cdp_barrier(g); break;
    }
    return st == CDP_OK && async ? cdp_work_wait(w) : st;
}

/* What does not exist, and other mistakes, are refused at the call on every rank, and the group
   is as good as before. */
static void be_refused(cdp_group *g, uint64_t salt) {
    static const cdp_coll_kind kinds[3] = {
        CDP_COLL_ALLREDUCE, CDP_COLL_REDUCE, CDP_COLL_REDUCE_SCATTER};
    uint64_t x[RANKS_MAX] = {0};
    cdp_request rq;
    cdp_work w;
    memset(&rq, 0, sizeof rq);
    rq.kind = kinds[salt % 3];
    rq.out = x;
    rq.count = 1;
    do {
        rq.dtype = (cdp_dtype)(1 + test_random(&salt) % (CDP_DTYPE_COUNT - 1));
        rq.op = (cdp_reduce_op)(1 + test_random(&salt) % (CDP_REDUCE_COUNT - 1));
    } while (exists(rq.dtype, rq.op));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_start(g, &rq, &w));
    rq.dtype = (cdp_dtype)(CDP_DTYPE_COUNT + salt % 3);
    T_EQ(CDP_ERR_INVALID, cdp_start(g, &rq, &w));
    rq.dtype = CDP_DTYPE_U64;
    rq.op = CDP_REDUCE_SUM;
    rq.kind = CDP_COLL_REDUCE;
    rq.root = cdp_size(g) + (uint32_t)(salt % 2);
    T_EQ(CDP_ERR_INVALID, cdp_start(g, &rq, &w));
    rq.root = 0;
    rq.kind = CDP_COLL_ALLTOALL;
    T_EQ(CDP_ERR_INVALID, cdp_start(g, &rq, &w));
    T_EQ(CDP_OK, cdp_group_status(g));
}

/* ---- a table: the cells that a world of ranks goes through ----------------------------------- */

typedef struct batch {
    answer answers[BATCH];
    uint32_t taken; /* ranks that are done with it */
    bool made;
} batch;

typedef struct table {
    uint32_t n;
    transport by;
    cell *cells;
    uint32_t count, room;
    batch *batches;
    pthread_mutex_t lock;
    uint64_t small_bytes, piece_bytes, expose_bytes;
    bool reproducible;
    direct direct;
    uint16_t port;
    cdp_hub *hub;
    uint64_t hash[RANKS_MAX]; /* of each rank's results */
} table;

static void table_add(
    table *t, const cell *like, size_class size, bool in_place, bool uneven, uint64_t salt) {
    cell *c;
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 256;
        t->cells = (cell *)realloc(t->cells, t->room * sizeof *t->cells);
    }
    c = &t->cells[t->count++];
    *c = *like;
    c->n = t->n;
    c->size = size;
    c->salt = salt;
    c->in_place = in_place && has_place(c->kind);
    c->uneven = uneven && has_parts(c->kind);
    c->how = (way)(mix(salt, 1) % WAYS);
    c->special = is_float(c->dtype) && mix(salt, 2) % 2;
    c->root = (uint32_t)(mix(salt, 4) % t->n);
    c->accumulate = t->n > 1 && is_half(c->dtype) && kind_reduces(c->kind) && mix(salt, 8) % 2
        && (c->op == CDP_REDUCE_SUM || c->op == CDP_REDUCE_PRODUCT
            || c->op == CDP_REDUCE_PREMUL_SUM);
    if (c->accumulate) c->how = W_TOGETHER; /* the named functions cannot say so */
    cell_counts(c);
}

static batch *batch_get(table *t, uint32_t k) {
    batch *b = &t->batches[k];
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; !b->made && i < BATCH && k * BATCH + i < t->count; ++i)
        answer_make(&t->cells[k * BATCH + i], t->reproducible ? IN_ORDER : t->small_bytes,
            t->direct, &b->answers[i]);
    b->made = true;
    pthread_mutex_unlock(&t->lock);
    return b;
}

static void batch_put(table *t, uint32_t k) {
    batch *b = &t->batches[k];
    pthread_mutex_lock(&t->lock);
    if (++b->taken == t->n)
        for (uint32_t i = 0; i < BATCH && k * BATCH + i < t->count; ++i)
            answer_free(&t->cells[k * BATCH + i], &b->answers[i]);
    pthread_mutex_unlock(&t->lock);
}

static void take_results(
    table *t, uint32_t r, const cell *c, const answer *a, buffers *b, bool ok) {
    if (ok) {
        const uint64_t e = cdp_dtype_size(c->dtype),
                       own = c->kind == CDP_COLL_REDUCE_SCATTER && c->in_place ? offset(c, r) : 0;
        verify(c, a, r, b);
        t->hash[r] = cdp__hash(t->hash[r], b->out + own * e,
            (c->kind == CDP_COLL_REDUCE_SCATTER ? part(c, r) : b->out_count) * e);
    }
    free(b->own[0]);
    free(b->own[1]);
}

/* What a rank that may block does. */
static void run_rank(table *t, uint32_t r, cdp_group *g) {
    arena group = {t->by == MEMORY ? (uint8_t *)memory_of_group(g, ARENA_BYTES) : NULL, 0};
    for (uint32_t k = 0; k * BATCH < t->count && !test__now.failed_checks; ++k) {
        const batch *answers = batch_get(t, k);
        const uint32_t end = t->count - k * BATCH < BATCH ? t->count - k * BATCH : BATCH;
        const cell *cells = t->cells + k * BATCH;
        cdp_status st = CDP_OK;
        be_refused(g, cells->salt);
        for (uint32_t i = 0, n; i < end && st == CDP_OK; i += n) {
            buffers b[BATCH];
            cdp_request rq[BATCH];
            group.used = 0;
            for (n = 0; i + n < end
                 && (n == 0 || (cells[i].how == W_TOGETHER && cells[i + n].how == W_TOGETHER));
                 ++n)
                rq[n] = prepare(&cells[i + n], &answers->answers[i + n], r, &b[n], &group);
            /* a function has no place for counts and the factor */
            if (cells[i].how == W_TOGETHER || cells[i].uneven
                || cells[i].op == CDP_REDUCE_PREMUL_SUM) {
                cdp_work w;
                st = n > 1 ? cdp_start_all(g, rq, n, &w) : cdp_start(g, rq, &w);
                if (st == CDP_OK) st = cdp_work_wait(w);
            } else {
                st = call(g, rq, cells[i].how == W_ASYNC);
            }
            test_check(st == CDP_OK, __FILE__, __LINE__, "rank %u/%u: %s: %s", r, t->n,
                cdp_status_name(st), cdp_last_error()->text);
            for (uint32_t m = 0; m < n; ++m)
                take_results(t, r, &cells[i + m], &answers->answers[i + m], &b[m], st == CDP_OK);
        }
        batch_put(t, k);
        if (st != CDP_OK) break;
    }
    cdp_group_free(g, group.at);
}

static const cdp_choice direct_rows[] = {{CDP_COLL_ALLREDUCE, "direct", 0, 0},
    {CDP_COLL_REDUCE_SCATTER, "direct", 0, 0}, {CDP_COLL_ALLGATHER, "direct", 0, 0}};

static cdp_group_desc hub_desc(const table *t, uint32_t r) {
    cdp_group_desc d;
    memset(&d, 0, sizeof d);
    d.rank = r;
    d.world_size = t->n;
    d.hub = t->hub;
    d.timeout_ms = 120000 * TEST_SLACK;
    d.small_bytes = t->small_bytes;
    d.piece_bytes = t->piece_bytes;
    d.expose_bytes = t->expose_bytes;
    d.choices = direct_rows;
    d.choice_count = t->direct == DIRECT && !t->reproducible ? 3 : 0;
    d.reproducible = t->reproducible;
    d.no_thread = t->by == POLLED || t->n % 2;
    d.logger.level = CDP_LOG_SILENT;
    return d;
}

static cdp_tcp_desc tcp_desc(const table *t, uint32_t r) {
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    d.group.rank = r;
    d.group.world_size = t->n;
    d.master_port = t->port;
    d.group.timeout_ms = d.init_timeout_ms = 120000 * TEST_SLACK;
    d.group.small_bytes = t->small_bytes;
    d.group.piece_bytes = t->piece_bytes;
    d.group.choices = direct_rows;
    d.group.choice_count = t->direct == DIRECT && !t->reproducible ? 3 : 0;
    d.group.reproducible = t->reproducible;
    d.group.no_thread = t->n % 3 == 0;
    d.connections = t->n % 2 ? 1 : 3;
    d.no_shared_memory = t->by == TCP;
    if (t->n % 4 == 0) d.ring_bytes = 1000; /* everything wraps, and waits for room */
    if (t->n % 3) d.group.expose_bytes = 1 + t->n % 2 * 999;
    d.group.logger.level = CDP_LOG_SILENT;
    return d;
}

typedef struct rank_thread {
    table *t;
    uint32_t rank;
    pthread_t id;
} rank_thread;

static void *thread_main(void *arg) {
    const rank_thread *me = (const rank_thread *)arg;
    const cdp_group_desc h = hub_desc(me->t, me->rank);
    const cdp_tcp_desc d = tcp_desc(me->t, me->rank);
    cdp_group *g;
    const cdp_status st = me->t->by == HUB ? cdp_group_create(&h, &g) : cdp_init(&d, &g);
    if (!test_check(st == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text)) return NULL;
    run_rank(me->t, me->rank, g);
    cdp_group_destroy(g);
    return NULL;
}

static void run_threads(table *t) {
    rank_thread ranks[RANKS_MAX];
    for (uint32_t r = 0; r < t->n; ++r) {
        ranks[r].t = t;
        ranks[r].rank = r;
        if (pthread_create(&ranks[r].id, NULL, thread_main, &ranks[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < t->n; ++r)
        pthread_join(ranks[r].id, NULL);
}

/* One thread: start on all ranks, then look at one after the other until all are done. */
static void run_polled(table *t) {
    cdp_group *g[RANKS_MAX];
    for (uint32_t r = 0; r < t->n; ++r) {
        const cdp_group_desc d = hub_desc(t, r);
        if (!T_EQ(CDP_OK, cdp_group_create(&d, &g[r]))) abort();
    }
    for (uint32_t k = 0; k * BATCH < t->count && !test__now.failed_checks; ++k) {
        const batch *answers = batch_get(t, k);
        const uint32_t end = t->count - k * BATCH < BATCH ? t->count - k * BATCH : BATCH;
        const cell *cells = t->cells + k * BATCH;
        for (uint32_t i = 0, n; i < end; i += n) {
            static buffers b[RANKS_MAX][BATCH];
            static cdp_request rq[BATCH];
            cdp_work w[RANKS_MAX];
            cdp_status st = CDP_OK, all = CDP_PENDING;
            be_refused(g[i % t->n], cells[i].salt);
            for (n = 0; i + n < end
                 && (n == 0 || (cells[i].how == W_TOGETHER && cells[i + n].how == W_TOGETHER));
                 ++n) {
            }
            for (uint32_t r = 0; r < t->n; ++r) {
                for (uint32_t m = 0; m < n; ++m)
                    rq[m] = prepare(&cells[i + m], &answers->answers[i + m], r, &b[r][m], NULL);
                T_EQ(CDP_OK, st = cdp_start_all(g[r], rq, n, &w[r]));
            }
            while (all == CDP_PENDING) {
                all = CDP_OK;
                for (uint32_t r = 0; r < t->n; ++r) {
                    st = cdp_work_test(w[r]);
                    if (all >= CDP_OK && st != CDP_OK) all = st;
                }
            }
            test_check(all == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text);
            for (uint32_t r = 0; r < t->n; ++r)
                for (uint32_t m = 0; m < n; ++m)
                    take_results(
                        t, r, &cells[i + m], &answers->answers[i + m], &b[r][m], all == CDP_OK);
        }
        for (uint32_t r = 0; r < t->n; ++r)
            batch_put(t, k);
    }
    for (uint32_t r = 0; r < t->n; ++r)
        cdp_group_destroy(g[r]);
}

#if HAS_SIM
static void node_main(sim_node *node, void *arg) {
    table *t = (table *)arg;
    cdp_tcp_desc d = tcp_desc(t, node->id);
    cdp_group *g;
    d.master_addr = "10.0.0.1";
    d.trust_network = true; /* nobody else is in this one */
    d.group.os = &node->os;
    if (!test_check(cdp_init(&d, &g) == CDP_OK, __FILE__, __LINE__, "%s", cdp_last_error()->text))
        return;
    run_rank(t, node->id, g);
    cdp_group_destroy(g);
}

static void run_simulated(table *t, uint64_t sim_seed, bool wild) {
    sim_desc d;
    sim_world *w;
    memset(&d, 0, sizeof d);
    d.seed = sim_seed;
    d.node_count = t->n;
    d.main = node_main;
    d.arg = t;
    d.noise = wild ? sim_noise_wild(sim_seed, false) : sim_noise_calm();
    d.limit_steps = UINT64_MAX;
    w = sim_open(&d);
    test_check(sim_run(w), __FILE__, __LINE__, "seed %llu of the simulator: %s",
        (unsigned long long)sim_seed, w->failure);
    sim_close(w);
}
#else
static void run_simulated(table *t, uint64_t sim_seed, bool wild) {
    (void)t;
    (void)sim_seed;
    (void)wild;
}
#endif

static void table_open(table *t, uint32_t n, transport by) {
    static const uint64_t small[] = {0, 4096, 1}, pieces[] = {4096, 1003, 2048},
                          lends[] = {1000, 1, 0, 5000};
    memset(t, 0, sizeof *t);
    t->n = n;
    t->by = by;
    t->small_bytes = small[(n + by + seed) % 3];
    t->piece_bytes = pieces[(n + 2 * by + seed / 3) % 3];
    t->expose_bytes = lends[(n + by + seed) % 4];
    t->reproducible = (n + by + seed) % 4 == 0;
    t->direct = by == HUB || by == POLLED || by == MEMORY ? DIRECT_IF_LARGE : NOT_DIRECT;
    if ((n + by + seed) % 4 == 1) t->direct = DIRECT;
    if (n == 2 && by == TCP) t->piece_bytes = 256 * 1024; /* parts of 280,000 bytes exceed them */
    t->port = 29500;
    pthread_mutex_init(&t->lock, NULL);
}

static void table_run(table *t, uint64_t sim_seed, bool wild) {
    const uint64_t small = t->small_bytes;
    if (!small) t->small_bytes = 64 * 1024; /* the default */
    t->batches = (batch *)calloc(t->count / BATCH + 1, sizeof *t->batches);
    for (uint32_t r = 0; r < t->n; ++r)
        t->hash[r] = CDP__HASH_START;
    if (t->by == HUB || t->by == POLLED) {
        cdp_hub_desc h;
        memset(&h, 0, sizeof h);
        h.world_size = t->n;
        if (!T_EQ(CDP_OK, cdp_hub_create(&h, &t->hub))) abort();
    }
    if (t->by == TCP || t->by == MEMORY) t->port = free_port();
    if (t->by == SIMULATED)
        run_simulated(t, sim_seed, wild);
    else if (t->by == POLLED)
        run_polled(t);
    else
        run_threads(t);
    if (t->hub) {
        uint64_t exposures = 0;
        for (uint32_t w = 0; w < t->n * t->n; ++w)
            for (uint32_t i = 0; i < CDP_EXPOSURES && t->hub->ways[w]; ++i) {
                exposures += t->hub->ways[w]->exposed[i].state >> 3;
                T(!(t->hub->ways[w]->exposed[i].state & CDP__STATE_BITS));
            }
        test_check(
            t->n == 1 || !t->expose_bytes || test__now.failed_checks || exposures > t->count / 4,
            __FILE__, __LINE__, "%llu exposures for %u cells", (unsigned long long)exposures,
            t->count);
        exposures_seen += exposures;
    }
    cdp_hub_destroy(t->hub);
    t->hub = NULL;
    free(t->batches);
    cells_run[t->by] += t->count;
}

static void table_close(table *t) {
    pthread_mutex_destroy(&t->lock);
    free(t->cells);
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* Large ones are rarer where there are many ranks; a sanitizer sees a third, and of worlds with
   more than five ranks a ninth. */
static size_class some_size(uint64_t salt, uint32_t n) {
    const size_class size = (size_class)(salt % SIZES);
    return size == S_LARGE && (salt / SIZES) % n > 1 ? S_PRIME : size;
}

static void table_of(uint32_t n) {
    for (uint32_t by = 0; by < TRANSPORTS && !test__now.failed_checks; ++by) {
        const uint64_t start = test_now_ns();
        table t;
        if (by == SIMULATED && !HAS_SIM) continue;
        /* one of the two is enough where there is much to do, or little time */
        if ((everything || !test_more()) && n > 3 && by == (n % 2 ? TCP : MEMORY)) continue;
        table_open(&t, n, (transport)by);
        for (uint32_t i = 0; i < COMBINATIONS; ++i) {
            const uint64_t salt = mix(seed, mix(n * 16 + by, i));
            cell c;
            memset(&c, 0, sizeof c);
            if (!cell_combination(i, &c) || (TEST_SLOW && salt % (n > 5 ? 9 : 3))) continue;
            if (!everything) {
                table_add(&t, &c, some_size(salt >> 8, n), salt >> 3 & 1, salt >> 4 & 1, salt);
                continue;
            }
            const uint32_t forms = (has_place(c.kind) ? 2u : 1u) * (has_parts(c.kind) ? 2u : 1u);
            for (uint32_t k = 0; k < (c.kind == CDP_COLL_BARRIER ? 1 : forms * SIZES); ++k) {
                const uint32_t form = k / SIZES, in_place = has_place(c.kind) ? form % 2 : 0,
                               uneven = has_place(c.kind) ? form / 2 : form;
                /* the other forms by other transports */
                if (n > 5 && k % SIZES == S_LARGE && form != by % forms) continue;
                table_add(&t, &c, (size_class)(k % SIZES), in_place, uneven, mix(salt, k));
            }
        }
        table_run(&t, mix(seed, n), false);
        if (test__now.failed_checks)
            printf("  (seed %llu, %u ranks, %s, small_bytes %llu, piece_bytes %llu%s)\n",
                (unsigned long long)seed, n, transport_names[by], (unsigned long long)t.small_bytes,
                (unsigned long long)t.piece_bytes, t.reproducible ? ", reproducible" : "");
        else if (everything)
            printf("  %u ranks, %s: %u cells in %.1f s\n", n, transport_names[by], t.count,
                (double)(test_now_ns() - start) / 1e9);
        table_close(&t);
    }
}

TEST(table_on_1_rank) {
    table_of(1);
}
TEST(table_on_2_ranks) {
    table_of(2);
}
TEST(table_on_3_ranks) {
    table_of(3);
}
TEST(table_on_4_ranks) {
    table_of(4);
}
TEST(table_on_5_ranks) {
    table_of(5);
}
TEST(table_on_7_ranks) {
    table_of(7);
}
TEST(table_on_8_ranks) {
    table_of(8);
}
TEST(table_on_11_ranks) {
    table_of(11);
}
TEST(table_on_16_ranks) {
    table_of(16);
}

/* The same bits on every rank, and in every run however the network behaves: the results of
   random floats, among them NaN and infinities, are hashed; only the simulator's seed differs
   between runs. */
TEST(same_bits_everywhere_and_always) {
    static const uint32_t sizes[] = {2, 3, 5, 8, 11};
    const uint32_t quick = everything ? 8 : 3, runs = TEST_SLOW || !test_more() ? 2 : quick;
    const uint32_t some = TEST_SLOW ? 2 : 4;
    if (!HAS_SIM) {
        test_skip("the simulator switches stacks, which ThreadSanitizer does not know");
        return;
    }
    for (uint32_t z = 0; z < (everything ? 5u : some); ++z)
        /* small_bytes: the one, or the other for all that have two; or those of `reproducible` */
        for (uint32_t algo = 0; algo < 3; ++algo) {
            uint64_t hash[RANKS_MAX];
            for (uint32_t k = 0; k < runs && !test__now.failed_checks; ++k) {
                table t;
                table_open(&t, sizes[z], SIMULATED);
                t.small_bytes = algo ? 1 : 1u << 30;
                t.reproducible = algo > 1;
                for (uint32_t i = 0; i < COMBINATIONS; ++i) {
                    cell c;
                    memset(&c, 0, sizeof c);
                    if (!cell_combination(i, &c) || !kind_reduces(c.kind) || !is_float(c.dtype))
                        continue;
                    for (uint32_t size = S_1; size < S_LARGE; ++size)
                        table_add(&t, &c, (size_class)size, size % 2, false,
                            mix(seed, 1000 * i + size) | 1);
                }
                for (uint32_t i = 0; i < t.count; ++i)
                    t.cells[i].special = i % 2;
                table_run(&t, mix(seed, 77 + k), k > 0);
                if (k == 0) memcpy(hash, t.hash, sizeof hash);
                test_check(memcmp(hash, t.hash, t.n * sizeof *hash) == 0, __FILE__, __LINE__,
                    "%u ranks, run %u: results have other bits than in the first run", t.n, k);
                table_close(&t);
            }
        }
}

/* What does not exist is refused at the call, and costs nothing. */
TEST(table_of_refusals) {
    const cdp_group_desc d = {.world_size = 1};
    cdp_group *g;
    uint64_t x[2] __attribute__((aligned(16))) = {0}, refused = 0;
    if (!T(cdp_group_create(&d, &g) == CDP_OK)) return;
    for (int t = 1; t < CDP_DTYPE_COUNT; ++t)
        for (int op = 1; op < CDP_REDUCE_COUNT; ++op) {
            const cdp_status want =
                exists((cdp_dtype)t, (cdp_reduce_op)op) ? CDP_OK : CDP_ERR_UNSUPPORTED;
            refused += want != CDP_OK;
            T_EQ(want, cdp_allreduce(g, NULL, x, 1, (cdp_dtype)t, (cdp_reduce_op)op));
            T_EQ(want, cdp_reduce(g, NULL, x, 1, (cdp_dtype)t, (cdp_reduce_op)op, 0));
            T_EQ(want, cdp_reduce_scatter(g, NULL, x, 1, (cdp_dtype)t, (cdp_reduce_op)op));
        }
    /* floats: bits; integers: premul sum; bool: premul sum, avg */
    T_EQ(6 * 3 + 8 * 1 + 1 * 2 + 2 * 5, refused); /* complex: also min, max */
    T_EQ(CDP_ERR_INVALID, cdp_alltoall(g, NULL, x, 1, CDP_DTYPE_U64));
    T_TEXT("in place", cdp_last_error()->text);
    T_EQ(CDP_ERR_INVALID, cdp_gather(g, NULL, x, 1, CDP_DTYPE_U64, 1));
    T_TEXT("root 1", cdp_last_error()->text);
    cdp_group_destroy(g);
}

/* ---- halves ---------------------------------------------------------------------------------- */

TEST(every_half_there_and_back) {
    for (int bf = 0; bf < 2; ++bf) {
        const cdp_dtype t = bf ? CDP_DTYPE_BF16 : CDP_DTYPE_F16;
        const uint16_t inf = bf ? 0x7f80 : 0x7c00;
        for (uint32_t base = 0; base < 65536 && !test__now.failed_checks; base += CDP__BLOCK) {
            uint16_t in[CDP__BLOCK], back[CDP__BLOCK];
            float wide[CDP__BLOCK];
            for (uint32_t i = 0; i < CDP__BLOCK; ++i)
                in[i] = (uint16_t)(base + i);
            cdp__widen_block(t, in, wide);
            cdp__narrow_block(t, wide, back);
            for (uint32_t i = 0; i < CDP__BLOCK; ++i) {
                const uint16_t mag = in[i] & 0x7fff;
                const double w = (double)wide[i];
                bool ok = back[i] == in[i];
                if (mag > inf)
                    ok = w != w && (back[i] & 0x7fff) > inf;
                else if (mag == inf)
                    ok = ok && w * 0 != 0 && (w > 0) == (in[i] < 0x8000);
                else
                    ok = ok && w == exact_half(in[i], bf);
                test_check(ok, __FILE__, __LINE__, "%s %04x is %g, and %04x again",
                    cdp_dtype_name(t), in[i], w, back[i]);
            }
        }
    }
}

/* Between two neighbours the nearer wins, and the even one when both are as near. */
TEST(halves_round_to_nearest_even) {
    for (int bf = 0; bf < 2; ++bf) {
        const cdp_dtype t = bf ? CDP_DTYPE_BF16 : CDP_DTYPE_F16;
        const uint16_t inf = bf ? 0x7f80 : 0x7c00;
        for (uint32_t h = 0; h + 1 < inf && !test__now.failed_checks; ++h) {
            const double low = exact_half((uint16_t)h, bf),
                         high = exact_half((uint16_t)(h + 1), bf), step = high - low;
            float wide[CDP__BLOCK] = {0};
            uint16_t out[CDP__BLOCK];
            wide[0] = (float)(low + step / 4);
            wide[1] = (float)(low + step / 2);
            wide[2] = (float)(low + step * 3 / 4);
            wide[3] = -wide[1];
            cdp__narrow_block(t, wide, out);
            test_check(out[0] == h && out[1] == h + (h & 1) && out[2] == h + 1
                    && out[3] == (out[1] | 0x8000u),
                __FILE__, __LINE__, "%s between %04x and the next: %04x %04x %04x",
                cdp_dtype_name(t), h, out[0], out[1], out[2]);
            if (bf && h < 0x100) h += 3; /* f32 has no finer steps among the smallest of them */
        }
    }
    const float far[4] = {65519.996f, 65520.0f, 1e9f, -1e9f};
    float wide[CDP__BLOCK] = {0};
    uint16_t out[CDP__BLOCK];
    memcpy(wide, far, sizeof far);
    cdp__narrow_block(CDP_DTYPE_F16, wide, out);
    T(out[0] == 0x7bff && out[1] == 0x7c00 && out[2] == 0x7c00 && out[3] == 0xfc00);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"table_on_1_rank", table_on_1_rank, 600},
        {"table_on_2_ranks", table_on_2_ranks, 600},
        {"table_on_3_ranks", table_on_3_ranks, 600},
        {"table_on_4_ranks", table_on_4_ranks, 600},
        {"table_on_5_ranks", table_on_5_ranks, 600},
        {"table_on_7_ranks", table_on_7_ranks, 600},
        {"table_on_8_ranks", table_on_8_ranks, 600},
        {"table_on_11_ranks", table_on_11_ranks, 600},
        {"table_on_16_ranks", table_on_16_ranks, 600},
        {"same_bits_everywhere_and_always", same_bits_everywhere_and_always, 300},
        {"table_of_refusals", table_of_refusals, 20},
        {"every_half_there_and_back", every_half_there_and_back, 20},
        {"halves_round_to_nearest_even", halves_round_to_nearest_even, 20},
    };
    uint64_t cells = 0;
    int rest = 1, code;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "all") == 0)
            everything = true;
        else
            argv[rest++] = argv[i];
    }
    if (!seed) seed = test_now_ns() % 1000000 + 1;
    half_tables();
    printf("seed %llu\n", (unsigned long long)seed);
    code = test_main(rest, argv, cases, sizeof cases / sizeof *cases);
    for (uint32_t i = 0; i < TRANSPORTS; ++i)
        cells += cells_run[i];
    fprintf(stderr, "%llu cells (%s %llu, %s %llu, %s %llu, %s %llu), seed %llu\n",
        (unsigned long long)cells, transport_names[0], (unsigned long long)cells_run[0],
        transport_names[1], (unsigned long long)cells_run[1], transport_names[2],
        (unsigned long long)cells_run[2], transport_names[3], (unsigned long long)cells_run[3],
        (unsigned long long)seed);
    return code;
}

/* test_reduce.c - the arithmetic of every dtype and reduction against a scalar reference

   The reference below shares no code with src/dtype: it decodes elements with ldexp(), computes one
   of them at a time, and rounds with rint(). Words are random, with infinities, NaNs, denormals
   and both zeros among them; of NaNs only that they are NaNs is compared. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"

#include <math.h>

typedef struct format { /* of a float dtype */
    cdp_dtype t;
    int bytes, fraction, bias;
    bool infinite; /* has infinities; else the highest number is the only NaN */
} format;
static const format formats[] = {
    {CDP_DTYPE_F32, 4, 23, 127, true},
    {CDP_DTYPE_F64, 8, 52, 1023, true},
    {CDP_DTYPE_F16, 2, 10, 15, true},
    {CDP_DTYPE_BF16, 2, 7, 127, true},
    {CDP_DTYPE_F8E4M3, 1, 3, 7, false},
    {CDP_DTYPE_F8E5M2, 1, 2, 15, true},
};
static const format *format_of(cdp_dtype t) {
    for (uint32_t i = 0; i < sizeof formats / sizeof *formats; ++i)
        if (formats[i].t == t) return &formats[i];
    return NULL;
}

static uint64_t seed = 1;
static uint64_t random_word(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed ^ seed >> 29;
}

/* ---- one element ----------------------------------------------------------------------------- */

static uint64_t word_at(const void *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; ++i) {
        const int at = *(const uint8_t *)&(const uint16_t){1} ? i : bytes - 1 - i;
        v |= (uint64_t)((const uint8_t *)p)[at] << 8 * i;
    }
    return v;
}

static double decode(const format *f, uint64_t word) {
    const uint64_t mask = (1ull << (8 * f->bytes - 1)) - 1, mag = word & mask;
    const uint64_t part = mag & ((1ull << f->fraction) - 1);
    const int exponent = (int)(mag >> f->fraction), most = (int)(mask >> f->fraction);
    double v;
    if (f->infinite && exponent == most) {
        v = part ? (double)NAN : (double)INFINITY;
    } else if (!f->infinite && mag == mask) {
        v = (double)NAN;
    } else if (exponent) {
        v = ldexp((double)(part + (1ull << f->fraction)), exponent - f->bias - f->fraction);
    } else {
        v = ldexp((double)part, 1 - f->bias - f->fraction);
    }
    return word > mask ? -v : v;
}

/* Rounds to nearest even. */
static uint64_t encode(const format *f, double v) {
    const uint64_t mask = (1ull << (8 * f->bytes - 1)) - 1;
    const uint64_t infinity = f->infinite ? mask >> f->fraction << f->fraction : mask;
    const uint64_t sign = signbit(v) ? mask + 1 : 0;
    double size = fabs(v), steps;
    int exponent;
    uint64_t word;
    if (v != v) return mask;
    if (isinf(v)) return sign | infinity;
    if (size == 0) return sign;
    (void)frexp(size, &exponent);
    if (exponent < 2 - f->bias) exponent = 2 - f->bias;
    steps = rint(ldexp(size, f->fraction + 1 - exponent)); /* of the last bit */
    word = (uint64_t)steps + ((uint64_t)(exponent + f->bias - 2) << f->fraction);
    return sign | (word < infinity ? word : infinity);
}

static bool word_is_nan(cdp_dtype t, uint64_t word) {
    const format *f = format_of(t);
    if (!f) return false;
    const double v = decode(f, word);
    return v != v;
}

/* ---- one reduction --------------------------------------------------------------------------- */

static uint64_t cut(uint64_t v, int bytes) {
    return bytes == 8 ? v : v & ((1ull << 8 * bytes) - 1);
}
static int64_t extended(uint64_t v, int bytes) {
    return (int64_t)(v << (64 - 8 * bytes)) >> (64 - 8 * bytes);
}

static uint64_t reduce_float(const format *f, cdp_reduce_op op, uint64_t l, uint64_t r) {
    const double a = decode(f, l), b = decode(f, r);
    const bool wide = f->bytes == 8;
    volatile float narrow;
    double v;
    if (op == CDP_REDUCE_MIN || op == CDP_REDUCE_MAX) {
        if (a != a || b != b) return encode(f, (double)NAN);
        return (op == CDP_REDUCE_MIN ? b < a : b > a) ? r : l;
    }
    v = op == CDP_REDUCE_PRODUCT ? a * b : a + b; /* exact, or rounded once, if not f64 */
    narrow = op == CDP_REDUCE_PRODUCT ? (float)a * (float)b : (float)a + (float)b;
    return encode(f, wide ? v : (double)narrow);
}

static uint64_t reduce_int(cdp_dtype t, int bytes, cdp_reduce_op op, uint64_t l, uint64_t r) {
    const bool has_sign =
        t == CDP_DTYPE_I8 || t == CDP_DTYPE_I16 || t == CDP_DTYPE_I32 || t == CDP_DTYPE_I64;
    const bool less = has_sign ? extended(r, bytes) < extended(l, bytes) : r < l;
    switch (op) {
    case CDP_REDUCE_MIN: return less ? r : l;
    case CDP_REDUCE_MAX: return less ? l : r;
    case CDP_REDUCE_PRODUCT: return cut(l * r, bytes);
    case CDP_REDUCE_BAND: return l & r;
    case CDP_REDUCE_BOR: return l | r;
    case CDP_REDUCE_BXOR: return l ^ r;
    default: return cut(l + r, bytes);
    }
}

static uint64_t reduce_bool(cdp_reduce_op op, uint64_t l, uint64_t r) {
    if (op == CDP_REDUCE_BXOR) return !l != !r;
    if (op == CDP_REDUCE_SUM || op == CDP_REDUCE_MAX || op == CDP_REDUCE_BOR) return l || r;
    return l && r;
}

static uint64_t reference(cdp_dtype t, cdp_reduce_op op, uint64_t l, uint64_t r) {
    const int bytes = (int)cdp_dtype_size(t);
    if (t == CDP_DTYPE_BOOL) return reduce_bool(op, l, r);
    if (format_of(t)) return reduce_float(format_of(t), op, l, r);
    return reduce_int(t, bytes, op, l, r);
}

/* ---- random words ---------------------------------------------------------------------------- */

enum {
    WORDS = 1000 /* no multiple of a block or a strip */
};

/* A random element; a quarter of the floats are special. */
static uint64_t random_element(cdp_dtype t) {
    const format *f = format_of(t);
    const int bytes = (int)cdp_dtype_size(t);
    const uint64_t word = cut(random_word(), bytes), pick = random_word() >> 40;
    if (t == CDP_DTYPE_BOOL) return pick % 3 ? word : 0;
    if (!f || pick % 4) return word;
    const uint64_t sign = 1ull << (8 * bytes - 1), part = (1ull << f->fraction) - 1;
    switch (pick / 4 % 5) {
    case 0: return word & sign;                          /* a zero */
    case 1: return word & (sign | part);                 /* a denormal */
    case 2: return (word & sign) | ((sign - 1) & ~part); /* an infinity, or the largest */
    case 3: return word | ((sign - 1) & ~part) | 1;      /* a NaN, or a large one */
    default: return (word & sign) | (uint64_t)(f->bias) << f->fraction; /* 1 or -1 */
    }
}

static void fill(cdp_dtype t, void *at) {
    const int bytes = (int)cdp_dtype_size(t);
    for (uint32_t i = 0; i < WORDS; ++i) {
        const uint64_t v = random_element(t);
        for (int k = 0; k < bytes; ++k) {
            const int to = *(const uint8_t *)&(const uint16_t){1} ? k : bytes - 1 - k;
            ((uint8_t *)at)[i * (uint32_t)bytes + (uint32_t)to] = (uint8_t)(v >> 8 * k);
        }
    }
}

static void check_reduction(cdp_dtype t, cdp_reduce_op op, bool swap) {
    static uint64_t was[WORDS], acc[WORDS], x[WORDS];
    const int bytes = (int)cdp_dtype_size(t);
    fill(t, was);
    fill(t, x);
    memcpy(acc, was, sizeof acc);
    cdp__reduce(t, op, swap, acc, x, WORDS);
    for (uint32_t i = 0; i < WORDS && !test__now.failed_checks; ++i) {
        const uint64_t a = word_at((uint8_t *)was + i * (uint32_t)bytes, bytes),
                       b = word_at((uint8_t *)x + i * (uint32_t)bytes, bytes),
                       got = word_at((uint8_t *)acc + i * (uint32_t)bytes, bytes),
                       want = swap ? reference(t, op, b, a) : reference(t, op, a, b);
        const bool ok = word_is_nan(t, want) ? word_is_nan(t, got) : got == want;
        test_check(ok, __FILE__, __LINE__, "%s %s%s of %llx and %llx: %llx instead of %llx",
            cdp_dtype_name(t), cdp_reduce_name(op), swap ? ", swapped," : "", (unsigned long long)a,
            (unsigned long long)b, (unsigned long long)got, (unsigned long long)want);
    }
}

TEST(every_reduction_is_that_of_the_scalar_reference) {
    uint32_t pairs = 0;
    for (int t = 1; t < CDP_DTYPE_COUNT; ++t)
        for (int op = 1; op < CDP_REDUCE_COUNT; ++op) {
            if (!cdp__reduce_exists((cdp_dtype)t, (cdp_reduce_op)op)) continue;
            if (cdp__dtype_parts((cdp_dtype)t) == 2) continue; /* see below */
            ++pairs;
            for (uint32_t again = 0; again < 60; ++again)
                check_reduction((cdp_dtype)t, (cdp_reduce_op)op, again % 2);
        }
    /* floats; integers; bool */
    T_EQ(sizeof formats / sizeof *formats * 6 + 8 * 8 + 7, pairs);
}

/* Sums and products of the parts, each operation rounded; their NaNs stay in the part they are in,
   except where a product mixes the parts. */
#define COMPLEX(T, t, real)                                                                        \
    static void complex_numbers_##real(cdp_reduce_op op) {                                         \
        static T was[2 * WORDS], acc[2 * WORDS], x[2 * WORDS];                                     \
        fill(real, was), fill(real, (uint8_t *)was + sizeof was / 2);                              \
        fill(real, x), fill(real, (uint8_t *)x + sizeof x / 2);                                    \
        memcpy(acc, was, sizeof acc);                                                              \
        cdp__reduce(t, op, false, acc, x, WORDS);                                                  \
        for (uint32_t i = 0; i < 2 * WORDS; i += 2) {                                              \
            volatile T want[2] = {was[i] + x[i], was[i + 1] + x[i + 1]};                           \
            if (op == CDP_REDUCE_PRODUCT) {                                                        \
                volatile T ac = was[i] * x[i], bd = was[i + 1] * x[i + 1];                         \
                volatile T ad = was[i] * x[i + 1], bc = was[i + 1] * x[i];                         \
                want[0] = ac - bd, want[1] = ad + bc;                                              \
            }                                                                                      \
            for (uint32_t k = 0; k < 2 && !test__now.failed_checks; ++k)                           \
                test_check(                                                                        \
                    acc[i + k] == want[k] || (acc[i + k] != acc[i + k] && want[k] != want[k]),     \
                    __FILE__, __LINE__, "%s %s: part %u of %g%+gi and %g%+gi is %g, not %g",       \
                    cdp_dtype_name(t), cdp_reduce_name(op), k, (double)was[i], (double)was[i + 1], \
                    (double)x[i], (double)x[i + 1], (double)acc[i + k], (double)want[k]);          \
        }                                                                                          \
    }
COMPLEX(float, CDP_DTYPE_CF32, CDP_DTYPE_F32)
COMPLEX(double, CDP_DTYPE_CF64, CDP_DTYPE_F64)

TEST(complex_numbers) {
    float v[4] = {3, 4, 0, -8};
    double d[4], one[2];
    for (uint32_t again = 0; again < 60; ++again) {
        complex_numbers_CDP_DTYPE_F32(again % 2 ? CDP_REDUCE_SUM : CDP_REDUCE_PRODUCT);
        complex_numbers_CDP_DTYPE_F64(again % 2 ? CDP_REDUCE_SUM : CDP_REDUCE_PRODUCT);
    }
    cdp__divide(CDP_DTYPE_CF32, v, 2, 2);
    T(v[0] == 1.5f && v[1] == 2 && v[2] == 0 && v[3] == -4);
    cdp__scale(CDP_DTYPE_CF32, v, 2, 4);
    T(v[0] == 6 && v[1] == 8 && v[2] == 0 && v[3] == -16);
    cdp__convert(CDP_DTYPE_CF32, v, CDP_DTYPE_CF64, d, 2);
    T(d[0] == 6 && d[1] == 8 && d[2] == 0 && d[3] == -16);
    cdp__convert(CDP_DTYPE_CF64, d, CDP_DTYPE_F32, v, 2);
    T(v[0] == 6 && v[1] == 0);
    cdp__dtype_one(CDP_DTYPE_CF64, one);
    T(one[0] == 1 && one[1] == 0);
    T(!cdp__reduce_exists(CDP_DTYPE_CF32, CDP_REDUCE_MIN));
    T(!cdp__reduce_exists(CDP_DTYPE_CF64, CDP_REDUCE_BOR));
    T(cdp__reduce_exists(CDP_DTYPE_CF64, CDP_REDUCE_AVG));
}

/* ---- conversions ----------------------------------------------------------------------------- */

TEST(every_narrow_float_is_widened_exactly_and_narrowed_again) {
    for (uint32_t k = 0; k < sizeof formats / sizeof *formats; ++k) {
        const format *f = &formats[k];
        if (f->bytes > 2) continue;
        for (uint32_t word = 0; word < 1u << 8 * f->bytes && !test__now.failed_checks; ++word) {
            const uint16_t two = (uint16_t)word;
            const uint8_t byte = (uint8_t)word;
            const double want = decode(f, word);
            uint8_t back[2];
            double got;
            float single;
            cdp__convert(f->t, f->bytes == 2 ? (const void *)&two : &byte, CDP_DTYPE_F64, &got, 1);
            single = (float)want;
            cdp__convert(CDP_DTYPE_F32, &single, f->t, back, 1);
            test_check(
                (got == want && signbit(got) == signbit(want)) || (got != got && want != want),
                __FILE__, __LINE__, "%s %x is %g, not %g", cdp_dtype_name(f->t), word, want, got);
            test_check(word_at(back, f->bytes) == word
                    || (want != want && word_is_nan(f->t, word_at(back, f->bytes))),
                __FILE__, __LINE__, "%s %x comes back as %x", cdp_dtype_name(f->t), word,
                (unsigned)word_at(back, f->bytes));
        }
    }
}

/* From f64, which is twice rounded where it goes through f32 in a careless way. */
TEST(floats_are_rounded_once) {
    for (uint32_t k = 0; k < sizeof formats / sizeof *formats; ++k) {
        const format *f = &formats[k];
        for (uint32_t i = 0; i < 60000 && !test__now.failed_checks; ++i) {
            const format *other = &formats[random_word() % 6];
            double v = decode(other, random_element(other->t));
            uint64_t got = 0;
            if (i % 3 == 0 && f->bytes < 8) { /* near the middle of two neighbours */
                const uint64_t low = random_element(f->t);
                v = (decode(f, low) + decode(f, low + 1)) / 2;
                if (i % 2) v *= 1 + (double)((int64_t)random_word() % 3) * 0x1p-52;
            }
            cdp__convert(CDP_DTYPE_F64, &v, f->t, &got, 1);
            got = word_at(&got, f->bytes);
            test_check(v != v ? word_is_nan(f->t, got)
                              : got == encode(f, v)
                        || (word_is_nan(f->t, got) && word_is_nan(f->t, encode(f, v))),
                __FILE__, __LINE__, "%a to %s is %llx instead of %llx", v, cdp_dtype_name(f->t),
                (unsigned long long)got, (unsigned long long)encode(f, v));
        }
    }
}

static void one_converts(cdp_dtype from, double v, cdp_dtype to, double want) {
    uint64_t a = 0, b = 0;
    double got;
    cdp__number_put(from, &a, 0, v);
    cdp__convert(from, &a, to, &b, 1);
    got = cdp__number_get(to, &b, 0);
    test_check(got == want || (got != got && want != want), __FILE__, __LINE__,
        "%s %g to %s is %g instead of %g", cdp_dtype_name(from), v, cdp_dtype_name(to), got, want);
}

TEST(integers_are_cut_off_and_kept_in_their_range) {
    const double inf = (double)INFINITY;
    one_converts(CDP_DTYPE_F32, 2.9, CDP_DTYPE_I32, 2);
    one_converts(CDP_DTYPE_F64, -2.9, CDP_DTYPE_I8, -2);
    one_converts(CDP_DTYPE_F64, 300, CDP_DTYPE_I8, 127);
    one_converts(CDP_DTYPE_F64, -300, CDP_DTYPE_U8, 0);
    one_converts(CDP_DTYPE_F32, inf, CDP_DTYPE_U64, 18446744073709551616.0);
    one_converts(CDP_DTYPE_F32, -inf, CDP_DTYPE_I64, -9223372036854775808.0);
    one_converts(CDP_DTYPE_F32, (double)NAN, CDP_DTYPE_I16, 0);
    one_converts(CDP_DTYPE_F32, (double)NAN, CDP_DTYPE_BOOL, 1);
    one_converts(CDP_DTYPE_I32, -7, CDP_DTYPE_U16, 0);
    one_converts(CDP_DTYPE_I32, -7, CDP_DTYPE_BF16, -7);
    one_converts(CDP_DTYPE_U32, 70000, CDP_DTYPE_I16, 32767);
    one_converts(CDP_DTYPE_U8, 200, CDP_DTYPE_I8, 127);
    one_converts(CDP_DTYPE_I32, 70000, CDP_DTYPE_F16, inf);
    one_converts(CDP_DTYPE_BOOL, 1, CDP_DTYPE_F8E5M2, 1);
    one_converts(CDP_DTYPE_F32, 464, CDP_DTYPE_F8E4M3, 448);
    one_converts(CDP_DTYPE_F32, 465, CDP_DTYPE_F8E4M3, (double)NAN);
    one_converts(CDP_DTYPE_F32, inf, CDP_DTYPE_F8E4M3, (double)NAN);
    one_converts(CDP_DTYPE_F32, 61440, CDP_DTYPE_F8E5M2, inf);
}

TEST(integers_of_64_bits_are_rounded_once) {
    for (uint32_t i = 0; i < 60000 && !test__now.failed_checks; ++i) {
        const int64_t v = (int64_t)random_word() >> random_word() % 64;
        uint16_t got;
        cdp__convert(CDP_DTYPE_I64, &v, CDP_DTYPE_BF16, &got, 1);
        /* the same value, as an f64 whose last bits say that others are lost */
        const uint64_t size = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
        const uint64_t kept = size >> 16 ? size >> 8 << 8 | ((size & 255) != 0) << 8 : size;
        const double exact = v < 0 ? -(double)kept : (double)kept;
        if (size < 1ull << 53 || !(size & 0xffff))
            test_check(got == encode(format_of(CDP_DTYPE_BF16), (double)v), __FILE__, __LINE__,
                "%lld as bf16: %x", (long long)v, got);
        else
            test_check(got == encode(format_of(CDP_DTYPE_BF16), exact), __FILE__, __LINE__,
                "%lld as bf16: %x", (long long)v, got);
    }
}

TEST(the_one_and_the_limits_of_every_dtype) {
    for (int t = 1; t < CDP_DTYPE_COUNT; ++t) {
        uint64_t word[2] = {0};
        cdp__dtype_one((cdp_dtype)t, word);
        test_check(cdp__number_get((cdp_dtype)t, word, 0) == 1, __FILE__, __LINE__, "1 of %s",
            cdp_dtype_name((cdp_dtype)t));
        if (!cdp__reduce_exists((cdp_dtype)t, CDP_REDUCE_MAX)) continue;
        for (uint32_t high = 0; high < 2; ++high) {
            uint64_t limit[2] = {0};
            cdp__number_limit((cdp_dtype)t, limit, 0, high);
            cdp__reduce(
                (cdp_dtype)t, high ? CDP_REDUCE_MIN : CDP_REDUCE_MAX, false, limit, word, 1);
            test_check(cdp__number_get((cdp_dtype)t, limit, 0) == 1, __FILE__, __LINE__,
                "1 and the limit of %s", cdp_dtype_name((cdp_dtype)t));
        }
    }
    T_EQ(0, cdp_dtype_size(CDP_DTYPE_COUNT));
    T_EQ(0, cdp_dtype_size((cdp_dtype)-1));
    T_EQ(4, cdp_dtype_size(CDP_DTYPE_DEFAULT));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_reduction_is_that_of_the_scalar_reference",
            every_reduction_is_that_of_the_scalar_reference, 60},
        {"every_narrow_float_is_widened_exactly_and_narrowed_again",
            every_narrow_float_is_widened_exactly_and_narrowed_again, 60},
        {"complex_numbers", complex_numbers, 60},
        {"floats_are_rounded_once", floats_are_rounded_once, 60},
        {"integers_are_cut_off_and_kept_in_their_range",
            integers_are_cut_off_and_kept_in_their_range, 10},
        {"integers_of_64_bits_are_rounded_once", integers_of_64_bits_are_rounded_once, 60},
        {"the_one_and_the_limits_of_every_dtype", the_one_and_the_limits_of_every_dtype, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

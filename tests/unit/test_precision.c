/* Conversion between dtypes by the program, rounding at random, the scale of a loss. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "test.h"
#include <math.h>

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float as_f32(cdp_dtype t, const void *at) {
    float x = 0;
    T_EQ(CDP_OK, cdp_convert(at, t, &x, CDP_DTYPE_F32, 1, NULL));
    return x;
}

TEST(converts_between_all_dtypes) {
    const float in[5] = {1.5f, -2, 300, 70000, NAN};
    uint8_t there[5 * 16];
    float back[5];
    for (int t = 1; t < CDP_DTYPE_COUNT; ++t) {
        T_EQ(CDP_OK, cdp_convert(in, CDP_DTYPE_F32, there, (cdp_dtype)t, 5, NULL));
        T_EQ(CDP_OK, cdp_convert(there, (cdp_dtype)t, back, CDP_DTYPE_F32, 5, NULL));
        if (t == CDP_DTYPE_F32 || t == CDP_DTYPE_F64 || t == CDP_DTYPE_CF32 || t == CDP_DTYPE_CF64)
            T(memcmp(in, back, 4 * sizeof *in) == 0 && isnan(back[4]));
        if (t == CDP_DTYPE_F16) T(back[2] == 300 && back[3] == INFINITY && isnan(back[4]));
        if (t == CDP_DTYPE_I8) T(back[0] == 1 && back[1] == -2 && back[2] == 127 && back[4] == 0);
        if (t == CDP_DTYPE_U8) T(back[1] == 0 && back[2] == 255);
        if (t == CDP_DTYPE_BOOL) T(back[0] == 1 && back[4] == 1);
        if (t == CDP_DTYPE_F8E4M3) T(back[0] == 1.5f && isnan(back[3]));
    }
}

TEST(an_array_is_converted_in_its_place) {
    float x[1001];
    uint16_t half[1001];
    for (uint32_t i = 0; i < 1001; ++i)
        x[i] = (float)i * 0.37f - 100;
    T_EQ(CDP_OK, cdp_convert(x, CDP_DTYPE_F32, half, CDP_DTYPE_BF16, 1001, NULL));
    T_EQ(CDP_OK, cdp_convert(x, CDP_DTYPE_F32, x, CDP_DTYPE_BF16, 1001, NULL));
    T(memcmp(x, half, sizeof half) == 0);
}

/* The two numbers of the dtype around x, by search through all of them. */
static void neighbours(cdp_dtype t, float x, float *below, float *above) {
    const uint32_t codes = cdp_dtype_size(t) == 1 ? 0x80 : 0x8000;
    const float size = fabsf(x);
    *below = 0;
    *above = INFINITY;
    for (uint32_t c = 0; c < codes; ++c) {
        const uint8_t one = (uint8_t)c;
        const uint16_t two = (uint16_t)c;
        const float v = as_f32(t, codes == 0x80 ? (const void *)&one : (const void *)&two);
        if (v <= size && v > *below) *below = v;
        if (v >= size && v < *above) *above = v;
    }
    *below = copysignf(*below, x);
    *above = copysignf(*above, x);
}

/* Every result is one of the two neighbours, and the mean of many is the number. */
static void rounds_fairly(cdp_dtype t, float x) {
    enum {
        MANY = 40000
    };
    static float in[MANY], back[MANY];
    static uint16_t out[MANY];
    cdp_round r = {11, 3, 0};
    float below, above;
    double sum = 0, gap, share;
    neighbours(t, x, &below, &above);
    for (uint32_t i = 0; i < MANY; ++i)
        in[i] = x;
    T_EQ(CDP_OK, cdp_convert(in, CDP_DTYPE_F32, out, t, MANY, &r));
    T_EQ(CDP_OK, cdp_convert(out, t, back, CDP_DTYPE_F32, MANY, NULL));
    for (uint32_t i = 0; i < MANY; ++i) {
        test_check(back[i] == below || back[i] == above, __FILE__, __LINE__,
            "%s: %a became %a, which is neither %a nor %a", cdp_dtype_name(t), (double)x,
            (double)back[i], (double)below, (double)above);
        sum += back[i];
    }
    gap = (double)above - (double)below;
    if (gap == 0) return;
    share = (sum / MANY - below) / gap;
    /* five standard deviations of a share of 40,000 draws */
    test_check(fabs(share - ((double)x - below) / gap) < 5 * 0.5 / 200, __FILE__, __LINE__,
        "%s: %a: share %.4f", cdp_dtype_name(t), (double)x, share);
}

TEST(rounding_at_random_is_fair_for_every_dtype_and_size) {
    static const cdp_dtype narrow[] = {
        CDP_DTYPE_F16, CDP_DTYPE_BF16, CDP_DTYPE_F8E4M3, CDP_DTYPE_F8E5M2};
    static const float x[] = {
        1.0f, 1.1f, -3.3f, 200.7f, 0.0123f, 3e-5f, 2.2e-6f, 1e-7f, 2e-8f, 0, 0.00097f, -0.0005f};
    for (uint32_t t = 0; t < 4; ++t)
        for (uint32_t i = 0; i < sizeof x / sizeof *x; ++i)
            rounds_fairly(narrow[t], x[i]);
}

TEST(rounding_at_random_leaves_what_is_no_number) {
    const float in[4] = {NAN, INFINITY, -INFINITY, -0.0f};
    const cdp_round r = {1, 1, 1};
    uint16_t out[4];
    T_EQ(CDP_OK, cdp_convert(in, CDP_DTYPE_F32, out, CDP_DTYPE_BF16, 4, &r));
    T(isnan(as_f32(CDP_DTYPE_BF16, &out[0])));
    T_EQ(0x7f80, out[1]);
    T_EQ(0xff80, out[2]);
    T_EQ(0x8000, out[3]);
    T_EQ(CDP_OK, cdp_convert(in, CDP_DTYPE_F32, out, CDP_DTYPE_F16, 3, &r));
    T_EQ(0x7c00, out[1]);
    T_EQ(0xfc00, out[2]);
}

/* A tensor that is cut anywhere gets the bits of the whole one; another step gets others. */
TEST(random_bits_depend_on_seed_step_and_place_alone) {
    enum {
        N = 1500
    };
    float in[N];
    uint16_t whole[N], cut[N], other[N];
    cdp_round r = {7, 5, 0};
    uint32_t at, n, i, same = 0;
    for (i = 0; i < N; ++i)
        in[i] = 1.0f + (float)i * 1e-5f;
    T_EQ(CDP_OK, cdp_convert(in, CDP_DTYPE_F32, whole, CDP_DTYPE_BF16, N, &r));
    for (at = 0, n = 1; at < N; at += n, n = n * 2 + 3) {
        if (n > N - at) n = N - at;
        r.first = at;
        T_EQ(CDP_OK, cdp_convert(in + at, CDP_DTYPE_F32, cut + at, CDP_DTYPE_BF16, n, &r));
    }
    T(memcmp(whole, cut, sizeof whole) == 0);
    for (uint32_t change = 0; change < 2; ++change) {
        const cdp_round q = {7 + change, 6 - change, 0};
        T_EQ(CDP_OK, cdp_convert(in, CDP_DTYPE_F32, other, CDP_DTYPE_BF16, N, &q));
        for (i = same = 0; i < N; ++i)
            same += other[i] == whole[i];
        T(same < N * 9 / 10);
    }
}

TEST(what_cannot_be_converted_is_refused) {
    float x = 1;
    double d;
    const cdp_round r = {1, 1, 1};
    T_EQ(CDP_ERR_INVALID, cdp_convert(NULL, CDP_DTYPE_F32, &d, CDP_DTYPE_F64, 1, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_convert(&x, CDP_DTYPE_F32, NULL, CDP_DTYPE_F64, 1, NULL));
    T_EQ(CDP_ERR_INVALID, cdp_convert(&x, CDP_DTYPE_F32, &d, (cdp_dtype)99, 1, NULL));
    T_TEXT("dtype 99", cdp_last_error()->text);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_convert(&x, CDP_DTYPE_F32, &d, CDP_DTYPE_F64, 1, &r));
    T_TEXT("`round`", cdp_last_error()->text);
    T_EQ(CDP_OK, cdp_convert(NULL, CDP_DTYPE_F32, NULL, CDP_DTYPE_F16, 0, NULL));
}

TEST(a_scale_is_halved_by_overflows_and_grows_after_an_interval) {
    cdp_scaler s;
    memset(&s, 0, sizeof s);
    T(cdp_scaler_scale(&s) == 65536);
    T_EQ(CDP_OK, cdp_scaler_update(&s, true));
    T(s.scale == 32768 && s.tracker == 0 && s.skipped == 1);
    for (uint32_t i = 1; i < 2000; ++i) {
        T_EQ(CDP_OK, cdp_scaler_update(&s, false));
        T(s.scale == 32768 && s.tracker == i);
    }
    T_EQ(CDP_OK, cdp_scaler_update(&s, false));
    T(s.scale == 65536 && s.tracker == 0);
    T_EQ(CDP_OK, cdp_scaler_update(&s, false));
    T_EQ(CDP_OK, cdp_scaler_update(&s, true));
    T(s.tracker == 0 && s.skipped == 2);
}

/* The rule of PyTorch's GradScaler, written once more: f32, a growth that is infinite is left. */
TEST(scales_are_those_of_pytorch_over_many_steps) {
    cdp_scaler s = {1024, 1.5, 0.3, 7, 0, 0};
    float scale = 1024;
    uint32_t tracker = 0, random = 1;
    for (uint32_t step = 0; step < 5000; ++step) {
        random = random * 1664525u + 1013904223u;
        const bool bad = random >> 28 == 0 && scale > 1;
        T_EQ(CDP_OK, cdp_scaler_update(&s, bad));
        if (bad) {
            scale *= 0.3f;
            tracker = 0;
        } else if (++tracker == 7) {
            if (scale * 1.5f < INFINITY) scale *= 1.5f;
            tracker = 0;
        }
        T(bits_of(s.scale) == bits_of(scale) && s.tracker == tracker);
    }
    T(s.skipped > 100);
}

TEST(a_scale_that_falls_for_ever_is_an_error) {
    cdp_scaler s;
    uint32_t steps = 0;
    memset(&s, 0, sizeof s);
    while (steps < 100 && cdp_scaler_update(&s, true) == CDP_OK)
        ++steps;
    T_EQ(30, steps);
    T_EQ(CDP_ERR_STATE, cdp_scaler_update(&s, true));
    T_TEXT("NaN", cdp_last_error()->text);
    T(s.scale > 0);
    s.growth = 1;
    T_EQ(CDP_ERR_INVALID, cdp_scaler_update(&s, false));
    T_EQ(CDP_ERR_INVALID, cdp_scaler_update(NULL, false));
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"converts_between_all_dtypes", converts_between_all_dtypes, 10},
        {"an_array_is_converted_in_its_place", an_array_is_converted_in_its_place, 10},
        {"rounding_at_random_is_fair_for_every_dtype_and_size",
            rounding_at_random_is_fair_for_every_dtype_and_size, 60},
        {"rounding_at_random_leaves_what_is_no_number", rounding_at_random_leaves_what_is_no_number,
            10},
        {"random_bits_depend_on_seed_step_and_place_alone",
            random_bits_depend_on_seed_step_and_place_alone, 10},
        {"what_cannot_be_converted_is_refused", what_cannot_be_converted_is_refused, 10},
        {"a_scale_is_halved_by_overflows_and_grows_after_an_interval",
            a_scale_is_halved_by_overflows_and_grows_after_an_interval, 10},
        {"scales_are_those_of_pytorch_over_many_steps", scales_are_those_of_pytorch_over_many_steps,
            10},
        {"a_scale_that_falls_for_ever_is_an_error", a_scale_that_falls_for_ever_is_an_error, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

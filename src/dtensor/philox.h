/* dtensor/philox.h - random numbers that depend on seed, stream and index alone (pure)

   Knows: Philox4x32-10: key = seed, counter = (index / 4, stream), word = index % 4. Promises: the
   same bits on every machine, because no function of the C library is used. */
#ifndef CDP_SRC_DTENSOR_PHILOX_H
#define CDP_SRC_DTENSOR_PHILOX_H

#include "../base/config.h"
#include "../base/helpers.h"
#include "kit.h"

CDP__DT void cdp__dt_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* log(x) for 0 < x <= 1: x = m 2^e with m in [0.7, 1.42), log m by a series in (m-1)/(m+1). */
CDP__DT double cdp__dt_log(double x) {
    int32_t e = 0;
    while (x < 0.70710678118654752) {
        x *= 2;
        --e;
    }
    const double z = (x - 1) / (x + 1), zz = z * z;
    double sum = 0;
    for (int32_t k = 21; k >= 1; k -= 2)
        sum = sum * zz + 1.0 / k;
    return 2 * z * sum + (double)e * 0.69314718055994530942;
}

/* Square root by Newton's iteration, for 0 <= x < 2^10. */
CDP__DT double cdp__dt_sqrt(double x) {
    double r = x > 1 ? x : 1;
    if (x <= 0) return 0;
    for (uint32_t i = 0; i < 40; ++i) {
        const double next = 0.5 * (r + x / r);
        if (next == r) break;
        r = next;
    }
    return r;
}

/* Cosine or sine of 2 pi u for 0 <= u < 1, by Taylor series within an eighth of a turn. */
CDP__DT double cdp__dt_wave(double u, bool sine) {
    const uint32_t eighth = (uint32_t)(u * 8);
    const uint32_t quarter = (eighth + 1) / 2;
    const double y = (u - (double)quarter / 4) * 6.28318530717958647692, yy = y * y;
    double c = 0, s = 0;
    for (int32_t k = 18; k >= 2; k -= 2) {
        c = (c + 1) * -yy / (k * (k - 1));
        s = (s + 1) * -yy / (k * (k + 1));
    }
    c += 1;
    s = (s + 1) * y;
    const uint32_t turn = (quarter + (sine ? 3u : 0u)) % 4;
    if (turn == 0) return c;
    if (turn == 1) return -s;
    return turn == 2 ? -c : s;
}

/* Uniform in [0, 1) at `index`: 24 bits of one word, or 53 bits of two for f64. */
CDP__DT double cdp__dt_uniform(uint64_t seed, uint64_t stream, uint64_t index, bool wide) {
    uint32_t w[4];
    if (!wide) {
        cdp__dt_philox(seed, stream, index / 4, w);
        return (double)(w[index % 4] >> 8) / 16777216.0;
    }
    cdp__dt_philox(seed, stream, index / 2, w);
    const uint64_t high = w[index % 2 * 2], low = w[index % 2 * 2 + 1];
    return (double)((high << 32 | low) >> 11) / 9007199254740992.0;
}

/* Standard normal at `index`, by Box and Muller: even indices take the cosine, odd ones the sine.
   */
CDP__DT double cdp__dt_normal(uint64_t seed, uint64_t stream, uint64_t index, bool wide) {
    const uint64_t pair = index & ~(uint64_t)1;
    const double radius = 1 - cdp__dt_uniform(seed, stream, pair, wide);
    const double angle = cdp__dt_uniform(seed, stream, pair + 1, wide);
    return cdp__dt_sqrt(-2 * cdp__dt_log(radius)) * cdp__dt_wave(angle, index & 1);
}

#endif /* CDP_SRC_DTENSOR_PHILOX_H */

/* checkpoint/sums.h - a sum of the elements of a tensor that any division into pieces adds up to
   (pure)

   Knows: bits of elements and their indices. Promises: sums of pieces that are disjoint add up,
   modulo 2^64, to the sum of the whole; one changed element of up to 4 bytes always shows, other
   damage escapes with a chance of about 2^-32. Not against malice. */
#ifndef CDP_SRC_CHECKPOINT_SUMS_H
#define CDP_SRC_CHECKPOINT_SUMS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"

/* The sum is SUM over k of x(k) w(k): x(k) are the bits of element k, as a number; w(k) is an odd
   number of a table, at k % 2048, times an odd one made from k / 2048. An odd factor loses no bit.
   The halves of an element of 8 bytes have tables of their own. */
#define CDP__CK_BLOCK 2048u

typedef struct cdp__ck_weights {
    uint32_t low[CDP__CK_BLOCK], high[CDP__CK_BLOCK];
} cdp__ck_weights;

CDP__PRIVATE void cdp__ck_weights_fill(cdp__ck_weights *w) {
    uint32_t i;
    for (i = 0; i < CDP__CK_BLOCK; ++i) {
        w->low[i] = (uint32_t)(cdp__mix(2 * i + 1) >> 32) | 1u;
        w->high[i] = (uint32_t)(cdp__mix(2 * i + 2) >> 32) | 1u;
    }
}

/* Many elements at a time, as far as the processor can: *done becomes how many these were. */
#ifdef __SSE2__
/* Adds products of four elements and four weights to both halves of `sum`. */
CDP__PRIVATE __m128i cdp__ck_four(__m128i sum, __m128i x, const uint32_t *w) {
    const __m128i by = _mm_loadu_si128((const __m128i *)(const void *)w);
    sum = _mm_add_epi64(sum, _mm_mul_epu32(x, by));
    return _mm_add_epi64(sum, _mm_mul_epu32(_mm_srli_epi64(x, 32), _mm_srli_epi64(by, 32)));
}
CDP__PRIVATE __m128i cdp__ck_eight(__m128i sum, __m128i x, const uint32_t *w) {
    const __m128i zero = _mm_setzero_si128();
    sum = cdp__ck_four(sum, _mm_unpacklo_epi16(x, zero), w);
    return cdp__ck_four(sum, _mm_unpackhi_epi16(x, zero), w + 4);
}
CDP__PRIVATE uint64_t cdp__ck_both(__m128i sum) {
    uint64_t halves[2];
    memcpy(halves, &sum, sizeof sum);
    return halves[0] + halves[1];
}
/* Elements of 1, 2 or 4 bytes, 16 bytes at a time. */
CDP__PRIVATE uint64_t cdp__ck_sum_many(
    const uint32_t *w, const uint8_t *at, uint64_t elem, uint64_t n, uint64_t *done) {
    const __m128i zero = _mm_setzero_si128();
    __m128i sum = zero;
    uint64_t i;
    for (i = 0; i + 16 / elem <= n; i += 16 / elem) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(at + i * elem));
        if (elem == 4)
            sum = cdp__ck_four(sum, x, w + i);
        else if (elem == 2)
            sum = cdp__ck_eight(sum, x, w + i);
        else {
            sum = cdp__ck_eight(sum, _mm_unpacklo_epi8(x, zero), w + i);
            sum = cdp__ck_eight(sum, _mm_unpackhi_epi8(x, zero), w + i + 8);
        }
    }
    *done = i;
    return cdp__ck_both(sum);
}
#else
CDP__PRIVATE uint64_t cdp__ck_sum_many(
    const uint32_t *w, const uint8_t *at, uint64_t elem, uint64_t n, uint64_t *done) {
    (void)w;
    (void)at;
    (void)elem;
    (void)n;
    *done = 0;
    return 0;
}
#endif

CDP__PRIVATE uint64_t cdp__ck_sum1(const uint32_t *w, const uint8_t *at, uint64_t n) {
    uint64_t i, sum = cdp__ck_sum_many(w, at, 1, n, &i);
    for (; i < n; ++i)
        sum += (uint64_t)at[i] * w[i];
    return sum;
}

CDP__PRIVATE uint64_t cdp__ck_sum2(const uint32_t *w, const uint8_t *at, uint64_t n) {
    uint64_t i, sum = cdp__ck_sum_many(w, at, 2, n, &i);
    for (; i < n; ++i) {
        uint16_t x;
        memcpy(&x, at + 2 * i, 2);
        sum += (uint64_t)x * w[i];
    }
    return sum;
}

CDP__PRIVATE uint64_t cdp__ck_sum4(const uint32_t *w, const uint8_t *at, uint64_t n) {
    uint64_t i, sum = cdp__ck_sum_many(w, at, 4, n, &i);
    for (; i < n; ++i) {
        uint32_t x;
        memcpy(&x, at + 4 * i, 4);
        sum += (uint64_t)x * w[i];
    }
    return sum;
}

CDP__PRIVATE uint64_t cdp__ck_sum8(
    const uint32_t *low, const uint32_t *high, const uint8_t *at, uint64_t n) {
    uint64_t sum = 0, i;
    for (i = 0; i < n; ++i) {
        uint64_t x;
        memcpy(&x, at + 8 * i, 8);
        sum += (x & 0xffffffffu) * low[i] + (x >> 32) * high[i];
    }
    return sum;
}

/* The sum of elements k to k + count - 1 of a tensor, of 1, 2, 4 or 8 bytes each. */
CDP__PRIVATE uint64_t cdp__ck_sum(
    const cdp__ck_weights *w, const void *data, uint64_t elem, uint64_t k, uint64_t count) {
    const uint8_t *at = (const uint8_t *)data;
    uint64_t sum = 0;
    while (count) {
        const uint64_t from = k % CDP__CK_BLOCK, n = cdp__min(CDP__CK_BLOCK - from, count);
        const uint32_t *const low = w->low + from;
        uint64_t part;
        if (elem == 1)
            part = cdp__ck_sum1(low, at, n);
        else if (elem == 2)
            part = cdp__ck_sum2(low, at, n);
        else if (elem == 4)
            part = cdp__ck_sum4(low, at, n);
        else
            part = cdp__ck_sum8(low, w->high + from, at, n);
        sum += part * (cdp__mix(k / CDP__CK_BLOCK + 1) | 1u);
        at += n * elem;
        k += n;
        count -= n;
    }
    return sum;
}

/* Adds elements k to k + count - 1 to the sums of slabs of `slab` elements each. */
CDP__PRIVATE void cdp__ck_sum_slabs(const cdp__ck_weights *w, const void *data, uint64_t elem,
    uint64_t k, uint64_t count, uint64_t slab, uint64_t *sums) {
    const uint8_t *at = (const uint8_t *)data;
    while (count) {
        const uint64_t n = cdp__min(slab - k % slab, count);
        sums[k / slab] += cdp__ck_sum(w, at, elem, k, n);
        at += n * elem;
        k += n;
        count -= n;
    }
}

#endif /* CDP_SRC_CHECKPOINT_SUMS_H */

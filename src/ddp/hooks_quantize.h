/* ddp/hooks_quantize.h - sends 8 or 4 bits per value

   Knows: the arithmetic of PyTorch's quantization hooks. With 4 bits it
   is the same with 15 steps in place of 255. Promises: the same bits on every rank. */
#ifndef CDP_SRC_DDP_HOOKS_QUANTIZE_H
#define CDP_SRC_DDP_HOOKS_QUANTIZE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "hooks_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../dtype/reduce.h"
#include "../group/collective_calls.h"
#include "hooks.h"

#ifndef CDP_NO_HOOKS

/* Rounds to the nearest integer, ties to even. Values beyond +-1024 become +-1024, NaN becomes
   -1024. Inline, so that the calling loop vectorises; masks select the case, because gcc makes
   branches of `?:` here. */
CDP__PRIVATE inline int32_t cdp__round_whole(float v) {
    uint32_t bits;
    int32_t whole, odd, up, down;
    float x, rest;
    memcpy(&bits, &v, 4);
    bits = CDP__PICK(v > 1024, 0x44800000u, bits);      /* 1024 */
    bits = CDP__PICK(!(v >= -1024), 0xc4800000u, bits); /* -1024 */
    memcpy(&x, &bits, 4);
    whole = (int32_t)x;
    odd = whole & 1;
    rest = x - (float)whole;
    up = (int32_t)(rest > 0.5f) | ((int32_t)(rest == 0.5f) & odd);
    down = (int32_t)(rest < -0.5f) | ((int32_t)(rest == -0.5f) & odd);
    return whole + up - down;
}

CDP__PRIVATE float cdp__round_even(float v) {
    return (float)cdp__round_whole(v);
}

#define CDP__RANGE_LANES 16u

/* The smallest and largest values so far, and the largest magnitude as bits, in lanes. */
typedef struct cdp__range {
    float lows[CDP__RANGE_LANES], highs[CDP__RANGE_LANES];
    uint32_t sizes[CDP__RANGE_LANES];
} cdp__range;

CDP__PRIVATE void cdp__quantize_range_block(
    const float *CDP__RESTRICT x, cdp__range *CDP__RESTRICT r) {
    uint32_t i, k, bits[CDP__BLOCK];
    float *lows = r->lows, *highs = r->highs;
    memcpy(bits, x, sizeof bits);
    for (i = 0; i < CDP__BLOCK; i += CDP__RANGE_LANES)
        for (k = 0; k < CDP__RANGE_LANES; ++k) {
            const uint32_t size = bits[i + k] & CDP__SIZE_BITS;
            r->sizes[k] = size > r->sizes[k] ? size : r->sizes[k];
            lows[k] = x[i + k] < lows[k] ? x[i + k] : lows[k];
            highs[k] = x[i + k] > highs[k] ? x[i + k] : highs[k];
        }
}

/* Scale and zero point of one row, from a range that always includes 0, in `top` steps. If a value
   of the row is not finite the scale is NaN, and so is what the row becomes on every rank. */
CDP__PRIVATE void cdp__quantize_range(const float *x, uint64_t n, float top, float *out) {
    static const uint32_t nan_bits = 0x7fc00000u;
    float rest[CDP__BLOCK] = {0}, low = 0, high = 0, scale, zero;
    cdp__range r;
    uint32_t k, size = 0;
    memset(&r, 0, sizeof r);
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, x += CDP__BLOCK)
        cdp__quantize_range_block(x, &r);
    if (n) memcpy(rest, x, (size_t)n * sizeof *rest);
    cdp__quantize_range_block(rest, &r);
    for (k = 0; k < CDP__RANGE_LANES; ++k) {
        low = r.lows[k] < low ? r.lows[k] : low;
        high = r.highs[k] > high ? r.highs[k] : high;
        size = r.sizes[k] > size ? r.sizes[k] : size;
    }
    scale = (high - low) / top;
    if (!(scale >= 1.1920929e-07f)) scale = 1.1920929e-07f;
    if (size >= CDP__SIZE_INFINITE) memcpy(&scale, &nan_bits, sizeof scale);
    zero = 0 - cdp__round_even(low / scale);
    if (zero < 0) zero = 0;
    if (zero > top) zero = top;
    out[0] = scale;
    out[1] = zero;
}

CDP__PRIVATE void cdp__quantize_block(const float *CDP__RESTRICT x, float scale, float zero,
    int32_t top, uint8_t *CDP__RESTRICT out) {
    const int32_t origin = (int32_t)zero; /* an integer, 0 to top */
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i) {
        int32_t q = cdp__round_whole(x[i] / scale) + origin;
        q = q < 0 ? 0 : q;
        q = q > top ? top : q;
        out[i] = (uint8_t)q;
    }
}

CDP__PRIVATE void cdp__quantize_row(
    const float *x, uint64_t n, const float *range, int32_t top, uint8_t *out) {
    float rest[CDP__BLOCK] = {0};
    uint8_t bytes[CDP__BLOCK];
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, x += CDP__BLOCK, out += CDP__BLOCK)
        cdp__quantize_block(x, range[0], range[1], top, out);
    if (!n) return;
    memcpy(rest, x, (size_t)n * sizeof *rest);
    cdp__quantize_block(rest, range[0], range[1], top, bytes);
    memcpy(out, bytes, (size_t)n);
}

CDP__PRIVATE void cdp__dequantize_block(
    float *CDP__RESTRICT x, float scale, float zero, const uint8_t *CDP__RESTRICT q) {
    uint32_t i;
    for (i = 0; i < CDP__BLOCK; ++i)
        x[i] += scale * ((float)q[i] - zero);
}

/* Adds the values that one rank sent to x. */
CDP__PRIVATE void cdp__dequantize_row(float *x, uint64_t n, const float *range, const uint8_t *q) {
    float rest[CDP__BLOCK] = {0};
    uint8_t bytes[CDP__BLOCK] = {0};
    for (; n >= CDP__BLOCK; n -= CDP__BLOCK, x += CDP__BLOCK, q += CDP__BLOCK)
        cdp__dequantize_block(x, range[0], range[1], q);
    if (!n) return;
    memcpy(rest, x, (size_t)n * sizeof *rest);
    memcpy(bytes, q, (size_t)n);
    cdp__dequantize_block(rest, range[0], range[1], bytes);
    memcpy(x, rest, (size_t)n * sizeof *rest);
}

#define CDP__QUANTIZE_ROW 512u

/* Two values of 4 bits as one byte, the first one in its low half. */
CDP__PRIVATE void cdp__nibbles_pack(const uint8_t *values, uint8_t *out) {
    uint32_t i;
    for (i = 0; i < CDP__QUANTIZE_ROW / 2; ++i)
        out[i] = (uint8_t)(values[2 * i] | values[2 * i + 1] << 4);
}

CDP__PRIVATE void cdp__nibbles_unpack(const uint8_t *bytes, uint8_t *values) {
    uint32_t i;
    for (i = 0; i < CDP__QUANTIZE_ROW / 2; ++i) {
        values[2 * i] = bytes[i] & 15;
        values[2 * i + 1] = bytes[i] >> 4;
    }
}

/* A bucket as rows that have a scale and a zero point each: rows of 512 values, the last one
   padded, or a single row. Scratch memory holds the ranges of all ranks, then the bytes of all
   ranks. */
typedef struct cdp__quantized {
    uint64_t row, rows;
    uint64_t row_bytes; /* on its way: half a row with 4 bits */
    int32_t top;        /* the largest number that travels */
    float *ranges;      /* rank r: `rows` pairs, from r * rows * 2 on */
    uint8_t *bytes;     /* rank r: `rows` * `row_bytes` bytes, from r * rows * row_bytes on */
} cdp__quantized;

CDP__PRIVATE void cdp__quantized_put(
    const cdp__quantized *z, const float *x, uint64_t n, const float *range, uint8_t *out) {
    uint8_t values[CDP__QUANTIZE_ROW] = {0};
    if (z->row_bytes == z->row) {
        cdp__quantize_row(x, n, range, z->top, out);
        return;
    }
    cdp__quantize_row(x, n, range, z->top, values);
    cdp__nibbles_pack(values, out);
}

/* Adds what cdp__quantized_put() of one rank has written. */
CDP__PRIVATE void cdp__quantized_add(
    const cdp__quantized *z, float *x, uint64_t n, const float *range, const uint8_t *in) {
    uint8_t values[CDP__QUANTIZE_ROW];
    if (z->row_bytes == z->row) {
        cdp__dequantize_row(x, n, range, in);
        return;
    }
    cdp__nibbles_unpack(in, values);
    cdp__dequantize_row(x, n, range, values);
}

/* The number of values in row i, without padding. */
CDP__PRIVATE uint64_t cdp__quantized_row(const cdp__quantized *z, const cdp_bucket *b, uint64_t i) {
    const uint64_t begin = i * z->row;
    return begin < b->count ? cdp__min(z->row, b->count - begin) : 0;
}

CDP__PRIVATE void cdp__quantize_own(
    const cdp__quantized *z, const cdp_bucket *b, bool ranges_only) {
    const uint64_t rank = cdp_rank(b->group), n = z->rows * z->row_bytes;
    const float *x = (const float *)b->data;
    uint64_t i;
    if (!ranges_only) memset(z->bytes + rank * n, 0, (size_t)n);
    for (i = 0; i < z->rows; ++i, x += z->row) {
        float *range = z->ranges + (rank * z->rows + i) * 2;
        const uint64_t used = cdp__quantized_row(z, b, i);
        if (ranges_only)
            cdp__quantize_range(x, used, (float)z->top, range);
        else
            cdp__quantized_put(z, x, used, range, z->bytes + rank * n + i * z->row_bytes);
    }
}

/* Replaces the bucket by the mean of the values of all ranks. */
CDP__PRIVATE void cdp__quantized_mean(const cdp__quantized *z, const cdp_bucket *b) {
    const uint64_t world = cdp_size(b->group), n = z->rows * z->row_bytes;
    const float divisor = (float)b->divisor;
    float *x = (float *)b->data;
    uint64_t i, r;
    memset(x, 0, (size_t)b->count * sizeof *x);
    for (i = 0; i < z->rows; ++i)
        for (r = 0; r < world; ++r)
            cdp__quantized_add(z, x + i * z->row, cdp__quantized_row(z, b, i),
                z->ranges + (r * z->rows + i) * 2, z->bytes + r * n + i * z->row_bytes);
    cdp__kernel_run(CDP_DTYPE_F32, cdp__divide_f32, x, &divisor, b->count, true);
}

CDP__PRIVATE cdp_status cdp__hook_quantize(
    cdp__hook *h, cdp__slot *s, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    const bool four = h->desc.kind == CDP_HOOK_QUANTIZE_4,
               channel = four || h->desc.kind == CDP_HOOK_QUANTIZE_CHANNEL;
    const uint64_t world = cdp_size(b->group);
    cdp__quantized z;
    uint64_t bytes;
    z.row = channel ? CDP__QUANTIZE_ROW : b->count;
    z.rows = channel ? b->count / CDP__QUANTIZE_ROW + 1 : 1;
    z.row_bytes = four ? CDP__QUANTIZE_ROW / 2 : z.row;
    z.top = four ? 15 : 255;
    bytes = world * z.rows * (8 + z.row_bytes);
    if (!cdp__hook_memory(h, &s->scratch, &s->scratch_bytes, bytes))
        return cdp__fail_nomem("a quantized bucket", bytes);
    z.ranges = (float *)(void *)s->scratch;
    z.bytes = s->scratch + world * z.rows * 8;
    if (stage == 2) {
        cdp__quantized_mean(&z, b);
        return CDP_OK;
    }
    cdp__quantize_own(&z, b, stage == 0);
    if (stage == 0)
        *op = cdp__request_of(
            CDP_COLL_ALLGATHER, NULL, z.ranges, z.rows * 2, CDP_DTYPE_F32, CDP_REDUCE_DEFAULT, 0);
    else
        *op = cdp__request_of(CDP_COLL_ALLGATHER, NULL, z.bytes, z.rows * z.row_bytes, CDP_DTYPE_U8,
            CDP_REDUCE_DEFAULT, 0);
    return CDP_PENDING;
}

#endif /* CDP_NO_HOOKS */

#endif /* CDP_SRC_DDP_HOOKS_QUANTIZE_H */

/* train/sampler.h - which samples a rank trains on

   Knows: PyTorch's random permutation. Promises: the order of PyTorch's DistributedSampler. */
#ifndef CDP_SRC_TRAIN_SAMPLER_H
#define CDP_SRC_TRAIN_SAMPLER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "sampler_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"

#ifndef CDP_NO_SAMPLER

/* MT19937 (Matsumoto and Nishimura 1998), because PyTorch draws the order of samples with it. */
typedef struct cdp__mt {
    uint32_t state[624], at;
} cdp__mt;

CDP__PRIVATE void cdp__mt_seed(cdp__mt *m, uint32_t seed) {
    uint32_t i;
    m->state[0] = seed;
    for (i = 1; i < 624; ++i)
        m->state[i] = 1812433253u * (m->state[i - 1] ^ m->state[i - 1] >> 30) + i;
    m->at = 624;
}

CDP__PRIVATE uint32_t cdp__mt_next(cdp__mt *m) {
    uint32_t i, y;
    if (m->at == 624) {
        for (i = 0; i < 624; ++i) {
            y = (m->state[i] & 0x80000000u) | (m->state[(i + 1) % 624] & 0x7fffffffu);
            m->state[i] = m->state[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        m->at = 0;
    }
    y = m->state[m->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

CDP_API uint64_t cdp_sampler_count(const cdp_sampler *s) {
    uint64_t rest;
    if (!s || !s->ranks || s->consumed >= s->size) return 0;
    rest = s->size - s->consumed;
    return s->drop_last ? rest / s->ranks : (rest + s->ranks - 1) / s->ranks;
}

/* Writes a random permutation of 0 .. n - 1 to `order`. */
CDP__PRIVATE void cdp__sampler_shuffle(uint32_t *order, uint64_t n, uint32_t seed) {
    uint64_t i;
    cdp__mt m;
    cdp__mt_seed(&m, seed);
    for (i = 0; i < n; ++i)
        order[i] = (uint32_t)i;
    for (i = 0; i + 1 < n; ++i) {
        const uint64_t j = i + cdp__mt_next(&m) % (n - i);
        const uint32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

CDP_API cdp_status cdp_sampler_fill(const cdp_sampler *s, uint64_t *indices) {
    const uint64_t count = cdp_sampler_count(s);
    const cdp_os *os;
    uint32_t *order = NULL;
    uint64_t i, at;
    if (!s || !indices || !s->size || !s->ranks || s->rank >= s->ranks || s->size >> 32)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_sampler_fill needs a size from 1 to 2^32 - 1, a rank below ranks, and memory "
            "for the indices");
    os = s->os ? s->os : cdp_os_default();
    if (s->shuffle) {
        order = (uint32_t *)cdp__alloc(os, s->size * sizeof *order);
        if (!order) return cdp__fail_nomem("an order of samples", s->size * sizeof *order);
        cdp__sampler_shuffle(order, s->size, (uint32_t)(s->seed + s->epoch));
    }
    for (i = 0; i < count; ++i) {
        /* beyond the end, the list starts over */
        at = (s->consumed + s->rank + i * s->ranks) % s->size;
        indices[i] = order ? order[at] : at;
    }
    cdp__free(os, order);
    return CDP_OK;
}
#endif /* CDP_NO_SAMPLER */

#endif /* CDP_SRC_TRAIN_SAMPLER_H */

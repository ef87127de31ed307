/* train/sampler.h - which samples a rank trains on

   Knows: PyTorch's random permutation. Promises: the order of PyTorch's DistributedSampler; every
   other order depends on the settings alone, not on rank, ranks or consumed. */
#ifndef CDP_SRC_TRAIN_SAMPLER_H
#define CDP_SRC_TRAIN_SAMPLER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "sampler_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/hash.h"
#include "../base/helpers.h"
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

/* ---- how positions of the order are dealt to ranks ---- */

CDP__PRIVATE uint64_t cdp__sampler_total(const cdp_sampler *s) {
    return s->weights && s->draws ? s->draws : s->size;
}

CDP__PRIVATE uint64_t cdp__sampler_left(const cdp_sampler *s) {
    const uint64_t total = s && s->ranks ? cdp__sampler_total(s) : 0;
    return total && s->consumed < total ? total - s->consumed : 0;
}

/* How many of the last `rest` positions a rank has. */
CDP__PRIVATE uint64_t cdp__sampler_share(const cdp_sampler *s, uint64_t rest) {
    const uint64_t each = rest / s->ranks, over = rest % s->ranks;
    if (s->drop_last) return each;
    return each + (uint64_t)(s->exact ? s->rank < over : over != 0);
}

CDP__PRIVATE uint64_t cdp__sampler_batch(const cdp_sampler *s) {
    return s->batch ? s->batch : 1;
}

CDP_API uint64_t cdp_sampler_count(const cdp_sampler *s) {
    const uint64_t left = cdp__sampler_left(s);
    return left ? cdp__sampler_share(s, left) : 0;
}

CDP_API uint64_t cdp_sampler_steps(const cdp_sampler *s) {
    const uint64_t left = cdp__sampler_left(s);
    cdp_sampler first; /* rank 0 has the most samples */
    uint64_t count;
    if (!left) return 0;
    first = *s;
    first.rank = 0;
    count = cdp__sampler_share(&first, left);
    return count / cdp__sampler_batch(s) + (count % cdp__sampler_batch(s) != 0);
}

/* The position of the i-th sample of this rank. With lengths, a rank has whole batches, and
   neighbours of the last ones; else every ranks-th. Beyond the end, the list starts over. */
CDP__PRIVATE uint64_t cdp__sampler_position(const cdp_sampler *s, uint64_t i) {
    const uint64_t total = cdp__sampler_total(s), batch = cdp__sampler_batch(s);
    const uint64_t left = cdp__sampler_left(s), full = left / batch / s->ranks;
    uint64_t rest, before;
    if (!s->lengths) return (s->consumed + s->rank + i * s->ranks) % total;
    if (i < full * batch) return s->consumed + (i / batch * s->ranks + s->rank) * batch + i % batch;
    rest = left - full * batch * s->ranks;
    before = rest / s->ranks * s->rank;
    if (!s->drop_last)
        before += s->exact || rest % s->ranks == 0 ? cdp__min(s->rank, rest % s->ranks) : s->rank;
    return (s->consumed + full * batch * s->ranks + before + i - full * batch) % total;
}

/* ---- which sample stands at a position ---- */

/* A position's sample, with what is needed to know it. */
typedef struct cdp__order {
    const cdp_sampler *s;
    const cdp_os *os;
    uint64_t key;   /* of everything that is drawn */
    uint32_t *list; /* all positions, or NULL */
    double *sums;   /* of the weights up to each sample: drawn again and again */
    uint64_t last;  /* the last sample with a weight */
} cdp__order;

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

/* The i-th random number of a key. */
CDP__PRIVATE uint64_t cdp__order_random(uint64_t key, uint64_t i) {
    return cdp__mix(key + (i + 1) * 0x9e3779b97f4a7c15ull);
}

/* A permutation of the numbers of 2 * half bits, applied until the result is below n. */
CDP__PRIVATE uint64_t cdp__order_hash(uint64_t key, uint64_t n, uint64_t at) {
    uint32_t half = 1, round;
    uint64_t mask;
    while (half < 32 && (n - 1) >> 2 * half)
        ++half;
    mask = (1ull << half) - 1;
    do {
        for (round = 0; round < 4; ++round) {
            const uint64_t right = at & mask;
            const uint64_t mixed = cdp__order_random(key + round, right) & mask;
            at = right << half | ((at >> half ^ mixed) & mask);
        }
    } while (at >= n);
    return at;
}

/* ---- weights ---- */

/* An exponential variable, by comparisons alone (von Neumann 1951): so that every machine draws the
   same, without a logarithm. */
CDP__PRIVATE CDP__EXACT double cdp__order_exponential(uint64_t key) {
    uint64_t i = 0, whole = 0;
    for (;; ++whole) {
        const uint64_t first = cdp__order_random(key, i++);
        uint64_t former = first, next;
        uint32_t falls = 0; /* the run of falling numbers that begins with the first */
        for (; (next = cdp__order_random(key, i++)) < former; former = next)
            ++falls;
        if (falls % 2 == 0) return (double)whole + (double)(first >> 11) / 9007199254740992.0;
    }
}

typedef struct cdp__order_item {
    uint64_t key;
    uint32_t sample;
} cdp__order_item;

static int cdp__order_items_up(const void *a, const void *b) {
    const cdp__order_item *const x = (const cdp__order_item *)a;
    const cdp__order_item *const y = (const cdp__order_item *)b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

/* Without repetition: who comes first in a race of exponential times with these rates. */
CDP__PRIVATE CDP__EXACT cdp_status cdp__order_race(cdp__order *o) {
    const cdp_sampler *const s = o->s;
    cdp__order_item *all = (cdp__order_item *)cdp__alloc(o->os, s->size * sizeof *all);
    uint64_t i;
    if (!all) return cdp__fail_nomem("the order of weighted samples", s->size * sizeof *all);
    for (i = 0; i < s->size; ++i) {
        const double time = cdp__order_exponential(cdp__order_random(o->key, i)) / s->weights[i];
        all[i].sample = (uint32_t)i;
        memcpy(&all[i].key, &time, 8); /* numbers that are not negative sort like their bits */
        if (!(s->weights[i] > 0)) all[i].key = (uint64_t)-1;
    }
    qsort(all, (size_t)s->size, sizeof *all, cdp__order_items_up);
    for (i = 0; i < cdp__sampler_total(s); ++i)
        o->list[i] = all[i].sample;
    cdp__free(o->os, all);
    return CDP_OK;
}

CDP__PRIVATE CDP__EXACT cdp_status cdp__order_check_weights(cdp__order *o) {
    const cdp_sampler *const s = o->s;
    uint64_t i, some = 0;
    double sum = 0;
    for (i = 0; i < s->size; ++i) {
        if (!(s->weights[i] >= 0))
            return cdp__fail(CDP_ERR_INVALID, "weights[%llu] of a sampler is negative or NaN",
                (unsigned long long)i);
        sum += s->weights[i];
        if (!(s->weights[i] > 0)) continue;
        ++some;
        o->last = i;
    }
    if (!(sum > 0) || sum - sum != 0)
        return cdp__fail(
            CDP_ERR_INVALID, "the sum of a sampler's weights is 0 or no finite number");
    if (s->once && cdp__sampler_total(s) > some)
        return cdp__fail(CDP_ERR_INVALID,
            "%llu draws without repetition from %llu samples with a weight above 0: lower .draws",
            (unsigned long long)cdp__sampler_total(s), (unsigned long long)some);
    return CDP_OK;
}

CDP__PRIVATE CDP__EXACT cdp_status cdp__order_sum(cdp__order *o) {
    uint64_t i;
    double sum = 0;
    o->sums = (double *)cdp__alloc(o->os, o->s->size * sizeof *o->sums);
    if (!o->sums) return cdp__fail_nomem("the sums of weights", o->s->size * sizeof *o->sums);
    for (i = 0; i < o->s->size; ++i)
        o->sums[i] = sum += o->s->weights[i];
    return CDP_OK;
}

/* The first sample whose sum is above a random part of the sum of all. */
CDP__PRIVATE CDP__EXACT uint64_t cdp__order_draw(const cdp__order *o, uint64_t at) {
    const double part = (double)(cdp__order_random(o->key, at) >> 11) / 9007199254740992.0;
    const double wanted = part * o->sums[o->last];
    uint64_t low = 0, high = o->last;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (o->sums[middle] > wanted)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- lengths ---- */

/* Sorts the samples of a window by length and shuffles the rows that are full. */
CDP__PRIVATE void cdp__order_window(
    const cdp__order *o, cdp__order_item *all, uint64_t at, uint64_t n, uint64_t row) {
    const uint64_t rows = n / row, key = cdp__order_random(o->key, at);
    uint64_t i, k;
    for (i = 0; i < n; ++i) {
        all[i].sample = o->list[at + i];
        all[i].key = o->s->lengths[all[i].sample];
    }
    qsort(all, (size_t)n, sizeof *all, cdp__order_items_up);
    for (i = 0; i < n; ++i)
        o->list[at + i] = all[i].sample;
    for (i = 0; i + 1 < rows; ++i) {
        uint32_t *const one = o->list + at + i * row;
        uint32_t *const other = one + cdp__order_random(key, i) % (rows - i) * row;
        for (k = 0; k < row; ++k) {
            const uint32_t t = one[k];
            one[k] = other[k];
            other[k] = t;
        }
    }
}

CDP__PRIVATE cdp_status cdp__order_by_length(cdp__order *o) {
    const cdp_sampler *const s = o->s;
    const uint64_t total = cdp__sampler_total(s);
    const uint64_t row = (s->row ? s->row : s->ranks) * cdp__sampler_batch(s);
    const uint64_t rows = s->window ? s->window : 32;
    const uint64_t window = row > total / rows ? total : row * rows;
    cdp__order_item *all = (cdp__order_item *)cdp__alloc(o->os, window * sizeof *all);
    uint64_t at;
    if (!all) return cdp__fail_nomem("a window of samples", window * sizeof *all);
    for (at = 0; at < total; at += window)
        cdp__order_window(o, all, at, cdp__min(window, total - at), row);
    cdp__free(o->os, all);
    return CDP_OK;
}

/* ---- orders as a whole ---- */

CDP__PRIVATE bool cdp__sampler_has_list(const cdp_sampler *s) {
    if (s->lengths) return true;
    return s->weights ? s->once : s->shuffle && s->order == CDP_SAMPLE_ORDER_TORCH;
}

/* The sample at a position, without the list. */
CDP__PRIVATE uint64_t cdp__order_plain(const cdp__order *o, uint64_t at) {
    if (o->sums) return cdp__order_draw(o, at);
    if (o->s->shuffle) return cdp__order_hash(o->key, o->s->size, at);
    return at;
}

CDP__PRIVATE uint64_t cdp__order_at(const cdp__order *o, uint64_t i) {
    const uint64_t at = cdp__sampler_position(o->s, i);
    return o->list ? o->list[at] : cdp__order_plain(o, at);
}

CDP__PRIVATE void cdp__order_close(cdp__order *o) {
    cdp__free(o->os, o->list);
    cdp__free(o->os, o->sums);
}

CDP__PRIVATE cdp_status cdp__order_list(cdp__order *o) {
    const cdp_sampler *const s = o->s;
    const uint64_t total = cdp__sampler_total(s);
    cdp_status st = CDP_OK;
    uint64_t i;
    o->list = (uint32_t *)cdp__alloc(o->os, total * sizeof *o->list);
    if (!o->list) return cdp__fail_nomem("an order of samples", total * sizeof *o->list);
    if (s->weights && s->once)
        st = cdp__order_race(o);
    else if (!s->weights && s->shuffle && s->order == CDP_SAMPLE_ORDER_TORCH)
        cdp__sampler_shuffle(o->list, total, (uint32_t)(s->seed + s->epoch));
    else
        for (i = 0; i < total; ++i)
            o->list[i] = (uint32_t)cdp__order_plain(o, i);
    return !st && s->lengths ? cdp__order_by_length(o) : st;
}

CDP__PRIVATE cdp_status cdp__sampler_check(const cdp_sampler *s) {
    const int bits = cdp__sampler_has_list(s) || s->weights ? 32 : 62;
    if (!s->size || s->size >> bits)
        return cdp__fail(CDP_ERR_INVALID, "a sampler needs a size from 1 to 2^%d - 1, not %llu",
            bits, (unsigned long long)s->size);
    if (cdp__sampler_total(s) >> bits)
        return cdp__fail(CDP_ERR_INVALID, "a sampler draws at most 2^%d - 1 samples, not %llu",
            bits, (unsigned long long)cdp__sampler_total(s));
    if (!s->ranks || s->rank >= s->ranks)
        return cdp__fail(
            CDP_ERR_INVALID, "a sampler needs a rank below ranks, not %u of %u", s->rank, s->ranks);
    if (s->exact && s->drop_last)
        return cdp__fail(CDP_ERR_INVALID, "a sampler has exact or drop_last, not both");
    if ((uint32_t)s->order > CDP_SAMPLE_ORDER_HASH)
        return cdp__fail(CDP_ERR_INVALID, "%d is no order of a sampler", (int)s->order);
    return CDP_OK;
}

/* Opens the order of an epoch. cdp__order_close() also after a failure. */
CDP__PRIVATE cdp_status cdp__order_open(cdp__order *o, const cdp_sampler *s) {
    cdp_status st;
    memset(o, 0, sizeof *o);
    o->s = s;
    o->os = s->os ? s->os : cdp_os_default();
    o->key = cdp__mix(s->seed + cdp__mix(s->epoch + 0x9e3779b97f4a7c15ull));
    st = cdp__sampler_check(s);
    if (!st && s->weights) st = cdp__order_check_weights(o);
    if (!st && s->weights && !s->once) st = cdp__order_sum(o);
    return !st && cdp__sampler_has_list(s) ? cdp__order_list(o) : st;
}

CDP_API cdp_status cdp_sampler_part(
    const cdp_sampler *s, uint64_t first, uint64_t count, uint64_t *indices) {
    const uint64_t have = cdp_sampler_count(s);
    cdp__order o;
    uint64_t i;
    cdp_status st;
    if (!s) return cdp__missing("cdp_sampler_part", "sampler");
    if (!indices) return cdp__missing("cdp_sampler_part", "indices");
    if (first > have || count > have - first)
        return cdp__fail(CDP_ERR_INVALID, "samples %llu to %llu of a rank that has %llu",
            (unsigned long long)first, (unsigned long long)(first + count),
            (unsigned long long)have);
    if (cdp__os_whole(s->os, "cdp_sampler_part") != CDP_OK) return CDP_ERR_INVALID;
    st = cdp__order_open(&o, s);
    for (i = 0; !st && i < count; ++i)
        indices[i] = cdp__order_at(&o, first + i);
    cdp__order_close(&o);
    return st;
}

CDP_API cdp_status cdp_sampler_fill(const cdp_sampler *s, uint64_t *indices) {
    return cdp_sampler_part(s, 0, cdp_sampler_count(s), indices);
}
#endif /* CDP_NO_SAMPLER */

#endif /* CDP_SRC_TRAIN_SAMPLER_H */

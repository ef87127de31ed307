/* memory_traces.h - requests of training and inference in their order, for the benchmark of
   cdp_mem.h: sizes and lifetimes as models have them, nothing behind the addresses */
#ifndef MEMORY_TRACES_INCLUDED
#define MEMORY_TRACES_INCLUDED

#include "test.h"

#define TRACE_KIB ((uint64_t)1 << 10)
#define TRACE_LAYERS 24

typedef struct trace_op {
    uint64_t bytes; /* 0: a free */
    uint32_t id, stream;
} trace_op;

typedef struct trace {
    const char *name;
    trace_op *ops;
    uint64_t count, room, random;
    uint32_t ids;
} trace;

typedef struct trace_saved { /* what a layer keeps for backward */
    uint32_t id[16], count;
} trace_saved;

static void trace_add(trace *t, uint64_t bytes, uint32_t id, uint32_t stream) {
    if (t->count == t->room) {
        t->room = 2 * t->room + 1024;
        t->ops = (trace_op *)realloc(t->ops, t->room * sizeof *t->ops);
        if (!t->ops) exit(1);
    }
    t->ops[t->count++] = (trace_op){bytes, id, stream};
}
static uint32_t trace_get_on(trace *t, uint64_t bytes, uint32_t stream) {
    trace_add(t, bytes, t->ids, stream);
    return t->ids++;
}
static uint32_t trace_get(trace *t, uint64_t bytes) {
    return trace_get_on(t, bytes, 0);
}
static void trace_put(trace *t, uint32_t id) {
    trace_add(t, 0, id, 0);
}
static void trace_brief(trace *t, uint64_t bytes) {
    trace_put(t, trace_get(t, bytes));
}
static uint64_t trace_in(trace *t, uint64_t low, uint64_t high) {
    return low + test_random(&t->random) % (high - low + 1);
}
static void trace_keep(trace *t, trace_saved *s, uint64_t bytes) {
    s->id[s->count++] = trace_get(t, bytes);
}
static void trace_drop(trace *t, trace_saved *s, uint32_t down_to) {
    while (s->count > down_to)
        trace_put(t, s->id[--s->count]);
}

/* A layer of a transformer in two bytes a value: `n` tokens of `d` values. */
static void trace_forward(
    trace *t, trace_saved *s, uint64_t n, uint64_t d, uint64_t heads, uint64_t seq, bool flash) {
    uint32_t brief;
    trace_keep(t, s, 2 * n * d);
    trace_keep(t, s, 6 * n * d);
    brief = trace_get(t, 2 * n * d);
    if (!flash) trace_keep(t, s, 2 * n * seq * heads);
    trace_keep(t, s, 2 * n * d);
    trace_keep(t, s, 4 * n * heads);
    trace_put(t, brief);
    trace_keep(t, s, 2 * n * d);
    trace_keep(t, s, 8 * n * d);
    brief = trace_get(t, 8 * n * d);
    trace_keep(t, s, 8 * n * d);
    trace_put(t, brief);
    trace_keep(t, s, 2 * n * d);
}

static void trace_backward(trace *t, trace_saved *s, uint64_t n, uint64_t d) {
    uint32_t a = trace_get(t, 8 * n * d), b;
    trace_drop(t, s, s->count - 2);
    b = trace_get(t, 2 * n * d);
    trace_put(t, a);
    trace_drop(t, s, 3);
    a = trace_get(t, 6 * n * d);
    trace_drop(t, s, 0);
    trace_put(t, a);
    trace_put(t, b);
}

static void trace_weights(trace *t, uint64_t layers, uint64_t d, uint64_t width) {
    static const uint64_t squares[] = {3, 1, 4, 4}, rows[] = {3, 1, 4, 1};
    trace_get(t, width * 32000 * d);
    for (uint64_t i = 0; i < layers; ++i)
        for (int k = 0; k < 4; ++k) {
            trace_get(t, width * squares[k] * d * d);
            trace_get(t, width * rows[k] * d);
        }
}

static void trace_gradients(trace *t, uint32_t *grads, uint64_t d) {
    static const uint64_t of[] = {6, 2, 8, 8};
    for (int k = 0; k < 4; ++k)
        grads[k] = trace_get(t, of[k] * d * d);
}

static void trace_step(trace *t, uint32_t grads[12][4], bool first, bool again, bool flash) {
    const uint64_t layers = 12, d = 1024, seq = trace_in(t, 100, 1024), n = seq * 8;
    trace_saved s[12];
    uint32_t edge[12], logits, wide, loss;
    memset(s, 0, sizeof s);
    for (uint64_t i = 0; i < layers; ++i) {
        trace_forward(t, &s[i], n, d, 16, seq, flash);
        edge[i] = trace_get(t, 2 * n * d);
        if (again) trace_drop(t, &s[i], 0);
    }
    logits = trace_get(t, 2 * n * 32000);
    wide = trace_get(t, 4 * n * 32000);
    loss = trace_get(t, 4 * n * 32000);
    trace_put(t, wide);
    trace_put(t, logits);
    for (uint64_t i = 0; i < layers && !first; ++i)
        for (int k = 0; k < 4; ++k)
            trace_put(t, grads[i][k]);
    for (uint64_t i = layers; i-- > 0;) {
        if (again) trace_forward(t, &s[i], n, d, 16, seq, flash);
        trace_backward(t, &s[i], n, d);
        trace_put(t, edge[i]);
        trace_gradients(t, grads[i], d);
    }
    trace_put(t, loss);
    if (first) trace_weights(t, layers, d, 8); /* the optimizer's state */
}

static void trace_train(trace *t, bool again, bool flash) {
    uint32_t grads[12][4];
    trace_weights(t, 12, 1024, 2);
    for (int step = 0; step < 40; ++step)
        trace_step(t, grads, step == 0, again, flash);
}
static void trace_of_training(trace *t) {
    trace_train(t, false, true);
}
static void trace_of_attention(trace *t) {
    trace_train(t, false, false);
}
static void trace_of_checkpointing(trace *t) {
    trace_train(t, true, true);
}

static void trace_of_generation(trace *t) {
    const uint64_t d = 2048;
    uint32_t kv[2 * TRACE_LAYERS];
    trace_weights(t, TRACE_LAYERS, d, 2);
    for (int request = 0; request < 4; ++request) {
        const uint64_t batch = trace_in(t, 1, 8);
        uint64_t n = trace_in(t, 50, 900);
        for (int i = 0; i < TRACE_LAYERS; ++i) {
            trace_saved s = {{0}, 0};
            trace_forward(t, &s, batch * n, d, 16, n, true);
            kv[2 * i] = trace_get(t, 2 * batch * n * d);
            kv[2 * i + 1] = trace_get(t, 2 * batch * n * d);
            trace_drop(t, &s, 0);
        }
        for (int token = 0; token < 150; ++token, ++n)
            for (int i = 0; i < 2 * TRACE_LAYERS; ++i) {
                const uint32_t longer = trace_get(t, 2 * batch * (n + 1) * d);
                trace_put(t, kv[i]);
                kv[i] = longer;
                if (i % 2) trace_brief(t, 2 * batch * 16 * (n + 1));
            }
        for (int i = 0; i < 2 * TRACE_LAYERS; ++i)
            trace_put(t, kv[i]);
    }
}

typedef struct trace_request {
    uint64_t n, until;
    uint32_t kv[16];
} trace_request;

static void trace_arrive(trace *t, trace_request *q) {
    q->n = trace_in(t, 20, 1500);
    q->until = q->n + trace_in(t, 20, 800);
    for (int i = 0; i < 16; ++i) {
        trace_saved s = {{0}, 0};
        trace_forward(t, &s, q->n, 2048, 16, q->n, true);
        q->kv[i] = trace_get(t, 4 * q->n * 2048);
        trace_drop(t, &s, 0);
    }
}

static void trace_of_serving(trace *t) {
    static trace_request live[24];
    uint32_t count = 0;
    trace_weights(t, 16, 2048, 2);
    for (int turn = 0; turn < 1200; ++turn) {
        if (count < 24 && trace_in(t, 0, 3) == 0) trace_arrive(t, &live[count++]);
        for (uint32_t j = 0; j < count;) {
            trace_request *const q = &live[j];
            q->n += 8;
            for (int i = 0; i < 16 && q->n % 64 < 8; ++i) {
                const uint32_t longer = trace_get(t, 4 * (q->n + 64) * 2048);
                trace_put(t, q->kv[i]);
                q->kv[i] = longer;
            }
            for (int i = 0; i < 16 && q->n >= q->until; ++i)
                trace_put(t, q->kv[i]);
            if (q->n >= q->until)
                *q = live[--count];
            else
                ++j;
        }
        trace_brief(t, 8 * (count + 1) * 2048);
        trace_brief(t, 4 * (count + 1) * 32000);
    }
}

static void trace_of_images(trace *t) {
    for (int i = 0; i < 160; ++i)
        trace_get(t, trace_in(t, 1, 9) * 256 * TRACE_KIB + trace_in(t, 1, 500) * 4);
    for (int step = 0; step < 80; ++step) {
        uint32_t kept[128], count = 0;
        for (int image = 0; image < 4; ++image) {
            uint64_t h = trace_in(t, 480, 1200), w = trace_in(t, 480, 1600), c = 64;
            for (int level = 0; level < 5; ++level, h /= 2, w /= 2, c *= 2)
                for (int k = 0; k < 5; ++k) {
                    kept[count++] = trace_get(t, c * h * w / 2);
                    if (k % 2) trace_brief(t, c * h * w / 2);
                }
            kept[count++] = trace_get(t, trace_in(t, 100, 200000));
        }
        while (count) {
            const uint32_t brief = trace_get(t, trace_in(t, 1, 64) * 64 * TRACE_KIB);
            trace_put(t, kept[--count]);
            trace_put(t, brief);
        }
    }
}

static void trace_of_shards(trace *t) {
    const uint64_t d = 2048, whole = 24 * d * d;
    for (int i = 0; i < 3 * TRACE_LAYERS; ++i)
        trace_get(t, 12 * d * d * (i % 3 ? 4 : 2) / 8);
    for (int step = 0; step < 25; ++step) {
        const uint64_t seq = trace_in(t, 256, 2048), n = 2 * seq;
        trace_saved s[TRACE_LAYERS];
        uint32_t full = trace_get_on(t, whole, 1), next = 0, loss;
        memset(s, 0, sizeof s);
        for (int i = 0; i < TRACE_LAYERS; ++i) {
            if (i + 1 < TRACE_LAYERS) next = trace_get_on(t, whole, 1);
            trace_forward(t, &s[i], n, d, 16, seq, true);
            trace_put(t, full);
            full = next;
        }
        loss = trace_get(t, 4 * n * 32000);
        full = trace_get_on(t, whole, 1);
        for (int i = TRACE_LAYERS; i-- > 0;) {
            uint32_t grad, part;
            if (i) next = trace_get_on(t, whole, 1);
            grad = trace_get(t, whole);
            trace_backward(t, &s[i], n, d);
            part = trace_get_on(t, whole / 8, 1);
            trace_put(t, grad);
            trace_put(t, full);
            trace_put(t, part);
            full = next;
        }
        trace_put(t, loss);
    }
}

static void trace_of_chance(trace *t) {
    uint32_t live[400], count = 0;
    for (int i = 0; i < 40000; ++i) {
        if (count < 400 && trace_in(t, 0, 1)) {
            const uint64_t bytes = 1ull << trace_in(t, 9, 25);
            live[count++] = trace_get(t, bytes + trace_in(t, 0, bytes));
        } else if (count) {
            const uint32_t k = (uint32_t)trace_in(t, 0, count - 1);
            trace_put(t, live[k]);
            live[k] = live[--count];
        }
    }
}

/* Bytes that live at the peak, in blocks of 512: no allocator needs fewer. */
static uint64_t trace_ideal(const trace *t) {
    uint64_t now = 0, peak = 0;
    uint64_t *const size = (uint64_t *)calloc(t->ids, sizeof *size);
    for (uint64_t i = 0; size && i < t->count; ++i) {
        const trace_op *const o = &t->ops[i];
        if (o->bytes) {
            size[o->id] = (o->bytes + 511) / 512 * 512;
            now += size[o->id];
        } else
            now -= size[o->id];
        if (now > peak) peak = now;
    }
    free(size);
    return peak;
}

#endif

/* train/outer.h - training over slow networks

   Knows: parameters as one row of numbers, cut into fragments; the stages of a hook. Promises: what
   ranks have agreed on has the same bits on all of them; a failure changes none of it. */
#ifndef CDP_SRC_TRAIN_OUTER_H
#define CDP_SRC_TRAIN_OUTER_H

#include "outer_api.h"
#include "../os/os_api.h"
#include "../group/collectives_api.h"
#include "../group/vote.h"
#include "optimizers_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/ended.h"
#include "../base/hash.h"
#include "../base/text.h"
#include "../group/state.h"
#include "../group/collective_calls.h"
#include "../ddp/group_access.h"
#include "../ddp/bucket_launch.h"
#include "optimizers.h"

#ifndef CDP_NO_DDP
#ifndef CDP_NO_AVERAGER
#ifndef CDP_NO_TRAINING

struct cdp_outer {
    cdp_outer_desc desc; /* with defaults */
    cdp_param *params;   /* a copy */
    cdp_hook wire;
    cdp_group *group; /* of all ranks; operations of fragments alone use it */
    const cdp_os *os;
    uint64_t total;          /* values */
    float *saved, *momentum; /* what all ranks agree on */
    float *delta;            /* of the fragment that is on its way */
    cdp_bucket bucket;       /* the same as the hook sees it */
    uint64_t first;          /* its first value */
    uint32_t stage;          /* the hook's next one */
    bool in_flight;          /* a fragment is on its way */
    bool arrived;            /* and delta holds the mean */
    bool agreed;             /* its values are those of a group, also before the first round */
    cdp_work work;
    cdp_status failed;
    cdp_outer_stats stats;
};

/* Values that a scale of QUANTIZE_4 has: fragments begin at multiples. */
#define CDP__OUTER_ALIGN 512u

/* The first value of fragment f; that of number `fragments` is the number of values. */
CDP__PRIVATE uint64_t cdp__outer_first(uint64_t total, uint32_t fragments, uint32_t f) {
    const uint64_t at = total / fragments * f + total % fragments * f / fragments;
    return f == fragments ? total : at / CDP__OUTER_ALIGN * CDP__OUTER_ALIGN;
}

/* The part of parameter i that lies in [first, end), whose data begin at value *at of all.
   Returns its length. */
CDP__PRIVATE uint64_t cdp__outer_part(const cdp_outer *o, uint32_t i, uint64_t begins,
    uint64_t first, uint64_t end, float **data, uint64_t *at) {
    const uint64_t from = cdp__max(begins, first), to = cdp__min(begins + o->params[i].count, end);
    if (from >= to) return 0;
    *data = (float *)o->params[i].data + (from - begins);
    *at = from;
    return to - from;
}

/* delta := saved - data */
CDP__PRIVATE void cdp__outer_differ(cdp_outer *o, uint64_t end) {
    uint64_t begins = 0, at = 0, k, n;
    float *data = NULL;
    uint32_t i;
    for (i = 0; i < o->desc.param_count; begins += o->params[i++].count) {
        n = cdp__outer_part(o, i, begins, o->first, end, &data, &at);
        for (k = 0; k < n; ++k)
            o->delta[at - o->first + k] = o->saved[at + k] - data[k];
    }
}

/* data := saved + alpha (data - saved) */
CDP__PRIVATE void cdp__outer_mix(cdp_outer *o, uint64_t first, uint64_t end, float alpha) {
    uint64_t begins = 0, at = 0, k, n;
    float *data = NULL;
    uint32_t i;
    for (i = 0; i < o->desc.param_count; begins += o->params[i++].count) {
        n = cdp__outer_part(o, i, begins, first, end, &data, &at);
        if (n && alpha == 0) memcpy(data, o->saved + at, (size_t)n * sizeof *data);
        for (k = 0; alpha != 0 && k < n; ++k)
            data[k] = o->saved[at + k] + alpha * (data[k] - o->saved[at + k]);
    }
}

/* Without `wire`. */
CDP__PRIVATE cdp_status cdp__outer_plain(
    void *self, cdp_bucket *b, uint32_t stage, cdp_request *op) {
    (void)self;
    if (stage) return CDP_OK;
    *op = cdp__request_of(CDP_COLL_ALLREDUCE, NULL, b->data, b->count, b->dtype, CDP_REDUCE_AVG, 0);
    return CDP_PENDING;
}

/* Others wait for what this rank will not send. */
CDP__PRIVATE cdp_status cdp__outer_fail(cdp_outer *o, cdp_status st) {
    const cdp_error error = *cdp_last_error();
    cdp__group_break_unless_failing(o->group, &error);
    (void)cdp_group_status(o->group);
    *cdp__error_slot() = error;
    o->in_flight = o->arrived = false;
    return o->failed = st;
}

/* Calls the hook's next stage and starts what it asks for. */
CDP__PRIVATE cdp_status cdp__outer_stage(cdp_outer *o) {
    cdp_request rq;
    cdp_status st;
    o->bucket.group = o->group;
    st = cdp__hook_call(&o->wire, &o->bucket, o->stage++, &rq);
    o->arrived = st == CDP_OK;
    if (st != CDP_PENDING) return st;
    st = cdp_start(o->bucket.group, &rq, &o->work);
    if (st == CDP_OK) o->stats.sent_bytes += rq.count * cdp_dtype_size(rq.dtype);
    return st;
}

CDP__PRIVATE cdp_status cdp__outer_start(cdp_outer *o) {
    const uint32_t f = (uint32_t)(o->stats.rounds % o->desc.fragments);
    const uint64_t end = cdp__outer_first(o->total, o->desc.fragments, f + 1);
    cdp_bucket *b = &o->bucket;
    o->first = cdp__outer_first(o->total, o->desc.fragments, f);
    memset(b, 0, sizeof *b);
    b->index = f;
    b->bucket_count = o->desc.fragments;
    b->data = o->delta;
    b->count = end - o->first;
    b->dtype = CDP_DTYPE_F32;
    b->divisor = (cdp_real)cdp_size(o->group);
    o->stage = 0;
    o->in_flight = true;
    o->arrived = !b->count;
    o->work.seq = 0;
    cdp__outer_differ(o, end);
    return b->count ? cdp__outer_stage(o) : CDP_OK;
}

/* Goes on with stages whose operation is done; `wait`: until the mean has arrived. */
CDP__PRIVATE cdp_status cdp__outer_advance(cdp_outer *o, bool wait) {
    cdp_status st = CDP_OK;
    while (st == CDP_OK && !o->arrived) {
        st = wait ? cdp_work_wait(o->work) : cdp_work_test(o->work);
        if (st == CDP_OK) st = cdp__outer_stage(o);
    }
    return st == CDP_PENDING ? CDP_OK : st;
}

/* The outer step of the fragment whose mean has arrived. */
CDP__PRIVATE cdp_status cdp__outer_apply(cdp_outer *o) {
    cdp_optim rule;
    cdp_optim_range range;
    cdp_status st;
    memset(&rule, 0, sizeof rule);
    memset(&range, 0, sizeof range);
    rule.kind = CDP_OPTIM_SGD;
    rule.step = o->stats.rounds / o->desc.fragments + 1;
    rule.lr = o->desc.lr;
    rule.momentum = o->desc.momentum;
    rule.nesterov = rule.momentum > 0;
    range.param = o->saved + o->first;
    range.state[0] = rule.momentum > 0 ? o->momentum + o->first : NULL;
    range.grad = o->delta;
    range.count = o->bucket.count;
    st = range.count ? cdp_optim_update(&rule, &range) : CDP_OK;
    if (st != CDP_OK) return st;
    cdp__outer_mix(o, o->first, o->first + o->bucket.count, (float)o->desc.alpha);
    o->in_flight = false;
    ++o->stats.rounds;
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__outer_usable(const cdp_outer *o, const char *call) {
    if (!o) return cdp__missing(call, "outer");
    if (cdp__ended(o)) return cdp__fail(CDP_ERR_STATE, "%s: this outer was destroyed", call);
    return CDP_OK;
}

CDP_API cdp_status cdp_outer_step(cdp_outer *o) {
    cdp_status st = cdp__outer_usable(o, "cdp_outer_step");
    uint64_t interval, at, from;
    if (st != CDP_OK) return st;
    if (o->failed != CDP_OK)
        return cdp__fail(CDP_ERR_STATE,
            "cdp_outer_step: its group has failed (%s); call cdp_outer_rebind() with another one, "
            "or destroy it",
            cdp_status_name(o->failed));
    st = cdp__alive(o->group, "cdp_outer_step");
    if (st != CDP_OK) return st;
    interval = o->desc.period / o->desc.fragments;
    at = o->stats.steps++ % interval + 1;
    if (at == interval - o->desc.delay)
        st = cdp__outer_start(o);
    else if (o->in_flight)
        st = cdp__outer_advance(o, false);
    if (st == CDP_OK && at == interval) {
        from = o->os->now_ns(o->os->user);
        st = cdp__outer_advance(o, true);
        o->stats.wait_ns += o->os->now_ns(o->os->user) - from;
        if (st == CDP_OK) st = cdp__outer_apply(o);
    }
    return st == CDP_OK || st == CDP_PENDING ? CDP_OK : cdp__outer_fail(o, st);
}

/* ---- agreement ---- */

enum {
    CDP__OUTER_ROUNDS = 7, /* and one more; 0: this rank has agreed with nobody yet */
    CDP__OUTER_STATE,
    CDP__OUTER_STEPS, /* with which all go on */
    CDP__OUTER_FACTS
};

CDP__PRIVATE uint64_t cdp__outer_bits(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

CDP__PRIVATE void cdp__outer_facts(const cdp_outer *o, uint64_t facts[CDP__OUTER_FACTS]) {
    const cdp_outer_desc *d = &o->desc;
    const uint64_t hash = cdp__hash(CDP__HASH_START, o->saved, o->total * sizeof *o->saved);
    facts[0] = o->total;
    facts[1] = d->period;
    facts[2] = d->fragments;
    facts[3] = d->delay;
    facts[4] = cdp__outer_bits(d->lr);
    facts[5] = cdp__outer_bits(d->momentum);
    facts[6] = cdp__outer_bits(d->alpha);
    facts[CDP__OUTER_ROUNDS] = o->agreed ? o->stats.rounds + 1 : 0;
    facts[CDP__OUTER_STATE] = cdp__hash(hash, o->momentum, o->total * sizeof *o->momentum);
    facts[CDP__OUTER_STEPS] =
        o->agreed ? o->stats.rounds * (d->period / d->fragments) : o->stats.steps;
}

/* What is saved in the middle of a fragment lacks what is on its way. */
CDP__PRIVATE CDP__COLD cdp_status cdp__outer_on_its_way(
    const cdp_outer_desc *d, uint64_t steps, cdp_status st, const char *call) {
    return cdp__fail(st,
        "%s: a fragment is on its way after step %llu; save and restore after one that is a "
        "multiple of period / fragments, which is %llu",
        call, (unsigned long long)steps, (unsigned long long)(d->period / d->fragments));
}

CDP__PRIVATE cdp_status cdp__outer_compare(const uint64_t *all, uint32_t n) {
    static const char *const names[] = {
        "number of values", "period", "fragments", "delay", "lr", "momentum", "alpha"};
    uint32_t r, k;
    for (r = 1; r < n; ++r)
        for (k = 0; k < CDP__OUTER_ROUNDS; ++k)
            if (all[r * CDP__OUTER_FACTS + k] != all[k])
                return cdp__fail(CDP_ERR_MISMATCH,
                    "cdp_outer: rank %u has another %s than rank 0; make them equal", r, names[k]);
    return CDP_OK;
}

/* The lowest rank that has most rounds; *differs: another rank has other bits. */
CDP__PRIVATE uint32_t cdp__outer_source(const uint64_t *all, uint32_t n, bool *differs) {
    uint32_t r, source = 0;
    for (r = 1; r < n; ++r)
        if (all[r * CDP__OUTER_FACTS + CDP__OUTER_ROUNDS]
            > all[source * CDP__OUTER_FACTS + CDP__OUTER_ROUNDS])
            source = r;
    *differs = false;
    for (r = 0; r < n; ++r)
        *differs = *differs
            || memcmp(&all[r * CDP__OUTER_FACTS + CDP__OUTER_ROUNDS],
                   &all[source * CDP__OUTER_FACTS + CDP__OUTER_ROUNDS], 2 * sizeof *all)
                != 0;
    return source;
}

/* All ranks take what the source has agreed on, and begin the fragment that it lacks. `all`: room
   for facts of all ranks. */
CDP__PRIVATE cdp_status cdp__outer_agree(cdp_outer *o, uint64_t *all) {
    const uint32_t n = cdp_size(o->group), rank = cdp_rank(o->group);
    const uint64_t interval = o->desc.period / o->desc.fragments;
    uint64_t mine[CDP__OUTER_FACTS], *of;
    uint32_t source = 0;
    bool differs = false;
    cdp_status st;
    cdp__outer_facts(o, mine);
    st = cdp_allgather(o->group, mine, all, CDP__OUTER_FACTS, CDP_DTYPE_U64);
    if (st == CDP_OK) st = cdp__outer_compare(all, n);
    if (st == CDP_OK) source = cdp__outer_source(all, n, &differs);
    of = all + source * CDP__OUTER_FACTS;
    if (st == CDP_OK && of[CDP__OUTER_STEPS] % interval + o->desc.delay >= interval)
        st = cdp__outer_on_its_way(&o->desc, of[CDP__OUTER_STEPS], CDP_ERR_INVALID,
            "cdp_outer_create, with desc.steps of rank 0");
    if (st == CDP_OK && differs && o->total)
        st = cdp_broadcast(o->group, o->saved, o->total, CDP_DTYPE_F32, source);
    if (st == CDP_OK && differs && o->total)
        st = cdp_broadcast(o->group, o->momentum, o->total, CDP_DTYPE_F32, source);
    if (st == CDP_OK) {
        if (memcmp(&all[rank * CDP__OUTER_FACTS + CDP__OUTER_ROUNDS], &of[CDP__OUTER_ROUNDS],
                2 * sizeof *all)
            != 0)
            cdp__outer_mix(o, 0, o->total, 0);
        o->agreed = true;
        o->stats.steps = of[CDP__OUTER_STEPS];
        o->stats.rounds = o->stats.steps / interval;
    }
    return st;
}

/* `st`: whether this rank can. A group in which nothing else runs, so that fragments travel while
   the program uses its own; then what was agreed on. */
CDP__PRIVATE cdp_status cdp__outer_meet(
    cdp_outer *o, cdp_group *group, cdp_status st, const char *call) {
    const uint64_t bytes = cdp_size(group) * CDP__OUTER_FACTS * sizeof(uint64_t);
    uint64_t *all = st == CDP_OK ? (uint64_t *)cdp__alloc(o->os, bytes) : NULL;
    if (st == CDP_OK && !all) st = cdp__fail_nomem("facts of all ranks", bytes);
    st = cdp__vote(group, st, call);
    if (st == CDP_OK)
        st = cdp__vote(group, cdp__group_alike(group, (uint32_t *)all, &o->group), call);
    if (st == CDP_OK) st = cdp__outer_agree(o, all);
    if (all) cdp__free(o->os, all);
    return st;
}

CDP__PRIVATE void cdp__outer_close_group(cdp_outer *o) {
    /* its failure ends with that group */
    if (o->work.seq && cdp_work_wait(o->work) != CDP_OK) o->in_flight = false;
    o->work.seq = 0;
    o->in_flight = o->arrived = false;
#ifndef CDP_NO_GROUPS
    cdp_group_destroy(o->group);
#endif
    o->group = NULL;
}

CDP_API cdp_status cdp_outer_rebind(cdp_outer *o, cdp_group *group) {
    cdp_status st = cdp__outer_usable(o, "cdp_outer_rebind");
    if (st != CDP_OK) return st;
    if (!group) return cdp__missing("cdp_outer_rebind", "group");
    st = cdp__alive(group, "cdp_outer_rebind");
    if (st != CDP_OK) return st;
    cdp__outer_close_group(o);
    return o->failed = cdp__outer_meet(o, group, CDP_OK, "cdp_outer_rebind");
}

/* ---- creation ---- */

CDP__PRIVATE CDP__COLD cdp_status cdp__outer_check(const cdp_outer_desc *d) {
    const uint64_t interval = d->fragments ? d->period / d->fragments : 0;
    uint32_t i;
    if (!d->params && d->param_count) return cdp__missing("cdp_outer_create", "desc.params");
    for (i = 0; i < d->param_count; ++i) {
        const cdp_param *p = &d->params[i];
        if (!p->data && p->count) return cdp__missing("cdp_outer_create", "desc.params[].data");
        if (p->dtype != CDP_DTYPE_DEFAULT && p->dtype != CDP_DTYPE_F32)
            return cdp__fail(CDP_ERR_UNSUPPORTED,
                "cdp_outer_create: parameter %u is %s; only f32 is possible", i,
                cdp_dtype_name(p->dtype));
    }
    if (!interval || d->period % d->fragments)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_outer_create: desc.fragments is %u and must divide desc.period, which is %llu",
            d->fragments, (unsigned long long)d->period);
    if (d->delay >= interval)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_outer_create: desc.delay is %llu and must be below period / fragments, which is "
            "%llu",
            (unsigned long long)d->delay, (unsigned long long)interval);
    if (!(d->lr > 0) || !(d->momentum >= 0) || !(d->alpha >= 0) || !(d->alpha <= 1))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_outer_create: lr must be positive, momentum not negative, alpha 0 to 1");
    if (d->wire && (!d->wire->stage || d->wire->device))
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_outer_create: desc.wire has no stage function, or is for device memory");
#ifdef CDP_NO_GROUPS
    if (d->delay)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_outer_create: desc.delay needs a group of its own, and CDP_NO_GROUPS was defined "
            "when cdp.h was compiled");
#endif
    return CDP_OK;
}

CDP__PRIVATE cdp_status cdp__outer_memory(cdp_outer *o) {
    uint64_t longest = 0;
    uint32_t i;
    for (i = 0; i < o->desc.param_count; ++i)
        o->total += o->desc.params[i].count;
    for (i = 0; i < o->desc.fragments; ++i)
        longest = cdp__max(longest,
            cdp__outer_first(o->total, o->desc.fragments, i + 1)
                - cdp__outer_first(o->total, o->desc.fragments, i));
    o->params =
        (cdp_param *)cdp__alloc_zero(o->os, cdp__max(o->desc.param_count, 1) * sizeof *o->params);
    o->saved = (float *)cdp__alloc_zero(o->os, cdp__max(o->total, 1) * sizeof *o->saved);
    o->momentum = (float *)cdp__alloc_zero(o->os, cdp__max(o->total, 1) * sizeof *o->momentum);
    o->delta = (float *)cdp__alloc_zero(o->os, cdp__max(longest, 1) * sizeof *o->delta);
    if (!o->params || !o->saved || !o->momentum || !o->delta)
        return cdp__fail_nomem("an outer", (2 * o->total + longest) * sizeof *o->saved);
    if (o->desc.param_count)
        memcpy(o->params, o->desc.params, o->desc.param_count * sizeof *o->params);
    return CDP_OK;
}

CDP__PRIVATE void cdp__outer_free(cdp_outer *o) {
    if (o->group) cdp__outer_close_group(o);
    if (o->wire.destroy) o->wire.destroy(o->wire.self);
    cdp__free(o->os, o->params);
    cdp__free(o->os, o->saved);
    cdp__free(o->os, o->momentum);
    cdp__free(o->os, o->delta);
    cdp__free(o->os, o);
}

/* saved := data */
CDP__PRIVATE void cdp__outer_save(cdp_outer *o) {
    uint64_t at = 0;
    uint32_t i;
    for (i = 0; i < o->desc.param_count; at += o->params[i++].count)
        if (o->params[i].count)
            memcpy(o->saved + at, o->params[i].data, (size_t)o->params[i].count * sizeof(float));
}

CDP__PRIVATE CDP__COLD cdp_status cdp__outer_make(const cdp_outer_desc *desc, cdp_outer **out) {
    cdp_outer_desc d = *desc;
    cdp_outer *o;
    cdp_status st;
    d.period = cdp__def(d.period, 500);
    d.fragments = cdp__def(d.fragments, 1);
    if (d.lr == 0) d.lr = 0.7;
    if (d.momentum == 0) d.momentum = 0.9;
    if (desc->momentum == CDP_OPTIM_ZERO) d.momentum = 0;
    if (!d.group) return cdp__missing("cdp_outer_create", "desc.group");
    st = cdp__alive(d.group, "cdp_outer_create");
    if (st != CDP_OK) return st;
    st = cdp__outer_check(&d);
    o = st == CDP_OK ? (cdp_outer *)cdp__alloc_zero(cdp__group_os(d.group), sizeof *o) : NULL;
    if (st == CDP_OK && !o) st = cdp__fail_nomem("an outer", sizeof *o);
    if (!o) return cdp__vote(d.group, st, "cdp_outer_create");
    o->desc = d;
    o->os = cdp__group_os(d.group);
    o->wire.stage = cdp__outer_plain;
    o->stats.steps = d.steps;
    st = cdp__outer_memory(o);
    if (st == CDP_OK) cdp__outer_save(o);
    st = cdp__outer_meet(o, d.group, st, "cdp_outer_create");
    if (st != CDP_OK) {
        cdp__outer_free(o);
        return st;
    }
    if (d.wire) o->wire = *d.wire;
    cdp__ended_remove(o);
    *out = o;
    return CDP_OK;
}

CDP_API cdp_status cdp_outer_create(const cdp_outer_desc *desc, cdp_outer **out) {
    cdp_status st;
    CDP__NOT_COLD();
    if (out) *out = NULL;
    if (!out)
        st = cdp__missing("cdp_outer_create", "out");
    else if (!desc)
        st = cdp__missing("cdp_outer_create", "desc");
    else
        st = cdp__outer_make(desc, out);
    if (st != CDP_OK && desc && desc->wire && desc->wire->destroy)
        desc->wire->destroy(desc->wire->self);
    return st;
}

CDP_API void cdp_outer_destroy(cdp_outer *o) {
    if (!o || cdp__ended(o)) return;
    cdp__ended_add(o);
    cdp__outer_free(o);
}

CDP_API cdp_outer_stats cdp_outer_stats_of(const cdp_outer *o) {
    cdp_outer_stats none;
    if (o && !cdp__ended(o)) return o->stats;
    memset(&none, 0, sizeof none);
    return none;
}

#endif /* CDP_NO_TRAINING */
#endif /* CDP_NO_AVERAGER */
#endif /* CDP_NO_DDP */

#endif /* CDP_SRC_TRAIN_OUTER_H */

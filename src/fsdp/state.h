/* fsdp/state.h - what a cdp_fsdp consists of

   Knows: units, slots, gradients on their way. Promises: memory is counted where it is made. */
#ifndef CDP_SRC_FSDP_STATE_H
#define CDP_SRC_FSDP_STATE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "../os/os_api.h"
#include "../message/transport_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../group/messages_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "fsdp_api.h"
#include "cuts.h"
#include "checks.h"
#include "paper.h"
#include "holders.h"

#define CDP__FSDP_FLIGHTS 2u /* reductions in flight */
/* In the place of the root, which gathers and reductions do not have: they carry the number of
   their unit as buckets of a ddp do, so ranks that use different units of one size get an error. */
#define CDP__FSDP_TAG 0xddff0000u

/* One of the two ranges of a unit. */
typedef struct cdp__fsdp_range {
    uint64_t total, start, own; /* elements of all ranks; where this rank's begin; how many */
    uint64_t *counts;           /* of each rank */
    float *value;               /* this rank's */
    uint8_t *copy;              /* the same in the dtype that is gathered, if that is not f32 */
} cdp__fsdp_range;

/* What pictures show. */
enum {
    CDP__FSDP_WAITS = 0,
    CDP__FSDP_GATHERS,
    CDP__FSDP_REDUCTIONS,
    CDP__FSDP_ROWS
};

typedef struct cdp__fsdp_event {
    uint32_t row, unit;
    uint64_t from_ns, to_ns; /* to_ns 0: it has not ended */
    uint64_t bytes;          /* received */
    uint64_t held;           /* in use when it began */
} cdp__fsdp_event;

typedef struct cdp__fsdp_spans {
    cdp__fsdp_event *events;
    uint32_t count, lost;
    uint64_t begin_ns, end_ns;
} cdp__fsdp_spans;

typedef struct cdp__fsdp_unit {
    char *name;
    bool keep;
    uint32_t uses;
    cdp__fsdp_range range[2]; /* trainable, frozen */
    float *mean;              /* this rank's part of the sum of gradients, then of the mean */
    float *state[CDP_FSDP_STATES];
    uint32_t slot;  /* where it is gathered; CDP__FSDP_NONE: nowhere */
    uint32_t opens; /* needs without done */
    cdp_work gather;
    bool gathering;
    uint32_t event;          /* of the gather */
    float *grad;             /* whole gradient that the program adds to; NULL: not begun */
    uint32_t pool;           /* which of the shared memories `grad` is; CDP__FSDP_NONE: own_grad */
    float *own_grad;         /* of units that do not share */
    uint32_t reducing;       /* reductions in flight */
    uint32_t ready_count;    /* since the last reduction */
    bool reduced;            /* a sum of this step is in `mean`, or on its way there */
    bool held;               /* no_sync has kept its gradients */
    uint32_t sums, expected; /* that have arrived in this step; in the one before */
    uint32_t forwarded;      /* so many sums were in what holders got */
    bool forwarding;
    cdp_work forward;
} cdp__fsdp_unit;

typedef struct cdp__fsdp_slot {
    uint8_t *memory;
    uint64_t bytes;
    uint32_t unit;  /* CDP__FSDP_NONE: free */
    uint64_t stamp; /* when it was used */
} cdp__fsdp_slot;

/* A reduction in flight. */
typedef struct cdp__fsdp_flight {
    uint32_t unit, pool, event;
    float *grad;
    uint8_t *narrow; /* the gradient in 16 bits; NULL: it travels as f32 */
    bool first;      /* the sum is stored, not added */
    cdp_work work;
} cdp__fsdp_flight;

/* A shard that this rank holds: its own one, or a copy. */
typedef struct cdp__fsdp_image {
    uint32_t shard;
    float *values, *means, *states[CDP_FSDP_STATES];
    uint64_t value_count, mean_count;
    uint64_t *at; /* where the trainable and the frozen range of each unit begin */
} cdp__fsdp_image;

struct cdp_fsdp {
    cdp_fsdp_desc desc; /* without what its caller may free */
    const cdp_os *os;
    /* Of the same ranks as desc.group, replicate and norm_group: no kind of operation waits for
       another one, and they end with the fsdp, so others do not wait for this rank. */
    cdp_group *gathers, *reductions, *replicas, *norms, *buddies;
    uint32_t ranks, rank, unit_count, piece_count;
    uint32_t held_pieces;   /* with those of copies, which come after the own ones */
    cdp_fsdp_param *params; /* with copies of names */
    cdp__fsdp_list list;    /* the same */
    uint64_t *offset;       /* of each parameter in its range */
    cdp__fsdp_unit *units;
    cdp_fsdp_piece *pieces;
    cdp__fsdp_slot *slots;
    uint32_t slot_count;
    uint64_t clock;
    float *values, *means, *states[CDP_FSDP_STATES]; /* of all units */
    uint64_t value_count, mean_count;
    uint8_t *copies;
    uint64_t *counts;
    uint64_t *parts; /* of each rank, of the parameter that is moved */
    float *pool[CDP__FSDP_FLIGHTS];
    bool pool_taken[CDP__FSDP_FLIGHTS];
    uint8_t *narrow[CDP__FSDP_FLIGHTS];
    uint64_t most, most_shared; /* elements of the largest whole gradients */
    cdp__fsdp_flight flight[CDP__FSDP_FLIGHTS];
    uint32_t flights;
    uint32_t *record, *next_record; /* units in the order of needs: of the last step, of this one */
    uint32_t record_count, next_count, record_room, cursor, last;
    bool backward, no_sync, ended;
    cdp_fsdp_info info;
    uint64_t step;
    /* Copies: [0] is this rank's own shard. */
    cdp__fsdp_image images[1 + CDP_FSDP_COPIES];
    uint32_t image_count, distance;
    bool filled;           /* copies are complete */
    bool own_divisor;      /* the program has set it */
    uint64_t layout, seen; /* number of this layout of shards; the highest that was met */
    uint64_t turn;         /* steps that have ended */
    bool entered;          /* the closing allreduce of this step: this rank can update */
    bool torn;             /* an update has stopped half-way */
    bool left_out;         /* the last step has updated nothing */
    double loss_scale;
    cdp_fsdp
        *pending; /* a complete new layout, of which this rank does not know whether all use it */
    cdp_status failed; /* of the first call that failed in the midst of a step */
    char cause[512];   /* its text */
    cdp_fsdp_stats stats, now;
    uint32_t under_way;          /* gathers and reductions */
    uint64_t since_ns, begin_ns; /* when the first of these began; when this step did */
    uint64_t held;               /* bytes of gathered units and of whole gradients in use */
    cdp__fsdp_spans spans[2];    /* of the last step, of this one */
};

CDP__PRIVATE void *cdp__fsdp_alloc(const cdp_fsdp *f, uint64_t bytes) {
    void *p = f->os->alloc(f->os->user, bytes ? bytes : 1);
    if (p) memset(p, 0, (size_t)bytes);
    return p;
}

CDP__PRIVATE void cdp__fsdp_free(const cdp_fsdp *f, void *p) {
    if (p) f->os->release(f->os->user, p);
}

/* Memory that operations use; zeros. NULL: the last error says why. */
CDP__PRIVATE void *cdp__fsdp_memory(cdp_fsdp *f, uint64_t bytes, uint64_t *counter) {
    void *p = NULL;
    if (cdp_group_alloc(f->gathers, bytes ? bytes : 1, &p) != CDP_OK) return NULL;
    memset(p, 0, (size_t)bytes);
    *counter += bytes;
    f->stats.total_bytes += bytes;
    return p;
}

/* Refuses no fsdp, and one that was destroyed. */
CDP__PRIVATE cdp_status cdp__fsdp_alive(const cdp_fsdp *f, const char *call) {
    if (!f) return cdp__fsdp_missing(call, "fsdp");
    if (cdp__ended(f))
        return cdp_error_set(CDP_ERR_STATE, -1, 0, "%s: this cdp_fsdp was destroyed", call);
    /* a child of fork() shares memory of groups; failures are those of the calls that follow */
    return cdp_group_status(f->gathers) == CDP_ERR_STATE ? CDP_ERR_STATE : CDP_OK;
}

/* Refuses calls that come at the wrong time. */
CDP__PRIVATE cdp_status cdp__fsdp_may(
    cdp_fsdp *f, const char *call, uint32_t unit, bool before_end) {
    const cdp_status st = cdp__fsdp_alive(f, call);
    if (st != CDP_OK) return st;
    if (f->failed != CDP_OK)
        return cdp_error_set(f->failed, -1, 0,
            "%s: an earlier call has failed, so destroy this cdp_fsdp: %s", call, f->cause);
    if (unit >= f->unit_count)
        return cdp_error_set(CDP_ERR_INVALID, -1, 0,
            "%s: unit %u should be less than the number of units, %u", call, unit, f->unit_count);
    if (before_end && f->ended)
        return cdp_error_set(CDP_ERR_STATE, -1, 0,
            "%s: cdp_fsdp_backward_end() has ended this step; call cdp_fsdp_step() or "
            "cdp_fsdp_drop() first",
            call);
    return CDP_OK;
}

CDP__PRIVATE uint64_t cdp__fsdp_now(const cdp_fsdp *f) {
    return f->os->now_ns(f->os->user);
}

/* Notes that something begins; CDP__FSDP_NONE: there is no room. */
CDP__PRIVATE uint32_t cdp__fsdp_begins(
    cdp_fsdp *f, uint32_t row, uint32_t unit, uint64_t bytes, uint64_t now) {
    cdp__fsdp_spans *const spans = &f->spans[1];
    cdp__fsdp_event *e;
    if (spans->count == f->desc.events) {
        ++spans->lost;
        return CDP__FSDP_NONE;
    }
    e = &spans->events[spans->count];
    e->row = row;
    e->unit = unit;
    e->from_ns = now;
    e->to_ns = 0;
    e->bytes = bytes;
    e->held = f->held;
    return spans->count++;
}

CDP__PRIVATE void cdp__fsdp_ends(cdp_fsdp *f, uint32_t event) {
    if (event != CDP__FSDP_NONE) f->spans[1].events[event].to_ns = cdp__fsdp_now(f);
}

/* A step has ended: what is still on its way belongs to none. */
CDP__PRIVATE void cdp__fsdp_end_spans(cdp_fsdp *f) {
    cdp__fsdp_spans was;
    uint32_t i;
    if (!f->desc.events) return;
    f->spans[1].end_ns = cdp__fsdp_now(f);
    for (i = 0; i < f->unit_count; ++i)
        f->units[i].event = CDP__FSDP_NONE;
    was = f->spans[0];
    f->spans[0] = f->spans[1];
    f->spans[1].events = was.events;
    f->spans[1].count = f->spans[1].lost = 0;
    f->spans[1].begin_ns = f->spans[0].end_ns;
}

/* An operation has begun, or its end was seen. */
CDP__PRIVATE void cdp__fsdp_travels(cdp_fsdp *f, bool begins) {
    const uint64_t now = cdp__fsdp_now(f);
    if (begins && !f->under_way++) f->since_ns = now;
    if (!begins && !--f->under_way) f->now.comm_ns += now - f->since_ns;
}

/* Figures of a step that ends; operations that are under way go on in the next one. */
CDP__PRIVATE void cdp__fsdp_end_figures(cdp_fsdp *f) {
    const uint64_t now = cdp__fsdp_now(f);
    cdp_fsdp_stats *s = &f->stats;
    if (f->under_way) f->now.comm_ns += now - f->since_ns;
    s->gathers = f->now.gathers;
    s->reductions = f->now.reductions;
    s->misses = f->now.misses;
    s->gather_bytes = f->now.gather_bytes;
    s->reduce_bytes = f->now.reduce_bytes;
    s->exposed_ns = f->now.exposed_ns;
    s->forward_bytes = f->now.forward_bytes;
    s->comm_ns = cdp__max(f->now.comm_ns, s->exposed_ns);
    s->step_ns = now - f->begin_ns;
    s->hidden = s->comm_ns ? 1 - (double)s->exposed_ns / (double)s->comm_ns : 0;
    s->total_comm_ns += s->comm_ns;
    s->total_exposed_ns += s->exposed_ns;
    s->total_step_ns += s->step_ns;
    ++s->steps;
    f->since_ns = f->begin_ns = now;
    memset(&f->now, 0, sizeof f->now);
}

/* Tells the program what is in use under the name of a unit. */
CDP__PRIVATE void cdp__fsdp_label(
    const cdp_fsdp *f, const cdp__fsdp_unit *u, const char *what, uint64_t bytes) {
    char label[96];
    cdp__text t = cdp__text_of(label, sizeof label);
    if (!f->desc.label) return;
    cdp__text_add(&t, "%s%s", u->name, what);
    f->desc.label(f->desc.user, label, bytes);
}

CDP__PRIVATE void cdp__fsdp_label_gradients(const cdp_fsdp *f, const cdp__fsdp_unit *u) {
    const uint64_t held = u->reducing + (u->grad ? 1ull : 0);
    cdp__fsdp_label(f, u, " gradients", held * u->range[0].total * sizeof(float));
}

/* What this thread's last error says, with units in the place of buckets. */
CDP__PRIVATE void cdp__fsdp_retell(char *out, uint64_t room) {
    static const char bucket[] = "for bucket ", ddp[] = " of ddp 255";
    cdp__text t = cdp__text_of(out, room);
    const char *from = cdp_last_error()->text;
    while (*from)
        if (!strncmp(from, bucket, sizeof bucket - 1)) {
            cdp__text_add(&t, "for unit ");
            from += sizeof bucket - 1;
        } else if (!strncmp(from, ddp, sizeof ddp - 1))
            from += sizeof ddp - 1;
        else
            cdp__text_add(&t, "%c", *from++);
}

/* Names the call and the unit in the last error. */
CDP__PRIVATE cdp_status cdp__fsdp_named(const char *call, const cdp__fsdp_unit *u, cdp_status st) {
    char text[512];
    const int32_t peer = cdp_last_error()->peer;
    if (st == CDP_OK) return st;
    cdp__fsdp_retell(text, sizeof text);
    return cdp_error_set(st, peer, 0, "%s: unit '%s': %s", call, u->name, text);
}

/* Waits for an operation. Groups of the fsdp fail alone: where desc.group has failed meanwhile, as
   at the end of an epoch of cdp_elastic.h, other ranks may not come here any more. */
CDP__PRIVATE cdp_status cdp__fsdp_await(cdp_fsdp *f, cdp_work work) {
    const uint32_t look_ms = 50;
    cdp_status st = cdp_work_wait_for(work, look_ms);
    while (st == CDP_PENDING) {
        if (cdp_group_status(f->desc.group) != CDP_OK) {
            const cdp_error e = *cdp_last_error();
            cdp_group_abort(work.group, e.text);
            return cdp_work_wait(work);
        }
        st = cdp_work_wait_for(work, look_ms);
    }
    return st;
}

/* Waits for a unit's operation. */
CDP__PRIVATE cdp_status cdp__fsdp_wait(
    cdp_fsdp *f, const char *call, const cdp__fsdp_unit *u, cdp_work work) {
    const uint64_t from = cdp__fsdp_now(f);
    const uint32_t event = cdp__fsdp_begins(f, CDP__FSDP_WAITS, (uint32_t)(u - f->units), 0, from);
    const cdp_status st = cdp__fsdp_await(f, work);
    f->now.exposed_ns += cdp__fsdp_now(f) - from;
    cdp__fsdp_ends(f, event);
    return cdp__fsdp_named(call, u, st);
}

#endif /* CDP_SRC_FSDP_STATE_H */

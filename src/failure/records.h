/* failure/records.h - records of failures and waits, as sent to other ranks (pure)

   Knows: the layout of three messages: FAILURE (a group is broken, and why), WAIT (the sender waits
   for the receiver) and ENDPOINT (the answer: which rank keeps the receiver waiting, at the end
   of the chain). Promises: decoders accept any bytes of any length and check every field; a
   decoded record is safe to store and print. Texts are made from records in this section; no
   code parses them. */
#ifndef CDP_SRC_FAILURE_RECORDS_H
#define CDP_SRC_FAILURE_RECORDS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/compiler.h"
#include "../base/status.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../collective/select.h"
#include "../message/header.h"

/* Identifies a call. Ranks that take part in the same operation have equal fingerprints. */
typedef struct cdp__fingerprint {
    uint8_t kind, dtype, op, algo; /* kind CDP_COLL_NONE: the call is not known */
    uint8_t accumulate;            /* as in cdp__head */
    uint32_t root;                 /* or tag, or bucket */
    uint64_t seq, count;
    /* uneven parts: a hash of their lengths, or 1 if the lengths are not known to all ranks */
    uint64_t parts;
} cdp__fingerprint;

/* A position in a channel: operation and round. */
typedef struct cdp__position {
    uint64_t channel, seq;
    uint32_t round;
} cdp__position;

/* Rank `waiter` waits for rank `target` to reach the position `at`. */
typedef struct cdp__wait {
    int32_t waiter, target;
    cdp__position at;
} cdp__wait;

/* Why a chain of waits ends at a rank ("it"). */
typedef enum cdp__why {
    CDP__WHY_TEXT,   /* there is no chain: the record's text says what happened */
    CDP__WHY_SILENT, /* it has not answered: stopped, dead or not reachable */
    CDP__WHY_BUSY,   /* it answers and waits for no rank: it computes, or makes another call */
    CDP__WHY_SENT,   /* it did what the waiter waits for, so the link between the two is cut */
    CDP__WHY_CIRCLE, /* it waits for a rank that waits for it */
    /* it left its group after an earlier failure; `named` is the rank to blame for that */
    CDP__WHY_EARLIER,
    CDP__WHY_TURN,    /* no rank: the operation was queued behind another one on this rank */
    CDP__WHY_CALLS,   /* it makes another call */
    CDP__WHY_AWAITED, /* a lost or silent rank was still starting, and waited for this one */
    /* both it and rank 0 were lost before they were ready: either may be the cause */
    CDP__WHY_FIRST,
    CDP__WHY_LEFT, /* it has left the group and announced that */
    CDP__WHY_CUT,  /* its host acknowledges nothing of what the waiter sends */
    CDP__WHY_COUNT
} cdp__why;

typedef struct cdp__endpoint {
    int32_t named; /* the rank at the end; -1: none */
    uint8_t why;   /* cdp__why */
    uint8_t hops;  /* ranks that passed on this answer */
    /* of these, ranks whose receive from any rank could wait for several, and chose this one */
    uint8_t picks;
    cdp__wait last; /* the last wait of the chain */
} cdp__endpoint;

#define CDP__FAILURE_TEXT_SENT 400u /* bytes of a text that is sent, with a final zero */
#if CDP_ERROR_TEXT < 400            /* bytes of a text that is kept */
#define CDP__FAILURE_TEXT CDP_ERROR_TEXT
#else
#define CDP__FAILURE_TEXT CDP__FAILURE_TEXT_SENT
#endif

typedef struct cdp__failure_record {
    cdp_status status;
    int32_t observer; /* the rank that saw the failure */
    int32_t peer;     /* the peer for which the observer waited or which it lost; -1: none */
    cdp__endpoint end;
    uint64_t domain;  /* the group that is broken, identified by its channel */
    cdp__position at; /* the observer's position */
    cdp__fingerprint call;
    cdp__fingerprint other; /* CDP__WHY_CALLS: the call of the named rank */
    uint32_t rounds, group_size, timeout_ms;
    int32_t sys_errno;
    uint64_t moved, expected; /* bytes of the awaited message: transferred, and in total */
    uint8_t hops;             /* ranks that passed the record on */
    uint8_t corrections;      /* how often the blame was corrected */
    bool sending;             /* the observer waited for `peer` to receive, not to send */
    char text[CDP__FAILURE_TEXT];
} cdp__failure_record;

#define CDP__FINGERPRINT_BYTES 32u
#define CDP__WAIT_AT_BYTES 24u
#define CDP__WAIT_END_BYTES 40u
#define CDP__FAILURE_HEAD 192u /* bytes of an encoded record without its text */
#define CDP__FAILURE_BYTES (CDP__FAILURE_HEAD + CDP__FAILURE_TEXT)
#define CDP__WAIT_CALLS 8u
#define CDP__WAIT_BYTES (CDP__WAIT_AT_BYTES + 8u + CDP__WAIT_CALLS * CDP__FINGERPRINT_BYTES)
#define CDP__ANSWER_BYTES (CDP__WAIT_AT_BYTES + CDP__WAIT_END_BYTES + 8u)

CDP__PRIVATE void cdp__fingerprint_encode(const cdp__fingerprint *f, uint8_t *out) {
    out[0] = f->kind;
    out[1] = f->dtype;
    out[2] = (uint8_t)(f->op | f->accumulate << 4);
    out[3] = f->algo;
    cdp__put_u32(out + 4, f->root);
    cdp__put_u64(out + 8, f->seq);
    cdp__put_u64(out + 16, f->count);
    cdp__put_u64(out + 24, f->parts);
}

CDP__PRIVATE bool cdp__fingerprint_decode(const uint8_t *in, cdp__fingerprint *f) {
    f->kind = in[0];
    f->dtype = in[1];
    f->op = in[2] & 15;
    f->accumulate = in[2] >> 4;
    f->algo = in[3];
    f->root = cdp__get_u32(in + 4);
    f->seq = cdp__get_u64(in + 8);
    f->count = cdp__get_u64(in + 16);
    f->parts = cdp__get_u64(in + 24);
    return f->kind < CDP_COLL_COUNT && f->dtype < CDP_DTYPE_COUNT && f->op < CDP_REDUCE_COUNT
        && f->accumulate < CDP_DTYPE_COUNT && f->algo <= CDP__ALGO_COUNT;
}

/* True if both name the same call. A receive states the size of its buffer, not of the message,
   so lengths of messages may differ. */
CDP__PRIVATE bool cdp__fingerprint_same(const cdp__fingerprint *a, const cdp__fingerprint *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->algo == b->algo
        && a->accumulate == b->accumulate && a->root == b->root && a->seq == b->seq
        && a->parts == b->parts && (a->count == b->count || a->kind == CDP_COLL_SEND);
}

/* True if both ranks know their call number `seq` and the calls differ. */
CDP__PRIVATE bool cdp__fingerprint_differs(const cdp__fingerprint *a, const cdp__fingerprint *b) {
    return a->kind != CDP_COLL_NONE && b->kind != CDP_COLL_NONE && a->seq == b->seq
        && !cdp__fingerprint_same(a, b);
}

CDP__PRIVATE void cdp__position_encode(const cdp__position *at, uint8_t *out) {
    cdp__put_u64(out, at->channel);
    cdp__put_u64(out + 8, at->seq);
    cdp__put_u32(out + 16, at->round);
    cdp__put_u32(out + 20, 0);
}

CDP__PRIVATE bool cdp__position_decode(const uint8_t *in, cdp__position *at) {
    at->channel = cdp__get_u64(in);
    at->seq = cdp__get_u64(in + 8);
    at->round = cdp__get_u32(in + 16);
    return cdp__get_u32(in + 20) == 0;
}

/* Both positions are of one channel: true if a is at b or beyond. */
CDP__PRIVATE bool cdp__position_reached(const cdp__position *a, const cdp__position *b) {
    return a->seq > b->seq || (a->seq == b->seq && a->round >= b->round);
}

CDP__PRIVATE bool cdp__position_same(const cdp__position *a, const cdp__position *b) {
    return a->channel == b->channel && a->seq == b->seq && a->round == b->round;
}

CDP__PRIVATE bool cdp__rank_valid(int32_t rank, uint32_t world_size) {
    return rank >= -1 && (rank < 0 || (uint32_t)rank < world_size);
}

CDP__PRIVATE void cdp__endpoint_encode(const cdp__endpoint *e, uint8_t *out) {
    cdp__put_u32(out, (uint32_t)e->named);
    out[4] = e->why;
    out[5] = e->hops;
    out[6] = e->picks;
    out[7] = 0;
    cdp__put_u32(out + 8, (uint32_t)e->last.waiter);
    cdp__put_u32(out + 12, (uint32_t)e->last.target);
    cdp__position_encode(&e->last.at, out + 16);
}

CDP__PRIVATE bool cdp__endpoint_decode(const uint8_t *in, uint32_t world_size, cdp__endpoint *e) {
    memset(e, 0, sizeof *e);
    e->named = (int32_t)cdp__get_u32(in);
    e->why = in[4];
    e->hops = in[5];
    e->picks = in[6];
    e->last.waiter = (int32_t)cdp__get_u32(in + 8);
    e->last.target = (int32_t)cdp__get_u32(in + 12);
    return cdp__position_decode(in + 16, &e->last.at) && e->why < CDP__WHY_COUNT && !in[7]
        && cdp__rank_valid(e->named, world_size) && cdp__rank_valid(e->last.waiter, world_size)
        && cdp__rank_valid(e->last.target, world_size);
}

CDP__PRIVATE bool cdp__endpoint_same(const cdp__endpoint *a, const cdp__endpoint *b) {
    return a->named == b->named && a->why == b->why && a->picks == b->picks
        && a->last.waiter == b->last.waiter && a->last.target == b->last.target
        && cdp__position_same(&a->last.at, &b->last.at);
}

/* Returns the bytes written, at most CDP__FAILURE_BYTES. */
CDP__PRIVATE uint32_t cdp__failure_encode(
    const cdp__failure_record *r, uint8_t out[CDP__FAILURE_BYTES]) {
    const uint32_t n = (uint32_t)cdp__min(strlen(r->text), CDP__FAILURE_TEXT - 1);
    cdp__put_u32(out, (uint32_t)r->status);
    cdp__put_u32(out + 4, (uint32_t)r->observer);
    cdp__put_u32(out + 8, (uint32_t)r->peer);
    cdp__put_u32(out + 12, (uint32_t)r->sys_errno);
    cdp__put_u32(out + 16, r->rounds);
    cdp__put_u32(out + 20, r->group_size);
    cdp__put_u32(out + 24, r->timeout_ms);
    out[28] = r->hops;
    out[29] = r->corrections;
    out[30] = r->sending ? 1 : 0;
    out[31] = 0;
    cdp__put_u64(out + 32, r->domain);
    cdp__put_u64(out + 40, r->moved);
    cdp__put_u64(out + 48, r->expected);
    cdp__endpoint_encode(&r->end, out + 56);
    cdp__position_encode(&r->at, out + 96);
    cdp__fingerprint_encode(&r->call, out + 120);
    cdp__fingerprint_encode(&r->other, out + 152);
    cdp__put_u32(out + 184, n);
    cdp__put_u32(out + 188, 0);
    memcpy(out + CDP__FAILURE_HEAD, r->text, n);
    return CDP__FAILURE_HEAD + n;
}

/* A failure outside any operation. */
CDP__PRIVATE void cdp__failure_plain(
    cdp__failure_record *r, cdp_status status, int32_t observer, int32_t named, const char *text) {
    memset(r, 0, sizeof *r);
    r->status = status;
    r->observer = observer;
    r->peer = r->end.named = named;
    r->end.last.waiter = r->end.last.target = -1;
    r->domain = 1; /* the world */
    cdp__format(r->text, sizeof r->text, "%s", text);
}

/* False: this is no record. */
CDP__PRIVATE CDP__COLD bool cdp__failure_decode(
    const uint8_t *in, uint64_t bytes, uint32_t world_size, cdp__failure_record *r) {
    uint32_t n;
    memset(r, 0, sizeof *r);
    if (bytes < CDP__FAILURE_HEAD) return false;
    n = cdp__get_u32(in + 184);
    if (bytes != CDP__FAILURE_HEAD + (uint64_t)n || n >= CDP__FAILURE_TEXT_SENT || in[30] > 1
        || in[31] || cdp__get_u32(in + 188) != 0)
        return false;
    r->status = (cdp_status)(int32_t)cdp__get_u32(in);
    r->observer = (int32_t)cdp__get_u32(in + 4);
    r->peer = (int32_t)cdp__get_u32(in + 8);
    r->sys_errno = (int32_t)cdp__get_u32(in + 12);
    r->rounds = cdp__get_u32(in + 16);
    r->group_size = cdp__get_u32(in + 20);
    r->timeout_ms = cdp__get_u32(in + 24);
    r->hops = in[28];
    r->corrections = in[29];
    r->sending = in[30] == 1;
    r->domain = cdp__get_u64(in + 32);
    r->moved = cdp__get_u64(in + 40);
    r->expected = cdp__get_u64(in + 48);
    cdp__text_foreign(r->text, sizeof r->text, in + CDP__FAILURE_HEAD, n);
    return cdp__status_row_of((int32_t)r->status)->group && r->observer >= 0
        && cdp__rank_valid(r->observer, world_size) && cdp__rank_valid(r->peer, world_size)
        && cdp__endpoint_decode(in + 56, world_size, &r->end)
        && cdp__position_decode(in + 96, &r->at) && cdp__fingerprint_decode(in + 120, &r->call)
        && cdp__fingerprint_decode(in + 152, &r->other);
}

/* WAIT, a message to the rank that its sender waits for: in which operation and round, and the
   sender's last calls in that group. */
typedef struct cdp__wait_message {
    cdp__position at;
    uint32_t serial; /* number of this question about the wait */
    uint8_t call_count;
    /* how many ranks further the question is to be passed on; 0: no answer is wanted, the
       receiver only compares the calls */
    uint16_t probe;
    cdp__fingerprint calls[CDP__WAIT_CALLS];
} cdp__wait_message;

CDP__PRIVATE uint32_t cdp__wait_encode(const cdp__wait_message *m, uint8_t out[CDP__WAIT_BYTES]) {
    uint32_t i;
    CDP_ASSERT(m->call_count <= CDP__WAIT_CALLS);
    cdp__position_encode(&m->at, out);
    out[24] = m->call_count;
    out[25] = 0;
    out[26] = (uint8_t)m->probe;
    out[27] = (uint8_t)(m->probe >> 8);
    cdp__put_u32(out + 28, m->serial);
    for (i = 0; i < m->call_count; ++i)
        cdp__fingerprint_encode(&m->calls[i], out + 32 + (uint64_t)i * CDP__FINGERPRINT_BYTES);
    return 32u + m->call_count * CDP__FINGERPRINT_BYTES;
}

CDP__PRIVATE bool cdp__wait_decode(const uint8_t *in, uint64_t bytes, cdp__wait_message *m) {
    uint32_t i;
    memset(m, 0, sizeof *m);
    if (bytes < 32 || !cdp__position_decode(in, &m->at) || in[25]) return false;
    m->call_count = in[24];
    m->probe = (uint16_t)(in[26] | in[27] << 8);
    m->serial = cdp__get_u32(in + 28);
    if (m->call_count > CDP__WAIT_CALLS
        || bytes != 32 + (uint64_t)m->call_count * CDP__FINGERPRINT_BYTES)
        return false;
    for (i = 0; i < m->call_count; ++i)
        if (!cdp__fingerprint_decode(in + 32 + (uint64_t)i * CDP__FINGERPRINT_BYTES, &m->calls[i]))
            return false;
    return true;
}

/* ENDPOINT: identifies the WAIT, and answers it. */
typedef struct cdp__answer_message {
    cdp__position at;
    uint32_t serial;
    cdp__endpoint end;
} cdp__answer_message;

CDP__PRIVATE uint32_t cdp__answer_encode(
    const cdp__answer_message *m, uint8_t out[CDP__ANSWER_BYTES]) {
    cdp__position_encode(&m->at, out);
    cdp__endpoint_encode(&m->end, out + CDP__WAIT_AT_BYTES);
    cdp__put_u32(out + 64, m->serial);
    cdp__put_u32(out + 68, 0);
    return CDP__ANSWER_BYTES;
}

CDP__PRIVATE bool cdp__answer_decode(
    const uint8_t *in, uint64_t bytes, uint32_t world_size, cdp__answer_message *m) {
    memset(m, 0, sizeof *m);
    if (bytes != CDP__ANSWER_BYTES) return false;
    m->serial = cdp__get_u32(in + 64);
    return cdp__get_u32(in + 68) == 0 && cdp__position_decode(in, &m->at)
        && cdp__endpoint_decode(in + CDP__WAIT_AT_BYTES, world_size, &m->end);
}

CDP__PRIVATE cdp__fingerprint cdp__fingerprint_of(const cdp__head *h) {
    cdp__fingerprint f;
    memset(&f, 0, sizeof f);
    f.kind = h->kind;
    f.dtype = h->dtype;
    f.op = h->op;
    f.algo = h->algo;
    f.accumulate = h->accumulate;
    f.root = h->root;
    f.seq = h->seq;
    f.count = h->count;
    f.parts = h->parts;
    return f;
}

CDP__PRIVATE cdp__head cdp__fingerprint_head(const cdp__fingerprint *f) {
    cdp__head h;
    memset(&h, 0, sizeof h);
    h.kind = f->kind;
    h.dtype = f->dtype;
    h.op = f->op;
    h.algo = f->algo;
    h.accumulate = f->accumulate;
    h.root = f->root;
    h.seq = f->seq;
    h.count = f->count;
    h.parts = f->parts;
    return h;
}

CDP__PRIVATE void cdp__fingerprint_text(cdp__text *t, const cdp__fingerprint *f) {
    const cdp__head h = cdp__fingerprint_head(f);
    char call[128];
    cdp__text_add(t, "%s", cdp__call_text(&h, call, sizeof call));
}

/* Appends sentences like "; in the end everybody waits for rank 2; rank 2 does not answer: ...". */
CDP__PRIVATE void cdp__endpoint_text(cdp__text *t, const cdp__failure_record *r) {
    const int named = (int)r->end.named, target = (int)r->end.last.target;
    /* the text says what this rank waited for */
    const bool said = r->text[0] && r->end.why != CDP__WHY_TEXT;
    if (named < 0) return;
    if (r->end.why == CDP__WHY_AWAITED) {
        if (target >= 0 && target != r->peer)
            cdp__text_add(t, "; in the end everybody waits for rank %d", target);
        cdp__text_add(t, "; rank %d had not finished starting, and waited for rank %d",
            target >= 0 ? target : (int)r->peer, named);
    } else if (said && r->status == CDP_ERR_TIMEOUT) {
        cdp__text_add(t, "; in the end everybody waits for rank %d", named);
    } else if (r->end.named != r->peer && r->status == CDP_ERR_TIMEOUT) {
        cdp__text_add(
            t, "; that rank is waiting too, and in the end everybody waits for rank %d", named);
    }
    switch (r->end.why) {
    case CDP__WHY_SILENT:
    case CDP__WHY_AWAITED:
        cdp__text_add(t, "; rank %d does not answer: look at what its process is doing", named);
        break;
    case CDP__WHY_CUT:
        cdp__text_add(t,
            "; the host of rank %d acknowledges nothing that rank %d sends: it is down, or the "
            "network drops all or large packets",
            named, (int)r->end.last.waiter);
        break;
    case CDP__WHY_BUSY:
        cdp__text_add(t, "; rank %d waits for nobody: it computes, or calls something else", named);
        break;
    case CDP__WHY_SENT:
        cdp__text_add(t, "; rank %d has done its part: the link to it is cut", named);
        break;
    case CDP__WHY_CIRCLE:
        cdp__text_add(t, "; these ranks wait for each other; compare the order of their calls");
        break;
    case CDP__WHY_EARLIER:
        cdp__text_add(t, "; rank %d failed, and others have left because of that", named);
        break;
    case CDP__WHY_FIRST: cdp__text_add(t, "; rank 0 is gone, too, and its store with it"); break;
    case CDP__WHY_LEFT: cdp__text_add(t, "; rank %d has left", named); break;
    default: break;
    }
}

CDP__PRIVATE void cdp__failure_cause_text(cdp__text *t, const cdp__failure_record *r) {
    if (r->text[0] || r->end.why == CDP__WHY_CALLS || r->peer < 0) {
        cdp__text_add(t, "%s", r->text);
    } else if (r->status == CDP_ERR_TIMEOUT) {
        cdp__text_add(t, "the deadline of %u ms passed while waiting for rank %d", r->timeout_ms,
            (int)r->peer);
        if (r->expected) /* a barrier has no bytes */
            cdp__text_add(t, " (it %s %llu of %llu bytes)", r->sending ? "took" : "sent",
                (unsigned long long)r->moved, (unsigned long long)r->expected);
    }
    if (r->status == CDP_ERR_TIMEOUT || r->end.why >= CDP__WHY_AWAITED) cdp__endpoint_text(t, r);
    if (r->end.why != CDP__WHY_CALLS) return;
    cdp__text_add(t, "ranks call different things: rank %d calls ", (int)r->observer);
    cdp__fingerprint_text(t, &r->call);
    cdp__text_add(t, ", rank %d calls ", (int)r->peer);
    cdp__fingerprint_text(t, &r->other);
}

/* Two ranks with different calls blame each other. The blamed rank passes that record on
   unchanged, because other ranks decide better which of the two is wrong; but the error of its
   own group names the other rank. */
CDP__PRIVATE int32_t cdp__failure_blamed(const cdp__failure_record *r, uint32_t rank) {
    return r->end.why == CDP__WHY_CALLS && r->end.named == (int32_t)rank ? r->observer
                                                                         : r->end.named;
}

/* Appends a sentence like "rank 0/8: told by rank 3/8: group of 4: allreduce #17 of 4 x f32 sum
   (round 5/14): ...". */
CDP__PRIVATE void cdp__failure_sentence(
    cdp__text *t, const cdp__failure_record *r, uint32_t rank, uint32_t world_size) {
    if (r->observer != (int32_t)rank) cdp__text_add(t, "rank %u/%u: told by ", rank, world_size);
    cdp__text_add(t, "rank %d/%u: ", (int)r->observer, world_size);
    if (r->group_size) cdp__text_add(t, "group of %u: ", r->group_size);
    if (r->call.kind != CDP_COLL_NONE) {
        cdp__fingerprint_text(t, &r->call);
        cdp__text_add(t, " (round %u/%u): ", r->at.round + 1, r->rounds);
    }
    cdp__failure_cause_text(t, r);
}

/* The error of a group whose cause is the record. Without texts, its text is what the observer has
   written, or the name of its status. */
CDP__PRIVATE void cdp__failure_text(
    const cdp__failure_record *r, uint32_t rank, uint32_t world_size, cdp_error *e) {
    cdp__text t = cdp__text_of(e->text, sizeof e->text);
    cdp__error_clear(e, r->status);
    e->rank = (int32_t)rank;
    e->peer = cdp__failure_blamed(r, rank);
    e->origin = r->observer;
    e->kind = (cdp_coll_kind)r->call.kind;
    e->round = r->at.round;
    e->op_seq = r->call.seq;
    e->sys_errno = r->sys_errno;
    if (CDP__TEXTS)
        cdp__failure_sentence(&t, r, rank, world_size);
    else
        cdp__text_add(&t, "%s", r->text[0] ? r->text : cdp_status_name(r->status));
}

#endif /* CDP_SRC_FAILURE_RECORDS_H */

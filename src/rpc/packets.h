/* rpc/packets.h - messages as bytes (pure)

   Knows: the messages of a channel. Promises: everything that a peer sent is checked before use. */
#ifndef CDP_SRC_RPC_PACKETS_H
#define CDP_SRC_RPC_PACKETS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "worker_api.h"
#include "table.h"
#include "levels.h"

typedef enum cdp__rpc_kind {
    /* aux: function; a: call; b: time left in ms, level << 32, 1 << 48 if a function started it */
    CDP__RPC_CALL = 1,
    CDP__RPC_REPLY,      /* a: call */
    CDP__RPC_FAIL,       /* a: call; aux: -status; b: code and whether it ran; body: text */
    CDP__RPC_CANCEL,     /* a: call */
    CDP__RPC_REMOTE_ACK, /* a: rid; b: fid; aux: how */
    CDP__RPC_FORK,       /* a: rid; b: fid; aux: parent */
    CDP__RPC_FORK_ACK,   /* as REMOTE_ACK */
    CDP__RPC_ACCEPT,     /* b: fid; body: more of them, as a and b */
    CDP__RPC_DELETE,     /* a: rid; b: fid; body: more of them */
    CDP__RPC_MARK,       /* a: context; b: value; aux: node that sends it; slot: pass */
    CDP__RPC_GRAD,       /* as MARK, and a tensor, or none: no gradient */
    CDP__RPC_DONE,       /* a: context; b: pass; aux: node that gets it */
    CDP__RPC_JOIN,       /* a: context; to its origin: this rank takes part */
    CDP__RPC_CTX_FAIL,   /* a: context; aux: -status; b: rank to blame; body: text */
    CDP__RPC_CTX_END,    /* a: context */
    CDP__RPC_CTX_ENDED,  /* a: context */
    CDP__RPC_HELD,       /* a: call, which has little time left and not begun; aux: why; b: limit */
    CDP__RPC_ROLL,       /* a: turn; aux: what is said; body: see rpc/roll.h */
    CDP__RPC_KINDS
} cdp__rpc_kind;

/* What a call waits for on the rank that it was sent to. */
typedef enum cdp__rpc_why {
    CDP__RPC_NOT_HELD,
    CDP__RPC_FOR_THREAD,  /* limit: workers */
    CDP__RPC_FOR_RUNNING, /* limit: max_running of its function */
    CDP__RPC_FOR_VALUE,
    CDP__RPC_FOR_RREFS,
    CDP__RPC_FOR_BYTES, /* limit: max_queue_bytes */
    CDP__RPC_WHYS
} cdp__rpc_why;

#define CDP__RPC_ONE_WAY 1u /* flags of CALL */
#define CDP__RPC_ON 2u      /* the message contains rid and fid of a value, before the references */
#define CDP__RPC_REMOTE 4u  /* and rid and fid of a value to be created, after those of ON */
#define CDP__RPC_FETCH 8u   /* with ON: no function, returns the value itself */

#define CDP__RPC_CTX 16u /* the message contains the number of a context, or of a pass */

#define CDP__RPC_RECORD 24u        /* a reference: rid, fid, owner, zero */
#define CDP__RPC_RREFS 16u         /* in one message */
#define CDP__RPC_SHAPE 80u         /* a tensor: dtype, dims, value, shape */
#define CDP__RPC_TENSORS 16u       /* in one message */
#define CDP__RPC_TEXT 400u         /* of an error text */
#define CDP__RPC_LIST 4080u        /* bytes of a list: 255 entries after the first */
#define CDP__RPC_INLINE_MAX 65536u /* longer bodies are offered */
#define CDP__RPC_NAME 128u

typedef struct cdp__rpc_packet {
    cdp__rpc_kind kind;
    uint32_t flags, rrefs, tensors, aux;
    uint64_t a, b;
    const uint8_t *body; /* NULL: not received yet */
    uint64_t bytes;
    /* parts of the body */
    uint64_t rid, fid;             /* with ON */
    uint64_t makes_rid, makes_fid; /* with REMOTE */
    uint64_t slot;                 /* with CTX */
    const uint8_t *records, *shapes;
    const uint8_t *area; /* contents of tensors, each padded to 8 bytes; then bytes */
    uint64_t area_bytes;
} cdp__rpc_packet;

/* The rank that has created this number. */
CDP__PRIVATE uint32_t cdp__rpc_maker(uint64_t id) {
    return (uint32_t)(id >> 48);
}

CDP__PRIVATE uint32_t cdp__rpc_kind_of(const cdp__rpc_packet *p) {
    return (uint32_t)p->kind | p->flags << 8 | p->rrefs << 16 | p->tensors << 24;
}

CDP__PRIVATE uint64_t cdp__rpc_head_bytes(const cdp__rpc_packet *p) {
    return (p->flags & CDP__RPC_ON ? 16u : 0u) + (p->flags & CDP__RPC_REMOTE ? 16u : 0u)
        + (p->flags & CDP__RPC_CTX ? 8u : 0u) + (uint64_t)p->rrefs * CDP__RPC_RECORD
        + (uint64_t)p->tensors * CDP__RPC_SHAPE;
}

/* Bytes of a tensor in a message; UINT64_MAX: too many. */
CDP__PRIVATE uint64_t cdp__rpc_tensor_bytes(const cdp_tensor *t) {
    uint64_t n = cdp_dtype_size(t->dtype);
    uint32_t i;
    if (t->dims > 8) return UINT64_MAX;
    for (i = 0; i < t->dims; ++i) {
        if (t->shape[i] && n > (UINT64_MAX >> 2) / t->shape[i]) return UINT64_MAX;
        n *= t->shape[i];
    }
    return n;
}
CDP__PRIVATE uint64_t cdp__rpc_filled(uint64_t bytes) {
    return bytes + ((8 - bytes % 8) & 7);
}

CDP__PRIVATE void cdp__rpc_put_shape(uint8_t *at, const cdp_tensor *t, uint64_t value) {
    uint32_t i;
    memset(at, 0, CDP__RPC_SHAPE);
    at[0] = (uint8_t)t->dtype;
    at[1] = (uint8_t)t->dims;
    cdp__put_u64(at + 8, value);
    for (i = 0; i < t->dims; ++i)
        cdp__put_u64(at + 16 + 8 * i, t->shape[i]);
}

/* Decodes the record of a tensor, without its contents. */
CDP__PRIVATE cdp_tensor cdp__rpc_get_shape(const uint8_t *at) {
    cdp_tensor t;
    uint32_t i;
    memset(&t, 0, sizeof t);
    t.dtype = (cdp_dtype)at[0];
    t.dims = at[1];
    t.value = cdp__get_u64(at + 8);
    for (i = 0; i < t.dims && i < 8; ++i)
        t.shape[i] = cdp__get_u64(at + 16 + 8 * i);
    return t;
}

/* Checks the records of tensors against the received bytes. Returns NULL or what is wrong. */
CDP__PRIVATE const char *cdp__rpc_wrong_shapes(const cdp__rpc_packet *p, uint32_t from) {
    uint64_t left = p->area_bytes;
    uint32_t i;
    for (i = 0; i < p->tensors; ++i) {
        const cdp_tensor t = cdp__rpc_get_shape(p->shapes + i * CDP__RPC_SHAPE);
        uint64_t n;
        if (!cdp_dtype_size(t.dtype) || t.dims > 8) return "a tensor of no dtype, or of 9 dims";
        if (t.value && (p->kind == CDP__RPC_GRAD || !(p->flags & CDP__RPC_CTX)))
            return "a value without a context";
        if (t.value && cdp__rpc_maker(t.value) != from) return "a value that its sender has not";
        n = cdp__rpc_tensor_bytes(&t);
        if (n > left || cdp__rpc_filled(n) > left) return "a tensor longer than its message";
        left -= cdp__rpc_filled(n);
    }
    return NULL;
}

CDP__PRIVATE bool cdp__rpc_is_list(cdp__rpc_kind kind) {
    return kind == CDP__RPC_ACCEPT || kind == CDP__RPC_DELETE;
}

/* Checks the head of a message. Returns NULL, or a text that names the wrong part. */
CDP__PRIVATE const char *cdp__rpc_wrong_head(const cdp__rpc_packet *p, uint64_t max_bytes) {
    if (p->kind < CDP__RPC_CALL || p->kind >= CDP__RPC_KINDS) return "an unknown kind";
    if (p->flags >= 32) return "unknown flags";
    if (p->kind == CDP__RPC_CALL && (p->b >> 49 || (p->b >> 32 & 0xffff) >= CDP__RPC_LEVELS))
        return "a level that there is not";
    if ((p->flags & ~CDP__RPC_CTX) && p->kind != CDP__RPC_CALL) return "unknown flags";
    if ((p->flags & CDP__RPC_CTX) && p->kind != CDP__RPC_CALL && p->kind != CDP__RPC_REPLY
        && p->kind != CDP__RPC_MARK && p->kind != CDP__RPC_GRAD)
        return "unknown flags";
    if ((p->kind == CDP__RPC_MARK || p->kind == CDP__RPC_GRAD) && !(p->flags & CDP__RPC_CTX))
        return "no pass where there must be one";
    if ((p->flags & CDP__RPC_FETCH) && p->flags != (CDP__RPC_FETCH | CDP__RPC_ON))
        return "contradicting flags";
    if ((p->flags & CDP__RPC_ONE_WAY) && ((p->flags & CDP__RPC_REMOTE) || p->rrefs))
        return "a one-way call with references";
    if (p->rrefs > CDP__RPC_RREFS || (p->rrefs && p->kind > CDP__RPC_REPLY))
        return "too many references";
    if (p->tensors > (p->kind == CDP__RPC_GRAD ? 1 : CDP__RPC_TENSORS)
        || (p->tensors && p->kind > CDP__RPC_REPLY && p->kind != CDP__RPC_GRAD))
        return "too many tensors";
    if (cdp__rpc_is_list(p->kind))
        return p->bytes % 16 || p->bytes > CDP__RPC_LIST ? "a list of no length" : NULL;
    if (p->kind >= CDP__RPC_CANCEL && p->bytes != cdp__rpc_head_bytes(p) && p->kind != CDP__RPC_GRAD
        && p->kind != CDP__RPC_CTX_FAIL && p->kind != CDP__RPC_ROLL)
        return "a body where there is none";
    if ((p->kind == CDP__RPC_FAIL || p->kind == CDP__RPC_CTX_FAIL) && p->bytes > CDP__RPC_TEXT)
        return "too long a text";
    if (p->kind == CDP__RPC_ROLL) return NULL; /* cdp__rpc_got_roll() knows its length */
    if (p->bytes < cdp__rpc_head_bytes(p)) return "too short a body";
    if (p->bytes - cdp__rpc_head_bytes(p) > max_bytes) return "too long a body";
    if ((p->flags & CDP__RPC_FETCH) && p->bytes != cdp__rpc_head_bytes(p))
        return "arguments of a fetch";
    return NULL;
}

/* Checks a reference in a message from `from` to `me`. */
CDP__PRIVATE const char *cdp__rpc_wrong_record(
    const uint8_t *r, uint32_t from, uint32_t me, uint32_t ranks) {
    const uint64_t rid = cdp__get_u64(r), fid = cdp__get_u64(r + 8);
    const uint32_t owner = cdp__get_u32(r + 16);
    if (cdp__get_u32(r + 20)) return "a reference with unknown bits";
    if (owner >= ranks) return "a reference without an owner";
    if (cdp__rpc_maker(rid) >= ranks || !(rid << 16)) return "a value that no rank made";
    if (cdp__rpc_maker(fid) != from || !(fid << 16)) return "a fork that its sender did not make";
    (void)me;
    return NULL;
}

/* Checks a complete body, for messages with more than a text. */
CDP__PRIVATE const char *cdp__rpc_wrong_body(
    cdp__rpc_packet *p, uint32_t from, uint32_t me, uint32_t ranks) {
    const uint8_t *at = p->body;
    const char *wrong = NULL;
    uint32_t i;
    if (p->flags & CDP__RPC_ON) {
        p->rid = cdp__get_u64(at);
        p->fid = cdp__get_u64(at + 8);
        at += 16;
    }
    if (p->flags & CDP__RPC_REMOTE) {
        p->makes_rid = cdp__get_u64(at);
        p->makes_fid = cdp__get_u64(at + 8);
        at += 16;
        if (cdp__rpc_maker(p->makes_rid) != from || cdp__rpc_maker(p->makes_fid) != from
            || !(p->makes_rid << 16) || !(p->makes_fid << 16))
            return "a new value that its sender did not number";
    }
    if (p->flags & CDP__RPC_CTX) {
        p->slot = cdp__get_u64(at);
        at += 8;
        if (cdp__rpc_maker(p->slot) >= ranks || !(p->slot << 16)) return "a context of no rank";
    }
    p->records = at;
    for (i = 0; i < p->rrefs && !wrong; ++i)
        wrong = cdp__rpc_wrong_record(at + i * CDP__RPC_RECORD, from, me, ranks);
    p->shapes = at + p->rrefs * CDP__RPC_RECORD;
    p->area_bytes = p->bytes - cdp__rpc_head_bytes(p);
    p->area = p->area_bytes ? p->shapes + p->tensors * CDP__RPC_SHAPE : NULL;
    return wrong ? wrong : cdp__rpc_wrong_shapes(p, from);
}

/* Decodes a message of a channel. Returns NULL or what is wrong. Of a body that is not received
   yet, only the length is checked. */
CDP__PRIVATE const char *cdp__rpc_read(const cdp_channel_message *m, uint32_t me, uint32_t ranks,
    uint64_t max_bytes, cdp__rpc_packet *p) {
    const char *wrong;
    memset(p, 0, sizeof *p);
    p->kind = (cdp__rpc_kind)(m->kind & 0xff);
    p->flags = m->kind >> 8 & 0xff;
    p->rrefs = m->kind >> 16 & 0xff;
    p->tensors = m->kind >> 24;
    p->aux = m->aux;
    p->a = m->a;
    p->b = m->b;
    p->body = (const uint8_t *)m->body;
    p->bytes = m->bytes;
    wrong = cdp__rpc_wrong_head(p, max_bytes);
    if (wrong) return wrong;
    if (m->handle)
        return p->kind > CDP__RPC_REPLY && p->kind != CDP__RPC_GRAD
            ? "an offered body where there is none"
            : NULL;
    if (p->kind == CDP__RPC_FORK && (p->aux >= ranks || cdp__rpc_maker(p->b) != p->aux))
        return "a fork that its parent did not make";
    if (p->kind == CDP__RPC_FORK && (p->aux == me || p->aux == m->peer))
        return "a fork of a fork that cannot be";
    if ((p->kind == CDP__RPC_REMOTE_ACK || p->kind == CDP__RPC_FORK_ACK) && p->aux > CDP__REF_FULL)
        return "an unknown answer";
    if (p->kind == CDP__RPC_HELD && p->aux >= CDP__RPC_WHYS) return "an unknown reason";
    if (p->kind > CDP__RPC_DELETE && p->kind != CDP__RPC_HELD && p->kind != CDP__RPC_ROLL
        && (cdp__rpc_maker(p->a) >= ranks || !(p->a << 16)))
        return "a context of no rank";
    if (p->kind != CDP__RPC_FAIL && p->kind != CDP__RPC_CTX_FAIL && p->bytes
        && !cdp__rpc_is_list(p->kind))
        return cdp__rpc_wrong_body(p, m->peer, me, ranks);
    return NULL;
}

CDP__PRIVATE void cdp__rpc_put_record(uint8_t *at, uint64_t rid, uint64_t fid, uint32_t owner) {
    cdp__put_u64(at, rid);
    cdp__put_u64(at + 8, fid);
    cdp__put_u32(at + 16, owner);
    cdp__put_u32(at + 20, 0);
}

/* True for 1 to `most` bytes of letters, digits and _ . : - */
CDP__PRIVATE bool cdp__rpc_name_fits(const char *name) {
    uint32_t n = 0;
    for (; name && name[n]; ++n) {
        const char c = name[n];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '.' && c != ':' && c != '-')
            return false;
    }
    return n > 0 && n < CDP__RPC_NAME;
}

#endif /* CDP_SRC_RPC_PACKETS_H */

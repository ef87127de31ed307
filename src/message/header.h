/* message/header.h - one header for all messages (pure)

   Knows: bytes, names of operations and algorithms. Promises: decoded messages were checked. */
#ifndef CDP_SRC_MESSAGE_HEADER_H
#define CDP_SRC_MESSAGE_HEADER_H

#include "../base/version.h"
#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/bytes.h"
#include "../collective/kinds.h"
#include "../dtype/dtype.h"
#include "../collective/kinds.h"
#include "../collective/select.h"

typedef enum cdp__message_type {
    CDP__MESSAGE_DATA = 1, /* a piece of a payload follows */
    CDP__MESSAGE_REMOTE =
        2, /* a token and a length follow: the receiver reads the payload itself */
    CDP__MESSAGE_FAILURE = 3, /* an encoded error follows: the channel is broken */
    /* The next ones have no body, and are neither counted nor limited by the window. */
    CDP__MESSAGE_CREDIT = 4,  /* only the field `ack` is used */
    CDP__MESSAGE_ASK = 5,     /* the window is exhausted: send CREDIT when half of it is free */
    CDP__MESSAGE_READ = 6,    /* the receiver has read the payload of the last REMOTE */
    CDP__MESSAGE_REFUSED = 7, /* the receiver cannot read that payload: send it as DATA */
    CDP__MESSAGE_LEAVE = 8,   /* the sender has left the channel */
    CDP__MESSAGE_LIMIT = 9,   /* the sender has too many unexpected streams */
    /* The next ones have a body, and are neither counted nor limited by the window. They use the
       world's channel. */
    CDP__MESSAGE_WAIT = 10,    /* the sender waits for the receiver, see >>failure/records */
    CDP__MESSAGE_ENDPOINT = 11 /* the answer to a WAIT */
} cdp__message_type;

/* The header of a message. The fields that name the call are equal on all ranks of an operation. */
typedef struct cdp__head {
    uint64_t channel;
    uint64_t seq, count;
    /* uneven parts: a hash of their lengths, or 1 if the lengths are not known to all ranks;
       else 0 */
    uint64_t parts;
    uint32_t bytes; /* length of the body that follows */
    uint32_t ack;   /* bytes of this channel that the sender has read from the receiver, mod 2^32 */
    uint32_t round, root;
    uint8_t type, kind, dtype, op, algo;
    uint8_t accumulate; /* cdp_request.accumulate, 0 where it makes no difference */
} cdp__head;

#define CDP__HEAD_BYTES 64u
#define CDP__HEAD_MAGIC 0x4d706463u /* "cdpM" */
#define CDP__HEAD_LITTLE_ENDIAN 1u  /* byte order of payloads; room for a second one */
#define CDP__FAILURE_MAX 640u       /* largest body of a FAILURE message */
#define CDP__REMOTE_BYTES 16u       /* body of a REMOTE message */

/* Layout, little-endian: 0 magic, 4 version, 5 type, 6 byte order, 7 bytes of authentication
   code behind the body (always 0 today), 8 channel, 16 seq, 24 count, 32 parts, 40 bytes, 44 ack,
   48 round, 52 root, 56 kind, 57 dtype, 58 op, 59 algo, 60 accumulate, 61 reserved. */
CDP__PRIVATE void cdp__head_encode(const cdp__head *h, uint8_t out[CDP__HEAD_BYTES]) {
    cdp__put_u32(out, CDP__HEAD_MAGIC);
    out[4] = CDP_WIRE_VERSION;
    out[5] = h->type;
    out[6] = CDP__HEAD_LITTLE_ENDIAN;
    out[7] = 0;
    cdp__put_u64(out + 8, h->channel);
    cdp__put_u64(out + 16, h->seq);
    cdp__put_u64(out + 24, h->count);
    cdp__put_u64(out + 32, h->parts);
    cdp__put_u32(out + 40, h->bytes);
    cdp__put_u32(out + 44, h->ack);
    cdp__put_u32(out + 48, h->round);
    cdp__put_u32(out + 52, h->root);
    out[56] = h->kind;
    out[57] = h->dtype;
    out[58] = h->op;
    out[59] = h->algo;
    cdp__put_u32(out + 60, h->accumulate);
}

/* The shorter header of a message in an eager slot: the slot stores channel and length, and
   operations with uneven parts have no count. */
#define CDP__SLOT_HEAD 30u
CDP__PRIVATE void cdp__slot_head_encode(const cdp__head *h, uint8_t out[CDP__SLOT_HEAD]) {
    out[0] = h->kind;
    out[1] = h->dtype;
    out[2] = h->op;
    out[3] = h->algo;
    out[4] = h->parts != 0;
    out[5] = h->accumulate;
    cdp__put_u32(out + 6, h->round);
    cdp__put_u32(out + 10, h->root);
    cdp__put_u64(out + 14, h->seq);
    cdp__put_u64(out + 22, h->parts ? h->parts : h->count);
}

CDP__PRIVATE void cdp__slot_head_decode(const uint8_t in[CDP__SLOT_HEAD], cdp__head *h) {
    const uint64_t count = cdp__get_u64(in + 22);
    memset(h, 0, sizeof *h);
    h->type = CDP__MESSAGE_DATA;
    h->kind = in[0];
    h->dtype = in[1];
    h->op = in[2];
    h->algo = in[3];
    h->accumulate = in[5];
    h->round = cdp__get_u32(in + 6);
    h->root = cdp__get_u32(in + 10);
    h->seq = cdp__get_u64(in + 14);
    if (in[4])
        h->parts = count;
    else
        h->count = count;
}

/* The longest body that a message of this type may have. */
CDP__PRIVATE uint32_t cdp__body_max(uint8_t type) {
    switch (type) {
    case CDP__MESSAGE_DATA: return 1u << 30;
    case CDP__MESSAGE_REMOTE: return CDP__REMOTE_BYTES;
    case CDP__MESSAGE_FAILURE:
    case CDP__MESSAGE_WAIT:
    case CDP__MESSAGE_ENDPOINT: return CDP__FAILURE_MAX;
    default: return 0;
    }
}

/* Returns false if the bytes are no valid header of this version. */
CDP__PRIVATE bool cdp__head_decode(const uint8_t in[CDP__HEAD_BYTES], cdp__head *h) {
    h->type = in[5];
    h->channel = cdp__get_u64(in + 8);
    h->seq = cdp__get_u64(in + 16);
    h->count = cdp__get_u64(in + 24);
    h->parts = cdp__get_u64(in + 32);
    h->bytes = cdp__get_u32(in + 40);
    h->ack = cdp__get_u32(in + 44);
    h->round = cdp__get_u32(in + 48);
    h->root = cdp__get_u32(in + 52);
    h->kind = in[56];
    h->dtype = in[57];
    h->op = in[58];
    h->algo = in[59];
    h->accumulate = in[60];
    return cdp__get_u32(in) == CDP__HEAD_MAGIC && in[4] == CDP_WIRE_VERSION
        && in[6] == CDP__HEAD_LITTLE_ENDIAN && in[7] == 0 && h->type >= CDP__MESSAGE_DATA
        && h->type <= CDP__MESSAGE_ENDPOINT && h->bytes <= cdp__body_max(h->type)
        && (h->type != CDP__MESSAGE_REMOTE || h->bytes == CDP__REMOTE_BYTES);
}

/* True if both headers name the same call; rounds, lengths and types may differ. */
CDP__PRIVATE bool cdp__same_call(const cdp__head *a, const cdp__head *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->algo == b->algo
        && a->accumulate == b->accumulate && a->root == b->root && a->seq == b->seq
        && a->count == b->count && a->parts == b->parts;
}

/* Buckets of a ddp store their number in the field of the root, if the operation has none. So an
   error is reported if ranks reduce different buckets that happen to have equal sizes. */
#define CDP__TAG_BUCKET 0xdd000000u
CDP__PRIVATE bool cdp__root_is_bucket(uint32_t root) {
    return (root & 0xff000000u) == CDP__TAG_BUCKET;
}

/* A rank fits into the low half of the field of the root. The other half says for what a ddp
   copies from that rank: 0, or one of these tags with the number of the ddp. */
#define CDP__ROOT_RANK 0xffffu
#define CDP__TAG_MODEL 0xdd000000u
#define CDP__TAG_BUFFERS 0xde000000u
#define CDP__TAG_ORDER 0xdf000000u
#define CDP__TAG_NAMES 0xe0000000u

#define CDP__TAG_BARRIER 0xffffffffu /* tag of cdp_monitored_barrier() and of bodies of channels */

/* What a ddp copies, as " for the buffers of ddp 0". */
CDP__PRIVATE void cdp__copy_text(cdp__text *t, uint32_t root) {
    static const char *const names[] = {
        "parameters and buffers", "buffers", "order of the buckets", "names of the parameters"};
    const uint32_t what = (root >> 24) - (CDP__TAG_MODEL >> 24);
    if (what < sizeof names / sizeof *names)
        cdp__text_add(t, " for the %s of ddp %u", names[what], root >> 16 & 0xffu);
}

/* Which bucket an operation without a root is for. */
CDP__PRIVATE void cdp__bucket_text(cdp__text *t, uint32_t root) {
    if (!cdp__root_is_bucket(root)) return;
    if ((root & 0xffffu) == 0xffffu)
        cdp__text_add(t, " beside the buckets of ddp %u", root >> 16 & 0xffu);
    else
        cdp__text_add(t, " for bucket %u of ddp %u", root & 0xffffu, root >> 16 & 0xffu);
}

/* Makes a text like "allreduce #17 of 4194304 x f32 sum, ring". Returns it. */
CDP__PRIVATE const char *cdp__call_text(const cdp__head *h, char *out, uint64_t size) {
    cdp__text t = cdp__text_of(out, size);
    const cdp_coll_kind kind = (cdp_coll_kind)h->kind;
    if (kind == CDP_COLL_SEND && h->root == CDP__TAG_BARRIER) {
        cdp__text_add(&t, "monitored barrier #%llu", (unsigned long long)h->seq);
        return out;
    }
    cdp__text_add(&t, "%s #%llu", cdp_coll_name(kind), (unsigned long long)h->seq);
    if (kind == CDP_COLL_BARRIER) return out;
    cdp__text_add(
        &t, " of %llu x %s", (unsigned long long)h->count, cdp_dtype_name((cdp_dtype)h->dtype));
    if (h->parts == 1) cdp__text_add(&t, " in uneven parts");
    if (h->parts > 1) cdp__text_add(&t, " in uneven parts (%llx)", (unsigned long long)h->parts);
    if (cdp__kind_reduces(kind)) cdp__text_add(&t, " %s", cdp_reduce_name((cdp_reduce_op)h->op));
    if (h->accumulate)
        cdp__text_add(&t, " accumulated in %s", cdp_dtype_name((cdp_dtype)h->accumulate));
    if (kind == CDP_COLL_SEND) {
        cdp__text_add(&t, " with tag %u", h->root);
        return out;
    }
    if (cdp__kind_has_root(kind)) {
        cdp__text_add(&t, " %s rank %u",
            cdp__kind_of(kind)->root == CDP__ROOT_SENDS ? "from" : "to", h->root & CDP__ROOT_RANK);
        cdp__copy_text(&t, h->root);
    } else {
        cdp__bucket_text(&t, h->root);
    }
    if (cdp__algo_at(h->algo)->kind == CDP_COLL_BARRIER)
        cdp__text_add(&t, ", in device memory");
    else if (cdp__kind_reduces(kind) && !cdp__kind_has_parts(kind))
        cdp__text_add(&t, ", %s", cdp__algo_at(h->algo)->name);
    return out;
}

#endif /* CDP_SRC_MESSAGE_HEADER_H */

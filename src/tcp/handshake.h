/* tcp/handshake.h - the first messages on a connection between two ranks (pure)

   Knows: the messages of the handshake. Promises: both sides choose the same connection; an
   unauthenticated client costs a few hundred bytes. */
#ifndef CDP_SRC_TCP_HANDSHAKE_H
#define CDP_SRC_TCP_HANDSHAKE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"
#include "../store/auth.h"

/* The rank with the higher number connects to several addresses of the other rank at once, and
   sends HELLO on each connection. The other rank answers WELCOME, or REFUSED with a reason. On the
   connection whose WELCOME arrives first, the connecting rank sends CHOSEN: this connection is the
   link. Each message is 64 bytes. Nothing else is read from a connection before its HELLO is
   found valid, so strangers and ranks of other jobs cost a few hundred bytes and get no further.
   Ranks of one host switch to shared memory: HELLO says whether the sender supports that, and
   WELCOME the local name under which the answering rank waits for the memory. The connecting rank
   creates the memory, passes it there, and repeats in CHOSEN a random proof that the memory
   contains. If CHOSEN contains no proof, the link is up. Otherwise the other rank answers TAKEN,
   and the link is up: with `refusal` 0 bytes go through memory in both directions, with 1 they go
   through TCP. */
typedef enum cdp__hello_type {
    CDP__HELLO = 1,
    CDP__WELCOME = 2,
    CDP__REFUSED = 3,
    CDP__CHOSEN = 4,
    CDP__TAKEN = 5,
    CDP__INVITE = 6 /* from the lower rank, which waits for the connection: connect now */
} cdp__hello_type;
typedef enum cdp__refusal {
    CDP__REFUSE_NOTHING,
    CDP__REFUSE_VERSION,
    CDP__REFUSE_JOB,
    CDP__REFUSE_RANK,
    CDP__REFUSE_TWICE,
    CDP__REFUSE_INDEX,
    CDP__REFUSE_ORDER,
    CDP__REFUSE_MAC,
    CDP__REFUSE_COUNT
} cdp__refusal;

#define CDP__HELLO_BYTES 64u
#define CDP__REFUSE_KEY 100u /* values above this: a cdp__auth_refusal, received before any HELLO */
#define CDP__JOB_BYTES 16u
#define CDP__NAME_BYTES 12u
#define CDP__PLACE_BYTES 20u /* beginning of an address record: host, place, process */

typedef struct cdp__hello {
    uint32_t type, version, world_size, from, to, refusal;
    uint8_t job[CDP__JOB_BYTES];
    /* number of this connection between the two ranks; in the listener's own record: how many
       there are */
    uint32_t index;
    uint8_t memory[CDP__NAME_BYTES]; /* local name, or proof; zeros: no shared memory */
    uint8_t order;                   /* cdp__byte_order() of the sender */
    uint8_t mac; /* 1: after the handshake, bytes travel in records of >>tcp/mac */
} cdp__hello;

CDP__PRIVATE void cdp__hello_encode(const cdp__hello *h, uint8_t out[CDP__HELLO_BYTES]) {
    memset(out, 0, CDP__HELLO_BYTES);
    memcpy(out, "cdp-link", 8);
    cdp__put_u32(out + 8, h->version); /* below 2^24 */
    out[11] = h->order;
    cdp__put_u32(out + 12, h->type);
    cdp__put_u32(out + 16, h->world_size);
    cdp__put_u32(out + 20, h->from);
    cdp__put_u32(out + 24, h->to);
    cdp__put_u32(out + 28, h->refusal);
    memcpy(out + 32, h->job, CDP__JOB_BYTES);
    cdp__put_u32(out + 48, h->index); /* below 2^24 */
    out[51] = h->mac;
    memcpy(out + 52, h->memory, CDP__NAME_BYTES);
}

/* Returns false if the bytes are no HELLO of any version. */
CDP__PRIVATE bool cdp__hello_decode(const uint8_t in[CDP__HELLO_BYTES], cdp__hello *h) {
    h->version = cdp__get_u32(in + 8) & 0xffffff;
    h->order = in[11];
    h->type = cdp__get_u32(in + 12);
    h->world_size = cdp__get_u32(in + 16);
    h->from = cdp__get_u32(in + 20);
    h->to = cdp__get_u32(in + 24);
    h->refusal = cdp__get_u32(in + 28);
    memcpy(h->job, in + 32, CDP__JOB_BYTES);
    h->index = cdp__get_u32(in + 48) & 0xffffff;
    h->mac = in[51];
    memcpy(h->memory, in + 52, CDP__NAME_BYTES);
    return memcmp(in, "cdp-link", 8) == 0;
}

/* Decides whether rank `mine->from` accepts the HELLO of a rank that connects to it. */
CDP__PRIVATE cdp__refusal cdp__hello_judge(const cdp__hello *mine, const cdp__hello *theirs) {
    if (theirs->version != mine->version || theirs->type != CDP__HELLO) return CDP__REFUSE_VERSION;
    if (theirs->order != mine->order) return CDP__REFUSE_ORDER;
    if (memcmp(theirs->job, mine->job, CDP__JOB_BYTES) != 0
        || theirs->world_size != mine->world_size)
        return CDP__REFUSE_JOB;
    if (theirs->mac != mine->mac) return CDP__REFUSE_MAC;
    if (theirs->to != mine->from || theirs->from <= mine->from || theirs->from >= mine->world_size)
        return CDP__REFUSE_RANK;
    return theirs->index < mine->index ? CDP__REFUSE_NOTHING : CDP__REFUSE_INDEX;
}

CDP__PRIVATE const char *cdp__refusal_text(uint32_t r) {
    static const char *const texts[CDP__REFUSE_COUNT] = {"it gave no reason",
        "it speaks another version", "it belongs to another job", "it has another rank",
        "it is connected to this rank already",
        "it has more connections than this rank: set `connections` alike on all ranks",
        "its processor has another byte order: all ranks of a job must have the same",
        "mac is on at one end and off at the other: set it, or CDP_MAC, alike on all ranks"};
    if (r > CDP__REFUSE_KEY) return cdp__auth_text(r - CDP__REFUSE_KEY);
    return texts[r < (uint32_t)CDP__REFUSE_COUNT ? r : 0];
}

#endif /* CDP_SRC_TCP_HANDSHAKE_H */

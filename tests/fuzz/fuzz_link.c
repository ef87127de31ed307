/* What a peer may send over a link, fed to a rank with groups and messages in flight. No
   sockets: a transport hands out the bytes of the input.

   Inputs made from a seed: chunks and frames, mostly well-formed, cut, repeated and damaged. How
   to run it: fuzz.h.

   Whatever comes, nothing may crash, leak, hang or write beside a buffer; and a rank that is
   told nonsense says so. */
#include "fuzz.h"

/* ---- the false os and transport: this is rank 0 of 3; the input says what comes from ranks 1
   and 2 ---- */

typedef struct world {
    const uint8_t *in[3];
    uint64_t bytes[3], sent;
    uint64_t now, live;
    uint32_t piece, slow; /* most that one call moves; every slow-th send takes nothing */
    uint32_t calls;
    bool over; /* the peers have gone */
} world;

static void *world_alloc(void *user, uint64_t bytes) {
    void *p = bytes > (1u << 20) ? NULL : fuzz_alloc(bytes);
    ((world *)user)->live += p != NULL;
    return p;
}

static void world_free(void *user, void *p) {
    ((world *)user)->live -= p != NULL;
    fuzz_free(p);
}

static uint64_t world_now(void *user) {
    return ((world *)user)->now;
}

/* They must be readable. */
static void read_all(const void *data, uint64_t bytes) {
    static uint8_t sink[4096];
    for (uint64_t at = 0; at < bytes; at += sizeof sink)
        memcpy(sink, (const uint8_t *)data + at, (size_t)cdp__min(bytes - at, sizeof sink));
}

static int64_t world_send(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    world *w = (world *)self;
    int64_t moved = 0;
    T(peer == 1 || peer == 2);
    if (w->over) return cdp_error_set(CDP_ERR_PEER_LOST, (int32_t)peer, 0, "gone");
    if (w->slow && ++w->calls % w->slow == 0) return 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint64_t bytes = w->piece ? cdp__min(v[i].bytes, w->piece) : v[i].bytes;
        read_all(v[i].data, bytes);
        moved += (int64_t)bytes;
        if (bytes < v[i].bytes) break;
    }
    w->sent += (uint64_t)moved;
    return moved;
}

static int64_t world_recv(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    world *w = (world *)self;
    int64_t moved = 0;
    T(peer == 1 || peer == 2);
    for (uint32_t i = 0; i < n && w->bytes[peer]; ++i) {
        uint64_t bytes = cdp__min(v[i].bytes, w->bytes[peer]);
        if (w->piece) bytes = cdp__min(bytes, w->piece);
        memcpy(v[i].data, w->in[peer], (size_t)bytes);
        w->in[peer] += bytes;
        w->bytes[peer] -= bytes;
        moved += (int64_t)bytes;
        if (bytes < v[i].bytes) break;
    }
    if (!moved && n && v[0].bytes && w->over)
        return cdp_error_set(CDP_ERR_PEER_LOST, (int32_t)peer, 0, "gone");
    return moved;
}

static cdp_status world_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    world *w = (world *)self;
    (void)lock;
    w->now += 100000
        + (deadline_ns && deadline_ns != UINT64_MAX && deadline_ns > w->now
                ? (deadline_ns - w->now) / 4
                : 0);
    return CDP_OK;
}

static void world_nothing(void *self) {
    (void)self;
}

/* ---- what is decoded may not depend on what lies behind a message ---- */

#define BEHIND 512u
static uint8_t followed[CDP__FAILURE_MAX + BEHIND];

static const uint8_t *followed_by(const uint8_t *body, uint32_t bytes, int value) {
    T(bytes <= CDP__FAILURE_MAX);
    memcpy(followed, body, bytes);
    memset(followed + bytes, value, BEHIND);
    return followed;
}

static void failure_note(const uint8_t *body, uint32_t bytes) {
    static cdp__failure_record r[2];
    static cdp__failure_record more;
    static uint8_t again[3][CDP__FAILURE_BYTES];
    uint32_t n;
    bool good[2];
    for (uint32_t i = 0; i < 2; ++i)
        good[i] = cdp__failure_decode(followed_by(body, bytes, i ? 0xff : 0), bytes, 3, &r[i]);
    T(good[0] == good[1]);
    if (!good[0]) return;
    n = cdp__failure_encode(&r[0], again[0]);
    T(n <= bytes); /* what is not printable becomes one byte */
    T(cdp__failure_encode(&r[1], again[1]) == n && memcmp(again[0], again[1], n) == 0);
    T(cdp__failure_decode(again[0], n, 3, &more));
    T(cdp__failure_encode(&more, again[2]) == n && memcmp(again[0], again[2], n) == 0);
}

static void wait_note(uint8_t type, const uint8_t *body, uint32_t bytes) {
    static cdp__wait_message wait[2];
    static cdp__answer_message answer[2];
    static uint8_t again[2][CDP__WAIT_BYTES];
    bool good[2];
    for (uint32_t i = 0; i < 2; ++i) {
        const uint8_t *p = followed_by(body, bytes, i ? 0xff : 0);
        good[i] = type == CDP__MESSAGE_WAIT ? cdp__wait_decode(p, bytes, &wait[i])
                                            : cdp__answer_decode(p, bytes, 3, &answer[i]);
    }
    T(good[0] == good[1]);
    for (uint32_t i = 0; i < 2 && good[0]; ++i)
        T((type == CDP__MESSAGE_WAIT ? cdp__wait_encode(&wait[i], again[i])
                                     : cdp__answer_encode(&answer[i], again[i]))
            == bytes);
    T(!good[0] || memcmp(again[0], again[1], bytes) == 0);
}

static bool note(cdp__world *w, uint32_t peer, uint8_t type, uint64_t channel, const uint8_t *body,
    uint32_t bytes) {
    if (type == CDP__MESSAGE_FAILURE)
        failure_note(body, bytes);
    else
        wait_note(type, body, bytes);
    return cdp__world_on_control(w, peer, type, channel, body, bytes);
}

/* ---- one life ---- */

#define COUNT 3000
#define GUARD 0x7e7e7e7eu

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint32_t pair[2] = {1, 0}, all[3] = {2, 1, 0};
    static float a[COUNT + 1], b[3 * COUNT + 1];
    static int32_t m[COUNT + 1], x[COUNT + 1];
    const uint32_t what = size ? data[0] : 0, guard = GUARD;
    const uint32_t large = what & 4 ? COUNT : 0, large_too = what & 16 ? COUNT : 0;
    const uint32_t sum = large ? large : 20, part = large_too ? large_too : 5;
    const uint32_t received = large ? large : 7, sent = 30, cast = large_too ? large_too : 9;
    void *behind[4]; /* what operations may write */
    world w = {.now = 1, .piece = size > 1 ? data[1] : 0, .slow = size > 2 ? data[2] % 8 : 0};
    cdp_os os = *cdp_os_default();
    cdp_transport t;
    cdp_group *g = NULL, *sub = NULL, *other = NULL;
    cdp_work works[6] = {{NULL, 0}};
    if (size < 5) return 0;
    w.in[1] = data + 5;
    w.bytes[1] = cdp__min(size - 5, (uint64_t)(data[3] | data[4] << 8));
    w.in[2] = data + 5 + w.bytes[1];
    w.bytes[2] = size - 5 - w.bytes[1];
    os.user = &w;
    os.alloc = world_alloc;
    os.release = world_free;
    os.now_ns = world_now;
    os.threads.start = NULL;
    os.threads.mutex_create = NULL;
    memset(&t, 0, sizeof t);
    t.self = &w;
    t.send = world_send;
    t.recv = world_recv;
    t.wait = world_wait;
    t.wake = t.destroy = world_nothing;
    behind[0] = &a[sum];
    behind[1] = &b[3 * part];
    behind[2] = &m[received];
    behind[3] = &x[cast];
    for (uint32_t i = 0; i < 4; ++i)
        memcpy(behind[i], &guard, 4);
    const cdp_group_desc d = {.rank = 0,
        .world_size = 3,
        .transport = &t,
        .timeout_ms = 1000,
        .small_bytes = 256,
        .piece_bytes = 1024,
        .stage_bytes = size > 2 && data[2] & 8 ? 512 : 0, /* less than a piece */
        .no_thread = true,
        .os = &os,
        .logger = {.level = CDP_LOG_SILENT}};
    T(cdp_group_create(&d, &g) == CDP_OK);
    g->w->on_control = note;
    if (what & 1) T(cdp_group_new(g, pair, 2, &sub) == CDP_OK);
    if (what & 2) T(cdp_group_new(g, all, 3, &other) == CDP_OK);
    (void)!cdp_allreduce_async(
        g, NULL, a, sum, CDP_DTYPE_F32, what & 8 ? CDP_REDUCE_AVG : CDP_REDUCE_SUM, &works[0]);
    (void)!cdp_allgather_async(g, a, b, part, CDP_DTYPE_F32, &works[1]);
    if (what & 32)
        (void)!cdp_recv_async(g, m, received, CDP_DTYPE_I32, 1 + (what >> 6 & 1), 5, &works[2]);
    if (what & 64) (void)!cdp_send_async(g, x, sent, CDP_DTYPE_I32, 2, 5, &works[3]);
    if (sub) (void)!cdp_broadcast_async(sub, x, cast, CDP_DTYPE_I32, 0, &works[4]);
    if (other) (void)!cdp_barrier_async(other, &works[5]);
    for (uint32_t i = 0; i < 200 && (w.bytes[1] || w.bytes[2]); ++i)
        (void)cdp_poll(g, 50);
    if (what & 128) {
        cdp_group_destroy(sub);
        sub = NULL;
    }
    for (uint32_t i = 0; i < 20; ++i)
        (void)cdp_poll(g, 50);
    w.over = true;
    /* each ends, by its deadline */
    for (uint32_t i = 0; i < 6; ++i)
        (void)!cdp_work_wait(
            works[i].group == NULL || (what & 128 && i == 4) ? works[0] : works[i]);
    for (uint32_t i = 0; i < 4; ++i)
        T(memcmp(behind[i], &guard, 4) == 0);
    cdp_group_destroy(other);
    cdp_group_destroy(sub);
    cdp_group_destroy(g);
    T(w.live == 0);
    return 0;
}

/* ---- inputs of its own ---- */

#ifndef FUZZ_LIB
static uint32_t what; /* the first byte: what this rank does */

/* of messages with tag 5, as cdp__message_channel() has it */
static uint64_t message_channel(void) {
    uint8_t id[12];
    cdp__put_u64(id, CDP__WORLD_CHANNEL);
    cdp__put_u32(id + 8, 5);
    return cdp__hash(CDP__HASH_START, id, sizeof id) | 2;
}

/* The k-th header that `peer` sends to this rank in the first allreduce, or in the first
   message. */
static cdp__head right_head(uint32_t peer, bool message, uint32_t k) {
    const bool large = what & 4;
    cdp__head f;
    memset(&f, 0, sizeof f);
    f.type = CDP__MESSAGE_DATA;
    f.kind = (uint8_t)(message ? CDP_COLL_SEND : CDP_COLL_ALLREDUCE);
    f.dtype = (uint8_t)(message ? CDP_DTYPE_I32 : CDP_DTYPE_F32);
    f.op = (uint8_t)(!message && what & 8 ? CDP_REDUCE_AVG : CDP_REDUCE_SUM);
    f.seq = 1;
    f.root = message ? 5 : 0;
    if (message) {
        f.count = large ? COUNT : 7;
        if (large) f.bytes = k < 11 ? 1024 : 4 * COUNT - 11 * 1024;
    } else {
        f.algo = large ? CDP__RING : CDP__DOUBLING;
        f.count = large ? COUNT : 20;
        f.round = large ? 1 + k / 4 : 3;
        if (large) f.bytes = k % 4 < 3 ? 1024 : 4 * COUNT / 3 - 3 * 1024;
    }
    if (!large) f.bytes = (uint32_t)f.count * 4;
    (void)peer;
    return f;
}

/* A failure, sometimes of a length that its text does not have, or the longest one. */
static uint32_t put_failure(uint8_t *body) {
    static const char *const texts[] = {"it is somebody's fault", "caf\xc3\xa9 \xe2\x82\xac",
        "x\xc2\x9b"
        "2J",
        "\xff\xed\xa0\x80\xf0\x9f"};
    cdp__failure_record r;
    uint32_t bytes, text;
    cdp__failure_plain(&r, pick(2) ? CDP_ERR_TIMEOUT : (cdp_status)(-(int)pick(14)),
        (int32_t)pick(4) - 1, (int32_t)pick(4) - 1, texts[pick(4)]);
    r.end.why = (uint8_t)pick(CDP__WHY_COUNT + 1);
    r.corrections = (uint8_t)pick(4);
    bytes = cdp__failure_encode(&r, body);
    switch (pick(20)) {
    case 0: return bytes + pick(9);
    case 1: return bytes - pick(30);
    case 2: return CDP__FAILURE_MAX;
    case 3:
        text = pick(2) ? CDP__FAILURE_TEXT_SENT - 3 + pick(6) : pick(CDP__FAILURE_MAX);
        text = cdp__min(text, CDP__FAILURE_MAX - CDP__FAILURE_HEAD);
        cdp__put_u32(body + 184, text);
        return CDP__FAILURE_HEAD + text;
    default: return bytes;
    }
}

/* What a rank asks that waits for this one, or says of another one. */
static uint32_t put_note(uint8_t *body, bool answer, uint64_t channel) {
    cdp__wait_message m;
    cdp__answer_message a;
    uint32_t bytes;
    memset(&m, 0, sizeof m);
    memset(&a, 0, sizeof a);
    m.at.channel = channel;
    m.at.seq = pick(4);
    m.at.round = pick(3);
    m.serial = pick(4);
    m.probe = (uint16_t)pick(3);
    m.call_count = (uint8_t)pick(CDP__WAIT_CALLS + 1);
    for (uint32_t i = 0; i < m.call_count; ++i) {
        const cdp__head h = right_head(1, pick(4) == 0, 0);
        m.calls[i] = cdp__fingerprint_of(&h);
        if (pick(4) == 0) m.calls[i].seq = pick(4);
    }
    a.at = m.at;
    a.serial = m.serial;
    a.end.named = (int32_t)pick(4) - 1;
    a.end.why = (uint8_t)pick(CDP__WHY_COUNT);
    a.end.last.waiter = (int32_t)pick(4) - 1;
    a.end.last.target = (int32_t)pick(4) - 1;
    a.end.last.at = m.at;
    bytes = answer ? cdp__answer_encode(&a, body) : cdp__wait_encode(&m, body);
    if (pick(16) == 0) body[pick(bytes)] = (uint8_t)pick(256);
    return pick(16) ? bytes : 1 + pick(CDP__FAILURE_MAX);
}

/* Most of the time the right one; else something in it is not. */
static uint8_t *put_message(uint8_t *p, uint32_t peer, bool message, uint32_t k, uint32_t kind) {
    cdp__head h = right_head(peer, message, k);
    h.channel = message ? message_channel() : CDP__WORLD_CHANNEL;
    if (pick(20) == 0) h.channel = random_state;
    h.ack = pick(20) ? 0 : pick(3000);
    switch (pick(12)) {
    case 0: h.kind = (uint8_t)pick(CDP_COLL_COUNT + 1); break;
    case 1: h.seq = pick(4); break;
    case 2: h.round = pick(9); break;
    case 3: h.bytes += pick(1500); break;
    case 4: h.bytes = pick(2000); break;
    case 5: h.count = pick(2) ? pick(5000) : random_state; break;
    default: break;
    }
    if (kind < 4) {
        h.type = (uint8_t)(CDP__MESSAGE_CREDIT + pick(9));
        if (pick(10)) h.bytes = 0;
    } else if (kind == 4) {
        h.type = CDP__MESSAGE_FAILURE;
        h.bytes = put_failure(p + CDP__HEAD_BYTES);
    } else if (kind == 5) {
        h.type = CDP__MESSAGE_REMOTE;
        h.bytes = CDP__REMOTE_BYTES;
    } else if (kind == 6 || kind == 7) {
        h.type = kind == 6 ? CDP__MESSAGE_WAIT : CDP__MESSAGE_ENDPOINT;
        h.bytes = put_note(p + CDP__HEAD_BYTES, kind == 7, h.channel);
    }
    cdp__head_encode(&h, p);
    return p + CDP__HEAD_BYTES + cdp__min(h.bytes, 3000);
}

static uint64_t put_stream(uint8_t *out, uint64_t room, uint32_t peer) {
    uint8_t *p = out;
    uint32_t k[2] = {0, 0};
    for (uint32_t n = 1 + pick(30); n && (uint64_t)(p - out) + 4000 < room; --n) {
        const bool message = pick(3) == 0;
        const uint32_t kind = pick(40);
        p = put_message(p, peer, message, k[message], kind);
        if (kind > 7) ++k[message];
    }
    for (uint32_t n = pick(4) ? 0 : pick(6); n && p > out; --n)
        out[pick((uint32_t)(p - out))] = (uint8_t)pick(256);
    return (uint64_t)(p - out);
}

static size_t make_input(uint64_t seed, uint8_t *out) {
    static uint64_t dirty = 1 << 17; /* bytes of `out` that the last input may have written */
    uint64_t first, bytes;
    (void)seed;
    memset(out, 0, dirty);
    out[0] = (uint8_t)pick(256);
    what = out[0];
    out[1] = (uint8_t)(pick(2) ? 0 : 1 + pick(100));
    out[2] = (uint8_t)pick(256);
    first = put_stream(out + 5, 40000, 1);
    out[3] = (uint8_t)first;
    out[4] = (uint8_t)(first >> 8);
    bytes = 5 + first + put_stream(out + 5 + first, 40000, 2);
    dirty = bytes + 1000; /* a body may be shorter than what was written for it */
    return (size_t)bytes;
}
#endif

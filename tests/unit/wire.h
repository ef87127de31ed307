/* wire.h - a transport of bytes in memory: it hands out bytes that the test has written, and keeps
   what rank 0 of 3 sends. Include after cdp.h. */
#ifndef WIRE_INCLUDED
#define WIRE_INCLUDED

#include "said.h"

#include <stdlib.h>

typedef struct line {
    uint8_t *in, *out;
    uint64_t in_bytes, in_at, in_room, out_bytes, out_room;
    bool gone;
} line;

typedef struct wire {
    line line[3];
    uint64_t piece; /* most that one send takes; 0: all, UINT64_MAX: nothing */
    uint64_t room;  /* what all sends together still take */
    bool linked[3];
    /* of world_with_clock(): the time, which a wait passes; and until when the last wait lasts */
    uint64_t now_ns, until_ns;
    cdp_os os;
} wire;

TEST_API int64_t wire_send(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    wire *w = (wire *)self;
    line *l = &w->line[peer];
    int64_t moved = 0;
    if (l->gone) return cdp_error_set(CDP_ERR_PEER_LOST, (int32_t)peer, 0, "gone");
    if (w->piece == UINT64_MAX) return 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint64_t most = w->piece ? cdp__min(v[i].bytes, w->piece) : v[i].bytes;
        const uint64_t bytes = cdp__min(most, w->room);
        w->room -= bytes;
        if (l->out_bytes + bytes > l->out_room) {
            l->out_room = 2 * (l->out_bytes + bytes);
            l->out = (uint8_t *)realloc(l->out, l->out_room);
        }
        if (bytes) memcpy(l->out + l->out_bytes, v[i].data, bytes);
        l->out_bytes += bytes;
        moved += (int64_t)bytes;
        if (bytes < v[i].bytes) break;
    }
    return moved;
}

TEST_API int64_t wire_recv(void *self, uint32_t peer, const cdp_iov *v, uint32_t n) {
    line *l = &((wire *)self)->line[peer];
    int64_t moved = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint64_t bytes = cdp__min(v[i].bytes, l->in_bytes - l->in_at);
        if (bytes) memcpy(v[i].data, l->in + l->in_at, bytes);
        l->in_at += bytes;
        moved += (int64_t)bytes;
    }
    if (!moved && l->gone) return cdp_error_set(CDP_ERR_PEER_LOST, (int32_t)peer, 0, "gone");
    return moved;
}

TEST_API cdp_status wire_wait(void *self, cdp_lock *lock, uint64_t deadline_ns) {
    wire *w = (wire *)self;
    (void)lock;
    w->until_ns = deadline_ns;
    if (deadline_ns != UINT64_MAX && deadline_ns > w->now_ns) w->now_ns = deadline_ns;
    return CDP_OK;
}

TEST_API void wire_nothing(void *self) {
    (void)self;
}

TEST_API void feed(wire *w, uint32_t peer, const void *bytes, uint64_t n) {
    line *l = &w->line[peer];
    if (l->in_bytes + n > l->in_room) {
        l->in_room = 2 * (l->in_bytes + n);
        l->in = (uint8_t *)realloc(l->in, l->in_room);
    }
    if (n) memcpy(l->in + l->in_bytes, bytes, n);
    l->in_bytes += n;
}

TEST_API void feed_head(wire *w, uint32_t peer, cdp__head h) {
    uint8_t out[CDP__HEAD_BYTES];
    cdp__head_encode(&h, out);
    feed(w, peer, out, sizeof out);
}

/* What rank 0 has sent to a peer, header by header: how many of this type. */
TEST_API uint32_t sent_of(const wire *w, uint32_t peer, uint8_t type) {
    const line *l = &w->line[peer];
    uint32_t count = 0;
    cdp__head h;
    for (uint64_t at = 0; at + CDP__HEAD_BYTES <= l->out_bytes; at += CDP__HEAD_BYTES + h.bytes) {
        if (!T(cdp__head_decode(l->out + at, &h))) return 0;
        count += h.type == type;
    }
    return count;
}

/* All that can move now: one poll without a budget takes one step. */
TEST_API cdp_status polled(cdp_group *g) {
    cdp_status st = CDP_OK;
    for (uint32_t i = 0; i < 300 && st == CDP_OK; ++i)
        st = cdp_poll(g, 0);
    return st;
}

TEST_API bool wire_linked(void *self, uint32_t peer) {
    return ((const wire *)self)->linked[peer];
}

TEST_API uint64_t wire_now(void *user) {
    return ((const wire *)user)->now_ns;
}

/* `os`: NULL: that of this machine. `linked`: the transport says which ranks are connected. */
TEST_API cdp_group *world_of(wire *w, const cdp_os *os, bool linked) {
    cdp_group *g = NULL;
    cdp_transport t;
    w->room = UINT64_MAX;
    memset(&t, 0, sizeof t);
    t.self = w;
    t.send = wire_send;
    t.recv = wire_recv;
    t.wait = wire_wait;
    t.wake = t.destroy = wire_nothing;
    if (linked) t.failure.linked = wire_linked;
    const cdp_group_desc d = {.world_size = 3,
        .os = os,
        .transport = &t,
        .no_thread = true,
        .no_spin = os != NULL, /* the clock stands while a wait spins */
        .timeout_ms = 1000,
        .logger = {.level = CDP_LOG_SILENT}};
    OK(cdp_group_create(&d, &g));
    return g;
}

TEST_API cdp_group *world(wire *w) {
    memset(w, 0, sizeof *w);
    return world_of(w, NULL, false);
}

/* Nothing of the machine decides anything: time passes when the test says so, or in waits. */
TEST_API cdp_group *world_with_clock(wire *w, bool linked) {
    memset(w, 0, sizeof *w);
    w->os = *cdp_os_default();
    w->os.user = w;
    w->os.now_ns = wire_now;
    w->now_ns = 1000000000;
    return world_of(w, &w->os, linked);
}

TEST_API void world_end(wire *w, cdp_group *g) {
    cdp_group_destroy(g);
    for (uint32_t p = 0; p < 3; ++p) {
        free(w->line[p].in);
        free(w->line[p].out);
    }
}

#endif

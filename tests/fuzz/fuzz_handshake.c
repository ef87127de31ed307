/* The first words between ranks: proofs of a key and hellos, said by whoever connects, and by
   whatever answers. No sockets.

   Inputs made from a seed: mostly right words, cut, repeated and damaged. How to run it: fuzz.h.

   Whatever comes, nothing may crash, leak or stay behind; and where chance is what it should be,
   nobody becomes a link of a rank that has a key. */
#define CDP__BLOCK_BYTES 100u /* so that both connections of a link get something */
#define FUZZ_BEFORE_TCP "own.h"
#include "world.h"

/* two addresses for every rank, behind the numbers of its host, place and process: they race */
static char where[] = "the host"
                      "in place"
                      "1234"
                      "10.0.0.7:4000,10.0.0.8:4000";
static cdp_bytes everywhere[3];

#define CONNECTIONS 2u

static cdp__mesh *open_mesh(const cdp_os *os, uint64_t *log, uint32_t rank, uint8_t flags) {
    cdp__mesh *m = (cdp__mesh *)cdp__alloc_zero(os, sizeof *m);
    uint32_t i;
    if (!m) return NULL;
    m->os = m->desc.group.os = os;
    m->desc.group.rank = rank;
    m->desc.group.world_size = 3;
    m->desc.connections = CONNECTIONS;
    m->desc.external_store = true; /* so there is no store to ask for its address */
    for (i = 0; i < 3; ++i) {
        everywhere[i].data = where;
        everywhere[i].bytes = sizeof where - 1;
    }
    m->addrs.results = everywhere;
    m->desc.ring_bytes = 1000;
    m->desc.group.logger.func = quiet;
    m->desc.group.logger.user = log;
    m->desc.group.logger.level = CDP_LOG_DEBUG;
    m->keyed = (flags & 8) != 0;
    if (m->keyed) cdp__auth_key("k", m->key);
    if (cdp__loop_open(&m->loop, os) == CDP_OK)
        m->links = (cdp__link *)cdp__alloc_zero(os, 3 * CONNECTIONS * sizeof *m->links);
    for (i = 0; m->links && i < 3 * CONNECTIONS; ++i) {
        m->links[i].mesh = m;
        m->links[i].peer = i % 3;
        m->links[i].index = i / 3;
    }
    return m;
}

static void check_links(const cdp__mesh *m, const world *w) {
    for (uint32_t i = 0; m->links && i < 3 * CONNECTIONS; ++i) {
        const cdp__link *l = &m->links[i];
        if (m->keyed && w->chance) T(l->state != CDP__LINK_UP);
    }
}

/* Connections and what comes over them, as in fuzz_store_server.c. */
static void run_visitors(fuzz_input in, uint8_t flags) {
    world *w = (world *)calloc(1, sizeof *w);
    cdp_os os = world_os(w);
    uint64_t log = 0;
    cdp_addr at;
    cdp__mesh *m;
    uint32_t i;
    w->piece = flags & 1 ? 1 + next_byte(&in) : 0;
    w->fail_at = flags & 2 ? 1 + next_byte(&in) : 0;
    w->chance = (flags & 4) != 0;
    w->far = (flags & 16) != 0;
    if (flags & 64) world_share(w, &os);
    w->memory_fail_at = flags & 32 ? flags & 7 : 0;
    m = open_mesh(&os, &log, 0, flags);
    memset(&at, 0, sizeof at);
    if (m && m->links)
        cdp__loop_add(
            &m->loop, &m->listener, os.net.listen_at(os.user, &at, &m->at), cdp__mesh_accept, m);
    while (m && m->links && in.n) {
        const uint8_t b = next_byte(&in), length = next_byte(&in);
        pipe_end *c = &w->conn[b & 3];
        const uint64_t n = cdp__min(length, in.n);
        w->deaf = (b & 0x30) == 0x30;
        if ((b & 12) == 8 && b & 128) c->ended = true;
        if ((b & 12) == 12) w->now += length * 1000 * CDP__MS;
        if (!c->in_bytes) {
            c->in = in.p;
            c->in_bytes = n;
        }
        in.p += n;
        in.n -= n;
        for (i = 0; i < 3; ++i)
            (void)cdp__loop_run(&m->loop, NULL, 0);
        check_links(m, w);
        /* what is a link by now is used: all its connections are one stream */
        for (i = 1; i < 3; ++i) {
            uint8_t bytes[300];
            cdp_iov v = {bytes, 1 + b};
            if (m->links[i].state == CDP__LINK_UP) (void)cdp__bundle_recv(m, i, &v, 1);
            if (m->links[i].whole) (void)cdp__bundle_send(m, i, &v, 1);
        }
    }
    if (m) m->addrs.results = NULL;
    if (m) cdp__mesh_close(m);
    for (i = 0; i < CONNS; ++i)
        T(!w->conn[i].open);
    T(w->live == 0 && w->memory_fds == 0);
    free(w);
}

/* A rank connects: what comes back is the input. */
static void run_connector(fuzz_input in, uint8_t flags) {
    world *w = (world *)calloc(1, sizeof *w);
    cdp_os os = world_os(w);
    uint64_t log = 0;
    cdp__mesh *m;
    uint32_t i;
    w->piece = flags & 1 ? 1 + next_byte(&in) : 0;
    w->fail_at = flags & 2 ? 1 + next_byte(&in) : 0;
    w->chance = (flags & 4) != 0;
    if (flags & 64) world_share(w, &os);
    w->memory_fail_at = flags & 32 ? flags & 7 : 0;
    m = open_mesh(&os, &log, 2, flags);
    if (m && m->links) {
        cdp__link_need(&m->links[(flags & 16 ? 1 : 0) + (flags & 64 ? 3 : 0)]);
        while (in.n) {
            const uint64_t n = cdp__min(1 + next_byte(&in), in.n);
            w->conn[0].in = in.p;
            w->conn[0].in_bytes = n;
            in.p += n;
            in.n -= n;
            w->conn[0].ended = !in.n && flags & 32;
            for (i = 0; i < 4; ++i)
                (void)cdp__loop_run(&m->loop, NULL, 0);
            check_links(m, w);
        }
        for (i = 0; i < 3 * CONNECTIONS; ++i)
            if (m->links[i].state == CDP__LINK_LOST) T(cdp__link_explain(&m->links[i]) < 0);
    }
    if (m) m->addrs.results = NULL;
    if (m) cdp__mesh_close(m);
    T(!w->conn[0].open && w->live == 0 && w->memory_fds == 0);
    free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in;
    uint8_t flags;
    in.p = data;
    in.n = size;
    flags = next_byte(&in);
    if (flags >> 7)
        run_connector(in, flags);
    else
        run_visitors(in, flags);
    return 0;
}

#ifndef FUZZ_LIB
/* ---- inputs from a seed ---- */

static uint8_t *put_words(uint8_t *p, bool connector) {
    const uint32_t kind = pick(8);
    cdp__hello h;
    if (kind < 3)
        return p + proof_of(connector, CDP__AUTH_LINK, p) - (pick(4) ? 0 : CDP__AUTH_BYTES);
    if (kind == 3) {
        memcpy(p, "cdp-no: ", 8);
        p[8] = (uint8_t)pick(6);
        return p + CDP__AUTH_BYTES;
    }
    memset(&h, 0, sizeof h);
    if (pick(3))
        h.type = connector ? CDP__WELCOME : CDP__HELLO;
    else if (pick(3))
        h.type = connector ? CDP__TAKEN : CDP__CHOSEN;
    else
        h.type = pick(7);
    h.version = pick(8) ? CDP_WIRE_VERSION : pick(9);
    h.order = (uint8_t)(pick(8) ? cdp__byte_order() : pick(4));
    h.world_size = pick(8) ? 3 : pick(6);
    h.from = connector ? pick(2) : 1 + pick(3);
    h.to = connector ? 2 : pick(8) == 0;
    h.index = pick(8) ? pick(CONNECTIONS) : pick(9);
    h.refusal = pick(8) ? pick(3) / 2 : pick(8);
    if (pick(8) && h.type <= CDP__WELCOME)
        h.memory[0] = 1;
    else if (pick(4))
        memset(h.memory, 1, sizeof h.memory);
    cdp__hello_encode(&h, p);
    p += CDP__HELLO_BYTES;
    if (!pick(2)) return p;
    h.type = connector ? CDP__TAKEN : CDP__CHOSEN; /* what comes next when all goes well */
    h.refusal = connector && !pick(3);
    memset(h.memory, pick(4) != 0, sizeof h.memory);
    cdp__hello_encode(&h, p);
    return p + CDP__HELLO_BYTES;
}

/* The byte before a piece: through which connection it comes, and what happens then. */
static uint32_t pick_end(void) {
    if (!pick(5)) return pick(256);
    return pick(4) & (pick(3) ? 0 : 3);
}

static size_t make_input(uint64_t seed, uint8_t *out) {
    uint8_t body[8192], *p = out, *q = body;
    uint64_t at = 0, total;
    uint32_t i, n;
    (void)seed;
    memset(body, 0, sizeof body);
    n = 1 + pick(8);
    *p++ = (uint8_t)pick(256);
    if (out[0] & 1) *p++ = (uint8_t)pick(64);
    if (out[0] & 2) *p++ = (uint8_t)pick(16);
    for (i = 0; i < n; ++i)
        q = put_words(q, out[0] >> 7);
    total = (uint64_t)(q - body);
    if (pick(3) == 0)
        for (i = 0; i < 1 + pick(4); ++i)
            body[pick((uint32_t)total)] = (uint8_t)pick(256);
    while (at < total) {
        const uint64_t piece = cdp__min(1 + pick(pick(3) ? 128 : 20), total - at);
        if (!(out[0] >> 7)) *p++ = (uint8_t)pick_end();
        *p++ = (uint8_t)(out[0] >> 7 ? piece - 1 : piece);
        memcpy(p, body + at, (size_t)piece);
        p += piece;
        at += piece;
    }
    return (size_t)(p - out);
}
#endif

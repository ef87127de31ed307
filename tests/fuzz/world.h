/* world.h - what the fuzz targets of sockets share: a false os that hands out the bytes of an
   input. No sockets, no clock; memory is counted, and chance is zeros unless the input wants it
   otherwise. */
#ifndef FUZZ_WORLD_INCLUDED
#define FUZZ_WORLD_INCLUDED
#include "fuzz.h"

#define CONNS 4
#define LISTENER 100
#define WAKE 101
#define MEMORY 102 /* and above: sockets and memory for sharing */

/* ---- the false os ---- */

typedef struct pipe_end {
    const uint8_t *in; /* what has arrived and was not read */
    uint64_t in_bytes;
    bool open, used, ended;
    uint64_t answer_hash, answer_bytes;
    uint8_t tail[8]; /* the last that was sent */
} pipe_end;

typedef struct world {
    pipe_end conn[CONNS];
    uint32_t accepted;
    uint64_t now, live, calls, fail_at;
    uint32_t piece;                     /* most that one recv or send moves; 0: no limit */
    bool deaf;                          /* send takes nothing */
    bool far;                           /* who connects comes from another machine */
    bool chance;                        /* what random gives cannot be known */
    uint32_t connects, silent_connects; /* as many first connections are closed without a word */
    const uint8_t *then;                /* and the next is answered with this */
    uint64_t then_bytes;
    uint64_t memory_calls, memory_fail_at; /* the one that fails */
    int32_t memory_fds;                    /* that are open */
    _Alignas(8) uint8_t memory[64 * 1024]; /* what is shared, there is one only */
} world;

static void *world_alloc(void *user, uint64_t bytes) {
    world *w = (world *)user;
    void *p = ++w->calls == w->fail_at || bytes > (64u << 20) ? NULL : fenced_alloc(bytes);
    if (p) memset(p, 0xa5, (size_t)bytes);
    w->live += p != NULL;
    return p;
}

static void world_free(void *user, void *p) {
    world *w = (world *)user;
    w->live -= p != NULL;
    fenced_free(p);
}

static uint64_t world_now(void *user) {
    return ((world *)user)->now;
}

static cdp_status world_random(void *user, void *dst, uint64_t bytes) {
    uint64_t i;
    memset(dst, 0, (size_t)bytes);
    for (i = 0; i < bytes && ((world *)user)->chance; ++i)
        ((uint8_t *)dst)[i] = (uint8_t)rand();
    return CDP_OK;
}

static int32_t world_resolve(void *user, const char *host, uint16_t port, cdp_addr *out,
    uint32_t max, uint64_t deadline_ns) {
    (void)user;
    (void)host;
    (void)port;
    (void)out;
    (void)max;
    (void)deadline_ns;
    return -ENOENT;
}

static int32_t world_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    (void)user;
    *bound = *at;
    bound->port = 1;
    return LISTENER;
}

static int32_t world_accept(void *user, int32_t fd, cdp_addr *from) {
    world *w = (world *)user;
    if (fd >= MEMORY)
        return w->memory_fail_at && ++w->memory_calls % w->memory_fail_at == 0
            ? -EAGAIN
            : MEMORY + w->memory_fds++;
    memset(from, 0, sizeof *from);
    from->family = 4;
    from->ip[0] = w->far ? 10 : 127;
    if (w->accepted == CONNS) return -EAGAIN;
    w->conn[w->accepted].open = true;
    return (int32_t)w->accepted++;
}

static int32_t world_connect(void *user, const cdp_addr *to) {
    world *w = (world *)user;
    (void)to;
    w->conn[0].open = true;
    if (w->silent_connects) {
        w->conn[0].ended = w->connects < w->silent_connects;
        w->conn[0].in = w->then;
        w->conn[0].in_bytes = w->connects++ < w->silent_connects ? 0 : w->then_bytes;
    }
    return 0;
}

static int32_t world_connect_result(void *user, int32_t fd) {
    (void)user;
    (void)fd;
    return 0;
}

static int64_t world_send(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    world *w = (world *)user;
    pipe_end *c = &w->conn[fd];
    const uint64_t bytes = w->piece ? cdp__min(w->piece, iov->bytes) : iov->bytes;
    const uint8_t *p = (const uint8_t *)iov->data;
    uint64_t i;
    T(n == 1 && c->open && bytes);
    if (w->deaf) return 0;
    c->answer_hash = cdp__hash(c->answer_hash, p, bytes);
    c->answer_bytes += bytes;
    for (i = bytes > 8 ? bytes - 8 : 0; i < bytes; ++i) {
        memmove(c->tail, c->tail + 1, 7);
        c->tail[7] = p[i];
    }
    return (int64_t)bytes;
}

static int64_t world_recv(void *user, int32_t fd, const cdp_iov *iov, uint32_t n) {
    world *w = (world *)user;
    pipe_end *c = &w->conn[fd];
    uint64_t bytes = cdp__min(iov->bytes, c->in_bytes);
    T(n == 1 && c->open && iov->bytes);
    if (!bytes) return c->ended ? CDP_IO_EOF : 0;
    if (w->piece) bytes = cdp__min(bytes, w->piece);
    memcpy(iov->data, c->in, (size_t)bytes);
    c->in += bytes;
    c->in_bytes -= bytes;
    return (int64_t)bytes;
}

static void world_close(void *user, int32_t fd) {
    world *w = (world *)user;
    if (fd == LISTENER || fd == WAKE) return;
    if (fd >= MEMORY) {
        --w->memory_fds;
        return;
    }
    T(w->conn[fd].open);
    w->conn[fd].open = false;
}

static int32_t world_local_addr(void *user, int32_t fd, cdp_addr *out) {
    (void)user;
    (void)fd;
    memset(out, 0, sizeof *out);
    return 0;
}

static int32_t world_poll(void *user, cdp_poll_fd *fds, uint32_t n, uint64_t deadline, void *room) {
    world *w = (world *)user;
    uint32_t i;
    int32_t got = 0;
    (void)room;
    for (i = 0; i < n; ++i) {
        const pipe_end *c = fds[i].fd >= LISTENER ? NULL : &w->conn[fds[i].fd];
        const bool readable =
            c ? c->in_bytes || c->ended : fds[i].fd == LISTENER && w->accepted < CONNS;
        fds[i].ready = (readable ? fds[i].wanted & CDP_IO_READ : 0)
            | (w->deaf || fds[i].fd >= LISTENER ? 0 : fds[i].wanted & CDP_IO_WRITE);
        got += fds[i].ready != 0;
    }
    if (!got && deadline != CDP__NEVER) w->now = cdp__max(w->now, deadline);
    T(got || deadline != CDP__NEVER); /* nobody sleeps forever here */
    return got;
}

static void world_sleep_until(void *user, uint64_t deadline) {
    (void)world_poll(user, NULL, 0, deadline, NULL);
}

static bool world_memory_fails(world *w) {
    return w->memory_fail_at && ++w->memory_calls == w->memory_fail_at;
}

static int32_t world_memory_create(void *user, uint64_t bytes) {
    world *w = (world *)user;
    T(bytes <= sizeof w->memory);
    return world_memory_fails(w) ? -ENOMEM : MEMORY + w->memory_fds++;
}

static void *world_memory_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    world *w = (world *)user;
    T(fd >= MEMORY && writable);
    *bytes = w->memory_calls % 5 == 4 ? 100 : sizeof w->memory;
    return world_memory_fails(w) ? NULL : w->memory;
}

static void world_memory_unmap(void *user, void *at, uint64_t bytes) {
    (void)bytes;
    T(at == ((world *)user)->memory);
}

static int32_t world_pass_open(void *user, const uint8_t name[12], bool waits) {
    world *w = (world *)user;
    (void)name;
    (void)waits;
    return world_memory_fails(w) ? -ECONNREFUSED : MEMORY + w->memory_fds++;
}

static int32_t world_pass(void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    world *w = (world *)user;
    uint32_t i;
    T(fd >= MEMORY);
    if (world_memory_fails(w)) return -EMFILE;
    for (i = 0; i < n && !sending; ++i)
        fds[i] = MEMORY + w->memory_fds++;
    return 0;
}

static int32_t world_wake_open(void *user, int32_t fd[2]) {
    (void)user;
    fd[0] = fd[1] = WAKE;
    return 0;
}

static void world_wake(void *user, int32_t fd) {
    (void)user;
    T(fd == WAKE || fd >= MEMORY);
}

/* Memory that always looks the same, and descriptors that are counted. */
static __attribute__((unused)) void world_share(world *w, cdp_os *os) {
    memset(w->memory, 1, 16); /* what a CHOSEN may say, and that it was taken */
    os->shared.create = world_memory_create;
    os->shared.map = world_memory_map;
    os->shared.unmap = world_memory_unmap;
    os->shared.pass_open = world_pass_open;
    os->shared.pass = world_pass;
    os->net.wake_open = world_wake_open;
    os->net.wake_set = os->net.wake_clear = world_wake;
}

static cdp_os world_os(world *w) {
    cdp_os os;
    memset(&os, 0, sizeof os);
    os.user = w;
    os.alloc = world_alloc;
    os.release = world_free;
    os.now_ns = world_now;
    os.random = world_random;
    os.net.resolve = world_resolve;
    os.net.listen_at = world_listen;
    os.net.accept_next = world_accept;
    os.net.connect_to = world_connect;
    os.net.connect_result = world_connect_result;
    os.net.send_iov = world_send;
    os.net.recv_iov = world_recv;
    os.net.close_fd = world_close;
    os.net.local_addr = world_local_addr;
    os.sleep_until = world_sleep_until;
    cdp__pollwatch_use(&os.net, world_poll);
    return os;
}

static void quiet(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)level;
    (void)rank;
    *(uint64_t *)user += strlen(text); /* every message is made, so that its making is tested */
}

static const uint8_t zero_nonces[32];

/* What proves to know the key "k" where chance is zeros. Returns its length. */
static uint32_t proof_of(bool of_listener, uint32_t purpose, uint8_t out[2 * CDP__AUTH_BYTES]) {
    uint8_t key[CDP__AUTH_BYTES];
    cdp__auth a;
    memset(&a, 0, sizeof a);
    memset(out, 0, 2 * CDP__AUTH_BYTES);
    cdp__auth_key("k", key);
    a.key = key;
    a.purpose = purpose;
    memcpy(a.nonce, zero_nonces, 32);
    memcpy(out, of_listener ? "cdp-key2" : "cdp-key1", 8);
    out[8] = (uint8_t)(of_listener ? 0 : purpose);
    memcpy(out + CDP__AUTH_BYTES, of_listener ? "cdp-key4" : "cdp-key3", 8);
    cdp__auth_proof(&a, of_listener, out + CDP__AUTH_BYTES + 8);
    return 2 * CDP__AUTH_BYTES;
}
#endif

/* The parts of cdp_tcp.h that need no second process: the handshake, the choice of addresses;
   and whole groups whose ranks are threads of this program, connected by real sockets. */
#define CDP_IMPLEMENTATION
#define CDP__UNANSWERED_MS 50u /* so that the silence of a machine is noticed soon */
#define CDP__SILENCE_MS 30000u
#define CDP__BLOCK_BYTES 1000u /* so that short streams take all of several connections */
#include "cdp_store.h"
#include "own.h"

#include "cdp_tcp.h"
#include "ranks.h"
#include "ports.h"

/* ---- handshake ---- */

static cdp__hello hello_of(uint32_t from, uint32_t to) {
    cdp__hello h;
    memset(&h, 0, sizeof h);
    h.type = CDP__HELLO;
    h.version = CDP_WIRE_VERSION;
    h.world_size = 8;
    h.from = from;
    h.to = to;
    memcpy(h.job, "0123456789abcdef", CDP__JOB_BYTES);
    return h;
}

/* An invitation is for this rank and comes from a lower one: no other number is used as one. */
TEST(invitations_come_from_lower_ranks) {
    static cdp__mesh m;
    static cdp__link links[8];
    memset(&m, 0, sizeof m);
    memset(links, 0, sizeof links);
    m.os = cdp_os_default();
    m.desc.group.rank = 1;
    m.desc.group.world_size = 3;
    m.desc.connections = 1;
    m.links = links;
    m.started = true;
    for (uint32_t i = 0; i < 8; ++i) {
        links[i].mesh = &m;
        links[i].peer = i;
        links[i].index = 1; /* without a timer */
    }
    for (uint32_t from = 1; from < 8; ++from)
        for (uint32_t to = 0; to < 4; ++to) {
            cdp__hello h = hello_of(from, to);
            h.world_size = 3;
            memcpy(h.job, m.job, sizeof h.job);
            cdp__mesh_invited(&m, &h);
            for (uint32_t i = 0; i < 8; ++i)
                T_EQ(CDP__LINK_NONE, links[i].state);
        }
}

TEST(hello_survives_the_wire) {
    uint64_t state = 1;
    for (int i = 0; i < 1000; ++i) {
        uint8_t wire[CDP__HELLO_BYTES], again[CDP__HELLO_BYTES];
        cdp__hello a = hello_of((uint32_t)test_random(&state), (uint32_t)test_random(&state)), b;
        a.type = (uint32_t)test_random(&state);
        a.refusal = (uint32_t)test_random(&state);
        a.index = (uint32_t)test_random(&state) & 0xffffff;
        a.mac = (uint8_t)test_random(&state);
        a.order = (uint8_t)test_random(&state);
        cdp__hello_encode(&a, wire);
        T(cdp__hello_decode(wire, &b));
        cdp__hello_encode(&b, again); /* not the structs: they may have gaps */
        T(memcmp(wire, again, sizeof wire) == 0 && b.order == a.order && b.index == a.index
            && b.mac == a.mac);
        wire[i % 8] ^= (uint8_t)(1 << i % 7);
        T(!cdp__hello_decode(wire, &b));
    }
}

TEST(hello_is_judged) {
    cdp__hello mine = hello_of(3, 0), h = hello_of(5, 3);
    T_EQ(CDP__REFUSE_INDEX, cdp__hello_judge(&mine, &h)); /* no connection at all */
    mine.index = 3;
    h.index = 3;
    T_EQ(CDP__REFUSE_INDEX, cdp__hello_judge(&mine, &h));
    h.index = UINT32_MAX;
    T_EQ(CDP__REFUSE_INDEX, cdp__hello_judge(&mine, &h));
    h.index = 2;
    T_EQ(CDP__REFUSE_NOTHING, cdp__hello_judge(&mine, &h));
    h.order = 1;
    T_EQ(CDP__REFUSE_ORDER, cdp__hello_judge(&mine, &h));
    T_TEXT("byte order", cdp__refusal_text(CDP__REFUSE_ORDER));
    h.order = 0;
    h.version ^= 1;
    T_EQ(CDP__REFUSE_VERSION, cdp__hello_judge(&mine, &h));
    h = hello_of(5, 3);
    h.type = CDP__WELCOME;
    T_EQ(CDP__REFUSE_VERSION, cdp__hello_judge(&mine, &h));
    h = hello_of(5, 3);
    h.job[15] ^= 1;
    T_EQ(CDP__REFUSE_JOB, cdp__hello_judge(&mine, &h));
    h = hello_of(5, 3);
    h.world_size = 9;
    T_EQ(CDP__REFUSE_JOB, cdp__hello_judge(&mine, &h));
    h = hello_of(5, 4); /* for somebody else */
    T_EQ(CDP__REFUSE_RANK, cdp__hello_judge(&mine, &h));
    h = hello_of(3, 3); /* ourselves, and the lower ones, whom we connect to */
    T_EQ(CDP__REFUSE_RANK, cdp__hello_judge(&mine, &h));
    h = hello_of(2, 3);
    T_EQ(CDP__REFUSE_RANK, cdp__hello_judge(&mine, &h));
    h = hello_of(8, 3); /* beyond the world */
    T_EQ(CDP__REFUSE_RANK, cdp__hello_judge(&mine, &h));
    for (uint32_t r = 0; r < CDP__REFUSE_COUNT + 3u; ++r)
        T(strlen(cdp__refusal_text(r)) > 5);
    T(strlen(cdp__refusal_text(UINT32_MAX)) > 5);
}

/* ---- which addresses are tried ---- */

static uint32_t addrs_of(const char *text, cdp_addr *out) {
    const uint32_t n = cdp__addrs_parse(text, strlen(text), out, CDP__ADDRS);
    T(n > 0 || !*text);
    return n;
}

/* Texts of addresses without ports in, text of what is tried out. */
static const char *paths_text(const char *mine, const char *theirs) {
    static char text[1200];
    cdp_addr a[CDP__ADDRS], b[CDP__ADDRS], out[CDP__PATHS];
    const uint32_t n = addrs_of(mine, a), k = addrs_of(theirs, b),
                   count = cdp__paths(a, n, b, k, out);
    T(count > 0 && count <= CDP__PATHS);
    cdp__addrs_text(out, count, text, sizeof text);
    return text;
}

#define PATHS(expected, mine, theirs)                                                            \
    do {                                                                                         \
        const char *got = paths_text(mine, theirs);                                              \
        test_check(strcmp(expected, got) == 0, __FILE__, __LINE__, "%s, not %s", got, expected); \
    } while (0)

TEST(addresses_are_tried_in_a_good_order) {
    cdp_addr a[CDP__ADDRS];
    PATHS("10.0.0.1:5", "", "10.0.0.1:5"); /* nothing is known of this machine */
    /* the docker0 of both */
    PATHS("10.0.0.1:5,172.17.0.1:5", "127.0.0.1,10.0.0.2,172.17.0.1", "172.17.0.1:5,10.0.0.1:5");
    /* the same machine: as they come */
    PATHS("172.17.0.1:5,10.0.0.1:5", "10.0.0.1,172.17.0.1", "172.17.0.1:5,10.0.0.1:5");
    /* the same network first */
    PATHS("192.168.7.9:5,10.1.0.1:5", "192.168.7.1,10.0.0.2", "10.1.0.1:5,192.168.7.9:5");
    /* then the nearer number */
    PATHS("10.1.0.1:5,11.0.0.1:5", "10.0.0.2", "11.0.0.1:5,10.1.0.1:5");
    PATHS("[fd00::1]:5,10.7.0.1:5", "10.0.0.2,fd00::2", "10.7.0.1:5,[fd00::1]:5");
    PATHS("10.7.0.1:5,127.0.0.1:5", "10.0.0.2,127.0.0.1", "127.0.0.1:5,10.7.0.1:5");
    /* link-local: in every zone of this machine, and after the others */
    PATHS("10.7.0.1:5,[fe80::1%3]:5,[fe80::1%4]:5", "fe80::2%3,10.0.0.2,fe80::3%4",
        "[fe80::1%9]:5,10.7.0.1:5");
    PATHS("[fe80::1%9]:5", "10.0.0.2", "[fe80::1%9]:5");
    T_EQ(0, cdp__addrs_parse("10.0.0.1:1,x", 12, a, CDP__ADDRS));
    T_EQ(0, cdp__addrs_parse(",", 1, a, CDP__ADDRS));
    T_EQ(2, cdp__addrs_parse("10.0.0.1:1,10.0.0.2:2,10.0.0.3:3", 32, a, 2));
    T(cdp__addr_loopback(&a[0]) == false && cdp__addr_common(&a[0], &a[1]) == 30);
}

/* The start of a job fails if a rank's record is too short, but that rank may connect while the
   failure is being reported. Nothing behind its record is taken for addresses. */
TEST(addresses_behind_a_short_record_are_not_read) {
    static const char address[] = "127.0.0.1:5,";
    static char record[CDP__PLACE_BYTES + CDP__ADDRS * (sizeof address - 1)];
    static cdp__mesh m;
    static cdp__link l;
    cdp_bytes values[2];
    cdp_addr at[CDP__PATHS];
    for (uint32_t i = 0; i < CDP__ADDRS; ++i) /* as many as are read at most */
        memcpy(record + CDP__PLACE_BYTES + i * (sizeof address - 1), address, sizeof address - 1);
    memset(values, 0, sizeof values);
    memset(&m, 0, sizeof m);
    memset(&l, 0, sizeof l);
    m.desc.external_store = true; /* so that the store's connection has no address */
    m.addrs.results = values;
    l.mesh = &m;
    l.peer = 1;
    values[1].data = record;
    values[1].bytes = sizeof record;
    T_EQ(CDP__ADDRS, cdp__link_paths(&l, at));
    T_EQ(5, at[0].port);
    for (uint64_t bytes = 0; bytes <= CDP__PLACE_BYTES; ++bytes) {
        values[1].bytes = bytes;
        T_EQ(0, cdp__link_paths(&l, at));
    }
}

static const char *turn_text(const char *mine, const char *theirs, uint32_t times) {
    static char text[1200];
    cdp_addr a[CDP__ADDRS], b[CDP__ADDRS], out[CDP__PATHS];
    const uint32_t n = addrs_of(mine, a), count = cdp__paths(a, n, b, addrs_of(theirs, b), out);
    cdp__paths_turn(a, n, out, count, times);
    cdp__addrs_text(out, count, text, sizeof text);
    return text;
}

TEST(connections_take_interfaces_in_turn) {
    static const struct {
        uint32_t times;
        const char *expected, *mine, *theirs;
    } t[] = {{0, "10.1.0.1:5,10.2.0.1:5", "10.1.0.2,10.2.0.2", "10.1.0.1:5,10.2.0.1:5"},
        {1, "10.2.0.1:5,10.1.0.1:5", "10.1.0.2,10.2.0.2", "10.1.0.1:5,10.2.0.1:5"},
        {2, "10.1.0.1:5,10.2.0.1:5", "10.1.0.2,10.2.0.2", "10.1.0.1:5,10.2.0.1:5"},
        {7, "10.1.0.1:5", "10.1.0.2", "10.1.0.1:5"},
        {1, "10.2.0.1:5,10.3.0.1:5,10.1.0.1:5", "10.1.0.2,10.2.0.2,10.3.0.2",
            "10.1.0.1:5,10.2.0.1:5,10.3.0.1:5"},
        /* the second is farther away: it does not take turns */
        {1, "10.1.0.1:5,192.168.0.1:5", "10.1.0.2,10.9.0.2", "10.1.0.1:5,192.168.0.1:5"},
        /* both behind a router: they do */
        {1, "192.168.0.1:5,172.16.0.1:5", "10.1.0.2", "172.16.0.1:5,192.168.0.1:5"},
        {1, "10.2.0.1:5,10.1.0.1:5,[fd00::1]:5", "10.1.0.2,10.2.0.2,fd00::2",
            "10.1.0.1:5,10.2.0.1:5,[fd00::1]:5"},
        /* the same machine */
        {1, "10.2.0.1:5,10.1.0.1:5", "10.1.0.1,10.2.0.1", "10.1.0.1:5,10.2.0.1:5"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; ++i) {
        const char *got = turn_text(t[i].mine, t[i].theirs, t[i].times);
        test_check(
            strcmp(t[i].expected, got) == 0, __FILE__, __LINE__, "%s, not %s", got, t[i].expected);
    }
}

/* ---- ranks as threads, over sockets ---- */

typedef struct member {
    pthread_t id;
    cdp_tcp_desc desc;
    uint64_t seed;
    uint32_t calls;
} member;

static void *member_main(void *p) {
    member *m = (member *)p;
    uint64_t same = m->seed;
    cdp_group *g;
    const cdp_status st = cdp_init(&m->desc, &g);
    if (!test_check(st == CDP_OK, __FILE__, __LINE__, "rank %u: %s", m->desc.group.rank,
            cdp_last_error()->text))
        return NULL;
    T_EQ(m->desc.group.rank, cdp_rank(g));
    T_EQ(m->desc.group.world_size, cdp_size(g));
    for (uint32_t k = 0; k < m->calls; ++k) {
        const call c = call_random(&same, m->desc.group.world_size, k % 8 ? 400 : 60000);
        call_memory mem;
        cdp_work w;
        call_fill(&c, m->desc.group.world_size, m->desc.group.rank, &mem);
        const cdp_request rq = call_request(&c, &mem);
        if (!T_EQ(CDP_OK, cdp_start(g, &rq, &w)) || !T_EQ(CDP_OK, cdp_work_wait(w))) break;
        call_check(&c, m->desc.group.world_size, m->desc.group.rank, &mem);
    }
    cdp_group_destroy(g);
    return NULL;
}

static void socket_world(uint32_t n, const cdp_tcp_desc *like, uint64_t seed, uint32_t calls) {
    member m[RANKS_MAX];
    const uint16_t port = free_port();
    for (uint32_t r = 0; r < n; ++r) {
        m[r].desc = *like;
        m[r].desc.group.rank = r;
        m[r].desc.group.world_size = n;
        m[r].desc.master_port = port;
        m[r].desc.init_timeout_ms = 30000;
        m[r].seed = seed;
        m[r].calls = calls;
        if (pthread_create(&m[r].id, NULL, member_main, &m[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(m[r].id, NULL);
}

TEST(ranks_over_sockets) {
    for (uint32_t n = 1; n <= 6; ++n)
        for (int no_thread = 0; no_thread < 2; ++no_thread) {
            cdp_tcp_desc like;
            memset(&like, 0, sizeof like);
            like.group.os = counted_os();
            like.group.no_thread = no_thread;
            like.group.piece_bytes = n % 2 ? 1000 : 0;
            like.group.small_bytes = n % 3 ? 0 : 1;
            like.job_key = n % 2 ? NULL : "of these ranks alone";
            socket_world(n, &like, n * 100 + (uint64_t)no_thread, 60);
            T_EQ(0, counted.held);
        }
}

TEST(ranks_over_several_connections) {
    for (uint32_t n = 2; n <= 5; ++n)
        for (uint32_t k = 2; k <= 4; ++k) {
            cdp_tcp_desc like;
            memset(&like, 0, sizeof like);
            like.group.os = counted_os();
            like.connections = k == 4 ? 16 : k;
            like.no_shared_memory = n != 3; /* which needs one alone */
            like.group.no_thread = (n + k) % 2;
            like.group.piece_bytes = n % 2 ? 1000 : 0;
            like.group.small_bytes = n % 3 ? 0 : 1;
            like.job_key = k % 2 ? NULL : "of these ranks alone";
            socket_world(n, &like, n * 10 + k, 60);
            T_EQ(0, counted.held);
        }
}

/* Links ask for the key, whatever the store does: here it is one that knows no keys, as
   torchrun's. */
typedef struct keyed {
    pthread_t id;
    cdp_tcp_desc desc;
    cdp_status status;
    cdp_error error;
} keyed;

static void *keyed_main(void *p) {
    keyed *k = (keyed *)p;
    cdp_group *g = NULL;
    k->status = cdp_init(&k->desc, &g);
    if (k->status == CDP_OK) k->status = cdp_barrier(g);
    k->error = *cdp_last_error();
    cdp_group_destroy(g);
    return NULL;
}

static void quiet_log(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)rank;
    if (level <= CDP_LOG_WARN && strstr(text, "refused a connection"))
        __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

TEST(links_ask_for_the_key) {
    static const struct {
        const char *key[2], *text;
    } t[] = {{{"a", "a"}, NULL}, {{"a", "b"}, "the job keys differ"},
        /* who has none notices it while starting, before there is a link */
        {{"a", NULL}, "rank 0 has a job key, but this rank has none"},
        {{NULL, "a"}, "rank 0 has no job key, but this rank has one"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; ++i) {
        cdp_store_server_desc sd;
        const cdp_os *os = counted_os();
        cdp_store_server *server;
        keyed k[2];
        int told = 0;
        memset(&sd, 0, sizeof sd);
        if (!T_EQ(CDP_OK, cdp_store_server_create(&sd, &server))) return;
        memset(k, 0, sizeof k);
        for (uint32_t r = 0; r < 2; ++r) {
            k[r].desc.group.rank = r;
            k[r].desc.group.world_size = 2;
            k[r].desc.external_store = true;
            k[r].desc.master_port = cdp_store_server_port(server);
            k[r].desc.job_key = t[i].key[r];
            k[r].desc.group.os = os;
            k[r].desc.init_timeout_ms = k[r].desc.group.timeout_ms = 20000;
            k[r].desc.group.logger.func = quiet_log;
            k[r].desc.group.logger.user = &told;
            if (pthread_create(&k[r].id, NULL, keyed_main, &k[r]) != 0) abort();
        }
        for (uint32_t r = 0; r < 2; ++r)
            pthread_join(k[r].id, NULL);
        cdp_store_server_destroy(server);
        T_EQ(0, counted.held);
        for (uint32_t r = 0; r < 2; ++r) { /* one sentence, on both sides */
            if (t[i].text)
                T(k[r].status < 0);
            else
                T_EQ(CDP_OK, k[r].status);
            if (t[i].text) T_TEXT(t[i].text, k[r].error.text);
        }
        T_EQ(i == 1, told); /* a link was refused */
    }
}

/* ---- descriptors that a child process would inherit ---- */

#define MOST_FDS 256
static bool inherited[MOST_FDS];
static uint32_t inheritable, closes;

static bool would_be_inherited(int32_t fd) {
    const int flags = fcntl(fd, F_GETFD);
    return flags >= 0 && !(flags & FD_CLOEXEC);
}

/* Looks at all that are open now. */
static void looking_close(void *user, int32_t fd) {
    for (int32_t i = 0; i < MOST_FDS; ++i)
        if (!inherited[i] && would_be_inherited(i))
            __atomic_add_fetch(&inheritable, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&closes, 1, __ATOMIC_RELAXED);
    cdp_os_default()->net.close_fd(user, fd);
}

/* A program that is started by another thread of a rank inherits none of its descriptors. */
TEST(descriptors_are_closed_by_exec) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like;
    int32_t fd;
    for (int32_t i = 0; i < MOST_FDS; ++i)
        inherited[i] = would_be_inherited(i);
    os.net.close_fd = looking_close;
    memset(&like, 0, sizeof like);
    like.group.os = &os;
    inheritable = closes = 0;
    socket_world(3, &like, 6, 10);
    T(closes >= 10);
    T_EQ(0, inheritable);
    fd = dup(1); /* one that is, and is seen */
    if (!T(fd >= 0 && fd < MOST_FDS)) return;
    inherited[fd] = false;
    looking_close(NULL, fd);
    T_EQ(1, inheritable);
}

/* ---- memory that had a key ---- */

static uint8_t wiped_key[CDP__AUTH_BYTES];
static uint32_t blocks_with_key;

/* Keeps the length of each block in front of it. */
static void *sized_alloc(void *user, uint64_t bytes) {
    uint8_t *p = (uint8_t *)cdp_os_default()->alloc(user, bytes + 64);
    if (p) memcpy(p, &bytes, sizeof bytes);
    return p ? p + 64 : NULL;
}

static void sized_free(void *user, void *at) {
    uint8_t *p = (uint8_t *)at;
    uint64_t bytes;
    bool there = false;
    if (!p) return;
    memcpy(&bytes, p - 64, sizeof bytes);
    for (uint64_t i = 0; i + sizeof wiped_key <= bytes && !there; ++i)
        there = p[i] == wiped_key[0] && memcmp(p + i, wiped_key, sizeof wiped_key) == 0;
    if (there) __atomic_add_fetch(&blocks_with_key, 1, __ATOMIC_RELAXED);
    cdp_os_default()->release(user, p - 64);
}

/* No memory is given back with the job key in it: neither by ranks, nor by the store. */
TEST(job_keys_are_wiped) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc like;
    os.alloc = sized_alloc;
    os.release = sized_free;
    memset(&like, 0, sizeof like);
    like.group.os = &os;
    like.job_key = "of these ranks alone";
    cdp__auth_key(like.job_key, wiped_key);
    blocks_with_key = 0;
    for (int mac = 0; mac < 2; ++mac) {
        like.mac = mac != 0;
        socket_world(2, &like, 5, 10);
    }
    T_EQ(0, blocks_with_key);
    sized_free(NULL, memcpy(sized_alloc(NULL, 100), wiped_key, sizeof wiped_key));
    T_EQ(1, blocks_with_key); /* it would have been seen */
}

TEST(connections_must_be_as_many_everywhere) {
    const uint16_t port = free_port();
    keyed k[2];
    memset(k, 0, sizeof k);
    for (uint32_t r = 0; r < 2; ++r) {
        k[r].desc.group.rank = r;
        k[r].desc.group.world_size = 2;
        k[r].desc.master_port = port;
        k[r].desc.connections = 2 + r;
        k[r].desc.init_timeout_ms = 20000;
        k[r].desc.group.logger.level = CDP_LOG_SILENT;
        if (pthread_create(&k[r].id, NULL, keyed_main, &k[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(k[r].id, NULL);
    for (uint32_t r = 0; r < 2; ++r) {
        T_EQ(CDP_ERR_MISMATCH, k[r].status);
        T_TEXT("connections is 3 here but 2 on rank 0; make them equal", k[r].error.text);
    }
}

/* One of three connections goes: how, and over which, is `kind` and `which`. Both ends say so,
   soon, with its number. */
static struct {
    pthread_barrier_t all;
    uint32_t which;
    int32_t kind;
    bool idle;
    uint64_t cut_ns, took_ns[2];
} cut;

static void *cut_main(void *p) {
    keyed *k = (keyed *)p;
    static float x[2][50000];
    float *mine = x[k->desc.group.rank];
    const struct linger reset = {1, 0};
    cdp_group *g = NULL;
    k->status = cdp_init(&k->desc, &g);
    T_EQ(CDP_OK, k->status);
    for (int i = 0; i < 3 && k->status == CDP_OK; ++i)
        k->status = cdp_allreduce(g, NULL, mine, 50000, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    T_EQ(CDP_OK, k->status);
    pthread_barrier_wait(&cut.all);
    if (k->desc.group.rank == 1) {
        cdp__link *l = cdp__bundle_at(&((cdp__mesh *)g->w->transport.self)->links[0], cut.which);
        cdp__enter(g);
        T(l->state == CDP__LINK_UP);
        __atomic_store_n(&cut.cut_ns, test_now_ns(), __ATOMIC_SEQ_CST);
        if (cut.kind == 0) setsockopt(l->io.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        /* and this side does not even know */
        if (cut.kind < 2)
            cdp__loop_remove(&l->mesh->loop, &l->io);
        else
            shutdown(l->io.fd, SHUT_WR);
        cdp__leave(g);
    }
    if (cut.idle && k->desc.group.rank == 1) { /* only the other one looks */
        pthread_barrier_wait(&cut.all);
    } else {
        if (cut.idle) test_sleep_ms(2); /* until it has come here */
        for (int i = 0; i < 100000 && k->status == CDP_OK; ++i)
            k->status = cut.idle
                ? cdp_barrier(g)
                : cdp_allreduce(g, NULL, mine, 50000, CDP_DTYPE_F32, CDP_REDUCE_SUM);
        cut.took_ns[k->desc.group.rank] =
            test_now_ns() - __atomic_load_n(&cut.cut_ns, __ATOMIC_SEQ_CST);
        k->error = *cdp_last_error();
        if (cut.idle) pthread_barrier_wait(&cut.all);
    }
    pthread_barrier_wait(&cut.all);
    cdp_group_destroy(g);
    return NULL;
}

TEST(a_lost_connection_is_named) {
    pthread_barrier_init(&cut.all, NULL, 2);
    for (cut.idle = false;; cut.idle = true) {
        for (cut.which = 0; cut.which < 3; ++cut.which)
            for (cut.kind = 0; cut.kind < 3; ++cut.kind) {
                const uint16_t port = free_port();
                char words[40];
                keyed k[2];
                /* an end alone is awaited for CDP__ENDED_MS: once is enough */
                if (cut.idle && cut.kind && (cut.which != 2 || cut.kind == 2)) continue;
                memset(k, 0, sizeof k);
                for (uint32_t r = 0; r < 2; ++r) {
                    k[r].desc.group.rank = r;
                    k[r].desc.group.world_size = 2;
                    k[r].desc.master_port = port;
                    k[r].desc.connections = 3;
                    k[r].desc.no_shared_memory = true;
                    k[r].desc.group.timeout_ms = 20000;
                    k[r].desc.group.no_thread = cut.idle;
                    k[r].desc.group.logger.level = CDP_LOG_SILENT;
                    if (pthread_create(&k[r].id, NULL, cut_main, &k[r]) != 0) abort();
                }
                for (uint32_t r = 0; r < 2; ++r)
                    pthread_join(k[r].id, NULL);
                snprintf(words, sizeof words, "(connection %u of 3)", cut.which + 1);
                if (!cut.idle) words[12] = 0; /* the others follow at once, and may be seen first */
                for (uint32_t r = 0; r < 2u - cut.idle; ++r) {
                    T_EQ(CDP_ERR_PEER_LOST, k[r].status);
                    if (!T(strstr(k[r].error.text, words) != NULL))
                        printf("  %s: %s\n", words, k[r].error.text);
                    T(k[r].error.peer == 0 || k[r].error.peer == 1);
                    T_WITHIN(cut.idle && cut.kind ? CDP__ENDED_MS + 500 : 500, cut.took_ns[r]);
                }
            }
        if (cut.idle) break;
    }
    pthread_barrier_destroy(&cut.all);
}

/* Rank 0 loses its second connection to rank 1 where rank 1 does not see it yet, and there lies
   something unread on the first. The first ends without a reset, so that rank 1 waits for more, and
   names the second one. */
static void *parting_main(void *p) {
    keyed *k = (keyed *)p;
    const struct linger reset = {1, 0};
    cdp_group *g = NULL;
    cdp__link *first;
    int copy = -1;
    k->status = cdp_init(&k->desc, &g);
    if (k->status == CDP_OK) k->status = cdp_barrier(g);
    if (!T_EQ(CDP_OK, k->status)) abort();
    first = &((cdp__mesh *)g->w->transport.self)->links[1 - k->desc.group.rank];
    if (k->desc.group.rank == 1) T_EQ(100, send(first->io.fd, first, 100, MSG_NOSIGNAL));
    pthread_barrier_wait(&cut.all);
    if (k->desc.group.rank == 0) {
        cdp__link *second = cdp__bundle_at(first, 1);
        copy = dup(second->io.fd); /* so that closing it says nothing yet */
        cdp__link_lose(second, CDP_ERR_PEER_LOST, ECONNABORTED);
        T(cdp__link_explain(first) == CDP_ERR_PEER_LOST);
        T_TEXT("(connection 2 of 2)", cdp_last_error()->text);
    }
    pthread_barrier_wait(&cut.all);
    if (k->desc.group.rank == 1) {
        const cdp_iov all = {k->error.text, 100};
        const uint64_t until = test_now_ns() + 50000000u;
        cdp_transport *t = &g->w->transport;
        while (test_now_ns() < until) {
            T_EQ(0, t->recv(t->self, 0, &all, 1));
            T_EQ(CDP_OK, t->wait(t->self, NULL, until));
        }
        T_EQ(CDP__LINK_LOST, first->state);
        T_EQ(0, first->lost_errno);
    }
    pthread_barrier_wait(&cut.all);
    if (copy >= 0) setsockopt(copy, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (copy >= 0) close(copy);
    if (k->desc.group.rank == 1) {
        k->status = cdp_barrier(g);
        k->error = *cdp_last_error();
    }
    pthread_barrier_wait(&cut.all);
    cdp_group_destroy(g);
    return NULL;
}

TEST(a_lost_connection_does_not_reset_the_others) {
    const uint16_t port = free_port();
    keyed k[2];
    pthread_barrier_init(&cut.all, NULL, 2);
    memset(k, 0, sizeof k);
    for (uint32_t r = 0; r < 2; ++r) {
        k[r].desc.group.rank = r;
        k[r].desc.group.world_size = 2;
        k[r].desc.master_port = port;
        k[r].desc.connections = 2;
        k[r].desc.no_shared_memory = true;
        k[r].desc.group.timeout_ms = 20000;
        k[r].desc.group.no_thread = true;
        k[r].desc.group.logger.level = CDP_LOG_SILENT;
        if (pthread_create(&k[r].id, NULL, parting_main, &k[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(k[r].id, NULL);
    T_EQ(CDP_ERR_PEER_LOST, k[1].status);
    T_EQ(ECONNRESET, k[1].error.sys_errno);
    T_TEXT("(connection 2 of 2)", k[1].error.text);
    pthread_barrier_destroy(&cut.all);
}

/* A machine that has acknowledged nothing for longer than it may; the os says so for one rank. */
static uint32_t silent_ms;
static uint64_t says_unanswered(void *user, int32_t fd) {
    (void)user;
    (void)fd;
    return __atomic_load_n(&silent_ms, __ATOMIC_ACQUIRE) * CDP__MS;
}

static void *silence_main(void *p) {
    keyed *k = (keyed *)p;
    float x = 1;
    cdp_group *g = NULL;
    if (!OK(cdp_init(&k->desc, &g)) || !OK(cdp_barrier(g))) return NULL;
    if (k->desc.group.rank == 0) {
        const uint64_t since = test_now_ns();
        __atomic_store_n(&silent_ms, 29000, __ATOMIC_RELEASE);
        test_sleep_ms(250);
        OK(cdp_group_status(g));
        __atomic_store_n(&silent_ms, 31000, __ATOMIC_RELEASE);
        T_EQ(CDP_ERR_PEER_LOST, cdp_recv(g, &x, 1, CDP_DTYPE_F32, 1, 0));
        /* rank 1 is well in truth: it may be the first to report that this rank has hung up */
        if (cdp_last_error()->peer != 0) {
            T_EQ(1, cdp_last_error()->peer);
            T_EQ(ETIMEDOUT, cdp_last_error()->sys_errno);
        }
        T_WITHIN(250 + 1000, test_now_ns() - since);
        cdp_group_destroy(g);
    } else {
        T(cdp_recv(g, &x, 1, CDP_DTYPE_F32, 0, 0) < 0);
        cdp_group_destroy(g);
    }
    return NULL;
}

/* Two ranks, each a thread, over TCP; rank `odd` uses `os`. Returns both, until the next call. */
static const keyed *two_on_loopback(void *(*func)(void *), uint32_t odd, const cdp_os *os) {
    static keyed k[2];
    const uint16_t port = free_port();
    memset(k, 0, sizeof k);
    for (uint32_t r = 0; r < 2; ++r) {
        k[r].desc.group.rank = r;
        k[r].desc.group.world_size = 2;
        k[r].desc.master_port = port;
        k[r].desc.group.timeout_ms = k[r].desc.init_timeout_ms = 20000;
        k[r].desc.no_shared_memory = true;
        k[r].desc.group.os = r == odd ? os : NULL;
        k[r].desc.group.logger.level = CDP_LOG_SILENT;
        if (pthread_create(&k[r].id, NULL, func, &k[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(k[r].id, NULL);
    return k;
}

TEST(a_silent_machine_is_lost) {
    cdp_os os = *cdp_os_default();
    silent_ms = 0;
    os.net.unanswered_ns = says_unanswered;
    (void)two_on_loopback(silence_main, 0, &os);
}

/* Rank 1 does not answer for longer than the timeout; the os of rank 0 says whether the host of
   rank 1 acknowledges what it is sent. */
static void *unacked_main(void *p) {
    keyed *k = (keyed *)p;
    float x = 1;
    cdp_group *g = NULL;
    k->desc.group.timeout_ms = 1000;
    k->desc.group.no_thread = true;
    if (!OK(cdp_init(&k->desc, &g)) || !OK(cdp_barrier(g))) return NULL;
    if (k->desc.group.rank == 0)
        k->status = cdp_recv(g, &x, 1, CDP_DTYPE_F32, 1, 0);
    else
        test_sleep_ms(1500);
    k->error = *cdp_last_error();
    cdp_group_destroy(g);
    return NULL;
}

TEST(a_network_that_delivers_nothing_is_not_a_process_that_hangs) {
    static const char *const text[] = {"rank 1 does not answer: look at what its process is doing",
        "the host of rank 1 acknowledges nothing that rank 0 sends: it is down, or the network "
        "drops "
        "all or large packets"};
    cdp_os os = *cdp_os_default();
    os.net.unanswered_ns = says_unanswered;
    silent_ms = 0;
    for (uint32_t silent = 0; silent < 2; ++silent) {
        const keyed *k = two_on_loopback(unacked_main, 0, &os);
        T_EQ(CDP_ERR_TIMEOUT, k->status);
        T_EQ(1, k->error.peer);
        T_TEXT(text[silent], k->error.text);
        silent_ms = 800;
    }
    silent_ms = 0;
}

#ifdef __linux__
/* A path that drops large packets alone: old data is acknowledged again and again by what the peer
   sends, and what was sent is lost with each retransmission, after 200, 400, 800, 1600 ms. */
TEST(what_a_path_drops_is_not_acknowledged_although_the_peer_sends) {
    cdp__tcp_info i;
    memset(&i, 0, sizeof i);
    i.last_ack_recv = 3;
    i.rto = 200000;
    T_EQ(0, cdp__os_unacked_ns(&i));
    i.retransmits = 4;
    i.rto = 3200000;
    T_EQ((3200000 >> 11) * CDP__MS, cdp__os_unacked_ns(&i));
    i.last_ack_recv = 4000; /* nothing comes at all */
    T_EQ(4000 * CDP__MS, cdp__os_unacked_ns(&i));
    i.retransmits = 0; /* a window that is closed, and probes that nobody answers */
    i.probes = 2;
    T_EQ(4000 * CDP__MS, cdp__os_unacked_ns(&i));
}
#endif

#ifdef __linux__
static uint64_t thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Of a rank that polls in frames a message of some MiB waits in the ring, not for a frame. */
TEST(rings_of_ranks_that_poll_are_larger) {
    cdp_tcp_desc d = {.group = {.world_size = 2}};
    T_EQ(256 << 10, cdp__ring_room(&d));
    d.group.no_thread = true;
    T_EQ(4 << 20, cdp__ring_room(&d));
    d.group.world_size = 5;
    T_EQ(1 << 20, cdp__ring_room(&d));
    d.group.world_size = 1000;
    T_EQ(256 << 10, cdp__ring_room(&d));
    d.ring_bytes = 100;
    T_EQ(128, cdp__ring_room(&d));
}

/* Rank 0 waits for rank 1, which sleeps, in frames of 1 ms. */
static void *frames_main(void *p) {
    keyed *k = (keyed *)p;
    float x = 1;
    cdp_group *g = NULL;
    cdp_work work;
    k->desc.group.no_thread = true;
    if (!OK(cdp_init(&k->desc, &g)) || !OK(cdp_barrier(g))) return NULL;
    if (k->desc.group.rank == 1) test_sleep_ms(500);
    if (!OK(cdp_allreduce_async(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work))) return NULL;
    const uint64_t before = thread_ns();
    uint32_t frames = 0;
    while (cdp_work_poll(work, 1000) == CDP_PENDING)
        ++frames;
    if (k->desc.group.rank == 0) {
        const uint64_t used = thread_ns() - before;
        T(frames > 2);
        /* half of the budget; polling takes nearly all of it */
        if (!T(TEST_SLOW || used < (uint64_t)frames * 500000))
            fprintf(stderr, "%u frames took %u us\n", frames, (uint32_t)(used / 1000));
    }
    cdp_group_destroy(g);
    return NULL;
}

TEST(a_wait_with_a_budget_sleeps) {
    (void)two_on_loopback(frames_main, 2, NULL);
}
#endif

/* No operation was started: links are there only if they were asked for. */
static void *linked_main(void *p) {
    keyed *k = (keyed *)p;
    cdp_group *g = NULL;
    const cdp__mesh *m;
    bool linked;
    if (!OK(cdp_init(&k->desc, &g))) return NULL;
    m = (const cdp__mesh *)g->w->transport.self;
    cdp__enter(g); /* the group's thread opens links, too */
    linked = m->links[1 - k->desc.group.rank].state != CDP__LINK_NONE;
    cdp__leave(g);
    T_EQ(k->desc.connect_all, linked);
    if (k->desc.connect_all)
        OK(cdp_barrier(g)); /* or the other one finds the link that this one ends */
    cdp_group_destroy(g);
    return NULL;
}

static void *linked_at_once(void *p) {
    ((keyed *)p)->desc.connect_all = true;
    return linked_main(p);
}

TEST(links_are_opened_at_the_start_if_asked_for) {
    (void)two_on_loopback(linked_main, 2, NULL);
    (void)two_on_loopback(linked_at_once, 2, NULL);
}

/* A look at a start, whose status another look tells again. */
static void look_at_start(cdp_starting *s, uint32_t wait_us, cdp_group **g) {
    const cdp_status st = cdp_init_poll(s, wait_us, g);
    (void)st;
}

/* Rank 0 opens its links at once, and waits for rank 1 to connect. Rank 1, which does not need the
   link, is asked for that while it still starts. */
TEST(a_rank_that_was_asked_to_connect_while_it_started_is_asked_again) {
    const uint64_t end = test_until_ns(5000);
    const cdp__mesh *m;
    cdp_starting *s[2];
    cdp_group *g[2] = {NULL, NULL};
    cdp_store *store;
    uint64_t asked;
    OK(cdp_hash_store_create(NULL, &store));
    for (uint32_t r = 0; r < 2; ++r) {
        cdp_tcp_desc d;
        memset(&d, 0, sizeof d);
        d.group.rank = r;
        d.group.world_size = 2;
        d.group.no_thread = true;
        d.store = store;
        d.connect_all = r == 0;
        OK(cdp_init_start(&d, &s[r]));
    }
    m = s[0]->mesh;
    /* rank 1 has said where it listens, and stands still */
    while (s[1]->mesh->join->step < 9 && test_now_ns() < end)
        for (uint32_t r = 0; r < 2; ++r)
            look_at_start(s[r], 0, &g[r]);
    while (!m->links[1].inviting && test_now_ns() < end)
        look_at_start(s[0], 1000, &g[0]);
    T(m->links[1].inviting);
    asked = test_now_ns() + 20 * CDP__MS;
    while (test_now_ns() < asked)
        look_at_start(s[0], 1000, &g[0]);
    for (uint32_t r = 0; r < 2; r += g[r] != NULL)
        for (uint32_t k = 0; k < 2; ++k)
            if (!g[k]) look_at_start(s[k], 1000, &g[k]);
    T_EQ(CDP__LINK_AWAITED, m->links[1].state);
    while (m->links[1].state != CDP__LINK_UP && test_now_ns() < end)
        for (uint32_t r = 0; r < 2; ++r)
            (void)cdp_poll(g[r], 1000);
    T_EQ(CDP__LINK_UP, m->links[1].state);
    cdp_group_destroy(g[1]);
    cdp_group_destroy(g[0]);
    cdp_store_destroy(store);
}

/* Connections that never end: whenever rank 1 asks for the next one there is another, whose other
   end is closed already. */
static uint64_t flood_until_ns;
static uint64_t flooded;
static int32_t accept_without_end(void *user, int32_t fd, cdp_addr *from) {
    int pair[2];
    if (test_now_ns() >= __atomic_load_n(&flood_until_ns, __ATOMIC_ACQUIRE))
        return cdp_os_default()->net.accept_next(user, fd, from);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return -errno;
    close(pair[1]);
    memset(from, 0, sizeof *from);
    from->family = 4;
    from->ip[0] = 127;
    from->ip[3] = 1;
    ++flooded;
    return pair[0];
}

static void *flooded_main(void *p) {
    keyed *k = (keyed *)p;
    float x = 1;
    cdp_group *g = NULL;
    uint64_t since, longest = 0;
    if (!OK(cdp_init(&k->desc, &g)) || !OK(cdp_barrier(g))) return NULL;
    if (k->desc.group.rank == 1) { /* from now on, and somebody really is at its port */
        const cdp_addr at = ((cdp__mesh *)g->w->transport.self)->at;
        const int32_t fd = cdp_os_default()->net.connect_to(NULL, &at);
        __atomic_store_n(&flood_until_ns, test_now_ns() + 3000 * CDP__MS, __ATOMIC_RELEASE);
        T(fd >= 0);
        test_sleep_ms(50);
        if (fd >= 0) cdp_os_default()->net.close_fd(NULL, fd);
    }
    for (int i = 0; i < 20; ++i) {
        since = test_now_ns();
        if (!OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM))) break;
        if (test_now_ns() - since > longest) longest = test_now_ns() - since;
    }
    T_WITHIN(500, longest);
    __atomic_store_n(&flood_until_ns, 0, __ATOMIC_RELEASE);
    cdp_group_destroy(g);
    return NULL;
}

TEST(a_flood_is_accepted_in_turns) {
    cdp_os os = *cdp_os_default();
    flooded = 0;
    os.net.accept_next = accept_without_end;
    (void)two_on_loopback(flooded_main, 1, &os);
    T(flooded > 0);
}

/* Threads that are nobody's callers, in the system's poll. */
static uint64_t watches;
static _Thread_local bool is_caller;

static int32_t counting_wait(
    void *user, void *watch, cdp_ready *out, uint32_t max_count, uint64_t deadline_ns) {
    if (!is_caller) __atomic_add_fetch(&watches, 1, __ATOMIC_RELAXED);
    return cdp_os_default()->net.watch_wait(user, watch, out, max_count, deadline_ns);
}

static void *busy_main(void *p) {
    keyed *k = (keyed *)p;
    float x = 1;
    int count = 0;
    uint64_t seen = 0;
    cdp_group *g = NULL;
    is_caller = true;
    if (!OK(cdp_init(&k->desc, &g)) || !OK(cdp_barrier(g))) return NULL;
    const uint64_t since = test_now_ns(), before = __atomic_load_n(&watches, __ATOMIC_RELAXED);
    while (count++ < 20000) {
        const bool good = OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_MAX));
        cdp__enter(g);
        const bool busy = cdp__world_busy(g->w), counted_here = g->w->waits + g->w->ended != seen;
        seen = g->w->waits + g->w->ended;
        cdp__leave(g);
        /* what has ended is nothing to watch, but somebody was here */
        if (!good || !T(!busy) || !T(counted_here)) break;
    }
    const uint64_t ms = (test_now_ns() - since) / CDP__MS,
                   polls = __atomic_load_n(&watches, __ATOMIC_RELAXED) - before;
    test_check(polls <= 2 * ms / CDP__STAND_BY_MS + 20, __FILE__, __LINE__,
        "threads that had nothing to do looked %llu times in %llu ms", (unsigned long long)polls,
        (unsigned long long)ms);
    cdp_group_destroy(g);
    return NULL;
}

/* Operations that end before anybody has to wait keep the progress thread standing by, too:
   woken by what arrives, it would want the lock and the core just then. It looks every
   CDP__STAND_BY_MS whether callers still come. */
TEST(callers_are_left_alone) {
    const uint16_t port = free_port();
    cdp_os os = *cdp_os_default();
    keyed k[2];
    memset(k, 0, sizeof k);
    os.net.watch_wait = counting_wait;
    for (uint32_t r = 0; r < 2; ++r) {
        k[r].desc.group.rank = r;
        k[r].desc.group.world_size = 2;
        k[r].desc.master_port = port;
        k[r].desc.group.timeout_ms = k[r].desc.init_timeout_ms = 60000;
        k[r].desc.no_shared_memory = true;
        k[r].desc.group.os = &os;
        k[r].desc.group.logger.level = CDP_LOG_SILENT;
        if (pthread_create(&k[r].id, NULL, busy_main, &k[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(k[r].id, NULL);
}

/* How often threads that are nobody's callers stood by: for CDP__STAND_BY_MS at most, or longer. */
static struct { uint64_t soon, late; } stood_by;

static void counting_cond_wait(void *user, void *cond, void *mutex, uint64_t deadline_ns) {
    const bool late = deadline_ns > test_now_ns() + CDP__STAND_BY_MS * CDP__MS;
    if (!is_caller) __atomic_add_fetch(late ? &stood_by.late : &stood_by.soon, 1, __ATOMIC_RELAXED);
    cdp_os_default()->threads.cond_wait(user, cond, mutex, deadline_ns);
}

static void *stood_by_main(void *p) {
    keyed *k = (keyed *)p;
    float x = 1, more = 1;
    cdp_group *g = NULL;
    is_caller = true;
    if (!OK(cdp_init(&k->desc, &g))) return NULL;
    const uint64_t until = test_now_ns() + 300 * CDP__MS;
    while (more > 0) { /* short waits */
        more = test_now_ns() < until ? 1 : 0;
        if (!OK(cdp_allreduce(g, NULL, &more, 1, CDP_DTYPE_F32, CDP_REDUCE_MIN))) break;
    }
    const uint64_t soon = __atomic_load_n(&stood_by.soon, __ATOMIC_RELAXED);
    const uint64_t late = __atomic_load_n(&stood_by.late, __ATOMIC_RELAXED);
    test_check(late < soon || k->desc.group.rank, __FILE__, __LINE__,
        "%llu times a progress thread stood by for longer, %llu times not",
        (unsigned long long)late, (unsigned long long)soon);
    OK(cdp_barrier(g));
    if (k->desc.group.rank == 1) test_sleep_ms(300); /* rank 0: one long wait */
    OK(cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(k->desc.group.rank || __atomic_load_n(&stood_by.late, __ATOMIC_RELAXED) > late);
    cdp_group_destroy(g);
    return NULL;
}

/* A peer that leaves waits until this rank reads that. After short waits of the program's own the
   progress thread takes over soon; a caller in one long wait is left alone for longer. */
TEST(the_progress_thread_takes_over_soon) {
    cdp_os os = *cdp_os_default();
    memset(&stood_by, 0, sizeof stood_by);
    os.threads.cond_wait = counting_cond_wait;
    (void)two_on_loopback(stood_by_main, 0, &os); /* rank 0 is watched */
}

TEST(other_machines_need_a_key) {
    cdp__mesh m;
    cdp_addr own, far;
    T(cdp__addr_parse("10.0.0.1:5", &own) && cdp__addr_parse("10.0.0.2:5", &far));
    for (int i = 0; i < 3; ++i) {
        memset(&m, 0, sizeof m);
        m.keyed = i == 2;
        m.desc.trust_network = i == 1;
        T_EQ(CDP_OK, cdp__mesh_admissible(&m, 0, &own, 1, &own, 1));
        if (i)
            T_EQ(CDP_OK, cdp__mesh_admissible(&m, 1, &far, 1, &own, 1));
        else
            REFUSED(CDP_ERR_INVALID, "CDP_JOB_KEY", cdp__mesh_admissible(&m, 1, &far, 1, &own, 1));
    }
}

TEST(several_jobs_in_one_program) {
    /* one after the other: nothing stays behind, ports least of all */
    for (int run = 0; run < 10; ++run) {
        cdp_tcp_desc like;
        memset(&like, 0, sizeof like);
        like.group.os = counted_os();
        socket_world(3, &like, (uint64_t)run, 5);
        T_EQ(0, counted.held);
    }
}

/* ---- other ways to meet ---- */

static struct {
    pthread_barrier_t all;
    unsigned char bytes[2048];
} meeting;

/* What MPI_Bcast from rank 0 would do. */
static int broadcast(void *user, void *bytes, uint64_t count) {
    const bool root = *(const uint32_t *)user == 0;
    if (count > sizeof meeting.bytes) return 1;
    if (root) memcpy(meeting.bytes, bytes, count);
    pthread_barrier_wait(&meeting.all);
    if (!root) memcpy(bytes, meeting.bytes, count);
    return 0;
}

/* Each rank calls the same function that fills in its desc. */
static void meet(uint32_t n, void (*fill)(cdp_tcp_desc *d)) {
    member m[RANKS_MAX];
    for (uint32_t r = 0; r < n; ++r) {
        memset(&m[r], 0, sizeof m[r]);
        m[r].desc.group.rank = r;
        m[r].desc.group.world_size = n;
        m[r].desc.init_timeout_ms = 30000;
        m[r].seed = n;
        m[r].calls = 5;
        fill(&m[r].desc);
        if (pthread_create(&m[r].id, NULL, member_main, &m[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < n; ++r)
        pthread_join(m[r].id, NULL);
}

static uint32_t numbers[RANKS_MAX];
static void by_exchange(cdp_tcp_desc *d) {
    numbers[d->group.rank] = d->group.rank;
    d->exchange = broadcast;
    d->exchange_user = &numbers[d->group.rank];
}

static cdp_store *shared_store;
static void by_store(cdp_tcp_desc *d) {
    d->store = shared_store;
}

static char meeting_file[64];
static void by_file(cdp_tcp_desc *d) {
    d->file = meeting_file;
}

TEST(ranks_meet_over_a_function) {
    pthread_barrier_init(&meeting.all, NULL, 3);
    meet(3, by_exchange);
    pthread_barrier_destroy(&meeting.all);
}

/* Also when a former run has left word of a port that nobody listens at any more: rank 1 is
   there long before rank 0. */
TEST(ranks_meet_in_a_store) {
    char old[80];
    int64_t left = 0;
    T_EQ(CDP_OK, cdp_hash_store_create(NULL, &shared_store));
    for (int k = 0; k < 3; ++k) {
        snprintf(old, sizeof old, "00112233445566778899aabbccddeeff 127.0.0.1:%u", free_port());
        if (k) T_EQ(CDP_OK, cdp_store_set(shared_store, "cdp/meet", old, strlen(old)));
        meet(3, by_store);
    }
    T_EQ(CDP_OK, cdp_store_num_keys(shared_store, &left));
    T_EQ(0, left);
    cdp_store_destroy(shared_store);
}

TEST(ranks_meet_in_a_file) {
    snprintf(meeting_file, sizeof meeting_file, "/tmp/cdp-test-%d", (int)getpid());
    for (int k = 0; k < 3; ++k) {
        meet(4, by_file);
        T(access(meeting_file, F_OK) != 0);
    }
}

static int32_t listening; /* sockets that were made to listen */
static uint16_t range_from;
static int32_t counting_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    const int32_t fd = cdp_os_default()->net.listen_at(user, at, bound);
    if (fd >= 0) __atomic_add_fetch(&listening, 1, __ATOMIC_RELAXED);
    if (fd >= 0 && at->port) T(bound->port >= range_from && bound->port <= range_from + 20);
    return fd;
}

/* One listening socket per process, rank 0 included; the others share a range of ports. */
static cdp_os counting_os;
static void in_a_range(cdp_tcp_desc *d) {
    d->group.os = &counting_os;
    d->store = shared_store;
    d->listen_addr = "127.0.0.1";
    d->first_port = range_from;
    d->last_port = (uint16_t)(range_from + 20);
}

TEST(one_port_each_out_of_a_range) {
    counting_os = *cdp_os_default();
    counting_os.net.listen_at = counting_listen;
    range_from = 21000;
    T_EQ(CDP_OK, cdp_hash_store_create(NULL, &shared_store));
    listening = 0;
    meet(1 + 3, in_a_range);
    T_EQ(4, listening);
    cdp_store_destroy(shared_store);
}

/* Where a rank listens: rank 0, the others; "" is every interface. */
static struct {
    const char *addr, *key, *listen;
    char at[2][80];
    uint16_t port;
} listens;

static __thread uint32_t listening_rank;

static int32_t noting_listen(void *user, const cdp_addr *at, cdp_addr *bound) {
    const int32_t fd = cdp_os_default()->net.listen_at(user, at, bound);
    cdp_addr without_port = *at;
    without_port.port = 0;
    if (fd >= 0 && cdp__addr_any(at)) cdp__format(listens.at[listening_rank], 80, "*");
    if (fd >= 0 && !cdp__addr_any(at))
        cdp__addr_text(&without_port, listens.at[listening_rank], 80);
    return fd;
}

static void where_it_listens(cdp_tcp_desc *d) {
    d->group.os = &counting_os;
    d->group.logger.level = CDP_LOG_SILENT;
    d->master_addr = listens.addr;
    d->master_port = listens.port;
    d->job_key = listens.key;
    d->listen_addr = listens.listen;
}

static void *listening_main(void *p) {
    member *m = (member *)p;
    cdp_group *g;
    int32_t x = 1;
    listening_rank = m->desc.group.rank;
    if (!T_EQ(CDP_OK, cdp_init(&m->desc, &g))) return NULL;
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, &x, 1, CDP_DTYPE_I32, CDP_REDUCE_SUM));
    T_EQ(2, x);
    cdp_group_destroy(g);
    return NULL;
}

static void listens_at(
    const char *addr, const char *key, const char *listen, const char *zero, const char *one) {
    member m[2];
    listens.addr = addr;
    listens.key = key;
    listens.listen = listen;
    listens.port = free_port();
    memset(listens.at, 0, sizeof listens.at);
    for (uint32_t r = 0; r < 2; ++r) {
        memset(&m[r], 0, sizeof m[r]);
        m[r].desc.group.rank = r;
        m[r].desc.group.world_size = 2;
        m[r].desc.init_timeout_ms = 20000;
        where_it_listens(&m[r].desc);
        if (pthread_create(&m[r].id, NULL, listening_main, &m[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(m[r].id, NULL);
    T_TEXT(zero, listens.at[0]);
    T_TEXT(one, listens.at[1]);
}

/* What SECURITY of cdp_tcp.h says, sentence by sentence. */
TEST(ranks_listen_where_the_manual_says) {
    static const char key[] = "0123456789abcdef";
    cdp_addr own[CDP__ADDRS];
    char text[80];
    uint32_t i = 0, n;
    counting_os = *cdp_os_default();
    counting_os.net.listen_at = noting_listen;
    listens_at("127.0.0.1", NULL, NULL, "127.0.0.1", "127.0.0.1");
    listens_at("127.0.0.1", key, NULL, "127.0.0.1", "127.0.0.1");
    listens_at("localhost", key, NULL, "127.0.0.1", "127.0.0.1");
    n = counting_os.net.addresses(NULL, NULL, own, CDP__ADDRS);
    while (i < n && (own[i].family != 4 || cdp__addr_loopback(&own[i])))
        ++i;
    if (i == n) {
        printf("  (this machine has no address but loopback: the rest is not tried)\n");
        return;
    }
    own[i].port = 0;
    cdp__addr_text(&own[i], text, sizeof text);
    *strrchr(text, ':') = 0;
    listens_at(text, NULL, NULL, text, text); /* no key: the address that leads to rank 0 */
    listens_at(text, key, NULL, text, "*");   /* a key, and not on loopback: everywhere */
    listens_at(text, key, text, text, text);  /* listen_addr narrows that down */
}

TEST(an_inherited_listener) {
    cdp_addr at, bound;
    member m[2];
    T(cdp__addr_parse("127.0.0.1:0", &at));
    const int32_t fd = cdp_os_default()->net.listen_at(NULL, &at, &bound);
    T(fd >= 0);
    memset(m, 0, sizeof m);
    for (uint32_t r = 0; r < 2; ++r) {
        m[r].desc.group.rank = r;
        m[r].desc.group.world_size = 2;
        m[r].desc.init_timeout_ms = 30000;
        m[r].desc.master_port = bound.port;
        m[r].desc.has_listen_fd = r == 0;
        m[r].desc.listen_fd = fd;
        m[r].calls = 3;
        if (pthread_create(&m[r].id, NULL, member_main, &m[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < 2; ++r)
        pthread_join(m[r].id, NULL);
}

/* A rank that counts what it holds; each block is preceded by its size. */
typedef struct weighed_rank {
    cdp_tcp_desc desc;
    cdp_os os;
    int64_t held;
    uint64_t limit;
    pthread_barrier_t *all;
    pthread_t id;
} weighed_rank;

static void *weighed_alloc(void *user, uint64_t bytes) {
    uint8_t *p = (uint8_t *)cdp_os_default()->alloc(NULL, bytes + 64);
    if (!p) return NULL;
    memcpy(p, &bytes, sizeof bytes);
    __atomic_add_fetch((int64_t *)user, (int64_t)bytes, __ATOMIC_SEQ_CST);
    return p + 64;
}

static void weighed_free(void *user, void *p) {
    uint64_t bytes;
    if (!p) return;
    memcpy(&bytes, (uint8_t *)p - 64, sizeof bytes);
    __atomic_sub_fetch((int64_t *)user, (int64_t)bytes, __ATOMIC_SEQ_CST);
    cdp_os_default()->release(NULL, (uint8_t *)p - 64);
}

static void *weighed_main(void *p) {
    weighed_rank *s = (weighed_rank *)p;
    cdp_group *g = NULL;
    const bool good = OK(cdp_init(&s->desc, &g));
    pthread_barrier_wait(s->all); /* nothing travels now */
    const int64_t held = __atomic_load_n(&s->held, __ATOMIC_SEQ_CST);
    if (good)
        test_check(held <= (int64_t)s->limit, __FILE__, __LINE__,
            "rank %u of %u: %lld bytes, about %llu are documented", s->desc.group.rank,
            s->desc.group.world_size, (long long)held, (unsigned long long)s->limit);
    pthread_barrier_wait(s->all);
    cdp_group_destroy(g);
    return NULL;
}

/* MEMORY of cdp.h and cdp_tcp.h: 0.17 MB and 0.7 KB per rank, here 10 KB and 0.8 KB per rank more,
   and the store of rank 0: 70 KB and 1.5 KB per rank. */
TEST(a_start_takes_the_memory_that_is_documented) {
    static weighed_rank ranks[16];
    for (uint32_t n = 2; n <= 16; n *= 2) {
        const uint16_t port = free_port();
        pthread_barrier_t all;
        pthread_barrier_init(&all, NULL, n);
        for (uint32_t r = 0; r < n; ++r) {
            weighed_rank *s = &ranks[r];
            memset(s, 0, sizeof *s);
            s->os = *cdp_os_default();
            s->os.user = &s->held;
            s->os.alloc = weighed_alloc;
            s->os.release = weighed_free;
            s->desc.group.rank = r;
            s->desc.group.world_size = n;
            s->desc.group.os = &s->os;
            s->desc.master_addr = "127.0.0.1";
            s->desc.master_port = port;
            s->desc.init_timeout_ms = 30000;
            s->all = &all;
            s->limit = 180000 + n * 1500 + (r ? 0 : 70000 + n * 1500);
            if (pthread_create(&s->id, NULL, weighed_main, s) != 0) abort();
        }
        for (uint32_t r = 0; r < n; ++r) {
            pthread_join(ranks[r].id, NULL);
            T_EQ(0, ranks[r].held);
        }
        pthread_barrier_destroy(&all);
    }
}

static int32_t refusing_adopt(void *user, int32_t fd) {
    (void)user;
    (void)fd;
    return -EPERM;
}

/* One that cannot be made non-blocking would hold its rank up beyond every deadline. */
TEST(an_inherited_listener_that_stays_blocking) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc d = {.group = {.world_size = 2, .os = &os}};
    cdp_group *g = NULL;
    cdp_addr at;
    T(cdp__addr_parse("127.0.0.1:0", &at));
    const int32_t fd = cdp_os_default()->net.listen_at(NULL, &at, &at);
    T(fd >= 0);
    os.net.adopt = refusing_adopt;
    d.master_addr = "127.0.0.1";
    d.master_port = at.port;
    d.has_listen_fd = true;
    d.listen_fd = fd;
    d.init_timeout_ms = 30000;
    T_EQ(CDP_ERR_IO, cdp_init(&d, &g));
    T_EQ(EPERM, cdp_last_error()->sys_errno);
    T(g == NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"hello_survives_the_wire", hello_survives_the_wire, 10},
        {"hello_is_judged", hello_is_judged, 10},
        {"invitations_come_from_lower_ranks", invitations_come_from_lower_ranks, 10},
        {"connections_take_interfaces_in_turn", connections_take_interfaces_in_turn, 10},
        {"addresses_are_tried_in_a_good_order", addresses_are_tried_in_a_good_order, 10},
        {"addresses_behind_a_short_record_are_not_read",
            addresses_behind_a_short_record_are_not_read, 10},
        {"ranks_over_sockets", ranks_over_sockets, 60},
        {"ranks_over_several_connections", ranks_over_several_connections, 60},
        {"a_lost_connection_does_not_reset_the_others", a_lost_connection_does_not_reset_the_others,
            20},
        {"connections_must_be_as_many_everywhere", connections_must_be_as_many_everywhere, 60},
        {"a_lost_connection_is_named", a_lost_connection_is_named, 120},
        {"links_ask_for_the_key", links_ask_for_the_key, 60},
        {"descriptors_are_closed_by_exec", descriptors_are_closed_by_exec, 60},
        {"job_keys_are_wiped", job_keys_are_wiped, 60},
        {"a_rank_that_was_asked_to_connect_while_it_started_is_asked_again",
            a_rank_that_was_asked_to_connect_while_it_started_is_asked_again, 20},
        {"links_are_opened_at_the_start_if_asked_for", links_are_opened_at_the_start_if_asked_for,
            20},
        {"a_silent_machine_is_lost", a_silent_machine_is_lost, 20},
#ifdef __linux__
        {"what_a_path_drops_is_not_acknowledged_although_the_peer_sends",
            what_a_path_drops_is_not_acknowledged_although_the_peer_sends, 10},
        {"rings_of_ranks_that_poll_are_larger", rings_of_ranks_that_poll_are_larger, 10},
        {"a_wait_with_a_budget_sleeps", a_wait_with_a_budget_sleeps, 20},
#endif
        {"a_network_that_delivers_nothing_is_not_a_process_that_hangs",
            a_network_that_delivers_nothing_is_not_a_process_that_hangs, 20},
        {"a_flood_is_accepted_in_turns", a_flood_is_accepted_in_turns, 20},
        {"callers_are_left_alone", callers_are_left_alone, 120},
        {"the_progress_thread_takes_over_soon", the_progress_thread_takes_over_soon, 60},
        {"other_machines_need_a_key", other_machines_need_a_key, 10},
        {"several_jobs_in_one_program", several_jobs_in_one_program, 60},
        {"ranks_meet_over_a_function", ranks_meet_over_a_function, 60},
        {"ranks_meet_in_a_store", ranks_meet_in_a_store, 60},
        {"ranks_meet_in_a_file", ranks_meet_in_a_file, 60},
        {"one_port_each_out_of_a_range", one_port_each_out_of_a_range, 60},
        {"ranks_listen_where_the_manual_says", ranks_listen_where_the_manual_says, 60},
        {"an_inherited_listener", an_inherited_listener, 60},
        {"a_start_takes_the_memory_that_is_documented", a_start_takes_the_memory_that_is_documented,
            60},
        {"an_inherited_listener_that_stays_blocking", an_inherited_listener_that_stays_blocking,
            30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

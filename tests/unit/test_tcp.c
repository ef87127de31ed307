/* The parts of cdp_tcp.h that need no second process: the handshake, the environment, arguments; and whole groups whose
   ranks are threads of this program, connected by real sockets. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "ranks.h"

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

TEST(hello_survives_the_wire) {
    uint64_t state = 1;
    for (int i = 0; i < 1000; ++i) {
        uint8_t wire[CDP__HELLO_BYTES];
        cdp__hello a = hello_of((uint32_t)test_random(&state), (uint32_t)test_random(&state)), b;
        a.type = (uint32_t)test_random(&state);
        a.refusal = (uint32_t)test_random(&state);
        cdp__hello_encode(&a, wire);
        T(cdp__hello_decode(wire, &b));
        T(memcmp(&a, &b, sizeof a) == 0);
        wire[i % 8] ^= (uint8_t)(1 << i % 7);
        T(!cdp__hello_decode(wire, &b));
    }
}

TEST(hello_is_judged) {
    const cdp__hello mine = hello_of(3, 0);
    cdp__hello h = hello_of(5, 3);
    T_EQ(CDP__REFUSE_NOTHING, cdp__hello_judge(&mine, &h));
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
    for (uint32_t r = 0; r < CDP__REFUSE_COUNT + 3u; ++r) T(strlen(cdp__refusal_text(r)) > 5);
    T(strlen(cdp__refusal_text(UINT32_MAX)) > 5);
}

/* ---- environment and arguments ---- */

static void environment(const char *rank, const char *size, const char *addr, const char *port) {
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    const char *const values[] = {rank, size, addr, port};
    for (int i = 0; i < 4; ++i) {
        if (values[i]) setenv(names[i], values[i], 1);
        else unsetenv(names[i]);
    }
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    unsetenv("CDP_JOB_KEY");
    unsetenv("CDP_TRUST_NETWORK");
}

#define REFUSED(words, expr)                           \
    do {                                               \
        T_EQ(CDP_ERR_INVALID, expr);                   \
        T_TEXT(words, cdp_last_error()->text);         \
    } while (0)

TEST(environment_is_read) {
    cdp_tcp_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    environment("3", "8", "node-0.example", "29500");
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.rank == 3 && d.world_size == 8 && d.master_port == 29500 && strcmp(d.master_addr, "node-0.example") == 0);
    T(!d.external_store && !d.job);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(d.external_store && strcmp(d.job, "cdp2") == 0);
    d.job = "mine";
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(strcmp(d.job, "mine") == 0);
    T(!d.job_key && !d.trust_network);
    setenv("CDP_JOB_KEY", "0123456789abcdef", 1);
    setenv("CDP_TRUST_NETWORK", "1", 1);
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T(strcmp(d.job_key, "0123456789abcdef") == 0 && d.trust_network);
    memset(&d, 0, sizeof d);
    environment("0", "1", NULL, NULL); /* alone: no network, no port */
    T_EQ(CDP_OK, cdp_tcp_desc_from_env(&d));
    T_EQ(CDP_OK, cdp_init_from_env(NULL, &g));
    T_EQ(1, cdp_size(g));
    T_EQ(CDP_OK, cdp_barrier(g));
    cdp_group_destroy(g);
}

TEST(environment_mistakes_name_the_variable) {
    cdp_tcp_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    REFUSED("needs a desc", cdp_tcp_desc_from_env(NULL));
    environment("0", NULL, "127.0.0.1", "29500");
    REFUSED("WORLD_SIZE is not set", cdp_tcp_desc_from_env(&d));
    REFUSED("cdprun", cdp_init_from_env(NULL, &g));
    environment(NULL, "2", "127.0.0.1", "29500");
    REFUSED("RANK is not set", cdp_tcp_desc_from_env(&d));
    environment("2", "2", "127.0.0.1", "29500");
    REFUSED("RANK is 2 but WORLD_SIZE is 2; ranks are 0 to 1", cdp_tcp_desc_from_env(&d));
    environment("0", "2", "127.0.0.1", NULL);
    REFUSED("MASTER_PORT is not set", cdp_tcp_desc_from_env(&d));
    static const char *const bad[] = {"", " 1", "1 ", "-1", "+1", "1x", "0x10", "1.5", "99999999999999999999", "18446744073709551617"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        environment("0", bad[i], NULL, "29500");
        REFUSED("WORLD_SIZE", cdp_tcp_desc_from_env(&d));
        environment("0", "2", NULL, bad[i]);
        REFUSED("MASTER_PORT", cdp_tcp_desc_from_env(&d));
    }
    environment("0", "0", NULL, "29500");
    REFUSED("from 1 to 65535", cdp_tcp_desc_from_env(&d));
    environment("0", "2", NULL, "65536");
    REFUSED("MASTER_PORT is '65536'", cdp_tcp_desc_from_env(&d));
}

TEST(init_mistakes) {
    cdp_tcp_desc d;
    cdp_group *g = (cdp_group *)&d;
    memset(&d, 0, sizeof d);
    REFUSED("desc", cdp_init(NULL, &g));
    REFUSED("place for the result", cdp_init(&d, NULL));
    REFUSED("world_size 0", cdp_init(&d, &g));
    T(g == NULL);
    d.world_size = 65536;
    REFUSED("world_size 65536", cdp_init(&d, &g));
    d.world_size = 2;
    d.rank = 2;
    REFUSED("rank 2 is not below world_size 2", cdp_init(&d, &g));
    d.rank = 0;
    REFUSED("master_port is 0", cdp_init(&d, &g));
    d.job = "a name of a job that is longer than anybody would give to one";
    REFUSED("job name", cdp_init(&d, &g));
}

/* ---- ranks as threads, over sockets ---- */

static uint16_t free_port(void) {
    cdp_addr at, bound;
    memset(&at, 0, sizeof at);
    at.family = 4;
    at.ip[0] = 127, at.ip[3] = 1;
    const int32_t fd = cdp_os_default()->listen(NULL, &at, &bound);
    T(fd >= 0);
    cdp_os_default()->close(NULL, fd);
    return bound.port;
}

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
    if (!test_check(st == CDP_OK, __FILE__, __LINE__, "rank %u: %s", m->desc.rank, cdp_last_error()->text)) return NULL;
    T_EQ(m->desc.rank, cdp_rank(g));
    T_EQ(m->desc.world_size, cdp_size(g));
    for (uint32_t k = 0; k < m->calls; ++k) {
        const call c = call_random(&same, m->desc.world_size, k % 8 ? 400 : 60000);
        call_memory mem;
        cdp_work w;
        call_fill(&c, m->desc.world_size, m->desc.rank, &mem);
        const cdp_request rq = call_request(&c, &mem);
        if (!T_EQ(CDP_OK, cdp_start(g, &rq, &w)) || !T_EQ(CDP_OK, cdp_work_wait(w))) break;
        call_check(&c, m->desc.world_size, m->desc.rank, &mem);
    }
    cdp_group_destroy(g);
    return NULL;
}

static void socket_world(uint32_t n, const cdp_tcp_desc *like, uint64_t seed, uint32_t calls) {
    member m[RANKS_MAX];
    const uint16_t port = free_port();
    for (uint32_t r = 0; r < n; ++r) {
        m[r].desc = *like;
        m[r].desc.rank = r;
        m[r].desc.world_size = n;
        m[r].desc.master_port = port;
        m[r].desc.init_timeout_ms = 30000;
        m[r].seed = seed;
        m[r].calls = calls;
        if (pthread_create(&m[r].id, NULL, member_main, &m[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < n; ++r) pthread_join(m[r].id, NULL);
}

TEST(ranks_over_sockets) {
    for (uint32_t n = 1; n <= 6; ++n)
        for (int no_thread = 0; no_thread < 2; ++no_thread) {
            cdp_tcp_desc like;
            memset(&like, 0, sizeof like);
            like.os = counted_os();
            like.no_thread = no_thread;
            like.piece_bytes = n % 2 ? 1000 : 0;
            like.small_bytes = n % 3 ? 0 : 1;
            socket_world(n, &like, n * 100 + (uint64_t)no_thread, 60);
            T_EQ(0, counted.held);
        }
}

TEST(several_jobs_in_one_program) {
    for (int run = 0; run < 10; ++run) { /* one after the other: nothing stays behind, ports least of all */
        cdp_tcp_desc like;
        memset(&like, 0, sizeof like);
        like.os = counted_os();
        socket_world(3, &like, (uint64_t)run, 5);
        T_EQ(0, counted.held);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"hello_survives_the_wire", hello_survives_the_wire, 10},
        {"hello_is_judged", hello_is_judged, 10},
        {"environment_is_read", environment_is_read, 10},
        {"environment_mistakes_name_the_variable", environment_mistakes_name_the_variable, 10},
        {"init_mistakes", init_mistakes, 10},
        {"ranks_over_sockets", ranks_over_sockets, 60},
        {"several_jobs_in_one_program", several_jobs_in_one_program, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/* The library without a system (CDP_NO_OS): two ranks are coroutines of this one thread, with a
   clock and an arena of their own, and train over the serial line of examples/18_firmware, whose
   bytes are lost and changed as a seed says. */
#define CDP_NO_OS
#define CDP_ONLY_F32
#define CDP_ERROR_TEXT 200
#define CDP_IMPLEMENTATION
#define CDP__TEST_OF_ITS_OWN /* this program compiles the library itself */
#define CDP_API static __attribute__((unused))
#include "cdp.h"

#if defined(_STDIO_H) || defined(_UNISTD_H) || defined(_PTHREAD_H) || defined(_TIME_H) \
    || defined(_SYS_SOCKET_H) || defined(_FCNTL_H) || defined(_POLL_H)
#error "with CDP_NO_OS, cdp.h has included a header of a system"
#endif

#include "test.h"
#include "examples/18_firmware/line.h"
#include "examples/18_firmware/model.h"
#include "examples/18_firmware/train.h"

#include <ucontext.h>

#define WIRE 64u /* bytes that are under way in one direction */
#define STACK (512u * 1024u)

/* ---- memory of a rank ---- */

typedef struct arena {
    uint64_t used, live, most;
    uint32_t count, fail_at; /* allocations; the one that fails (0: none) */
} arena;

typedef struct side {
    arena a;
    cdp_os os;
    line l;
    uint32_t rank;
    ucontext_t at;
    uint8_t *stack;
    bool sending, over;
    uint64_t until;
    cdp_error kept; /* the library has one for the program; here each rank has its own */
    void (*run)(struct side *s);
    model m;
    float loss;
    cdp_status status;
} side;

static struct {
    side sides[2];
    ucontext_t scheduler;
    side *running;
    uint64_t now, dice;
    uint32_t loss_of; /* one byte in so many is lost, and one is changed (0: none) */
    struct {
        uint8_t bytes[WIRE];
        uint32_t used;
    } wires[2]; /* to rank 0, to rank 1 */
} world;

static uint32_t dice(uint32_t of) {
    world.dice ^= world.dice << 13;
    world.dice ^= world.dice >> 7;
    world.dice ^= world.dice << 17;
    return (uint32_t)(world.dice >> 33) % of;
}

static void *arena_alloc(void *user, uint64_t bytes) {
    arena *a = &((side *)user)->a;
    uint64_t *p;
    if (++a->count == a->fail_at) return NULL;
    p = (uint64_t *)(void *)malloc((size_t)bytes + 16);
    *p = bytes;
    a->live += bytes;
    if (a->live > a->most) a->most = a->live;
    return p + 2;
}

static void arena_release(void *user, void *at) {
    arena *a = &((side *)user)->a;
    uint64_t *p;
    if (!at) return;
    p = (uint64_t *)at - 2;
    a->live -= *p;
    free(p);
}

static uint64_t now_ns(void *user) {
    (void)user;
    return world.now += 100; /* looking takes time */
}

static cdp_status random_bytes(void *user, void *to, uint64_t bytes) {
    uint8_t *p = (uint8_t *)to;
    uint64_t i;
    (void)user;
    for (i = 0; i < bytes; ++i)
        p[i] = (uint8_t)dice(256);
    return CDP_OK;
}

/* ---- the wires ---- */

static uint32_t port_put(void *self, const uint8_t *from, uint32_t bytes) {
    const side *s = (const side *)self;
    uint32_t i;
    for (i = 0; i < bytes && world.wires[!s->rank].used < WIRE; ++i) {
        const bool lost = world.loss_of && dice(world.loss_of) == 0;
        const uint8_t flip =
            world.loss_of && dice(world.loss_of) == 0 ? (uint8_t)(1u << dice(8)) : 0;
        if (lost) continue;
        world.wires[!s->rank].bytes[world.wires[!s->rank].used++] = from[i] ^ flip;
    }
    return i;
}

static uint32_t port_get(void *self, uint8_t *to, uint32_t bytes) {
    const side *s = (const side *)self;
    uint32_t n = world.wires[s->rank].used;
    if (n > bytes) n = bytes;
    memcpy(to, world.wires[s->rank].bytes, n);
    world.wires[s->rank].used -= n;
    memmove(world.wires[s->rank].bytes, world.wires[s->rank].bytes + n, world.wires[s->rank].used);
    return n;
}

static void port_pause(void *self, bool sending, uint64_t deadline_ns) {
    side *s = (side *)self;
    s->sending = sending;
    s->until = deadline_ns;
    swapcontext(&s->at, &world.scheduler);
}

/* ---- ranks ---- */

static bool can_run(const side *s) {
    return !s->over
        && (world.wires[s->rank].used || world.now >= s->until
            || (s->sending && world.wires[!s->rank].used < WIRE));
}

static void side_main(void) {
    side *s = world.running;
    s->run(s);
    s->over = true;
    swapcontext(&s->at, &world.scheduler);
}

static void side_resume(side *s) {
    cdp_error *slot = cdp__error_slot();
    world.running = s;
    *slot = s->kept;
    swapcontext(&world.scheduler, &s->at);
    s->kept = *slot;
}

/* Until both are over. A rank that pauses for ever, while no byte is under way, is a failure. */
static void world_run(void) {
    uint32_t turn = 0, turns;
    for (turns = 0; !world.sides[0].over || !world.sides[1].over; ++turns) {
        side *a = &world.sides[turn & 1], *b = &world.sides[~turn & 1];
        ++turn;
        if (!T(turns < 50000000)) return;
        if (can_run(a)) {
            side_resume(a);
        } else if (!can_run(b)) {
            const uint64_t at = a->over ? UINT64_MAX : a->until,
                           bt = b->over ? UINT64_MAX : b->until;
            if (!T((at < bt ? at : bt) != UINT64_MAX)) return;
            world.now = at < bt ? at : bt;
        }
    }
}

static void side_open(side *s, uint32_t rank, void (*run)(side *s)) {
    s->rank = rank;
    s->run = run;
    s->kept.rank = s->kept.peer = s->kept.origin = -1;
    s->kept.file = "";
    s->os.user = s;
    s->os.alloc = arena_alloc;
    s->os.release = arena_release;
    s->os.now_ns = now_ns;
    s->os.random = random_bytes;
    s->stack = (uint8_t *)malloc(STACK);
    getcontext(&s->at);
    s->at.uc_stack.ss_sp = s->stack;
    s->at.uc_stack.ss_size = STACK;
    makecontext(&s->at, side_main, 0);
}

static void world_open(uint32_t loss_of, uint64_t seed, void (*run)(side *s)) {
    memset(&world, 0, sizeof world);
    world.loss_of = loss_of;
    world.dice = seed * 0x9e3779b97f4a7c15ull + 1;
    side_open(&world.sides[0], 0, run);
    side_open(&world.sides[1], 1, run);
}

static void world_close(void) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        T_EQ(0, (int)world.sides[i].a.live);
        free(world.sides[i].stack);
    }
}

static cdp_status line_of(side *s, cdp_transport *t) {
    const line_port port = {s, port_put, port_get, port_pause};
    return line_open(&s->l, &port, &s->os, s->rank, t);
}

static void run_training(side *s) {
    cdp_transport t;
    s->status = line_of(s, &t);
    if (s->status == CDP_OK) s->status = train(&s->m, s->rank, &t, &s->os, &s->loss);
}

/* ---- cases ---- */

static void check_training(void) {
    model alone;
    const float loss = train_alone(&alone);
    uint32_t i;
    test_check(loss < 0.05f, __FILE__, __LINE__, "the loss is %f", (double)loss);
    for (i = 0; i < 2; ++i) {
        const side *s = &world.sides[i];
        test_check(s->status == CDP_OK, __FILE__, __LINE__, "rank %u: %s", i, s->kept.text);
        T(memcmp(&loss, &s->loss, sizeof loss) == 0);
        T(memcmp(&alone, &s->m, sizeof alone) == 0);
    }
}

TEST(two_ranks_without_a_system_train_as_one_program_does) {
    world_open(0, 1, run_training);
    world_run();
    check_training();
    T_EQ(0, (int)(world.sides[0].l.counts.again + world.sides[1].l.counts.again));
    T(world.sides[0].a.most < 24000 && world.sides[0].a.most > 1000); /* as the desc sizes it */
    world_close();
}

TEST(a_line_that_loses_and_changes_bytes_delivers_all) {
    uint32_t seed;
    for (seed = 1; seed <= 10; ++seed) {
        world_open(2000, seed, run_training);
        world_run();
        check_training();
        T(world.sides[0].l.counts.again + world.sides[1].l.counts.again > 10);
        world_close();
    }
}

/* Long vectors, whose elements are torn by the frames of the line, pass through a stage of 256
   bytes, and more operations are called at once than there was memory for. */
#define LONG 3001u
#define AT_ONCE 5u
static void run_long(side *s) {
    static int64_t wide[2][LONG];
    static int16_t narrow[2][AT_ONCE][LONG];
    int64_t *w = wide[s->rank];
    cdp_transport t;
    cdp_group *g = NULL;
    cdp_group_desc d;
    cdp_work works[AT_ONCE];
    uint32_t i, k;
    (void)line_of(s, &t);
    d = train_group_desc(s->rank, &t, &s->os);
    d.operations = 1;
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &g))) return;
    for (i = 0; i < LONG; ++i) {
        w[i] = (int64_t)i << 33 | s->rank;
        for (k = 0; k < AT_ONCE; ++k)
            narrow[s->rank][k][i] = (int16_t)(i * 3 + k + s->rank);
    }
    for (k = 0; k < AT_ONCE; ++k) {
        int16_t *n = narrow[s->rank][k];
        T_EQ(CDP_OK, cdp_allreduce_async(g, n, n, LONG, CDP_DTYPE_I16, CDP_REDUCE_SUM, &works[k]));
    }
    T_EQ(CDP_OK, cdp_allreduce(g, w, w, LONG, CDP_DTYPE_I64, CDP_REDUCE_SUM));
    for (k = 0; k < AT_ONCE; ++k)
        T_EQ(CDP_OK, cdp_work_wait(works[k]));
    for (i = 0; i < LONG; ++i) {
        T(w[i] == ((int64_t)i << 34 | 1));
        for (k = 0; k < AT_ONCE; ++k)
            T_EQ((int16_t)(2 * (i * 3 + k) + 1), narrow[s->rank][k][i]);
    }
    cdp_group_destroy(g);
}

TEST(small_sizes_move_long_vectors) {
    world_open(5000, 1, run_long);
    world_run();
    world_close();
}

/* The peer stays away: with room for two waits the deadline still names it. */
static void run_late(side *s) {
    cdp_transport t;
    cdp_group *g = NULL;
    cdp_group_desc d;
    float x = 1;
    (void)line_of(s, &t);
    d = train_group_desc(s->rank, &t, &s->os);
    d.timeout_ms = 4000;
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &g))) return;
    s->status = cdp_allreduce(g, &x, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (s->rank == 0) s->status = cdp_allreduce(g, &x, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    if (s->rank == 1) port_pause(s, false, world.now + 20000 * LINE_MS);
    cdp_group_destroy(g);
}

TEST(a_rank_that_does_not_take_part_is_named_at_the_deadline) {
    world_open(0, 1, run_late);
    world_run();
    T_EQ(CDP_OK, world.sides[1].status);
    T_EQ(CDP_ERR_TIMEOUT, world.sides[0].status);
    T_EQ(1, world.sides[0].kept.peer);
    world_close();
}

/* Each allocation fails once: creation says so, nothing is kept, and the other rank's wait ends. */
TEST(without_memory_nothing_is_made_and_nothing_is_kept) {
    uint32_t at, counted;
    world_open(0, 1, run_training);
    world_run();
    counted = world.sides[1].a.count;
    world_close();
    for (at = 1; at <= counted; ++at) {
        world_open(0, at, run_training);
        world.sides[1].a.fail_at = at;
        world_run();
        T(world.sides[1].status == CDP_ERR_NOMEM || world.sides[1].status == CDP_OK);
        T(world.sides[1].status == CDP_OK || world.sides[0].status != CDP_OK);
        world_close();
    }
}

/* Rank 1 is switched off and on again in the middle of the job. */
static void run_twice(side *s) {
    cdp_transport t;
    cdp_group *g = NULL;
    cdp_group_desc d;
    float x = 1;
    uint32_t i;
    if (s->rank == 1) {
        (void)line_of(s, &t);
        d = train_group_desc(1, &t, &s->os);
        T_EQ(CDP_OK, cdp_group_create(&d, &g));
        for (i = 0; i < 3; ++i)
            T_EQ(CDP_OK, cdp_allreduce(g, &x, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM));
        s->l.port.put = NULL; /* what was the group's is forgotten */
        g->w->transport.destroy = NULL;
        cdp_group_destroy(g);
        g = NULL;
    }
    (void)line_of(s, &t);
    d = train_group_desc(s->rank, &t, &s->os);
    d.timeout_ms = 2000;
    s->status = cdp_group_create(&d, &g);
    for (i = 0; i < 6 && s->status == CDP_OK; ++i)
        s->status = cdp_allreduce(g, &x, &x, 1, CDP_DTYPE_F32, CDP_REDUCE_SUM);
    cdp_group_destroy(g);
}

TEST(a_rank_that_starts_anew_is_noticed) {
    world_open(0, 1, run_twice);
    world_run();
    T_EQ(CDP_ERR_PEER_LOST, world.sides[0].status);
    T_TEXT("started anew", world.sides[0].kept.text);
    T(world.sides[1].status != CDP_OK);
    world_close();
}

TEST(an_os_is_required_and_whole) {
    cdp_group_desc d;
    cdp_group *g = NULL;
    cdp_os os;
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    T_EQ(CDP_ERR_INVALID, cdp_group_create(&d, &g));
    T_TEXT("CDP_NO_OS", cdp_last_error()->text);
    world_open(0, 1, run_training);
    os = world.sides[0].os;
    os.random = NULL;
    d.os = &os;
    T_EQ(CDP_ERR_INVALID, cdp_group_create(&d, &g));
    os.random = random_bytes;
    T_EQ(CDP_OK, cdp_group_create(&d, &g));
    cdp_group_destroy(g);
    world_close();
    T(cdp_os_default()->alloc(NULL, 1) == NULL);
}

TEST(other_floats_are_refused_by_name) {
    cdp_group *g = NULL;
    cdp_group_desc d;
    cdp_ddp *ddp = NULL;
    cdp_ddp_desc dd;
    cdp_param p;
    double x[2] = {1, 2};
    world_open(0, 1, run_training);
    d = train_group_desc(0, NULL, &world.sides[0].os);
    d.world_size = 1;
    if (!T_EQ(CDP_OK, cdp_group_create(&d, &g))) return;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_allreduce(g, x, x, 2, CDP_DTYPE_F64, CDP_REDUCE_SUM));
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_allreduce(g, x, x, 2, CDP_DTYPE_BF16, CDP_REDUCE_MAX));
    T_EQ(CDP_OK, cdp_broadcast(g, x, 2, CDP_DTYPE_F64, 0));
    memset(&p, 0, sizeof p);
    p.data = x;
    p.count = 2;
    p.dtype = CDP_DTYPE_F64;
    memset(&dd, 0, sizeof dd);
    dd.group = g;
    dd.params = &p;
    dd.param_count = 1;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_ddp_create(&dd, &ddp));
    T_TEXT("CDP_ONLY_F32", cdp_last_error()->text);
    cdp_group_destroy(g);
    world_close();
}

/* Ranks of other builds compare divisors with this one: as f64. */
TEST(factors_have_the_bits_of_f64) {
    static const float values[] = {0.0f, 1.0f, 2.0f, 3.0f, 0.1f, 1e30f, 1.5e-30f, 65504.0f};
    uint32_t i;
    for (i = 0; i < sizeof values / sizeof *values; ++i) {
        const double wide = (double)values[i];
        uint64_t bits;
        memcpy(&bits, &wide, 8);
        T(cdp__real_bits(values[i]) == bits);
        bits |= 1ull << 63;
        T(cdp__real_bits(-values[i]) == bits);
    }
}

TEST(a_hub_without_an_os_is_out_of_memory) {
    cdp_hub_desc d;
    cdp_hub *h = NULL;
    memset(&d, 0, sizeof d);
    d.world_size = 2;
    T_EQ(CDP_ERR_NOMEM, cdp_hub_create(&d, &h));
    T(h == NULL);
}

/* Ranks of one thread that polls them in turn. */
TEST(a_hub_works_in_one_thread) {
    cdp_hub_desc hd;
    cdp_hub *h = NULL;
    cdp_group *g[2] = {NULL, NULL};
    cdp_work works[2];
    static int32_t x[2][LONG];
    uint32_t i, k;
    world_open(0, 1, run_training);
    memset(&hd, 0, sizeof hd);
    hd.world_size = 2;
    hd.ring_bytes = 512;
    hd.os = &world.sides[0].os;
    T_EQ(CDP_OK, cdp_hub_create(&hd, &h));
    for (i = 0; i < 2; ++i) {
        cdp_group_desc d = train_group_desc(i, NULL, hd.os);
        d.hub = h;
        if (!T_EQ(CDP_OK, cdp_group_create(&d, &g[i]))) return;
        for (k = 0; k < LONG; ++k)
            x[i][k] = (int32_t)(k * 2 + i);
        T_EQ(CDP_OK,
            cdp_allreduce_async(g[i], x[i], x[i], LONG, CDP_DTYPE_I32, CDP_REDUCE_SUM, &works[i]));
    }
    for (i = 0; i < 100000
         && (cdp_work_test(works[0]) == CDP_PENDING || cdp_work_test(works[1]) == CDP_PENDING);
         ++i)
        (void)cdp_poll(g[i % 2], 0);
    for (i = 0; i < 2; ++i)
        for (k = 0; k < LONG; ++k)
            T_EQ((int)(k * 4 + 1), x[i][k]);
    cdp_group_destroy(g[0]);
    cdp_group_destroy(g[1]);
    cdp_hub_destroy(h);
    world_close();
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"two_ranks_without_a_system_train_as_one_program_does",
            two_ranks_without_a_system_train_as_one_program_does, 20},
        {"a_line_that_loses_and_changes_bytes_delivers_all",
            a_line_that_loses_and_changes_bytes_delivers_all, 60},
        {"small_sizes_move_long_vectors", small_sizes_move_long_vectors, 60},
        {"a_rank_that_does_not_take_part_is_named_at_the_deadline",
            a_rank_that_does_not_take_part_is_named_at_the_deadline, 20},
        {"without_memory_nothing_is_made_and_nothing_is_kept",
            without_memory_nothing_is_made_and_nothing_is_kept, 60},
        {"a_rank_that_starts_anew_is_noticed", a_rank_that_starts_anew_is_noticed, 20},
        {"an_os_is_required_and_whole", an_os_is_required_and_whole, 10},
        {"a_hub_works_in_one_thread", a_hub_works_in_one_thread, 20},
        {"other_floats_are_refused_by_name", other_floats_are_refused_by_name, 10},
        {"factors_have_the_bits_of_f64", factors_have_the_bits_of_f64, 10},
        {"a_hub_without_an_os_is_out_of_memory", a_hub_without_an_os_is_out_of_memory, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

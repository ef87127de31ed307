/* rpc_limits.c - small worlds of two ranks that call each other, in every order of steps

   With every limit at 1, at 2 and without, no state is reached in which calls wait for each other
   and nothing can happen any more, and no thread has more functions on its stack than there are
   levels. max_calls stands for the smaller one of max_calls and a rank's part of max_queue. All
   arguments are long ones, of one byte or two, which wait for memory where they arrive.

   The decisions are those of rpc/levels.h: which call may leave, which function a waiting thread
   may run. A chain begins outside functions, and each of its functions calls back the other rank
   and waits. Where max_running is limited, it is that of the function that calls no other one, and
   some calls of it begin outside functions. Defects that are planted into the decisions must be
   found. */
#define CDP_IMPLEMENTATION
#include "cdp_rpc.h"

#include "test.h"

enum {
    CHAINS = 4, /* two of each rank */
    DEPTH = 3,
    CALLS = CHAINS * DEPTH,
    THREADS = 2, /* of each rank, at most */
    STATES = 1 << 20
};

typedef enum stage {
    NOT_STARTED,
    WAITS_FOR_ROOM,
    WAITS_FOR_MEMORY,
    QUEUED,
    RUNS,
    DONE
} stage;

typedef struct state {
    uint8_t stage[CALLS];
    uint8_t stack[2][THREADS][DEPTH * CHAINS / 2 + 1]; /* calls, plus 1; those of each thread */
    uint8_t queue[2][CHAINS + 1]; /* the same; those of the function with max_running 1, in order */
} state;

typedef enum plant {
    PLANT_NONE,
    PLANT_ANY_LEVEL, /* a waiting thread runs any function */
    PLANT_ONE_QUOTA, /* calls from functions have no room of their own */
    PLANT_NOT_ALONE, /* one of each level may not always leave */
    PLANT_NOT_FIRST, /* a call that is larger than the limit of bytes never leaves */
    PLANT_NO_MEMORY, /* arguments of calls from functions have no room of their own */
    PLANT_IN_ORDER,  /* with max_running 1, no call passes an earlier one */
    PLANTS
} plant;

static struct {
    uint32_t workers, max_calls, max_depth, states, stuck;
    uint64_t max_call_bytes, max_queue_bytes;
    uint32_t max_running; /* of the last function of each chain; 0: no limit */
    uint32_t high;        /* more functions on one thread than there are levels */
    plant plant;
    state *seen;
} x;

static int32_t level_of(uint32_t c) {
    int32_t level = CDP__RPC_OUTSIDE;
    for (uint32_t d = 0; d <= c % DEPTH; ++d)
        level = cdp__level_of(level, false, x.max_depth);
    return level;
}
static uint32_t to_of(uint32_t c) {
    return (c / DEPTH + c % DEPTH + 1) % 2;
}
static bool nested(uint32_t c) {
    return c % DEPTH > 0;
}
/* The last call of a chain, of which some are short where max_running is limited. */
static bool is_last(uint32_t c) {
    return c % DEPTH + 1 == DEPTH || (x.max_running && c / DEPTH >= CHAINS / 2);
}
/* Its function calls another one and waits. */
static bool calls(uint32_t c) {
    return !is_last(c) && cdp__level_waits(level_of(c), x.max_depth);
}
static uint64_t bytes_of(uint32_t c) {
    return 1 + c % 2;
}
static bool has_memory(const state *s, uint32_t c) {
    return s->stage[c] == QUEUED || s->stage[c] == RUNS;
}
static bool in_flight(const state *s, uint32_t c) {
    return s->stage[c] == WAITS_FOR_MEMORY || has_memory(s, c);
}

static bool may_leave(const state *s, uint32_t c) {
    cdp__rpc_flight f = {0};
    bool alone = nested(c) && x.plant != PLANT_NOT_ALONE;
    for (uint32_t i = 0; i < CALLS; ++i) {
        if (!in_flight(s, i) || to_of(i) != to_of(c)) continue;
        if (nested(i) == nested(c) || x.plant == PLANT_ONE_QUOTA) {
            ++f.calls;
            f.bytes += bytes_of(i);
        }
        if (nested(i) && level_of(i) == level_of(c)) alone = false;
    }
    if (x.plant == PLANT_ONE_QUOTA) alone = false;
    if (x.plant == PLANT_NOT_FIRST && bytes_of(c) > x.max_call_bytes) return false;
    return cdp__flight_fits(&f, bytes_of(c), alone, x.max_calls, x.max_call_bytes);
}

/* As cdp__rpc_bytes_fit(). */
static bool may_be_fetched(const state *s, uint32_t c) {
    uint64_t held = 0, deep = 0;
    for (uint32_t i = 0; i < CALLS; ++i) {
        if (!has_memory(s, i) || to_of(i) != to_of(c)) continue;
        held += bytes_of(i);
        if (nested(i) && level_of(i) >= level_of(c)) deep += bytes_of(i);
    }
    const bool own = nested(c) && x.plant != PLANT_NO_MEMORY;
    return cdp__bytes_fit(held, deep, own, bytes_of(c), x.max_queue_bytes);
}

static void arrives(state *s, uint32_t c) {
    uint8_t *at = s->queue[to_of(c)];
    s->stage[c] = QUEUED;
    if (x.max_running != 1 || !is_last(c)) return;
    while (*at)
        ++at;
    *at = (uint8_t)(c + 1);
}
static void begins(state *s, uint32_t c) {
    uint8_t *at = s->queue[to_of(c)];
    s->stage[c] = RUNS;
    while (*at && *at != c + 1)
        ++at;
    for (; *at; ++at)
        at[0] = at[1];
}
/* Its function has not been begun too often, and no earlier request of it comes first. */
static bool may_begin(const state *s, uint32_t c) {
    const uint8_t *at = s->queue[to_of(c)];
    uint32_t running = 0;
    if (!x.max_running || !is_last(c)) return true;
    for (uint32_t i = 0; i < CALLS; ++i)
        running += s->stage[i] == RUNS && is_last(i) && to_of(i) == to_of(c);
    for (; *at && *at != c + 1; ++at)
        if (x.plant == PLANT_IN_ORDER || cdp__level_follows(level_of(c), level_of(*at - 1u)))
            return false;
    return running < x.max_running;
}

static uint32_t height(const uint8_t *stack) {
    uint32_t n = 0;
    while (stack[n])
        ++n;
    return n;
}
static bool may_run(const state *s, const uint8_t *stack, uint32_t c) {
    const uint32_t n = height(stack), top = n ? stack[n - 1] - 1u : 0;
    if (!n) return true;
    if (!calls(top) || s->stage[top + 1] == DONE) return false; /* it does not wait */
    return x.plant == PLANT_ANY_LEVEL || cdp__level_runs(level_of(top), level_of(c));
}

static void visit(const state *s);

/* A function returns, or begins what it waits for. True: something happened. */
static bool step_thread(const state *s, uint32_t rank, uint32_t t) {
    const uint8_t *stack = s->stack[rank][t];
    const uint32_t n = height(stack);
    bool any = false;
    state next;
    for (uint32_t c = 0; c < CALLS; ++c) {
        if (s->stage[c] != QUEUED || to_of(c) != rank || !may_run(s, stack, c)) continue;
        if (!may_begin(s, c)) continue;
        x.high += n >= DEPTH;
        if (x.high) return true;
        next = *s;
        begins(&next, c);
        next.stack[rank][t][n] = (uint8_t)(c + 1);
        visit(&next);
        any = true;
    }
    if (!n) return any;
    next = *s;
    if (!calls(stack[n - 1] - 1u) || s->stage[stack[n - 1]] == DONE) {
        next.stage[stack[n - 1] - 1u] = DONE;
        next.stack[rank][t][n - 1] = 0;
    } else if (s->stage[stack[n - 1]] == NOT_STARTED) {
        next.stage[stack[n - 1]] = WAITS_FOR_ROOM;
    } else {
        return any;
    }
    visit(&next);
    return true;
}

static bool is_new(const state *s) {
    uint64_t at = cdp__hash(CDP__HASH_START, s, sizeof *s);
    static const state none;
    while (memcmp(&x.seen[at % STATES], &none, sizeof none) != 0) {
        if (!memcmp(&x.seen[at % STATES], s, sizeof *s)) return false;
        ++at;
    }
    x.seen[at % STATES] = *s;
    return ++x.states < STATES / 2;
}

static void visit(const state *s) {
    bool any = false, all = true;
    if (x.stuck || x.high || !is_new(s)) return;
    for (uint32_t c = 0; c < CALLS; ++c) {
        state next = *s;
        all = all && (s->stage[c] == DONE || s->stage[c] == NOT_STARTED);
        if (s->stage[c] != WAITS_FOR_ROOM && s->stage[c] != WAITS_FOR_MEMORY) continue;
        if (s->stage[c] == WAITS_FOR_ROOM && !may_leave(s, c)) continue;
        if (may_be_fetched(s, c))
            arrives(&next, c); /* at once */
        else if (s->stage[c] == WAITS_FOR_ROOM)
            next.stage[c] = WAITS_FOR_MEMORY;
        else
            continue;
        visit(&next);
        any = true;
    }
    for (uint32_t rank = 0; rank < 2; ++rank)
        for (uint32_t t = 0; t < x.workers; ++t)
            any = step_thread(s, rank, t) || any;
    x.stuck += !any && !all;
}

/* All chains have been begun: the order in which they leave is explored. */
static void explore(plant planted) {
    state s;
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < CHAINS; ++i)
        s.stage[i * DEPTH] = WAITS_FOR_ROOM;
    x.plant = planted;
    x.states = x.stuck = x.high = 0;
    memset(x.seen, 0, STATES * sizeof *x.seen);
    visit(&s);
    T(planted || x.states > 20);
    T(planted || x.states < STATES / 2);
}

/* workers: 1 or 2; max_running: 0 for none; of other limits 0, 1, 2 for 1, 2 and none. */
static uint32_t explore_limits(uint32_t workers, uint32_t max_running, uint32_t calls,
    uint32_t depth, uint32_t call_bytes, uint32_t queue_bytes) {
    static const uint32_t limits[] = {1, 2, 255};
    x.workers = workers;
    x.max_running = max_running;
    x.max_calls = limits[calls];
    x.max_depth = limits[depth];
    x.max_call_bytes = limits[call_bytes];
    x.max_queue_bytes = limits[queue_bytes];
    explore(PLANT_NONE);
    if (!T_EQ(0, x.stuck + x.high))
        printf("  workers %u, max_running %u, max_calls %u, max_depth %u, max_call_bytes %u, "
               "max_queue_bytes %u\n",
            workers, max_running, x.max_calls, x.max_depth, limits[call_bytes],
            limits[queue_bytes]);
    return x.states;
}

static void explore_all(uint32_t max_running) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < 162; ++i) {
        const uint32_t n =
            explore_limits(1 + i % 2, max_running, i / 2 % 3, i / 6 % 3, i / 18 % 3, i / 54);
        if (n > most) most = n;
    }
    printf("  at most %u states\n", most);
}
TEST(no_limits_close_a_circle) {
    explore_all(0);
}
TEST(functions_that_run_once_close_no_circle) {
    explore_all(1);
}
TEST(functions_that_run_twice_close_no_circle) {
    explore_all(2);
}

TEST(planted_circles_are_found) {
    for (plant p = (plant)1; p < PLANTS; p = (plant)(p + 1)) {
        uint32_t found = 0;
        for (uint32_t i = 0; i < 4; ++i) {
            x.workers = 1 + i % 2;
            x.max_calls = 1 + i / 2;
            x.max_depth = 255;
            x.max_call_bytes = p == PLANT_NOT_FIRST ? 1 : 255;
            x.max_queue_bytes = p == PLANT_NO_MEMORY ? 2 : 255;
            x.max_running = p == PLANT_IN_ORDER;
            explore(p);
            found += x.stuck + x.high;
        }
        if (!T(found > 0)) printf("  plant %d\n", (int)p);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"no_limits_close_a_circle", no_limits_close_a_circle, 60},
        {"functions_that_run_once_close_no_circle", functions_that_run_once_close_no_circle, 60},
        {"functions_that_run_twice_close_no_circle", functions_that_run_twice_close_no_circle, 60},
        {"planted_circles_are_found", planted_circles_are_found, 60}};
    int failed;
    x.seen = (state *)calloc(STATES, sizeof *x.seen);
    if (!x.seen) return 1;
    failed = test_main(argc, argv, cases, sizeof cases / sizeof *cases);
    free(x.seen);
    return failed;
}

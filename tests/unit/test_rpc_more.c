/* test_rpc_more.c - what calls, references and an rpc do at their edges: no room until the
   deadline, threads that wait while others end, results that a program frees inside callbacks. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

#include <sys/wait.h>

/* Serves until *n is at least `want`. */
static void serve_until(side *s, const uint32_t *n, uint32_t want) {
    const uint64_t until = test_now_ns() + 20000000000ull;
    while (counted_of(n) < want && test_now_ns() < until)
        (void)!cdp_rpc_serve(s->rpc, 1);
    T(counted_of(n) >= want);
}

/* ---- functions of these tests ---- */

static uint8_t much[60000];
static void f_value_without_memory(void *user, cdp_rpc_request *q) {
    side *s = side_of(q);
    cdp_value v = counter_value(s, 1, iov_next());
    (void)user;
    for (uint32_t i = 0; i < 100 && !s->rpc->peers[q->from].queue; ++i) {
        cdp_call c = {0};
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = q->from, F("nothing"), BYTES(much, 60000), .one_way = true), &c));
    }
    T(s->rpc->peers[q->from].queue != NULL);
    counted.fail_at = counted.calls + 2; /* the first is for the lists of the value */
    OK(cdp_rpc_reply_value(q, &v));
    counted.fail_at = 0;
}
static void f_time(void *user, cdp_rpc_request *q) {
    (void)user;
    reply_i64(q, (int64_t)(q->deadline_ns - cdp_os_default()->now_ns(NULL)) / 1000000);
}
static void f_destroys(void *user, cdp_rpc_request *q);
static void f_own_step(void *user, cdp_rpc_request *q);
static void f_bad_value(void *user, cdp_rpc_request *q);
static void f_is_confirmed(void *user, cdp_rpc_request *q);
static void f_passes_on(void *user, cdp_rpc_request *q);
static void f_ends_it(void *user, cdp_rpc_request *q);
static void f_backward_here(void *user, cdp_rpc_request *q);
/* its tensors and bytes */
static void f_back(void *user, cdp_rpc_request *q) {
    const cdp_iov iov = {(void *)(uintptr_t)q->data, q->bytes};
    (void)user;
    OK(cdp_rpc_reply(q,
        &(cdp_args){
            .iov = &iov, .iov_count = 1, .tensors = q->tensors, .tensor_count = q->tensor_count}));
}

static const cdp_rpc_function more_functions[] = {
    {.name = "no_memory", .func = f_value_without_memory},
    {.name = "nothing", .func = f_nothing},
    {.name = "ordered", .func = f_time},
    {.name = "destroys", .func = f_destroys},
    {.name = "destroys_inline", .func = f_destroys, .flags = CDP_RPC_INLINE},
    {.name = "keep", .func = f_keep, .flags = CDP_RPC_LATER | CDP_RPC_INLINE},
    {.name = "counter", .func = f_counter},
    {.name = "count", .func = f_count},
    {.name = "echo", .func = f_echo, .flags = CDP_RPC_INLINE},
    {.name = "lend", .func = f_lend},
    {.name = "fail", .func = f_fail},
    {.name = "back", .func = f_back},
    {.name = "is_confirmed", .func = f_is_confirmed},
    {.name = "passes_on", .func = f_passes_on},
    {.name = "ends_it", .func = f_ends_it, .flags = CDP_RPC_LATER},
    {.name = "backward_here", .func = f_backward_here},
    {.name = "bad_value", .func = f_bad_value},
    {.name = "own_step", .func = f_own_step, .max_running = 1},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_rref", .func = f_weight_rref},
};
static void more(uint32_t n, void (*func)(side *s)) {
    like.functions = more_functions;
    like.function_count = sizeof more_functions / sizeof *more_functions;
    run(n, func);
}

/* ---- calls ---- */

/* max_calls are under way until the deadline of the next one, to others and to oneself: it never
   left, and nothing of it stays behind. */
static void no_room(side *s) {
    static uint32_t place;
    cdp_call kept[2] = {{0}}, c = {0};
    cdp_rref r;
    OK(cdp_rpc_start(s->rpc, CALL(.to = s->rank, F("keep")), &kept[0]));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &kept[1]));
    serve_until(s, &s->kept_count, 2);
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t to = i ? s->rank : next_of(s);
        OK(cdp_rpc_start(s->rpc, CALL(.to = to, F("nothing"), .timeout_ms = 5), &c));
        T_EQ(CDP_ERR_TIMEOUT, cdp_call_wait(&c));
        T_EQ(CDP_RAN_NO, c.ran);
        cdp_call_free(&c);
        REFUSED(CDP_ERR_TIMEOUT, "1 calls to rank",
            cdp_rpc_remote(s->rpc, CALL(.to = to, F("counter"), .timeout_ms = 5), &r));
        T(!r.rpc);
    }
    T_EQ(2, cdp_rpc_stats_of(s->rpc).calls_out);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).users + cdp_rpc_stats_of(s->rpc).owners);
    meet(s, &place);
    for (uint32_t i = 0; i < 2; ++i)
        OK(cdp_rpc_reply(s->kept[i], NULL));
    for (uint32_t i = 0; i < 2; ++i) {
        OK(cdp_call_wait(&kept[i]));
        cdp_call_free(&kept[i]);
    }
}
TEST(no_room_until_the_deadline) {
    like.max_calls = 1;
    run(2, no_room);
}

/* `done` frees its call, and the memory that the call lies in. */
typedef struct own_call {
    cdp_call call;
    side *s;
    uint8_t *sent;
} own_call;

static void free_in_done(void *user, cdp_call *ended) {
    own_call *o = (own_call *)user;
    side *s = o->s;
    T(ended == &o->call);
    T_EQ(CDP_OK, ended->status);
    T_EQ(100, ended->bytes);
    T_EQ(CDP_ERR_STATE, cdp_call_wait(ended));
    cdp_call_free(ended);
    T_EQ(0, ended->bytes);
    free(o->sent);
    memset(o, 0xee, sizeof *o);
    free(o);
    count(&s->ran);
}
static void frees_in_done(side *s) {
    for (uint32_t i = 0; i < 8; ++i) {
        own_call *o = (own_call *)calloc(1, sizeof *o);
        o->s = s;
        o->sent = (uint8_t *)calloc(1, 100);
        OK(cdp_rpc_start(s->rpc,
            CALL(.to = i % 2 ? s->rank : next_of(s), F("echo"), BYTES(o->sent, 100),
                .done = free_in_done, .user = o),
            &o->call));
    }
    serve_until(s, &s->ran, 8);
}
TEST(done_frees_its_call) {
    run(2, frees_in_done);
}

/* A call that waits for its turn has less time when it leaves, and says so. */
static void time_goes_on(side *s) {
    static uint32_t place;
    cdp_call c[2] = {{0}};
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("ordered"), .in_order = true), &c[0]));
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("ordered"), .in_order = true), &c[1]));
        cdp_lock_acquire(&s->rpc->lock); /* half a minute passes */
        cdp__rpc_call_find(s->rpc, c[1].priv[CDP__CALL_ID])->deadline_ns -= 30000000000u;
        cdp_lock_release(&s->rpc->lock);
        for (uint32_t i = 0; i < 2; ++i)
            OK(cdp_call_wait(&c[i]));
        T(i64_at(c[0].data, 0) > 30000 || TEST_SLOW);
        T(i64_at(c[1].data, 0) <= 30001);
        for (uint32_t i = 0; i < 2; ++i)
            cdp_call_free(&c[i]);
    }
    meet(s, &place);
}
TEST(a_call_that_waits_for_its_turn_says_what_time_is_left) {
    more(2, time_goes_on);
}

/* So does one whose long arguments wait for memory: it does not run after its time, also where
   nobody waits for it. */
static void waits_for_memory(side *s) {
    static uint8_t data[100000];
    static uint32_t place;
    cdp_call c = {0};
    if (s->rank == 0) {
        gather(&place);
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = 1, F("nothing"), BYTES(data, sizeof data), .one_way = true), &c));
        cdp_call_free(&c);
    } else {
        const uint64_t until = test_now_ns() + 10000000000ull;
        bool here = false;
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->in_bytes += s->rpc->desc.max_queue_bytes; /* there is no memory */
        cdp_lock_release(&s->rpc->lock);
        gather(&place);
        while (!here && test_now_ns() < until) {
            (void)!cdp_rpc_serve(s->rpc, 1);
            cdp_lock_acquire(&s->rpc->lock);
            here = s->rpc->in != NULL;
            if (here) s->rpc->in->came_ns -= 61000000000u; /* a minute passes */
            cdp_lock_release(&s->rpc->lock);
        }
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->in_bytes -= s->rpc->desc.max_queue_bytes;
        cdp_lock_release(&s->rpc->lock);
        T(here);
    }
    meet(s, &place);
    while (s->rank == 1 && !cdp_rpc_stats_of(s->rpc).refused
        && !counted_of(&s->ran)) { /* the next message moves it on */
        OK(cdp_rpc_call(s->rpc, CALL(.to = 0, F("nothing")), &c));
        cdp_call_free(&c);
    }
    meet(s, &place);
    T_EQ(0, s->rank == 1 ? s->ran : 0);
    T_EQ(s->rank, cdp_rpc_stats_of(s->rpc).late);
}
static void waits_for_memory_body(side *s) {
    if (how == HUB_POLLED) {
        open_then(s, waits_for_memory);
        OK(cdp_rpc_shutdown(s->rpc, 20000));
        cdp_rpc_destroy(s->rpc);
    }
}
TEST(time_goes_on_while_arguments_wait_for_memory) {
    shut_by_body = true;
    run(2, waits_for_memory_body);
}

/* ---- results in memory of the program ---- */

static bool into_is(const cdp_call *c, const void *at) {
    return T(c->data == at);
}
static void results_into(side *s) {
    static uint64_t rooms[RANKS_MAX][13000]; /* 104,000 bytes: long messages, too */
    static uint8_t sent[RANKS_MAX][100000];
    uint64_t *room = rooms[s->rank];
    uint8_t *data = sent[s->rank];
    const uint64_t sizes[] = {0, 1, 8, 40, 3000, 100000};
    cdp_rref r;
    for (uint32_t i = 0; i < sizeof sent[0]; ++i)
        data[i] = (uint8_t)(i * 7 + s->rank);
    for (uint32_t i = 0; i < 12; ++i) {
        const uint64_t n = sizes[i / 2];
        const uint32_t to = i % 2 ? s->rank : next_of(s);
        cdp_call c = {.into = {room, n}};
        memset(room, 0xee, sizeof rooms[0]);
        OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("echo"), BYTES(data, n)), &c));
        T_EQ(n, c.bytes);
        if (n) into_is(&c, room);
        T_EQ(0, memcmp(room, data, n));
        T_EQ(0xee, ((uint8_t *)room)[n]);
        cdp_call_free(&c);
        T(!c.into.data);
        if (!n) continue;
        c.into = (cdp_iov){room, n - 1};
        memset(room, 0xee, sizeof rooms[0]);
        T_EQ(CDP_ERR_INVALID, cdp_rpc_call(s->rpc, CALL(.to = to, F("echo"), BYTES(data, n)), &c));
        T_TEXT("into of the cdp_call has room for", c.error.text);
        T_EQ(CDP_RAN_YES, c.ran);
        T_EQ(0xee, ((uint8_t *)room)[0]);
        cdp_call_free(&c);
    }
    int64_t x = 77;
    cdp_call c = {.into = {room, 0}}; /* references alone need no room there */
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("lend"), BYTES(&x, 8)), &c));
    if (!T_EQ(1, c.rref_count)) return;
    r = c.rrefs[0];
    cdp_call f = {.into = {room, 8}};
    OK(cdp_rref_to_here(r, 0, &f));
    T_EQ(77, i64_at(room, 0));
    into_is(&f, room);
    cdp_call_free(&f);
    cdp_call_free(&c);
    c.into = (cdp_iov){(uint8_t *)room + 4, 8};
    REFUSED(CDP_ERR_INVALID, "aligned to 8 bytes",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("nothing")), &c));
    c.into = (cdp_iov){NULL, 8};
    REFUSED(CDP_ERR_INVALID, "aligned to 8 bytes",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("nothing")), &c));
}
TEST(results_in_memory_of_the_program) {
    more(2, results_into);
}

/* Tensors come there, too; and a call that ended writes nothing there any more (I13). */
static void into_tensors(side *s) {
    static uint32_t place;
    double room[6] = {0}, x[4] = {1, 2, 3, 4};
    const cdp_tensor t = f64s(x, 4, 0);
    int64_t word = 9;
    cdp_call c = {.into = {room, sizeof room}};
    OK(cdp_rpc_call(s->rpc,
        CALL(.to = next_of(s), F("back"),
            .args =
                {.iov = &(cdp_iov){&word, 8}, .iov_count = 1, .tensors = &t, .tensor_count = 1}),
        &c));
    if (!T_EQ(1, c.tensor_count)) return;
    T(c.tensors[0].data == room);
    T_EQ(0, memcmp(room, x, sizeof x));
    T(c.data == room + 4);
    T_EQ(9, i64_at(c.data, 0));
    cdp_call_free(&c);
    c.into = (cdp_iov){room, sizeof room};
    memset(room, 0xee, sizeof room);
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &c));
    serve_until(s, &s->kept_count, 1);
    OK(cdp_call_cancel(&c));
    cdp_call_free(&c);
    meet(s, &place);
    reply_i64(s->kept[0], 5);
    meet(s, &place);
    T_EQ(0xee, ((uint8_t *)room)[0]);
}
TEST(tensors_in_memory_of_the_program) {
    more(2, into_tensors);
}

/* ---- limits, counts, records ---- */

static void call_bytes(side *s) {
    static uint8_t data[RANKS_MAX][1000];
    static uint32_t place;
    cdp_call kept[2] = {{0}}, c = {0};
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("keep"), BYTES(data[s->rank], 600)), &kept[0]));
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("keep"), BYTES(data[s->rank], 400)), &kept[1]));
    serve_until(s, &s->kept_count, 2);
    T_EQ(1000, cdp_rpc_stats_of(s->rpc).call_bytes);
    T_EQ(2, cdp_rpc_stats_of(s->rpc).kept);
    REFUSED(CDP_ERR_BUSY, "are under way, with 1000 bytes",
        cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep"), BYTES(data[s->rank], 1)), &c));
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing"), BYTES(data[s->rank], 1000)), &c));
    cdp_call_free(&c); /* each rank has its own bytes, and one call may have more than there are */
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing"), BYTES(data[s->rank], 1000)), &c));
    cdp_call_free(&c);
    meet(s, &place);
    for (uint32_t i = 0; i < 2; ++i)
        OK(cdp_rpc_reply(s->kept[i], NULL));
    for (uint32_t i = 0; i < 2; ++i) {
        OK(cdp_call_wait(&kept[i]));
        cdp_call_free(&kept[i]);
    }
    T_EQ(0, cdp_rpc_stats_of(s->rpc).call_bytes);
    meet(s, &place);
}
TEST(bytes_of_arguments_under_way_are_limited) {
    like.max_call_bytes = 1000;
    like.fail_when_full = true;
    more(2, call_bytes);
}

/* One more waits until there is room. */
static void call_bytes_wait(side *s) {
    static uint8_t data[RANKS_MAX][900];
    cdp_call c[8] = {{0}};
    for (uint32_t i = 0; i < 8; ++i) {
        OK(cdp_rpc_start(
            s->rpc, CALL(.to = next_of(s), F("nothing"), BYTES(data[s->rank], 900)), &c[i]));
        T(cdp_rpc_stats_of(s->rpc).call_bytes <= 1000);
    }
    for (uint32_t i = 0; i < 8; ++i) {
        OK(cdp_call_wait(&c[i]));
        cdp_call_free(&c[i]);
    }
}
TEST(calls_wait_until_there_is_room_for_their_bytes) {
    like.max_call_bytes = 1000;
    more(2, call_bytes_wait);
}

static const cdp_rpc_record *record_of(
    const cdp_rpc_record *r, uint32_t n, uint32_t from, uint32_t to, const char *name) {
    for (uint32_t i = n; i-- > 0;)
        if (r[i].from == from && r[i].to == to && r[i].function == cdp_rpc_id(name)) return &r[i];
    return NULL;
}
static void recorded(side *s) {
    static cdp_rpc_record all[RANKS_MAX][300];
    static uint32_t place;
    cdp_rpc_record *r = all[s->rank];
    const cdp_rpc_record *one, *other;
    int64_t x[2] = {1, 0};
    cdp_call c = {0};
    cdp_rref made;
    uint32_t n;
    T_EQ(0, cdp_rpc_records(s->rpc, NULL, 5) + cdp_rpc_records(NULL, r, 5));
    OK(cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("echo"), BYTES(x, 16)), &c));
    cdp_call_free(&c);
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("nothing"), .one_way = true), &c));
    cdp_call_free(&c);
    T_EQ(CDP_ERR_REMOTE, cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("fail")), &c));
    cdp_call_free(&c);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("none_such")), &c));
    cdp_call_free(&c);
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &made));
    OK(cdp_rref_to_here(made, 0, &c));
    cdp_call_free(&c);
    cdp_rref_drop(made);
    T_EQ(CDP_ERR_TIMEOUT,
        cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("keep"), .timeout_ms = 1), &c));
    cdp_call_free(&c);
    meet(s, &place);
    n = cdp_rpc_records(s->rpc, r, 300);
    for (uint32_t i = 1; i < n; ++i)
        T(r[i].start_ns >= r[i - 1].start_ns);
    one = record_of(r, n, s->rank, next_of(s), "echo");
    if (!T(one != NULL)) return;
    T_EQ(CDP_OK, one->status);
    T_EQ(CDP_RAN_YES, one->ran);
    T(one->start_ns && one->sent_ns >= one->start_ns && one->end_ns >= one->sent_ns);
    T(!one->run_ns && !one->replied_ns);
    one = record_of(r, n, next_of(s), s->rank, "echo"); /* of two ranks: it came */
    if (!T(one != NULL)) return;
    T_EQ(CDP_OK, one->status);
    T(one->start_ns && one->run_ns >= one->start_ns && one->replied_ns >= one->run_ns);
    T(!one->sent_ns && !one->end_ns);
    one = record_of(r, n, s->rank, s->rank, "fail");
    if (!T(one != NULL)) return;
    T_EQ(CDP_ERR_REMOTE, one->status);
    T(one->run_ns && one->replied_ns && one->end_ns);
    one = record_of(r, n, s->rank, next_of(s), "none_such");
    other = record_of(r, n, next_of(s), s->rank, "none_such");
    if (!T(one != NULL && other != NULL)) return;
    T_EQ(CDP_ERR_UNSUPPORTED, one->status);
    T_EQ(CDP_RAN_NO, one->ran);
    T_EQ(CDP_ERR_UNSUPPORTED, other->status);
    T(!other->run_ns);
    one = record_of(r, n, s->rank, next_of(s), "keep");
    if (!T(one != NULL)) return;
    T_EQ(CDP_ERR_TIMEOUT, one->status);
    one = record_of(r, n, s->rank, next_of(s), "nothing");
    if (!T(one != NULL)) return;
    T(one->end_ns != 0);
    const cdp_rpc_stats st = cdp_rpc_stats_of(s->rpc);
    T_EQ(1, st.one_way);
    T(st.late >= 1 && st.bytes_out && st.bytes_in);
    T(st.p50_ns && st.p50_ns <= st.p99_ns && st.p99_ns <= st.worst_ns);
    T_EQ(s->rpc->desc.workers, st.workers);
    for (uint32_t i = 0; i < 300; ++i) {
        OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("echo"), BYTES(x, 16)), &c));
        cdp_call_free(&c);
    }
    T_EQ(256, cdp_rpc_records(s->rpc, r, 300));
    T_EQ(s->rank, r[5].to);
    T_EQ(2, cdp_rpc_records(s->rpc, r, 2));
    T(r[1].end_ns != 0);
    meet(s, &place);
    for (uint32_t i = 0; i < counted_of(&s->kept_count); ++i)
        OK(cdp_rpc_reply(s->kept[i], NULL));
    meet(s, &place);
}
TEST(the_last_calls_are_recorded) {
    more(2, recorded);
}

/* ---- ends ---- */

/* An rpc is not destroyed by what it runs. */
static void f_destroys(void *user, cdp_rpc_request *q) {
    (void)user;
    cdp_rpc_destroy(q->rpc);
    T_EQ(CDP_ERR_STATE, cdp_last_error()->status);
    T_TEXT("a function or a callback must not destroy", cdp_last_error()->text);
    count(&side_of(q)->ran);
}
static void destroys_in_done(void *user, cdp_call *ended) {
    side *s = (side *)user;
    T_EQ(CDP_OK, ended->status);
    cdp_rpc_destroy(s->rpc);
    T_TEXT("a function or a callback must not destroy", cdp_last_error()->text);
}
static void destroyed_inside(side *s) {
    static const char *const names[] = {"destroys", "destroys_inline"};
    static uint32_t place;
    for (uint32_t i = 0; i < 2; ++i) {
        cdp_call c = {0};
        OK(cdp_rpc_call(s->rpc,
            CALL(.to = next_of(s), .function = cdp_rpc_id(names[i]), .done = destroys_in_done,
                .user = s),
            &c));
        cdp_call_free(&c);
    }
    serve_until(s, &s->ran, 2);
    meet(s, &place);
}
TEST(destroying_inside_a_function_is_refused) {
    more(2, destroyed_inside);
}

/* Threads that serve, or ask for a reference, while another one shuts the rpc down: they end with
   it, and not with an error. */
static void *serve_main(void *arg) {
    side *s = (side *)arg;
    count(&s->ran);
    OK(cdp_rpc_serve(s->rpc, 20000));
    return NULL;
}
static void served(side *s) {
    pthread_t t[3];
    static uint32_t place;
    for (uint32_t i = 0; i < 3; ++i)
        pthread_create(&t[i], NULL, serve_main, s);
    serve_until(s, &s->ran, 3);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    for (uint32_t i = 0; i < 3; ++i)
        pthread_join(t[i], NULL);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void served_body(side *s) {
    open_then(s, served);
}
TEST(threads_that_serve_end_with_the_rpc) {
    for (uint32_t i = 0; i < 3; ++i) {
        shut_by_body = true;
        run(2, served_body);
    }
}

static void until_one_waits(side *s) {
    const uint64_t until = test_now_ns() + 10000000000ull;
    uint32_t waiters = 0;
    while (!waiters && test_now_ns() < until) {
        test_sleep_ms(1);
        cdp_lock_acquire(&s->rpc->lock);
        waiters = s->rpc->waiters;
        cdp_lock_release(&s->rpc->lock);
    }
    T_EQ(1, waiters);
}

/* A reference is dropped as a leak while another thread waits until it is confirmed. */
static void *confirm_main(void *arg) {
    const cdp_rref *r = (const cdp_rref *)arg;
    REFUSED(CDP_ERR_STATE, "dropped", cdp_rref_confirmed(*r, 20000));
    return NULL;
}
static void leaks_while_asked(side *s) {
    static uint32_t place;
    int64_t x[2] = {1, 0};
    char text[160];
    cdp_rref r;
    pthread_t t;
    gather(&place);
    if (s->rank == 0) {
        OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("counter"), BYTES(x, 16)), &r));
        pthread_create(&t, NULL, confirm_main, &r);
        until_one_waits(s);
        cdp_lock_acquire(&s->rpc->lock);
        T_EQ(1, cdp__rpc_drop_leaks(s->rpc, text));
        cdp_lock_release(&s->rpc->lock);
    }
    gather(&place);
    meet(s, &place); /* now rank 1 confirms */
    if (s->rank == 0) pthread_join(t, NULL);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void leaks_while_asked_body(side *s) {
    if (how == HUB_POLLED) open_then(s, leaks_while_asked);
}
TEST(a_leak_that_another_thread_asks_for) {
    shut_by_body = true;
    run(2, leaks_while_asked_body);
}

/* A context is ended by one thread while another one shuts the rpc down. */
static void *end_main(void *arg) {
    OK(cdp_ctx_end((cdp_ctx *)arg, 20000));
    return NULL;
}
static void ends_twice(side *s) {
    static uint32_t place;
    cdp_call c = {0};
    cdp_ctx *ctx = NULL;
    pthread_t t;
    if (s->rank == 0) {
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing"), .ctx = ctx), &c));
        cdp_call_free(&c);
    } else {
        serve_until(s, &s->ran, 1);
        (void)!cdp_rpc_serve(s->rpc, 1);
    }
    gather(&place);
    if (s->rank == 0) {
        pthread_create(&t, NULL, end_main, ctx);
        until_one_waits(s);
        cdp_lock_acquire(&s->rpc->lock);
        T_EQ(0, cdp__rpc_end_contexts(s->rpc));
        cdp_lock_release(&s->rpc->lock);
    }
    gather(&place);
    meet(s, &place); /* now rank 1 answers */
    if (s->rank == 0) pthread_join(t, NULL);
    meet(s, &place);
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    cdp_rpc_destroy(s->rpc);
}
static void ends_twice_body(side *s) {
    if (how == HUB_POLLED) open_then(s, ends_twice);
}
TEST(a_context_that_two_threads_end) {
    shut_by_body = true;
    more(2, ends_twice_body);
}

/* Values and results that cannot be sent: a sentence, and the call fails. */
static void f_bad_value(void *user, cdp_rpc_request *q) {
    const int64_t kind = i64_at(q->data, 0);
    const cdp_iov none = {NULL, 8};
    const cdp_tensor t = {.dtype = CDP_DTYPE_F32, .dims = 9};
    cdp_value v = {.data = NULL};
    (void)user;
    if (kind == 0)
        REFUSED(CDP_ERR_INVALID, "args.iov[0] has no memory",
            cdp_rpc_reply(q, &(cdp_args){.iov = &none, .iov_count = 1}));
    if (kind == 1)
        REFUSED(
            CDP_ERR_INVALID, "args.rrefs is NULL", cdp_rpc_reply(q, &(cdp_args){.rref_count = 1}));
    v.plain = (cdp_args){.tensors = &t, .tensor_count = 1};
    if (kind == 2) REFUSED(CDP_ERR_INVALID, "tensors[0] has dtype", cdp_rpc_reply_value(q, &v));
    count(&side_of(q)->ran);
}
static void bad_values(side *s) {
    static uint32_t place;
    const cdp_tensor t = {.dtype = CDP_DTYPE_F32, .dims = 9};
    cdp_value v = {.plain = {.tensors = &t, .tensor_count = 1}};
    cdp_tensor later = {.dtype = CDP_DTYPE_F32};
    float one = 1;
    cdp_call c = {0};
    cdp_rref r;
    REFUSED(CDP_ERR_INVALID, "cdp_rref_create: tensors[0] has dtype",
        cdp_rref_create(s->rpc, &v, NULL, &r));
    later.data = &one;
    v.plain.tensors = &later;
    OK(cdp_rref_create(s->rpc, &v, NULL, &r));
    later.dims = 9; /* it was copied */
    OK(cdp_rref_to_here(r, 0, &c));
    T_EQ(1, c.tensor_count);
    cdp_call_free(&c);
    cdp_rref_drop(r);
    for (int64_t kind = 0; kind < 3; ++kind) {
        T_EQ(CDP_ERR_INVALID,
            cdp_rpc_call(s->rpc, CALL(.to = next_of(s), F("bad_value"), BYTES(&kind, 8)), &c));
        T_EQ(CDP_RAN_YES, c.ran);
        cdp_call_free(&c);
    }
    int64_t kind = 2;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("bad_value"), BYTES(&kind, 8)), &r));
    T_EQ(CDP_ERR_INVALID, cdp_rref_to_here(r, 0, &c));
    cdp_call_free(&c);
    cdp_rref_drop(r);
    serve_until(s, &s->ran, 4);
    cdp_rpc_function f = {.name = "f", .func = f_nothing, .flags = 8};
    cdp_rpc_desc d = desc_of(s);
    cdp_rpc *other;
    d.functions = &f;
    d.function_count = 1;
    REFUSED(CDP_ERR_INVALID, "has flags 0x8", cdp_rpc_create(&d, &other));
    meet(s, &place);
}
TEST(values_that_cannot_be_sent) {
    more(2, bad_values);
}

/* A request that is kept longer than its rpc: the value that it runs on is gone. */
static void outlives(side *s) {
    static uint32_t place;
    cdp_value v = counter_value(s, 1, iov_next());
    cdp_call c = {0};
    cdp_rref r;
    OK(cdp_rref_create(s->rpc, &v, NULL, &r));
    OK(cdp_rpc_start(s->rpc, CALL(.on = r, F("keep")), &c));
    serve_until(s, &s->kept_count, 1);
    T(s->kept[0]->on != NULL);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
    T_EQ(1, s->values.destroyed);
    T(s->kept[0]->on == NULL);
    T(cdp_rpc_cancelled(s->kept[0]));
    T_EQ(CDP_ERR_STATE, c.status);
    OK(cdp_rpc_reply(s->kept[0], NULL));
}
static void outlives_body(side *s) {
    open_then(s, outlives);
}
TEST(a_kept_request_outlives_its_value) {
    shut_by_body = true;
    run(2, outlives_body);
}

/* ---- a child of fork() ---- */

typedef struct parts {
    cdp_call ended, under_way;
    cdp_rref mine, far;
    cdp_ctx *ctx;
} parts;

static bool is_told(cdp_status st) {
    return st == CDP_ERR_INVALID && cdp_last_error()->status == CDP_ERR_INVALID
        && strstr(cdp_last_error()->text, "this process is a child, by fork()") != NULL;
}
/* In the child, where only this thread is. Returns the first function that was not refused. */
static int child_main(side *s, parts *p) {
    cdp_call c = {0};
    cdp_call *one = &p->under_way;
    const cdp_value value = {.data = p};
    cdp_rref_info info;
    cdp_rpc_record record;
    cdp_dist_optim *optim;
    cdp_value v;
    cdp_work w;
    cdp_rref r;
    cdp_ctx *ctx;
    uint32_t which;
    uint64_t number;
    char text[100];
    alarm(30);
    if (!is_told(cdp_rpc_call(s->rpc, CALL(F("nothing")), &c))) return 1;
    if (!is_told(cdp_rpc_start(s->rpc, CALL(F("nothing")), &c))) return 2;
    if (!is_told(cdp_rpc_remote(s->rpc, CALL(F("counter")), &r))) return 3;
    if (!is_told(cdp_call_wait(one)) || !is_told(cdp_call_test(one))) return 4;
    if (!is_told(cdp_call_wait_for(one, 5)) || !is_told(cdp_call_wait_all(&one, 1))) return 5;
    if (!is_told(cdp_call_wait_any(&one, 1, 5, &which))) return 6;
    if (!is_told(cdp_call_cancel(one)) || !is_told(cdp_call_work(one, &w))) return 7;
    if (!is_told(cdp_rref_create(s->rpc, &value, NULL, &r))) return 8;
    if (!is_told(cdp_rref_fetch(p->far, 0, &c)) || !is_told(cdp_rref_to_here(p->far, 0, &c)))
        return 9;
    if (!is_told(cdp_rref_local(p->mine, 0, 0, &v))) return 10;
    if (!is_told(cdp_rref_confirmed(p->far, 0)) || !is_told(cdp_rref_info_of(p->far, &info)))
        return 11;
    if (!is_told(cdp_rpc_reply(s->kept[0], NULL)) || !is_told(cdp_rpc_fail(s->kept[0], 1, NULL)))
        return 12;
    if (!is_told(cdp_rpc_reply_value(s->kept[0], &value)) || !cdp_rpc_cancelled(s->kept[0]))
        return 13;
    if (!is_told(cdp_ctx_begin(s->rpc, &ctx)) || !is_told(cdp_ctx_end(p->ctx, 5))) return 14;
    if (!is_told(cdp_ctx_value(p->ctx, &number)) || cdp_ctx_grad_rows(p->ctx, 1)) return 15;
    if (!is_told(cdp_rpc_poll(s->rpc, 0)) || !is_told(cdp_rpc_serve(s->rpc, 5))
        || !is_told(cdp_rpc_shutdown(s->rpc, 5)))
        return 16;
    if (cdp_rpc_alive(s->rpc, 0) || cdp_rpc_stats_of(s->rpc).calls_out) return 17;
    if (cdp_rpc_describe(s->rpc, text, 100) || cdp_rpc_records(s->rpc, &record, 1)) return 18;
    if (!is_told(cdp_dist_optim_create(
            &(cdp_optim_desc){
                .rpc = s->rpc, .params = &p->mine, .param_count = 1, .kind = CDP_OPTIM_SGD},
            &optim)))
        return 19;
    cdp_rref_keep(p->far);
    if (!is_told(cdp_last_error()->status)) return 20;
    cdp_rref_drop(p->far);
    cdp_rref_drop(p->mine);
    cdp_call_free(&p->ended);
    cdp_rpc_destroy(s->rpc);
    return is_told(cdp_last_error()->status) ? 0 : 21;
}
static void forks(side *s) {
    static uint32_t place;
    parts p = {.ctx = NULL};
    cdp_value v = counter_value(s, 3, iov_next());
    int64_t x[2] = {5, 0};
    int result = -1;
    OK(cdp_rref_create(s->rpc, &v, NULL, &p.mine));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = next_of(s), F("counter"), BYTES(x, 16)), &p.far));
    OK(cdp_rref_to_here(p.far, 0, &p.ended));
    OK(cdp_rpc_start(s->rpc, CALL(.to = next_of(s), F("keep")), &p.under_way));
    OK(cdp_ctx_begin(s->rpc, &p.ctx));
    serve_until(s, &s->kept_count, 1);
    meet(s, &place);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(child_main(s, &p));
    T_EQ(child, waitpid(child, &result, 0));
    T(WIFEXITED(result));
    T_EQ(0, WEXITSTATUS(result));
    meet(s, &place); /* and here nothing was lost */
    OK(cdp_rpc_reply(s->kept[0], NULL));
    OK(cdp_call_wait(&p.under_way));
    cdp_call_free(&p.under_way);
    T_EQ(5, i64_at(p.ended.data, 0));
    cdp_call_free(&p.ended);
    OK(cdp_rref_to_here(p.far, 0, &p.ended));
    cdp_call_free(&p.ended);
    OK(cdp_ctx_end(p.ctx, 0));
    T_EQ(2, cdp_rpc_stats_of(s->rpc).owners);
    meet(s, &place);
    cdp_rref_drop(p.far);
    cdp_rref_drop(p.mine);
}
TEST(a_child_of_fork_is_told_and_loses_nothing) {
    more(2, forks);
}

/* ---- an update rule of the program ---- */

/* w -= lr * gradient, for every parameter that has one */
static void f_own_step(void *user, cdp_rpc_request *q) {
    double set[2];
    (void)user;
    if (!T_EQ(sizeof set, q->bytes) || !T_EQ(2, q->rref_count)) return;
    memcpy(set, q->data, sizeof set);
    if (set[1] != 0) {
        OK(cdp_rpc_fail(q, 9, "no decay here"));
        return;
    }
    for (uint32_t i = 0; i < q->rref_count; ++i) {
        cdp_value v;
        cdp_tensor g;
        uint64_t number;
        if (!OK(cdp_rref_local(q->rrefs[i], 0, 0, &v))) return;
        if (OK(cdp_ctx_param(q->ctx, q->rrefs[i], &number)) && OK(cdp_ctx_grad(q->ctx, number, &g))
            && g.data) {
            double *w = (double *)v.plain.tensors[0].data;
            for (uint32_t k = 0; k < 4; ++k)
                w[k] -= set[0] * ((const double *)g.data)[k];
            count(&side_of(q)->ran);
        }
        cdp_rref_unpin(q->rrefs[i]);
    }
}
static void own_rule(side *s) {
    static uint32_t place;
    const uint32_t to = next_of(s);
    double x[4] = {1, -2, 3, 4}, w[4];
    cdp_optim_desc d = {.rpc = s->rpc,
        .kind = CDP_OPTIM_OWN,
        .param_count = 4,
        .lr = .5,
        .own_function = cdp_rpc_id("own_step")};
    cdp_rref params[4];
    cdp_dist_optim *optim;
    cdp_call get[2] = {{0}}, c = {0};
    cdp_ctx *ctx;
    uint64_t number;
    weights_open(s);
    meet(s, &place);
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 2; ++i) {
            OK(cdp_rpc_call(s->rpc, CALL(.to = i, F("weight_rref")), &get[i]));
            params[i] = params[2 + i] = get[i].rrefs[0]; /* each twice: two for each owner */
        }
        d.params = params;
        d.own_function = 0;
        REFUSED(CDP_ERR_INVALID, "set own_function", cdp_dist_optim_create(&d, &optim));
        d.own_function = cdp_rpc_id("own_step");
        d.kind = CDP_OPTIM_SGD;
        REFUSED(CDP_ERR_INVALID, "set own_function", cdp_dist_optim_create(&d, &optim));
        d.kind = CDP_OPTIM_OWN;
        if (!OK(cdp_dist_optim_create(&d, &optim))) return;
        memcpy(w, weights_of[to].w, sizeof w);
        OK(cdp_ctx_begin(s->rpc, &ctx));
        OK(cdp_ctx_value(ctx, &number));
        const cdp_tensor t = f64s(x, 4, number);
        OK(mul(s, ctx, to, "mul", 0, &t, &c));
        OK(cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &c.tensors[0], .root_count = 1}));
        OK(cdp_dist_optim_step(optim, ctx));
        for (uint32_t k = 0; k < 4; ++k)
            w[k] = (w[k] - .5 * x[k]) - .5 * x[k];
        (void)cdp_rpc_stats_of(weights_of[to].owner->rpc); /* its lock orders what was written */
        T(!memcmp(w, weights_of[to].w, sizeof w));
        T_EQ(0, sides[0].ran); /* no gradient there */
        OK(cdp_dist_optim_set(optim, CDP_OPTIM_ZERO, 1));
        REFUSED(CDP_ERR_REMOTE, "failed on rank 0 1; first: own_step on rank 0",
            cdp_dist_optim_step(optim, ctx));
        T(!memcmp(w, weights_of[to].w, sizeof w));
        cdp_dist_optim_destroy(optim);
        d.own_function = cdp_rpc_id("nobody has it");
        OK(cdp_dist_optim_create(&d, &optim));
        T_EQ(CDP_ERR_UNSUPPORTED, cdp_dist_optim_step(optim, ctx));
        cdp_dist_optim_destroy(optim);
        cdp_call_free(&c);
        OK(cdp_ctx_end(ctx, 0));
        for (uint32_t i = 0; i < 2; ++i)
            cdp_call_free(&get[i]);
    }
    meet(s, &place);
    weights_close(s);
}
TEST(an_update_rule_of_the_program) {
    more(2, own_rule);
}

/* ---- scenarios ---- */

/* user_rrefs_confirmed: soon true where the reference was made; user_rrefs_confirmed_remote: true
   inside the function that gets it. */
static void f_is_confirmed(void *user, cdp_rpc_request *q) {
    (void)user;
    reply_i64(q, cdp_rref_confirmed(q->rrefs[0], 0));
}
static void confirmed(side *s) {
    const uint32_t owner = next_of(s), third = (s->rank + 2) % ranks;
    int64_t x[2] = {4, 0};
    cdp_call c = {0};
    cdp_rref r;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = owner, F("counter"), BYTES(x, 16)), &r));
    for (uint32_t i = 0; i < 2; ++i) { /* its owner, and a rank that gets it from this one */
        OK(cdp_rpc_call(s->rpc, CALL(.to = i ? owner : third, F("is_confirmed"), RREF(r)), &c));
        T_EQ(CDP_OK, i64_at(c.data, 0));
        cdp_call_free(&c);
    }
    OK(cdp_rref_confirmed(r, 20000));
    OK(cdp_rref_confirmed(r, 0));
    cdp_rref_drop(r);
}
TEST(user_rrefs_confirmed) {
    more(3, confirmed);
}

/* handle_send_exceptions: the callee is gone: pending calls and new ones fail, nothing else. */
static void callee_gone(side *s) {
    static uint32_t place;
    cdp_call pending = {0}, c = {0};
    if (s->rank == 0) OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &pending));
    if (s->rank == 1) {
        serve_until(s, &s->kept_count, 1);
        cdp_rpc_destroy(s->rpc);
        OK(cdp_rpc_reply(s->kept[0], NULL));
    } else if (s->rank == 0) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&pending));
        T_EQ(1, pending.error.peer);
        T_EQ(CDP_RAN_UNKNOWN, pending.ran);
        cdp_call_free(&pending);
        for (uint32_t i = 0; i < 3; ++i) {
            T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing")), &c));
            T_EQ(CDP_RAN_NO, c.ran);
            T_TEXT("nothing on rank 1", c.error.text);
            cdp_call_free(&c);
        }
        OK(cdp_rpc_call(s->rpc, CALL(.to = 2, F("nothing")), &c)); /* and rank 2 goes on */
        cdp_call_free(&c);
    } else {
        serve_until(s, &s->ran, 1);
    }
    gather(&place);
    if (s->rank != 1) cdp_rpc_destroy(s->rpc);
}
static void callee_gone_body(side *s) {
    open_then(s, callee_gone);
}
TEST(handle_send_exceptions) {
    shut_by_body = true;
    more(3, callee_gone_body);
}

/* worker_ids_recorded, context_cleanup: of a context with gradients, without tensors, and through
   nested calls; every rank that a call reached takes part, and after the end none does. */
static void f_passes_on(void *user, cdp_rpc_request *q) {
    cdp_call c = {0};
    (void)user;
    OK(cdp_rpc_call(q->rpc, CALL(.to = next_of(side_of(q)), F("nothing"), .ctx = q->ctx), &c));
    cdp_call_free(&c);
}
static void cleaned(side *s) {
    static const char *const names[] = {"nothing", "mul", "passes_on"};
    static uint32_t place;
    double x[4] = {1, 2, 3, 4};
    weights_open(s);
    meet(s, &place);
    for (uint32_t turn = 0; turn < 3 * ranks; ++turn) {
        if (turn % ranks == s->rank) {
            const uint32_t kind = turn / ranks;
            cdp_tensor t = f64s(x, 4, 0);
            cdp_call c = {0};
            cdp_ctx *ctx;
            OK(cdp_ctx_begin(s->rpc, &ctx));
            if (kind == 1) OK(cdp_ctx_value(ctx, &t.value));
            OK(mul(s, ctx, next_of(s), names[kind], 0, &t, &c));
            for (uint32_t r = 0; r < ranks; ++r)
                T_EQ(r == s->rank || r == next_of(s) || kind == 2,
                    cdp_rpc_stats_of(sides[r].rpc).contexts);
            cdp_call_free(&c);
            OK(cdp_ctx_end(ctx, 0));
            for (uint32_t r = 0; r < ranks; ++r)
                T_EQ(0, cdp_rpc_stats_of(sides[r].rpc).contexts);
        }
        meet(s, &place);
    }
    weights_close(s);
}
TEST(context_cleanup) {
    more(3, cleaned);
}

/* backward_without_rpc: a graph of this rank alone. clean_context_during_backward: another rank
   ends the context in the middle of a pass, which fails then; nothing is left. */
typedef struct layers {
    side *s;
    uint32_t fired, stop_at;
} layers;
static cdp_ctx *to_be_ended;

static void f_ends_it(void *user, cdp_rpc_request *q) {
    (void)user;
    OK(cdp_ctx_end(to_be_ended, 0));
    OK(cdp_rpc_reply(q, NULL));
}
static cdp_status b_layer(void *user, cdp_backward *b) {
    layers *l = (layers *)user;
    double *g = (double *)cdp_backward_alloc(b, 32);
    if (++l->fired == l->stop_at) {
        cdp_call c = {0};
        OK(cdp_rpc_call(l->s->rpc, CALL(.to = 0, F("ends_it")), &c));
        cdp_call_free(&c);
    }
    for (uint32_t k = 0; k < 4; ++k)
        g[k] = 2 * ((const double *)b->grad_out[0].data)[k];
    b->grad_in[0] = f64s(g, 4, 0);
    return CDP_OK;
}
static cdp_status through_layers(cdp_ctx *ctx, layers *l, uint64_t *first) {
    uint64_t from, to = 0;
    OK(cdp_ctx_value(ctx, &from));
    *first = from;
    for (uint32_t i = 0; i < 20; ++i, from = to) {
        OK(cdp_ctx_value(ctx, &to));
        OK(cdp_ctx_op(ctx,
            &(cdp_ctx_op_desc){.inputs = &from,
                .input_count = 1,
                .outputs = &to,
                .output_count = 1,
                .backward = b_layer,
                .user = l}));
    }
    const cdp_tensor root = f64s(NULL, 4, to);
    return cdp_ctx_backward(ctx, &(cdp_backward_desc){.roots = &root, .root_count = 1});
}
static void f_backward_here(void *user, cdp_rpc_request *q) {
    layers l = {.s = side_of(q), .stop_at = 10};
    uint64_t first;
    (void)user;
    T_EQ(CDP_ERR_ABORTED, through_layers(q->ctx, &l, &first));
    T_EQ(10, l.fired);
    count(&l.s->ran);
}
static void cleaned_during_backward(side *s) {
    static uint32_t place;
    layers l = {.s = s};
    cdp_call c = {0};
    uint64_t first;
    cdp_tensor g;
    cdp_ctx *ctx;
    OK(cdp_ctx_begin(s->rpc, &ctx));
    OK(through_layers(ctx, &l, &first));
    T_EQ(20, l.fired);
    OK(cdp_ctx_grad(ctx, first, &g));
    T(g.data && ((const double *)g.data)[3] == 1048576);
    OK(cdp_ctx_end(ctx, 0));
    meet(s, &place);
    if (s->rank == 0) {
        OK(cdp_ctx_begin(s->rpc, &to_be_ended));
        OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("backward_here"), .ctx = to_be_ended), &c));
        cdp_call_free(&c);
    }
    meet(s, &place);
    T_EQ(s->rank, s->ran);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).contexts);
}
TEST(clean_context_during_backward) {
    more(2, cleaned_during_backward);
}

/* ---- messages that end a link ---- */

/* A result that nobody waits for brings a reference: the link to its sender ends, and what the
   reference kept alive goes. */
static void lies_with_a_reference(side *s) {
    static uint32_t place;
    static uint64_t rid;
    cdp_value v;
    cdp_rref r = {0};
    if (s->rank == 0) {
        cdp_rref_info info = {0};
        v = counter_value(s, 1, iov_next());
        OK(cdp_rref_create(s->rpc, &v, NULL, &r));
        OK(cdp_rref_info_of(r, &info));
        rid = info.rid;
    }
    meet(s, &place);
    if (s->rank == 1) {
        uint8_t record[24];
        const cdp_channel_message m = {
            0, CDP__RPC_REPLY | 1u << 16, 0, 77, 0, record, sizeof record, 0};
        cdp__rpc_put_record(record, rid, (uint64_t)1 << 48 | 999999, 0);
        OK(cdp_channel_send(s->rpc->channel, &m));
    } else {
        serve_until(s, &s->lost, 1);
        T_EQ(0, s->values.destroyed);
        cdp_rref_drop(r);
        const uint64_t until = test_now_ns() + 10000000000ull;
        while (!__atomic_load_n(&s->values.destroyed, __ATOMIC_SEQ_CST) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(1, s->values.destroyed);
        T_EQ(0, cdp_rpc_stats_of(s->rpc).owners);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void lies_body(side *s) {
    open_then(s, lies_with_a_reference);
}
TEST(references_of_a_liar_are_let_go) {
    shut_by_body = true;
    run(2, lies_body);
}

/* Two long results are offered for one call: memory for one of them is all that a peer gets. */
static void offers_twice(side *s) {
    static uint8_t result[100000];
    static uint32_t place;
    cdp_call c = {0};
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &c));
    } else {
        serve_until(s, &s->kept_count, 1);
        for (uint32_t i = 0; i < 2; ++i) {
            const cdp_channel_message m = {.kind = CDP__RPC_REPLY,
                .a = ((const cdp__rpc_rq *)(const void *)s->kept[0])->call,
                .body = result,
                .bytes = sizeof result};
            uint64_t handle;
            OK(cdp_channel_offer(s->rpc->channel, &m, &handle));
        }
    }
    gather(&place);
    if (s->rank == 0) {
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&c));
        T_TEXT("an answer to no call", c.error.text);
        cdp_call_free(&c);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
    if (s->rank == 1) OK(cdp_rpc_reply(s->kept[0], NULL));
}
static void offers_twice_body(side *s) {
    if (how == HUB_POLLED) open_then(s, offers_twice);
}
TEST(two_results_of_one_call) {
    shut_by_body = true;
    run(2, offers_twice_body);
}

/* Out of memory for the answer to a call that makes a value: the value is kept once, and the rank
   that waits for it is lost. */
static uint32_t no_memory_place;
static void without_memory(side *s) {
    int64_t x[2] = {1, 0};
    cdp_rref r = {0};
    if (s->rank == 0) OK(cdp_rpc_remote(s->rpc, CALL(.to = 1, F("no_memory"), BYTES(x, 16)), &r));
    gather(&no_memory_place);
    if (s->rank == 1) {
        serve_until(s, &s->lost, 1);
        T_EQ(0, s->lost_rank);
        const uint64_t until = test_now_ns() + 10000000000ull;
        while (!__atomic_load_n(&s->values.destroyed, __ATOMIC_SEQ_CST) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(1, s->values.destroyed); /* its only reference was rank 0's */
    }
    gather(&no_memory_place);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void without_memory_body(side *s) {
    if (how == HUB_POLLED) open_then(s, without_memory);
}
TEST(an_answer_without_memory) {
    shut_by_body = true;
    more(2, without_memory_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"no_room_until_the_deadline", no_room_until_the_deadline, 60},
        {"done_frees_its_call", done_frees_its_call, 60},
        {"a_call_that_waits_for_its_turn_says_what_time_is_left",
            a_call_that_waits_for_its_turn_says_what_time_is_left, 60},
        {"time_goes_on_while_arguments_wait_for_memory",
            time_goes_on_while_arguments_wait_for_memory, 60},
        {"destroying_inside_a_function_is_refused", destroying_inside_a_function_is_refused, 60},
        {"results_in_memory_of_the_program", results_in_memory_of_the_program, 60},
        {"tensors_in_memory_of_the_program", tensors_in_memory_of_the_program, 60},
        {"bytes_of_arguments_under_way_are_limited", bytes_of_arguments_under_way_are_limited, 60},
        {"calls_wait_until_there_is_room_for_their_bytes",
            calls_wait_until_there_is_room_for_their_bytes, 60},
        {"the_last_calls_are_recorded", the_last_calls_are_recorded, 60},
        {"threads_that_serve_end_with_the_rpc", threads_that_serve_end_with_the_rpc, 60},
        {"a_leak_that_another_thread_asks_for", a_leak_that_another_thread_asks_for, 60},
        {"a_context_that_two_threads_end", a_context_that_two_threads_end, 60},
        {"values_that_cannot_be_sent", values_that_cannot_be_sent, 60},
        {"a_kept_request_outlives_its_value", a_kept_request_outlives_its_value, 60},
        {"a_child_of_fork_is_told_and_loses_nothing", a_child_of_fork_is_told_and_loses_nothing,
            60},
        {"an_update_rule_of_the_program", an_update_rule_of_the_program, 60},
        {"user_rrefs_confirmed", user_rrefs_confirmed, 60},
        {"handle_send_exceptions", handle_send_exceptions, 60},
        {"context_cleanup", context_cleanup, 60},
        {"clean_context_during_backward", clean_context_during_backward, 60},
        {"references_of_a_liar_are_let_go", references_of_a_liar_are_let_go, 60},
        {"two_results_of_one_call", two_results_of_one_call, 60},
        {"an_answer_without_memory", an_answer_without_memory, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/* test_rpc_results.c - what a call gives back and leaves behind: results in memory of the program,
   values that cannot be sent, the record of the last calls, texts of failures. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

static void f_bad_value(void *user, cdp_rpc_request *q);
/* its tensors and bytes */
static void f_back(void *user, cdp_rpc_request *q) {
    const cdp_iov iov = {(void *)(uintptr_t)q->data, q->bytes};
    (void)user;
    OK(cdp_rpc_reply(q,
        &(cdp_args){
            .iov = &iov, .iov_count = 1, .tensors = q->tensors, .tensor_count = q->tensor_count}));
}

static const cdp_rpc_function own_functions[] = {
    {.name = "nothing", .func = f_nothing},
    KEPT_AND_COUNTED,
    {.name = "back", .func = f_back},
    {.name = "bad_value", .func = f_bad_value},
    {.name = "mul", .func = f_mul, .backward = b_mul},
    {.name = "weight_rref", .func = f_weight_rref},
    {.name = "weight_grad", .func = f_weight_grad},
};
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
    run_own(2, results_into);
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
    run_own(2, into_tensors);
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
    run_own(2, recorded);
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
    run_own(2, bad_values);
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

/* What a function says of its failure is printed where it was called. */
static void fails_with_odd_text(side *s) {
    static const char odd[] = "caf\xc3\xa9 \xff \x1b[2J \xc2\x9b";
    static uint32_t place;
    cdp_call c = {0};
    REFUSED(CDP_ERR_REMOTE, "caf\xc3\xa9 ? ?[2J ?",
        cdp_rpc_call(s->rpc,
            CALL(.to = next_of(s), F("fail"), BYTES((void *)(uintptr_t)odd, sizeof odd - 1)), &c));
    T(!strchr(cdp_last_error()->text, 0x1b));
    cdp_call_free(&c);
    meet(s, &place);
}

TEST(texts_of_failures_are_printable) {
    run(2, fails_with_odd_text);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"done_frees_its_call", done_frees_its_call, 60},
        {"results_in_memory_of_the_program", results_in_memory_of_the_program, 60},
        {"tensors_in_memory_of_the_program", tensors_in_memory_of_the_program, 60},
        {"the_last_calls_are_recorded", the_last_calls_are_recorded, 60},
        {"values_that_cannot_be_sent", values_that_cannot_be_sent, 60},
        {"two_results_of_one_call", two_results_of_one_call, 60},
        {"texts_of_failures_are_printable", texts_of_failures_are_printable, 60}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

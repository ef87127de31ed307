/* test_rpc_shutdown.c - how long cdp_rpc_shutdown() waits, and what it names when it ends late. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

/* Rank 0 works `rounds` times: a pause, then a call to each other rank. */
static void works(side *s, uint32_t rounds, uint32_t pause_ms) {
    for (uint32_t i = 0; i < rounds; ++i) {
        test_sleep_ms(pause_ms);
        for (uint32_t to = 1; to < ranks; ++to) {
            cdp_call c = {0};
            OK(cdp_rpc_call(s->rpc, CALL(.to = to, F("whoami"), .timeout_ms = 20000), &c));
            cdp_call_free(&c);
        }
    }
}

/* The other ranks only serve: with timeout 0 as long as rank 0 works, although it pauses for longer
   than timeout_ms of the desc. */
static void serves(side *s) {
    const uint64_t from = test_now_ns();
    static uint32_t place;
    if (s->rank == 0) works(s, 3, 60);
    OK(cdp_rpc_shutdown(s->rpc, 0));
    T(test_now_ns() - from >= 150000000u);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void serves_body(side *s) {
    open_then(s, serves);
}
TEST(a_shutdown_serves_as_long_as_others_work) {
    shut_by_body = true;
    like.timeout_ms = 40;
    run(3, serves_body);
}

/* A timeout that is given counts from the last call that came or ended. */
static void serves_a_while(side *s) {
    static uint32_t place;
    if (s->rank == 0) works(s, 6, 30 * TEST_SLACK);
    OK(cdp_rpc_shutdown(s->rpc, 120 * TEST_SLACK));
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void serves_a_while_body(side *s) {
    if (how == HUB || how == HUB_POLLED) open_then(s, serves_a_while);
}
TEST(the_deadline_of_a_shutdown_counts_from_the_last_call) {
    shut_by_body = true;
    run(2, serves_a_while_body);
}

/* Rank 0 does not shut down: all others name it, also those that would wait for ever. */
static void does_not_come(side *s) {
    static uint32_t place;
    if (s->rank) {
        T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, s->rank == 1 ? 60 : 0));
        T_TEXT(
            "on rank 0 (rank0), cdp_rpc_shutdown() was not called in time", cdp_last_error()->text);
        T_EQ(0, cdp_last_error()->peer);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void does_not_come_body(side *s) {
    open_then(s, does_not_come);
}
TEST(a_shutdown_names_the_rank_that_does_not_come) {
    shut_by_body = true;
    run(3, does_not_come_body);
}

/* Two functions still run, on ranks 1 and 2, and a third request is kept by rank 2: every rank
   names that one, since the others will end. */
static void runs_long(side *s) {
    static uint32_t place;
    int64_t ms = 20000;
    cdp_call c[3] = {{0}};
    if (s->rank == 0) {
        OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("sleep"), BYTES(&ms, 8)), &c[0]));
        OK(cdp_rpc_start(s->rpc, CALL(.to = 2, F("sleep"), BYTES(&ms, 8)), &c[1]));
        OK(cdp_rpc_start(s->rpc, CALL(.to = 2, F("keep")), &c[2]));
    }
    const uint64_t until = test_until_ns(10000);
    while (s->rank == 2 && !counted_of(&s->kept_count) && test_now_ns() < until)
        test_sleep_ms(1); /* in cdp_rpc_serve() this thread might run the function that sleeps */
    T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, 150));
    T_TEXT("on rank 2 (rank2), keep, called by rank 0 (rank0), request ", cdp_last_error()->text);
    T_TEXT(", was kept and never replied to", cdp_last_error()->text);
    gather(&place);
    if (s->rank == 2) OK(cdp_rpc_reply(s->kept[0], NULL));
    cdp_rpc_destroy(s->rpc);
}
static void runs_long_body(side *s) {
    if (how == HUB) open_then(s, runs_long); /* functions have threads of their own */
}
TEST(a_shutdown_names_the_request_that_keeps_it) {
    shut_by_body = true;
    run(3, runs_long_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_shutdown_serves_as_long_as_others_work", a_shutdown_serves_as_long_as_others_work, 60},
        {"the_deadline_of_a_shutdown_counts_from_the_last_call",
            the_deadline_of_a_shutdown_counts_from_the_last_call, 60},
        {"a_shutdown_names_the_rank_that_does_not_come",
            a_shutdown_names_the_rank_that_does_not_come, 60},
        {"a_shutdown_names_the_request_that_keeps_it", a_shutdown_names_the_request_that_keeps_it,
            60}};
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

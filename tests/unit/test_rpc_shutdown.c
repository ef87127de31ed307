/* test_rpc_shutdown.c - how long cdp_rpc_shutdown() waits, what it names when it ends late, and
   what becomes of calls, links and requests that are left. rpc_scenarios.txt says which test has
   which scenario of torch.distributed.rpc. */
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

/* ---- shutdown and loss ---- */

static void uneven(side *s) {
    int64_t ms = 2;
    cdp_call c[30] = {{0}};
    if (s->rank) return; /* in shutdown already */
    for (uint32_t to = 1; to < 3; ++to) {
        for (uint32_t i = 0; i < 30; ++i)
            OK(cdp_rpc_start(s->rpc, CALL(.to = to, F("sleep"), BYTES(&ms, 8)), &c[i]));
        for (uint32_t i = 0; i < 30; ++i) {
            OK(cdp_call_wait(&c[i]));
            cdp_call_free(&c[i]);
        }
    }
}
TEST(graceful_shutdown_with_uneven_workload) {
    run(3, uneven);
}

static cdp_call last_calls[RANKS_MAX];
static void chains_at_the_end(side *s) {
    static int64_t ttl = 14;
    memset(&last_calls[s->rank], 0, sizeof last_calls[0]);
    OK(cdp_rpc_start(
        s->rpc, CALL(.to = next_of(s), F("chain"), BYTES(&ttl, 8)), &last_calls[s->rank]));
    OK(cdp_rpc_shutdown(s->rpc, 0));
    T_EQ(CDP_OK, last_calls[s->rank].status);
    if (last_calls[s->rank].status == CDP_OK) T_EQ(14, i64_at(last_calls[s->rank].data, 0));
    cdp_call_free(&last_calls[s->rank]);
    OK(cdp_rpc_serve(s->rpc, 10)); /* there is nothing to serve any more */
    REFUSED(CDP_ERR_STATE, "was shut down",
        cdp_rpc_start(s->rpc, CALL(.to = 0, F("add")), &last_calls[s->rank]));
    OK(cdp_barrier(s->g));
    cdp_rpc_destroy(s->rpc);
}
static void nested_shutdown(side *s) {
    open_then(s, chains_at_the_end);
}
TEST(multi_layer_nested_async_rpc) {
    shut_by_body = true;
    run(3, nested_shutdown);
}

/* A request that is never answered: shutdown ends, and names it, also on a rank that has nothing to
   do with it. */
static void never_answered(side *s) {
    static uint32_t ended, gone;
    cdp_call c = {0};
    if (s->rank == 0) OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &c));
    if (s->rank == 1) {
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&s->kept_count) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 5);
    }
    const uint64_t from = test_now_ns();
    T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, 60));
    T_TEXT("on rank 1 (rank1), keep, called by rank 0 (rank0), request ", cdp_last_error()->text);
    T_TEXT(", was kept and never replied to", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    T_WITHIN(160, test_now_ns() - from);
    const uint32_t came = __atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
    /* a rank that leaves is lost to the other one: rank 1 stays until rank 0 is gone */
    const uint64_t until = test_until_ns(20000);
    while (test_now_ns() < until
        && (counted_of(&ended) < (came / 3 + 1) * 3
            || (s->rank == 1 && counted_of(&gone) < came / 3 + 1)))
        test_sleep_ms(1);
    cdp_rpc_destroy(s->rpc);
    if (s->rank == 0) count(&gone);
    if (s->rank == 0) {
        T_EQ(CDP_ERR_STATE, c.status);
        T_EQ(CDP_RAN_UNKNOWN, c.ran);
    } else if (s->rank == 1 && s->kept_count) {
        T(cdp_rpc_cancelled(s->kept[0]));
        OK(cdp_rpc_reply(s->kept[0], NULL)); /* the request outlives the rpc */
    }
}
static void shutdown_blames(side *s) {
    open_then(s, never_answered);
}
TEST(shutdown_errors) {
    shut_by_body = true;
    run(3, shutdown_blames);
}

/* A message that was sent and never comes: shutdown ends by its deadline, and sleeps until then
   instead of adding up all the time. */
static void a_message_is_missing(side *s) {
    const uint64_t from = test_now_ns();
    static uint32_t place;
    if (s->rank == 0) {
        cdp_lock_acquire(&s->rpc->lock);
        ++s->rpc->peers[1].sent;
        cdp_lock_release(&s->rpc->lock);
    }
    T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, 400));
    T_WITHIN(400, test_now_ns() - from);
    T(s->rpc->sums->queue.issued > 4);
    T(s->rpc->sums->queue.issued < 60);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void missing_body(side *s) {
    open_then(s, a_message_is_missing);
}
TEST(a_message_that_never_comes_lets_shutdown_sleep_and_end) {
    shut_by_body = true;
    run(3, missing_body);
}

/* Two ranks have lost each other, and messages on that link never came: the shutdown of all three
   is still a good one, as soon as both know. */
static void a_link_is_lost(side *s) {
    const uint32_t late = TEST_LATE;
    static uint32_t place;
    if (s->rank == 0) {
        cdp_lock_acquire(&s->rpc->lock);
        s->rpc->peers[2].sent += 3;
        cdp_lock_release(&s->rpc->lock);
        OK(cdp_channel_drop(s->rpc->channel, 2, "for the test"));
    }
    const uint64_t from = test_now_ns();
    OK(cdp_rpc_shutdown(s->rpc, 5000 * late));
    T(test_now_ns() - from < 4000000000ull * late);
    T_EQ(s->rank != 1, !cdp_rpc_alive(s->rpc, 2 - s->rank));
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void lost_link_body(side *s) {
    open_then(s, a_link_is_lost);
}
TEST(messages_of_a_lost_link_are_not_awaited) {
    shut_by_body = true;
    run(3, lost_link_body);
}

/* A rank ends its rpc while several requests wait in its queue: none of them is left in memory,
   nor is the rpc. */
static void a_full_queue(side *s) {
    static uint32_t place;
    cdp_call c[4] = {{0}};
    gather(&place);
    if (s->rank == 0) {
        for (uint32_t i = 0; i < 4; ++i)
            OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("nothing")), &c[i]));
        const uint64_t until = test_until_ns(how == HUB_NO_WORKERS ? 5000 : 25);
        while ((how != HUB_NO_WORKERS || cdp_rpc_stats_of(sides[1].rpc).queued < 4)
            && cdp_call_test(&c[3]) == CDP_PENDING && test_now_ns() < until)
            (void)!cdp_call_wait_for(&c[3], 1);
    }
    gather(&place);
    if (s->rank == 1 && how == HUB_NO_WORKERS) T_EQ(4, cdp_rpc_stats_of(s->rpc).queued);
    if (s->rank == 1) cdp_rpc_destroy(s->rpc);
    gather(&place);
    if (s->rank == 0) cdp_rpc_destroy(s->rpc);
    for (uint32_t i = 0; i < 4; ++i)
        cdp_call_free(&c[i]);
}
static void full_queue_body(side *s) {
    open_then(s, a_full_queue);
}
TEST(destroying_frees_requests_that_wait) {
    shut_by_body = true;
    run(2, full_queue_body);
}

/* Without workers: rank 0 waits some time for a rank that does not answer, and meanwhile runs a
   function of rank 2 that waits for the same rank. Its wait ends in time all the same. Rank 1
   serves nobody until all have come to the end. */
static void a_helping_wait(side *s) {
    static uint32_t place, waits;
    const uint32_t late = TEST_SLACK;
    cdp_call c = {0};
    gather(&place);
    if (s->rank == 0) {
        count(&waits);
        const uint64_t from = test_now_ns();
        T_EQ(CDP_ERR_TIMEOUT,
            cdp_rpc_call(s->rpc, CALL(.to = 1, F("nothing"), .timeout_ms = 75 * late), &c));
        T_WITHIN(125, test_now_ns() - from);
    }
    if (s->rank == 2) {
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&waits) && test_now_ns() < until)
            test_sleep_ms(1);
        T_EQ(CDP_ERR_REMOTE,
            cdp_rpc_call(s->rpc, CALL(.to = 0, F("asks_rank_1"), .timeout_ms = 200 * late), &c));
    }
    cdp_call_free(&c);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void helping_body(side *s) {
    if (how == HUB_NO_WORKERS) open_then(s, a_helping_wait);
}
TEST(a_wait_ends_in_time_whatever_it_helps) {
    shut_by_body = true;
    run(3, helping_body);
}

/* One rank leaves without shutdown, while the others have calls and references there. */
static void one_leaves(side *s) {
    int64_t x[2] = {11, 0}, ms = 60000;
    cdp_call c = {0}, held = {0};
    cdp_rref r = {0}, other = {0};
    cdp_rpc_stats st;
    static uint32_t place;
    OK(cdp_rpc_remote(s->rpc, CALL(.to = 2, F("counter"), BYTES(x, 16)), &r));
    OK(cdp_rpc_remote(s->rpc, CALL(.to = 0, F("counter"), BYTES(x, 16)), &other));
    OK(cdp_rref_to_here(r, 0, &c));
    cdp_call_free(&c);
    OK(cdp_rref_confirmed(other, 10000));
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1, F("sum_of"), RREF(r)), &c));
    cdp_call_free(&c);
    if (s->rank != 2) OK(cdp_rpc_start(s->rpc, CALL(.to = 2, F("keep"), BYTES(&ms, 8)), &held));
    OK(cdp_rpc_call(s->rpc, CALL(.to = s->rank, F("nothing")), &c));
    cdp_call_free(&c);
    meet(s, &place);
    if (s->rank == 2) {
        const uint64_t until = test_until_ns(10000);
        while (counted_of(&s->kept_count) < 2 && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 5);
        cdp_rpc_destroy(s->rpc);
        for (uint32_t i = 0; i < s->kept_count; ++i)
            OK(cdp_rpc_fail(s->kept[i], 1, "too late"));
        T_EQ(s->values.made, s->values.destroyed);
    } else {
        T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&held));
        T_EQ(CDP_RAN_UNKNOWN, held.ran);
        T_EQ(2, cdp_last_error()->peer);
        T_EQ(CDP_ERR_PEER_LOST, cdp_rref_to_here(r, 0, &c));
        T_EQ(CDP_RAN_NO, c.ran);
        cdp_call_free(&c);
        T_EQ(CDP_ERR_PEER_LOST, cdp_rref_confirmed(r, 0));
        T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_call(s->rpc, CALL(.to = 2, F("add")), &c));
        cdp_call_free(&c);
        T(!cdp_rpc_alive(s->rpc, 2));
        const uint64_t until = test_until_ns(10000);
        while (!counted_of(&s->lost) && test_now_ns() < until)
            (void)!cdp_rpc_serve(s->rpc, 1);
        T_EQ(2, s->lost_rank);
        /* the others go on: calls, long ones, and values */
        T_EQ(9, call_i64(s, 1 - s->rank, "add", 4, 5));
        static uint8_t data[RANKS_MAX][300000];
        OK(cdp_rpc_call(
            s->rpc, CALL(.to = 1 - s->rank, F("echo"), BYTES(data[s->rank], 300000)), &c));
        T_EQ(300000, c.bytes);
        cdp_call_free(&c);
        OK(cdp_rref_to_here(other, 0, &c));
        T_EQ(11, i64_at(c.data, 0));
        cdp_call_free(&c);
    }
    cdp_call_free(&held);
    if (s->rank == 2) return;
    cdp_rref_drop(r);
    cdp_rref_drop(other);
    OK(cdp_rpc_call(s->rpc, CALL(.to = 1 - s->rank, F("nothing")), &c));
    cdp_call_free(&c);
    const uint64_t until = test_until_ns(10000);
    do { /* what rank 2 held is free */
        (void)!cdp_rpc_serve(s->rpc, 5);
        st = cdp_rpc_stats_of(s->rpc);
    } while ((st.owners || st.forks || st.users) && test_now_ns() < until);
    T_EQ(0, st.owners + st.forks + st.users + st.holds);
    T_EQ(CDP_ERR_PEER_LOST, cdp_rpc_shutdown(s->rpc, 5000 * TEST_LATE));
    T_EQ(2, cdp_last_error()->peer);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
static void local_shutdown_body(side *s) {
    open_then(s, one_leaves);
}
TEST(local_shutdown) {
    shut_by_body = true;
    run(3, local_shutdown_body);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_shutdown_serves_as_long_as_others_work", a_shutdown_serves_as_long_as_others_work, 60},
        {"the_deadline_of_a_shutdown_counts_from_the_last_call",
            the_deadline_of_a_shutdown_counts_from_the_last_call, 60},
        {"a_shutdown_names_the_rank_that_does_not_come",
            a_shutdown_names_the_rank_that_does_not_come, 60},
        {"a_shutdown_names_the_request_that_keeps_it", a_shutdown_names_the_request_that_keeps_it,
            60},
        {"graceful_shutdown_with_uneven_workload", graceful_shutdown_with_uneven_workload, 60},
        {"multi_layer_nested_async_rpc", multi_layer_nested_async_rpc, 60},
        {"shutdown_errors", shutdown_errors, 60},
        {"a_message_that_never_comes_lets_shutdown_sleep_and_end",
            a_message_that_never_comes_lets_shutdown_sleep_and_end, 60},
        {"destroying_frees_requests_that_wait", destroying_frees_requests_that_wait, 60},
        {"a_wait_ends_in_time_whatever_it_helps", a_wait_ends_in_time_whatever_it_helps, 60},
        {"messages_of_a_lost_link_are_not_awaited", messages_of_a_lost_link_are_not_awaited, 60},
        {"local_shutdown", local_shutdown, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

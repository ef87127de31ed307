/* test_rpc_survivors.c - cdp_rpc_shutdown() among the ranks that are alive: who is dead, for whom,
   and when it ends. Orders of words, deaths and cuts: sim/rpc_rolls.c, rpc_worlds.c. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"

#include "cdp_rpc.h"

#include "rpc_sides.h"

#include <sys/mman.h>

static void survivors_run(uint32_t n, void (*func)(side *s)) {
    shut_by_body = true;
    like.survivors = true;
    run(n, func);
}

/* Ends among survivors, and says who is alive: bits of ranks. */
static void ends_well(side *s, uint32_t alive) {
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    for (uint32_t r = 0; r < ranks; ++r)
        T_EQ((alive >> r & 1) != 0, cdp_rpc_alive(s->rpc, r));
}

static void all_alive(side *s) {
    if (s->rank == 0 && ranks > 1) T_EQ(5, call_i64(s, 1, "add", 2, 3));
    ends_well(s, (1u << ranks) - 1);
    T_EQ(0, s->lost);
    cdp_rpc_destroy(s->rpc);
}
static void all_alive_body(side *s) {
    open_then(s, all_alive);
}
TEST(a_shutdown_among_survivors_where_all_are_alive_is_as_any) {
    survivors_run(1, all_alive_body);
    survivors_run(2, all_alive_body);
    survivors_run(5, all_alive_body);
}

/* Rank 2 leaves without a shutdown: the others hold references of it, it holds theirs, and a call
   to it is under way. All are released. */
static void one_leaves(side *s) {
    static uint32_t place;
    int64_t x[2] = {11, 0};
    cdp_rref r = {0};
    cdp_call held = {0};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = (s->rank + 1) % ranks, F("counter"), BYTES(x, 16)), &r));
    OK(cdp_rref_confirmed(r, 10000));
    if (s->rank == 1) OK(cdp_rpc_start(s->rpc, CALL(.to = 2, F("keep")), &held));
    if (s->rank == 2) serve_until(s, &s->kept_count, 1);
    meet(s, &place);
    if (s->rank == 2) {
        cdp_rpc_destroy(s->rpc);
        OK(cdp_rpc_reply(s->kept[0], NULL));
        T_EQ(s->values.made, s->values.destroyed);
        return;
    }
    if (s->rank == 1) T_EQ(CDP_ERR_PEER_LOST, cdp_call_wait(&held));
    cdp_rref_drop(r);
    ends_well(s, 11);
    T_EQ(1, counted_of(&s->lost));
    T_EQ(2, s->lost_rank);
    T_EQ(0, cdp_rpc_stats_of(s->rpc).owners + cdp_rpc_stats_of(s->rpc).users);
    T_EQ(s->values.made, s->values.destroyed);
    cdp_call_free(&held);
    cdp_rpc_destroy(s->rpc);
}
static void one_leaves_body(side *s) {
    open_then(s, one_leaves);
}
TEST(a_rank_that_leaves_is_not_alive_and_keeps_nothing) {
    survivors_run(4, one_leaves_body);
}

/* Two ranks leave one after the other while the others are in the shutdown already. */
static void two_leave(side *s) {
    static uint32_t place;
    meet(s, &place);
    if (s->rank == 1 || s->rank == 3) {
        test_sleep_ms(20 * s->rank);
        cdp_rpc_destroy(s->rpc);
        return;
    }
    ends_well(s, 21);
    cdp_rpc_destroy(s->rpc);
}
static void two_leave_body(side *s) {
    open_then(s, two_leave);
}
TEST(two_ranks_leave_during_a_shutdown_of_the_others) {
    survivors_run(5, two_leave_body);
}

static void all_others_leave(side *s) {
    static uint32_t place;
    meet(s, &place);
    if (s->rank == 0) ends_well(s, 1);
    cdp_rpc_destroy(s->rpc);
}
static void all_others_leave_body(side *s) {
    open_then(s, all_others_leave);
}
TEST(the_last_rank_ends_alone) {
    survivors_run(3, all_others_leave_body);
}

/* Ranks 0 and 2 have lost each other, and rank 1 reaches both: whoever ends with OK agrees with
   rank 1, and the others end with an error that names a rank that has counted them out. */
static void cut_off(side *s) {
    static cdp_status ended[RANKS_MAX];
    static bool alive[RANKS_MAX][RANKS_MAX];
    static uint32_t place;
    meet(s, &place);
    if (s->rank == 0) OK(cdp_channel_drop(s->rpc->channel, 2, "for the test"));
    ended[s->rank] = cdp_rpc_shutdown(s->rpc, 20000);
    for (uint32_t r = 0; r < ranks; ++r)
        alive[s->rank][r] = cdp_rpc_alive(s->rpc, r);
    if (ended[s->rank] != CDP_OK) {
        T_EQ(CDP_ERR_PEER_LOST, ended[s->rank]);
        T_TEXT("counts this rank out", cdp_last_error()->text);
        T(cdp_last_error()->peer >= 0 && cdp_last_error()->peer != (int32_t)s->rank);
    }
    gather(&place);
    T_EQ(CDP_OK, ended[1]);
    T(!alive[1][0] || !alive[1][2]);
    for (uint32_t r = 0; r < ranks && s->rank == 1; ++r) {
        T_EQ(ended[r] == CDP_OK, alive[1][r]);
        for (uint32_t k = 0; k < ranks && ended[r] == CDP_OK; ++k)
            T_EQ(alive[1][k], alive[r][k]);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void cut_off_body(side *s) {
    open_then(s, cut_off);
}
TEST(a_rank_that_is_cut_off_but_alive_is_alive_for_all_or_for_none) {
    survivors_run(3, cut_off_body);
}

/* A rank that is alive and does not come: all others name it, also the one that has no deadline of
   its own. */
static void does_not_come(side *s) {
    static uint32_t place;
    if (s->rank) {
        T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, s->rank == 1 ? 60 : 0));
        T_TEXT("on rank 0 (rank0), cdp_rpc_shutdown() was not called", cdp_last_error()->text);
        T_EQ(0, cdp_last_error()->peer);
    }
    gather(&place);
    cdp_rpc_destroy(s->rpc);
}
static void does_not_come_body(side *s) {
    open_then(s, does_not_come);
}
TEST(a_shutdown_among_survivors_names_the_rank_that_does_not_come) {
    survivors_run(3, does_not_come_body);
}

/* A request that is never answered: every rank names it. */
static void never_answered(side *s) {
    static uint32_t place;
    cdp_call c = {0};
    if (s->rank == 0) OK(cdp_rpc_start(s->rpc, CALL(.to = 1, F("keep")), &c));
    if (s->rank == 1) serve_until(s, &s->kept_count, 1);
    meet(s, &place);
    T_EQ(CDP_ERR_TIMEOUT, cdp_rpc_shutdown(s->rpc, 60));
    T_TEXT("on rank 1 (rank1), keep, called by rank 0 (rank0), request ", cdp_last_error()->text);
    T_EQ(1, cdp_last_error()->peer);
    gather(&place);
    cdp_rpc_destroy(s->rpc);
    if (s->rank == 1 && s->kept_count) OK(cdp_rpc_reply(s->kept[0], NULL));
}
static void never_answered_body(side *s) {
    open_then(s, never_answered);
}
TEST(a_shutdown_among_survivors_names_the_request_that_keeps_it) {
    survivors_run(3, never_answered_body);
}

/* Only some ranks ask for it: none is created. */
static void differs_body(side *s) {
    cdp_rpc_desc d = desc_of(s);
    d.survivors = s->rank == 1;
    REFUSED(CDP_ERR_MISMATCH, "survivors (0 and 1)", cdp_rpc_create(&d, &s->rpc));
    T(!s->rpc);
}
TEST(survivors_must_be_the_same_on_all_ranks) {
    shut_by_body = true;
    run(2, differs_body);
}

/* ---- processes; rank 2 is killed */

static uint32_t phase;
static bool *says; /* by the two worlds and ranks: rank 2 is alive; all processes have it */
static void killed_in(side *s) {
    int64_t x[2] = {7, 0};
    cdp_rref r = {0};
    OK(cdp_rpc_remote(s->rpc, CALL(.to = (s->rank + 1) % ranks, F("counter"), BYTES(x, 16)), &r));
    if (cdp_rref_confirmed(r, 10000) != CDP_OK) T_EQ(1, s->rank); /* its owner may be dead */
    if (s->rank == 2 && phase == 0) raise(SIGKILL);               /* before its shutdown */
    if (s->rank == 2 && phase) {
        /* in the turns of its shutdown, whichever it is in then */
        const pid_t me = getpid(), killer = fork();
        if (killer == 0) {
            usleep(phase * 400);
            kill(me, SIGKILL);
            _exit(0);
        }
    }
    if (s->rank != 2 && phase > 3) test_sleep_ms(2); /* rank 2 waits for the others */
    cdp_rref_drop(r);
    if (s->rank == 2) {
        (void)!cdp_rpc_shutdown(s->rpc, 20000);
        test_sleep_ms(10000);
        _exit(0);
    }
    OK(cdp_rpc_shutdown(s->rpc, 20000));
    T(cdp_rpc_alive(s->rpc, 0) && cdp_rpc_alive(s->rpc, 1));
    says[2 * (how == TCP) + s->rank] = cdp_rpc_alive(s->rpc, 2);
    if (phase == 0) T(!cdp_rpc_alive(s->rpc, 2));
    if (phase == 0) T_EQ(2, s->lost_rank);
    cdp_rpc_destroy(s->rpc);
    T_EQ(s->values.made, s->values.destroyed);
}
TEST(a_rank_is_killed_before_or_in_its_shutdown_and_the_others_end_well) {
    like.survivors = true;
    says = (bool *)mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (phase = 0; phase < 10 && !test__now.failed_checks; ++phase) {
        run_processes(killed_in);
        T_EQ(says[0], says[1]);
        T_EQ(says[2], says[3]);
    }
    munmap(says, 4);
    memset(&like, 0, sizeof like);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_shutdown_among_survivors_where_all_are_alive_is_as_any",
            a_shutdown_among_survivors_where_all_are_alive_is_as_any, 60},
        {"a_rank_that_leaves_is_not_alive_and_keeps_nothing",
            a_rank_that_leaves_is_not_alive_and_keeps_nothing, 60},
        {"two_ranks_leave_during_a_shutdown_of_the_others",
            two_ranks_leave_during_a_shutdown_of_the_others, 60},
        {"the_last_rank_ends_alone", the_last_rank_ends_alone, 60},
        {"a_rank_that_is_cut_off_but_alive_is_alive_for_all_or_for_none",
            a_rank_that_is_cut_off_but_alive_is_alive_for_all_or_for_none, 60},
        {"a_shutdown_among_survivors_names_the_rank_that_does_not_come",
            a_shutdown_among_survivors_names_the_rank_that_does_not_come, 60},
        {"a_shutdown_among_survivors_names_the_request_that_keeps_it",
            a_shutdown_among_survivors_names_the_request_that_keeps_it, 60},
        {"survivors_must_be_the_same_on_all_ranks", survivors_must_be_the_same_on_all_ranks, 60},
        {"a_rank_is_killed_before_or_in_its_shutdown_and_the_others_end_well",
            a_rank_is_killed_before_or_in_its_shutdown_and_the_others_end_well, 120},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/* Symmetric memory of cdp_nccl.h, which all ranks register with NCCL together, on the stand-in of
   this folder: what is claimed here is claimed of the library's logic, not of a GPU. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_nccl.h"

#include "cards.h"

static const char *program;

/* How often the library logged that memory is not symmetric. */
static int told;
static char told_text[600];
static void hear(cdp_log_level level, const char *text, int32_t rank, void *unused) {
    (void)level;
    (void)rank;
    (void)unused;
    if (!strstr(text, "symmetric")) return;
    __atomic_add_fetch(&told, 1, __ATOMIC_SEQ_CST);
    snprintf(told_text, sizeof told_text, "%s", text);
}

static void run(uint32_t n, void (*func)(card *c), void *arg, uint32_t timeout_ms) {
    cards all;
    memset(&all, 0, sizeof all);
    all.n = n;
    all.func = func;
    all.arg = arg;
    all.hurry_ms = timeout_ms;
    all.group.logger.func = hear;
    told = 0;
    cards_run(&all);
    clean();
}

/* ---- what it is for ---- */

static void sum_in(card *c, void *at) {
    float host[64];
    for (int i = 0; i < 64; ++i)
        host[i] = (float)(c->rank + 1);
    GPU(cudaMemcpyAsync(at, host, sizeof host, GPU_TO_DEVICE, c->stream));
    OK(cdp_allreduce(c->g, NULL, at, 64, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    GPU(cudaMemcpyAsync(host, at, sizeof host, GPU_TO_HOST, c->stream));
    GPU(cudaStreamSynchronize(c->stream));
    T(host[0] == (float)(c->n * (c->n + 1) / 2) && host[63] == host[0]);
}

static void used_of_rank(card *c) {
    char *a = NULL, *b = NULL, *plain = NULL;
    OK(cdp_nccl_alloc_symmetric(c->g, 8192, (void **)&a));
    OK(cdp_nccl_alloc_symmetric(c->g, 1000, (void **)&b));
    OK(cdp_nccl_alloc(c->g, 1000, (void **)&plain));
    void *const window = cdp_nccl_window(c->g, a);
    T(window != NULL && cdp_nccl_window(c->g, a + 8191) == window);
    T(cdp_nccl_window(c->g, a + 8192) != window);
    T(cdp_nccl_window(c->g, b) != NULL && cdp_nccl_window(c->g, b) != window);
    T(!cdp_nccl_window(c->g, plain) && !cdp_nccl_window(c->g, &window));
    sum_in(c, a);
    sum_in(c, a + 4096);
    cdp_nccl_free(c->g, plain);
    cdp_nccl_free(c->g, a); /* one is free, the other stays */
    T(!cdp_nccl_window(c->g, a) && cdp_nccl_window(c->g, b));
    OK(cdp_nccl_alloc_symmetric(c->g, 0, (void **)&a));
    T(cdp_nccl_window(c->g, a) != NULL);
    sum_in(c, b);
    cdp_nccl_free(c->g, b);
    cdp_nccl_free(c->g, a);
    OK(cdp_barrier(c->g));
    T_EQ(0, standin_left("windows"));
}
TEST(registered_by_all) {
    for (uint32_t n = 1; n < 5; ++n) {
        const long before = standin_calls("ncclCommWindowRegister");
        run(n, used_of_rank, NULL, 0);
        T_EQ(3 * n, standin_calls("ncclCommWindowRegister") - before);
    }
    T_EQ(0, told);
}

static void left_of_rank(card *c) {
    void *p = NULL;
    OK(cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    sum_in(c, p);
}
TEST(goes_with_the_group) {
    run(3, left_of_rank, NULL, 0);
}

static void by_allocator_of_rank(card *c) {
    const cdp_allocator a = cdp_nccl_symmetric_allocator(c->g);
    void *const p = a.alloc(a.user, 4096, NULL, "segment");
    if (!T(p != NULL)) return;
    T(cdp_nccl_window(c->g, p) != NULL);
    a.release(a.user, p);
    T(a.alloc(a.user, c->rank ? 4096 : 8192, NULL, "segment") == NULL);
    T_EQ(CDP_ERR_MISMATCH, cdp_last_error()->status);
}
TEST(as_an_allocator) {
    run(2, by_allocator_of_rank, NULL, 0);
}

/* ---- what must be equal on all ranks ---- */

static void sizes_of_rank(card *c) {
    void *p = NULL;
    FAILS(CDP_ERR_MISMATCH, "8192", cdp_nccl_alloc_symmetric(c->g, c->rank == 2 ? 8192 : 4096, &p));
    T_TEXT("4096", cdp_last_error()->text);
    T_TEXT("rank 2", cdp_last_error()->text);
    T(!p && cdp_group_status(c->g) == CDP_OK);
    OK(cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    cdp_nccl_free(c->g, p);
}
TEST(sizes_differ) {
    run(3, sizes_of_rank, NULL, 0);
}

static void holds_of_rank(card *c) {
    void *p[2] = {NULL, NULL}, *more = NULL;
    for (int i = 0; i < 2; ++i)
        OK(cdp_nccl_alloc_symmetric(c->g, 4096, &p[i]));
    cdp_nccl_free(c->g, p[c->rank ? 1 : 0]);
    FAILS(CDP_ERR_MISMATCH, "free it alike on all ranks",
        cdp_nccl_alloc_symmetric(c->g, 4096, &more));
    T_TEXT("rank 1", cdp_last_error()->text);
    T(!more && cdp_group_status(c->g) == CDP_OK);
    cdp_nccl_free(c->g, p[c->rank ? 0 : 1]);
    OK(cdp_nccl_alloc_symmetric(c->g, 4096, &more));
    cdp_nccl_free(c->g, more);
}
TEST(what_exists_differs) {
    run(2, holds_of_rank, NULL, 0);
}

/* ---- one rank cannot ---- */

static void no_memory_of_rank(card *c) {
    void *p = NULL;
    meet(c);
    if (c->rank == 0) standin_fail("ncclMemAlloc", 1, 1);
    meet(c);
    FAILS(CDP_ERR_NOMEM, "ncclMemAlloc", cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    T(!p && cdp_group_status(c->g) == CDP_OK);
    OK(cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    cdp_nccl_free(c->g, p);
    FAILS(CDP_ERR_NOMEM, "", cdp_nccl_alloc_symmetric(c->g, (uint64_t)1 << 40, &p));
}
TEST(no_memory_on_one_rank) {
    run(3, no_memory_of_rank, NULL, 0);
}

static void capture_of_one_rank(card *c) {
    void *p = NULL, *graph = NULL;
    if (c->rank == 1) GPU(cudaStreamBeginCapture(c->stream, 2));
    FAILS(CDP_ERR_STATE, "rank 1", cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    T_TEXT("capture", cdp_last_error()->text);
    if (c->rank == 1) GPU(cudaStreamEndCapture(c->stream, &graph));
    if (graph) GPU(cudaGraphDestroy(graph));
    OK(cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    /* what is freed inside a capture stays, on that rank alone: the next call says so */
    if (c->rank == 1) GPU(cudaStreamBeginCapture(c->stream, 2));
    cdp_nccl_free(c->g, p);
    T(c->rank == 0 || cdp_nccl_window(c->g, p) != NULL);
    if (c->rank == 1) GPU(cudaStreamEndCapture(c->stream, &graph));
    if (graph) GPU(cudaGraphDestroy(graph));
    FAILS(CDP_ERR_MISMATCH, "alike", cdp_nccl_alloc_symmetric(c->g, 4096, &p));
}
TEST(captures) {
    run(2, capture_of_one_rank, NULL, 0);
}

/* NCCL keeps a window on one rank: the next one would lie elsewhere there. */
static void kept_of_rank(card *c) {
    void *p = NULL;
    OK(cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    meet(c);
    if (c->rank == 0) {
        standin_fail("ncclCommWindowDeregister", 1, 3);
        cdp_nccl_free(c->g, p);
        standin_fail("ncclCommWindowDeregister", 0, 0);
    }
    meet(c);
    if (c->rank != 0) cdp_nccl_free(c->g, p);
    FAILS(CDP_ERR_MISMATCH, "alike", cdp_nccl_alloc_symmetric(c->g, 4096, &p));
}
TEST(a_window_that_one_rank_keeps) {
    run(2, kept_of_rank, NULL, 0);
}

static void refused_of_rank(card *c) {
    cdp_nccl_desc d;
    void *p = &d;
    FAILS(CDP_ERR_INVALID, "cdp_nccl_attach", cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    T(!p && !cdp_nccl_window(c->g, &d) && !cdp_nccl_window(NULL, NULL));
    T(cdp_nccl_alloc_symmetric(NULL, 4096, &p) == CDP_ERR_INVALID);
    T(cdp_nccl_alloc_symmetric(c->g, 4096, NULL) == CDP_ERR_INVALID);
    memset(&d, 0, sizeof d);
    d.stream = c->stream;
    d.no_register = true;
    OK(cdp_nccl_attach(c->g, &d));
    FAILS(CDP_ERR_INVALID, "no_register", cdp_nccl_alloc_symmetric(c->g, 4096, &p));
    T(cdp_group_status(c->g) == CDP_OK);
}
TEST(refusals) {
    const cards all = {.n = 2, .func = refused_of_rank, .no_attach = true};
    cards_run(&all);
    clean();
}

/* ---- a rank does not take part ---- */

typedef struct absent {
    const char *part; /* of the error; it is a TIMEOUT, or what `want` says */
    cdp_status want;
    bool abort;
} absent;

static void missing_of_rank(card *c) {
    const absent *const m = (const absent *)c->arg;
    void *p = NULL;
    cdp_status st;
    const uint64_t start = test_now_ns();
    if (c->rank != 1) {
        st = cdp_nccl_alloc_symmetric(c->g, 4096, &p);
    } else {
        test_sleep_ms(50);
        if (m->abort) cdp_group_abort(c->g, "enough of it");
        while ((st = cdp_group_status(c->g)) == CDP_OK && test_now_ns() - start < 30000000000u)
            test_sleep_ms(5);
    }
    test_check(st == m->want, __FILE__, __LINE__, "rank %u got %s: %s", c->rank,
        cdp_status_name(st), cdp_last_error()->text);
    T_TEXT(m->part, cdp_last_error()->text);
    T_WITHIN(2500, test_now_ns() - start);
    T(!p);
}
TEST(a_rank_does_not_call) {
    absent m = {"rank 1", CDP_ERR_TIMEOUT, false};
    run(3, missing_of_rank, &m, 400);
    m.part = "enough of it";
    m.want = CDP_ERR_ABORTED;
    m.abort = true;
    run(3, missing_of_rank, &m, 20000);
}

/* A rank calls something else. */
static void other_of_rank(card *c) {
    void *p = NULL;
    float host[4] = {0};
    const cdp_status st = c->rank ? cdp_nccl_alloc_symmetric(c->g, 4096, &p)
                                  : cdp_allreduce(c->g, NULL, host, 4, CDP_DTYPE_F32, 0);
    test_check(st == CDP_ERR_MISMATCH, __FILE__, __LINE__, "rank %u got %s: %s", c->rank,
        cdp_status_name(st), cdp_last_error()->text);
    T_TEXT("allreduce", cdp_last_error()->text);
    T_TEXT("allgather", cdp_last_error()->text);
}
TEST(a_rank_calls_something_else) {
    run(2, other_of_rank, NULL, 0);
}

/* All agree, and then one rank does not come to NCCL, or NCCL fails there: the others wait inside
   NCCL, and come out by the deadline, or as soon as the group has failed. */
typedef struct inside {
    int code;
    cdp_status want;
    const char *part;
    uint32_t timeout_ms;
} inside;
static void inside_of_rank(card *c) {
    const inside *const in = (const inside *)c->arg;
    void *p = NULL;
    meet(c);
    if (c->rank == 0) standin_fail("ncclCommWindowRegister", 1, in->code);
    meet(c);
    const uint64_t start = test_now_ns();
    const cdp_status st = cdp_nccl_alloc_symmetric(c->g, 4096, &p);
    test_check(st == in->want, __FILE__, __LINE__, "rank %u got %s: %s", c->rank,
        cdp_status_name(st), cdp_last_error()->text);
    T_TEXT(in->part, cdp_last_error()->text);
    T_WITHIN(2500, test_now_ns() - start);
    T(!p);
    while (cdp_group_status(c->g) == CDP_OK && test_now_ns() - start < 5000000000u)
        test_sleep_ms(5); /* whose fault a timeout is is being settled */
    T_EQ(in->want, cdp_group_status(c->g));
    T(!cdp_nccl_window(c->g, &p));
}
TEST(nccl_fails_or_hangs) {
    const inside hangs = {0, CDP_ERR_TIMEOUT, "ncclCommWindowRegister", 600},
                 fails = {3, CDP_ERR_IO, "ncclCommWindowRegister", 20000};
    for (int i = 0; i < 3; ++i) {
        run(3, inside_of_rank, (void *)(uintptr_t)&fails, fails.timeout_ms);
        run(3, inside_of_rank, (void *)(uintptr_t)&hangs, hangs.timeout_ms);
    }
}

/* Aborted at any moment: no hang, and nothing is left. */
static void aborted_of_rank(card *c) {
    const uint32_t *const us = (const uint32_t *)c->arg;
    cdp_status st = CDP_OK;
    const uint64_t start = test_now_ns();
    for (int i = 0; st == CDP_OK && i < 100000; ++i) {
        void *p = NULL;
        if (c->rank == 1 && test_now_ns() - start > *us * 1000ull)
            cdp_group_abort(c->g, "enough of it");
        st = cdp_nccl_alloc_symmetric(c->g, 4096, &p);
        cdp_nccl_free(c->g, p);
    }
    T(st == CDP_ERR_ABORTED);
    T_WITHIN(3000, test_now_ns() - start);
}
TEST(abort_anywhere) {
    uint64_t state = 17;
    for (int i = 0; i < (TEST_SLOW ? 10 : 30); ++i) {
        uint32_t us = (uint32_t)(test_random(&state) % 20000);
        run(3, aborted_of_rank, &us, 0);
        if (test__now.failed_checks) NOTE("that was the abort after %u us", us);
    }
}

/* Each function that takes part fails once, on one rank, at one of its first calls: one status of
   all ranks or a failed group, no hang, and nothing is left. */
static void any_of_rank(card *c) {
    void *p = NULL, *q = NULL;
    cdp_status st = cdp_nccl_alloc_symmetric(c->g, 4096, &p);
    if (st == CDP_OK) st = cdp_nccl_alloc_symmetric(c->g, 512, &q);
    if (st < 0) T(cdp_last_error()->text[0] != 0);
    cdp_nccl_free(c->g, p);
    cdp_nccl_free(c->g, q);
    __atomic_add_fetch((int *)c->arg, st < 0, __ATOMIC_SEQ_CST);
}
static void any_from_there_of_rank(card *c) {
    static const char *const names[] = {"ncclMemAlloc", "ncclCommWindowRegister",
        "ncclCommWindowDeregister", "ncclCommGetAsyncError", "cudaGetDevice",
        "cudaStreamIsCapturing", "cudaEventRecord", "cudaEventQuery"};
    int *const which = (int *)c->arg;
    meet(c);
    if (c->rank == 0) standin_fail(names[which[1]], which[2], which[1] == 4 ? 1 : 3);
    meet(c);
    any_of_rank(c);
}
TEST(any_function_fails) {
    for (int f = 0; f < 8; ++f)
        for (int nth = 1; nth <= (TEST_SLOW ? 2 : 4); ++nth) {
            int which[3] = {0, f, nth};
            const uint64_t start = test_now_ns();
            run(2, any_from_there_of_rank, which, 400);
            standin_fail("ncclCommGetAsyncError", 0, 0);
            if (which[0] == 1) NOTE("%s", "one rank alone has an error"); /* all ranks, or none */
            T_WITHIN(5000, test_now_ns() - start);
            if (test__now.failed_checks) NOTE("function %d, call %d", f, nth);
            if (test__now.failed_checks > 8) return;
        }
}

/* ---- no windows ---- */

static void without_of_rank(card *c) {
    void *p[2] = {NULL, NULL};
    for (int i = 0; i < 2; ++i) {
        OK(cdp_nccl_alloc_symmetric(c->g, 4096, &p[i]));
        T(p[i] != NULL && !cdp_nccl_window(c->g, p[i]));
        sum_in(c, p[i]);
    }
    cdp_nccl_free(c->g, p[1]);
    cdp_nccl_free(c->g, p[0]);
}

/* NCCL has the function, but these GPUs cannot: registered as before, and said once. */
TEST(nccl_gives_no_window) {
    const long before = standin_calls("ncclCommRegister");
    standin_set("symmetric", 0);
    run(3, without_of_rank, NULL, 0);
    standin_set("symmetric", 1);
    T_EQ(1, told);
    T_TEXT("ncclCommRegister", told_text);
    T_EQ(6, standin_calls("ncclCommRegister") - before);
}

/* A NCCL without the function; run again by the test below. */
static int child(void) {
    const long before = standin_calls("ncclCommRegister");
    test__now.name = "child";
    run(2, without_of_rank, NULL, 0);
    printf("told %d: %s\nregistered %ld\n", told, told_text,
        standin_calls("ncclCommRegister") - before);
    return test__now.failed_checks != 0;
}
static void with_version(const char *folder, const char *expect) {
    char command[PATH_MAX * 2 + 300], line[600], all[4000] = "";
    snprintf(command, sizeof command, "STANDIN_FOLDER=x LD_LIBRARY_PATH='%s' '%s' --child 2>&1",
        libraries_folder(program, folder), program);
    FILE *const f = popen(command, "r");
    if (!T(f != NULL)) return;
    while (fgets(line, sizeof line, f))
        strncat(all, line, sizeof all - strlen(all) - 1);
    const int rc = pclose(f);
    test_check(rc == 0 && strstr(all, expect) != NULL, __FILE__, __LINE__,
        "NCCL %s: exit code %d, \"%s\" expected in: %s", folder, rc, expect, all);
}
TEST(older_versions) {
    with_version("2.18", "told 1: ");
    with_version("2.18", "NCCL 2.18 has no ncclCommWindowRegister");
    with_version("2.18", "memory is neither symmetric nor registered");
    with_version("2.26", "told 1: ");
    with_version("2.26", "NCCL 2.26 has no ncclCommWindowRegister");
    with_version("2.26", "registered 4");
}

/* ---- the model itself ---- */

/* What the library is there to prevent shows on the stand-in. */
static void mistakes_of_rank(card *c) {
    void *p = NULL, *window = NULL;
    cdp__nc_result state = (cdp__nc_result)0;
    if (cdp__nc.ncclMemAlloc(&p, 8192) != 0) return;
    meet(c);
    int r = (int)cdp__nc.ncclCommWindowRegister(
        (cdp__nc_comm)cdp_nccl_comm(c->g), p, c->rank ? 8192 : 4096, &window, 1);
    while (r == CDP__NC_IN_PROGRESS || state == CDP__NC_IN_PROGRESS) {
        r = (int)cdp__nc.ncclCommGetAsyncError((cdp__nc_comm)cdp_nccl_comm(c->g), &state);
        test_sleep_ms(1);
    }
    T(r == 0 && window != NULL);
    meet(c);
    T(standin_faults(NULL, 0) > 0); /* sizes differ */
    meet(c);
    if (c->rank == 0) standin_forget_faults();
    meet(c);
    if (c->rank == 0) (void)cdp__nc.ncclMemFree(p); /* while the window exists */
    meet(c);
    T_EQ(1, standin_faults(NULL, 0));
    meet(c);
    if (c->rank == 0) standin_forget_faults();
    T_EQ(0, (int)cdp__nc.ncclCommWindowDeregister((cdp__nc_comm)cdp_nccl_comm(c->g), window));
    if (c->rank) (void)cdp__nc.ncclMemFree(p);
}
TEST(mistakes_are_seen) {
    run(2, mistakes_of_rank, NULL, 0);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"registered_by_all", registered_by_all, 60},
        {"goes_with_the_group", goes_with_the_group, 60}, {"as_an_allocator", as_an_allocator, 60},
        {"sizes_differ", sizes_differ, 60}, {"what_exists_differs", what_exists_differs, 60},
        {"no_memory_on_one_rank", no_memory_on_one_rank, 60}, {"captures", captures, 60},
        {"a_window_that_one_rank_keeps", a_window_that_one_rank_keeps, 60},
        {"refusals", refusals, 60}, {"a_rank_does_not_call", a_rank_does_not_call, 60},
        {"a_rank_calls_something_else", a_rank_calls_something_else, 60},
        {"nccl_fails_or_hangs", nccl_fails_or_hangs, 60}, {"abort_anywhere", abort_anywhere, 60},
        {"any_function_fails", any_function_fails, 120},
        {"nccl_gives_no_window", nccl_gives_no_window, 60}, {"older_versions", older_versions, 60},
        {"mistakes_are_seen", mistakes_are_seen, 60}};
    program = argv[0];
    libraries_at_hand(argv, "");
    if (!standin_loads()) return 1;
    if (argc > 1 && strcmp(argv[1], "--child") == 0) return child();
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/* A job of cdp_elastic.h whose ranks train on GPUs: connected() attaches NCCL to the group of each
   epoch. Processes, on the stand-in of this folder: what is claimed here is claimed of the
   library's logic, not of a GPU. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_elastic.h"
#include "cdp_nccl.h"

#include "cards.h"

#include <sys/wait.h>

enum {
    RANKS = 3,
    WEIGHTS = 1000,
    BATCH = 2,
    STEPS = 12,
    DIES_AT = 5 /* step */
};

typedef enum death {
    BEFORE_ITS_PART, /* the others wait for it in NCCL */
    WITH_ITS_PART,   /* it has started the operation */
    WHILE_ATTACHING  /* the others wait for it while NCCL connects the second epoch */
} death;

static const char *program;

/* ---- a rank ---- */

typedef struct trainer {
    void *stream, *device; /* memory of the gradient */
    death how;
    uint32_t attached;
    long reduced; /* calls of ncclAllReduce when NCCL was attached last */
    bool dies;    /* WHILE_ATTACHING: the next time */
    uint64_t w[WEIGHTS], grad[WEIGHTS];
} trainer;

/* w[i] is the sum of (sample + 1) * (i + 1) over the samples of committed steps. */
static bool is_right(const trainer *t, uint64_t samples) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < WEIGHTS; ++i)
        wrong += t->w[i] != samples * (samples + 1) / 2 * (i + 1);
    return wrong == 0;
}

static void die(const cdp_elastic_now *now) {
    printf("rank %u of epoch %llu dies\n", now->rank, (unsigned long long)now->epoch);
    fflush(stdout);
    raise(SIGKILL);
}

static cdp_status attach(void *user, const cdp_elastic_now *now) {
    trainer *const t = (trainer *)user;
    cdp_nccl_desc d;
    cdp_status st;
    if (t->dies) die(now);
    memset(&d, 0, sizeof d);
    d.stream = t->stream;
    st = cdp_nccl_attach(now->group, &d);
    if (st != CDP_OK) return st;
    ++t->attached;
    t->reduced = standin_calls("ncclAllReduce");
    return CDP_OK;
}

/* Whichever epoch the job runs in: the first one may not have had the time to connect. */
static bool is_to_die(const cdp_elastic_now *now) {
    return now->size == RANKS && now->rank == 1 && now->step >= DIES_AT;
}

/* The gradient of a step, summed up by NCCL. The host waits: a step is committed when it is
   complete. */
static cdp_status reduce(trainer *t, const cdp_elastic_now *now) {
    const uint64_t first = now->samples + (uint64_t)now->rank * BATCH;
    const bool last = is_to_die(now);
    cdp_work work;
    cdp_status st;
    memset(t->grad, 0, sizeof t->grad);
    for (uint64_t s = first; s < first + BATCH; ++s)
        for (uint64_t i = 0; i < WEIGHTS; ++i)
            t->grad[i] += (s + 1) * (i + 1);
    if (gpu_cudaMemcpyAsync(t->device, t->grad, sizeof t->grad, GPU_TO_DEVICE, t->stream)) abort();
    if (last && t->how == BEFORE_ITS_PART) die(now);
    st = cdp_allreduce_async(
        now->group, NULL, t->device, WEIGHTS, CDP_DTYPE_U64, CDP_REDUCE_SUM, &work);
    if (last && t->how == WITH_ITS_PART) die(now);
    if (st == CDP_OK) st = cdp_work_wait_for(work, 60000 * TEST_SLACK);
    /* memory of an operation that failed may be used when the stream of its group is empty */
    if (st != CDP_OK && cdp_nccl_stream(now->group))
        GPU(cudaStreamSynchronize(cdp_nccl_stream(now->group)));
    GPU(cudaStreamSynchronize(t->stream));
    if (st == CDP_OK) gpu_get(t->grad, t->device, sizeof t->grad);
    return st;
}

/* It dies when connected() has been called for the next one. */
static void end_this_epoch(trainer *t, cdp_elastic *e, const cdp_elastic_now *now) {
    const uint64_t until = test_until_ns(20000);
    t->dies = true;
    OK(cdp_elastic_alarm(e, "before a death"));
    while (cdp_group_status(now->group) == CDP_OK && test_now_ns() < until)
        test_sleep_ms(1);
    T(cdp_group_status(now->group) != CDP_OK);
}

static cdp_status train(trainer *t, cdp_elastic *e, cdp_elastic_now *now) {
    cdp_status st;
    while ((st = cdp_elastic_next(e, now)) == CDP_OK) {
        T(is_right(t, now->samples));
        T(cdp_nccl_comm(now->group) != NULL);
        if (now->step >= STEPS) return cdp_elastic_finish(e);
        if (t->how == WHILE_ATTACHING && is_to_die(now)) end_this_epoch(t, e, now);
        if (reduce(t, now) != CDP_OK || cdp_elastic_commit(e) != CDP_OK) continue;
        for (uint64_t i = 0; i < WEIGHTS; ++i)
            t->w[i] += t->grad[i];
    }
    return st;
}

static int child(death how, int device) {
    static trainer t;
    const cdp_tcp_desc tcp = {.group.timeout_ms = 30000 * TEST_SLACK};
    const cdp_entry entries[] = {{"w", t.w, WEIGHTS, CDP_DTYPE_U64}};
    cdp_elastic_desc d = {.tcp = &tcp,
        .entries = entries,
        .entry_count = 1,
        .batch = BATCH,
        .connected = attach,
        .user = &t};
    cdp_elastic *e = NULL;
    cdp_elastic_now now;
    char history[4000];
    cdp_status st;
    t.how = how;
    d.settle_ms = 60000 * TEST_SLACK; /* all are in the first epoch, and the dead are known */
    d.join_ms = 2 * d.settle_ms;
    GPU(cudaSetDevice(device));
    GPU(cudaStreamCreateWithFlags(&t.stream, GPU_NON_BLOCKING));
    t.device = gpu_new(NULL, sizeof t.grad);
    memset(&now, 0, sizeof now);
    st = cdp_elastic_create_from_env(&d, &e);
    if (st == CDP_OK) st = train(&t, e, &now);
    if (st != CDP_OK) {
        (void)cdp_print_error(stdout);
    } else {
        (void)cdp_elastic_history(e, history, sizeof history);
        T_TEXT("\"lost\": 1", history);
        T_EQ(RANKS - 1, now.size);
        T(t.attached >= 2);
        /* what the last epoch summed up went through its communicator */
        T(standin_calls("ncclAllReduce") > t.reduced);
    }
    cdp_elastic_destroy(e);
    GPU(cudaFree(t.device));
    GPU(cudaStreamDestroy(t.stream));
    clean();
    printf("%s: %llu steps, %llu samples, %u times attached\n", cdp_status_name(st),
        (unsigned long long)now.step, (unsigned long long)now.samples, t.attached);
    fflush(stdout);
    return st != CDP_OK || test__now.failed_checks != 0;
}

/* ---- jobs ---- */

static void job(death how) {
    cdp_store_server_desc sd = {0};
    cdp_store_server *server;
    char command[PATH_MAX + 400], line[800], all[RANKS][4000];
    FILE *f[RANKS];
    uint32_t ended = 0, killed = 0;
    if (!OK(cdp_store_server_create(&sd, &server))) return;
    for (uint32_t r = 0; r < RANKS; ++r) {
        snprintf(command, sizeof command,
            "MASTER_ADDR=127.0.0.1 MASTER_PORT=%u CDP_ELASTIC=2:3 exec '%s' --rank %d %u 2>&1",
            cdp_store_server_port(server), program, (int)how, r);
        f[r] = popen(command, "r");
        if (!f[r]) abort();
    }
    for (uint32_t r = 0; r < RANKS; ++r) {
        all[r][0] = 0;
        while (fgets(line, sizeof line, f[r]))
            strncat(all[r], line, sizeof all[r] - strlen(all[r]) - 1);
        const int rc = pclose(f[r]);
        const bool dead = WIFSIGNALED(rc) && WTERMSIG(rc) == SIGKILL;
        test_check(rc == 0 || dead, __FILE__, __LINE__, "a rank ended with %d: %s", rc, all[r]);
        T_TEXT(dead ? " dies" : "OK: 12 steps", all[r]);
        ended += rc == 0;
        killed += dead;
    }
    T_EQ(RANKS - 1, ended);
    T_EQ(1, killed);
    cdp_store_server_destroy(server);
}

TEST(others_go_on_when_one_dies_before_an_operation) {
    job(BEFORE_ITS_PART);
}
TEST(others_go_on_when_one_dies_in_an_operation) {
    job(WITH_ITS_PART);
}
TEST(others_go_on_when_one_dies_while_nccl_connects) {
    job(WHILE_ATTACHING);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"others_go_on_when_one_dies_before_an_operation",
                                          others_go_on_when_one_dies_before_an_operation, 60},
        {"others_go_on_when_one_dies_in_an_operation", others_go_on_when_one_dies_in_an_operation,
            60},
        {"others_go_on_when_one_dies_while_nccl_connects",
            others_go_on_when_one_dies_while_nccl_connects, 60}};
    program = argv[0];
    libraries_at_hand(argv, "");
    if (!standin_loads()) return 1;
    if (argc == 4 && strcmp(argv[1], "--rank") == 0) {
        test__now.name = "rank";
        return child((death)atoi(argv[2]), atoi(argv[3]));
    }
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

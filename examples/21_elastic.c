/*  21_elastic.c - four processes train; one is killed, three go on, and a new one joins

        gcc -O2 examples/21_elastic.c -o 21_elastic -pthread -lm
        ./21_elastic

    The first process serves the store and starts the others: itself, with the word "train". Each of
    them fits y = 1 + 2 x to samples that nobody else takes: sample n belongs to one committed step,
    however many ranks there are. The state that all have alike is w and its momentum. */
#define _GNU_SOURCE 1
#define CDP_IMPLEMENTATION
#include "../cdp_elastic.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STEPS = 3000,
    BATCH = 8
};

static void gradient(const float *w, const cdp_elastic_now *now, float *g) {
    const uint64_t first = now->samples + (uint64_t)now->rank * BATCH;
    g[0] = g[1] = 0;
    for (uint64_t n = first; n < first + BATCH; ++n) {
        const float x = (float)(n * 7 % 20) / 10 - 1;
        const float err = w[0] + w[1] * x - (1 + 2 * x);
        g[0] += err / BATCH;
        g[1] += err * x / BATCH;
    }
}

static int train(int report) {
    float state[4] = {0}, *const w = state, *const momentum = state + 2, g[2];
    const cdp_entry entries[] = {
        {"w", w, 2, CDP_DTYPE_F32}, {"momentum", momentum, 2, CDP_DTYPE_F32}};
    cdp_elastic_desc desc = {
        .min_ranks = 2, .grow_ms = 500, .batch = BATCH, .entries = entries, .entry_count = 2};
    cdp_elastic *e;
    cdp_elastic_now now;
    cdp_status st;
    if (cdp_elastic_create_from_env(&desc, &e) != CDP_OK) return cdp_print_error(stderr);
    while ((st = cdp_elastic_next(e, &now)) == CDP_OK && now.step < STEPS) {
        if (now.changed && now.rank == 0)
            printf("step %llu: %u ranks, %u lost, %u joined: %.60s\n", (unsigned long long)now.step,
                now.size, now.lost, now.joined, now.cause);
        fflush(stdout);
        if (now.changed && now.rank == 0) {
            const unsigned char size = (unsigned char)now.size;
            if (write(report, &size, 1) != 1) return 1;
        }
        gradient(w, &now, g);
        usleep(1000); /* a model would compute for longer */
        if (cdp_allreduce(now.group, NULL, g, 2, CDP_DTYPE_F32, CDP_REDUCE_AVG) != CDP_OK) continue;
        if (cdp_elastic_commit(e) != CDP_OK) continue; /* this step counts nowhere here */
        for (int i = 0; i < 2; ++i) {
            momentum[i] = 0.9f * momentum[i] + g[i];
            w[i] -= 0.05f * momentum[i];
        }
    }
    if (st == CDP_OK) st = cdp_elastic_finish(e);
    if (st != CDP_OK) return cdp_print_error(stderr);
    if (now.rank == 0)
        printf("y = %.3f + %.3f x: %s\n", w[0], w[1],
            fabsf(w[0] - 1) < 0.01f && fabsf(w[1] - 2) < 0.01f ? "right" : "wrong");
    cdp_elastic_destroy(e);
    return 0;
}

static pid_t start(const char *self, int report) {
    char text[12];
    snprintf(text, sizeof text, "%d", report);
    const pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, "train", text, (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* Rank 0 reports how many ranks there are, each time that their number changes. */
static void wait_for(int reports, unsigned char ranks) {
    unsigned char size = 0;
    while (size != ranks && read(reports, &size, 1) == 1) {
    }
}

int main(int argc, char **argv) {
    cdp_store_server_desc desc = {0};
    cdp_store_server *server;
    char port[12];
    pid_t ranks[5];
    int status, good = 0, ends[2];
    if (argc > 2 && strcmp(argv[1], "train") == 0) return train(atoi(argv[2]));
    if (pipe(ends) != 0) return 1;
    if (cdp_store_server_create(&desc, &server) != CDP_OK) return cdp_print_error(stderr);
    snprintf(port, sizeof port, "%u", cdp_store_server_port(server));
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    for (int i = 0; i < 4; ++i)
        ranks[i] = start("/proc/self/exe", ends[1]);
    wait_for(ends[0], 4);
    usleep(300000);
    printf("one of them is killed\n");
    fflush(stdout);
    kill(ranks[1], SIGKILL);
    wait_for(ends[0], 3);
    usleep(300000);
    printf("a new one is started\n");
    fflush(stdout);
    ranks[4] = start("/proc/self/exe", ends[1]);
    for (int i = 0; i < 5; ++i)
        if (waitpid(ranks[i], &status, 0) == ranks[i] && WIFEXITED(status))
            good += WEXITSTATUS(status) == 0;
    cdp_store_server_destroy(server);
    printf("%d of 5 processes ended well\n", good);
    return good != 4;
}

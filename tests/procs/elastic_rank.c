/* elastic_rank.c - a rank of a training job with integers, and a serial program that replays it

       elastic_rank train LOG PACE_MS [TIMEOUT_MS]   a rank; ends when the file LOG.stop is there
       elastic_rank replay LOG                       the same steps without cdp; compares the end

   Each rank appends a line to LOG for each epoch in which it takes part: "epoch K step S samples M
   size N rank R pid P". Those are the decisions. "pause MS epoch K ..." follows where it had
   committed a step before: the time from that one to the first one of the epoch. The weights of a
   step follow from those before and from the samples of the step alone, so the replay must end with
   the same bits, whoever died. */
#define _GNU_SOURCE
#define CDP_IMPLEMENTATION
#include "cdp_elastic.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WEIGHTS = 500,
    BATCH = 4,
    MOST = 100000 /* lines of the log */
};

/* w[0] is how many ranks have asked for the end */
static uint64_t w[WEIGHTS], grad[WEIGHTS];

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void gradient(uint64_t first, uint64_t count) {
    for (uint64_t s = first; s < first + count; ++s)
        for (uint64_t i = 1; i < WEIGHTS; ++i)
            grad[i] += mix(s * WEIGHTS + i + w[i]);
}

static void optimizer(void) {
    w[0] += grad[0];
    for (uint64_t i = 1; i < WEIGHTS; ++i)
        w[i] = w[i] * 6364136223846793005u + grad[i];
}

static uint64_t loss(void) {
    uint64_t sum = 0;
    for (uint64_t i = 1; i < WEIGHTS; ++i)
        sum = mix(sum + w[i]);
    return sum;
}

static void append(const char *path, const char *format, ...) {
    char text[300];
    va_list args;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (fd < 0 || write(fd, text, (size_t)n) != n) abort();
    close(fd);
}

/* How long there was no step, and what the turn before this epoch consisted of: the end of its
   history. */
static void append_pause(const char *log, cdp_elastic *e, uint64_t epoch, uint64_t ns) {
    char history[16000];
    const char *at = history, *p;
    cdp_elastic_history(e, history, sizeof history);
    while ((p = strstr(at, "\"turn_us\"")) != NULL)
        at = p + 1;
    append(log, "pause %llu epoch %llu %.160s\n", (unsigned long long)(ns / 1000000),
        (unsigned long long)epoch, at);
}

static int train(const char *log, uint32_t pace_ms, uint32_t timeout_ms) {
    const cdp_entry entries[] = {
        {"low", w, 100, CDP_DTYPE_U64}, {"high", w + 100, WEIGHTS - 100, CDP_DTYPE_U64}};
    cdp_tcp_desc tcp = {.group = {.timeout_ms = timeout_ms}};
    cdp_elastic_desc desc = {.tcp = &tcp,
        .settle_ms = 5000,
        .grow_ms = 100,
        .batch = BATCH,
        .entries = entries,
        .entry_count = 2};
    char stop[1000];
    cdp_elastic *e;
    cdp_elastic_now now;
    cdp_status st;
    uint64_t last = 0;
    bool changed = false; /* since that step */
    const cdp_os *os = cdp_os_default();
    snprintf(stop, sizeof stop, "%s.stop", log);
    if (cdp_elastic_create_from_env(&desc, &e) != CDP_OK) return cdp_print_error(stderr);
    while ((st = cdp_elastic_next(e, &now)) == CDP_OK && w[0] == 0) {
        if (now.changed)
            append(log, "epoch %llu step %llu samples %llu size %u rank %u pid %ld\n",
                (unsigned long long)now.epoch, (unsigned long long)now.step,
                (unsigned long long)now.samples, now.size, now.rank, (long)getpid());
        changed = changed || now.changed;
        memset(grad, 0, sizeof grad);
        grad[0] = access(stop, F_OK) == 0;
        gradient(now.samples + (uint64_t)now.rank * BATCH, BATCH);
        if (pace_ms) usleep(pace_ms * 1000);
        if (cdp_allreduce(now.group, NULL, grad, WEIGHTS, CDP_DTYPE_U64, CDP_REDUCE_SUM) != CDP_OK)
            continue;
        if (cdp_elastic_commit(e) != CDP_OK) continue;
        optimizer();
        const uint64_t at = os->now_ns(NULL);
        if (last && (changed || at - last > 1000000000u))
            append_pause(log, e, now.epoch, at - last);
        last = at;
        changed = false;
    }
    const uint64_t step = now.step;
    if (st == CDP_OK) st = cdp_elastic_finish(e);
    if (st != CDP_OK) return cdp_print_error(stderr);
    append(
        log, "end step %llu loss %016llx\n", (unsigned long long)step, (unsigned long long)loss());
    cdp_elastic_destroy(e);
    return 0;
}

/* ---- the serial program ---- */

typedef struct epoch {
    unsigned long long number, step, samples;
    unsigned size;
} epoch;

static epoch epochs[MOST];
static unsigned count;

/* All lines of one epoch must be equal. */
static bool note(const epoch *e) {
    unsigned i = 0;
    while (i < count && epochs[i].number != e->number)
        ++i;
    if (i == count && count < MOST) epochs[count++] = *e;
    return i < MOST && epochs[i].step == e->step && epochs[i].samples == e->samples
        && epochs[i].size == e->size;
}

static int complain(const char *what) {
    puts(what);
    return 1;
}

static int by_number(const void *a, const void *b) {
    const epoch *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* The steps of epoch number i, up to the one with which the next begins. */
static bool replay_epoch(unsigned i, unsigned long long end) {
    const epoch *e = &epochs[i];
    const unsigned long long next = i + 1 < count ? epochs[i + 1].step : end;
    unsigned long long samples = e->samples;
    if (next < e->step) return false;
    for (unsigned long long s = e->step; s < next; ++s) {
        memset(grad, 0, sizeof grad);
        gradient(samples, (uint64_t)e->size * BATCH);
        optimizer();
        samples += (unsigned long long)e->size * BATCH;
    }
    return i + 1 == count || samples == epochs[i + 1].samples;
}

static int replay(const char *log) {
    char line[300];
    char slowest[300] = "";
    unsigned long long end = 0, want = 0, pause, worst = 0, s, l;
    unsigned ends = 0;
    epoch e;
    FILE *f = fopen(log, "r");
    if (!f) return 1;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "epoch %llu step %llu samples %llu size %u", &e.number, &e.step,
                &e.samples, &e.size)
            == 4) {
            if (!note(&e)) return complain("the lines of an epoch differ between ranks");
        } else if (sscanf(line, "end step %llu loss %llx", &s, &l) == 2) {
            if (ends++ && (s != end || l != want)) return complain("the ends differ");
            end = s;
            want = l;
        } else if (sscanf(line, "pause %llu", &pause) == 1 && pause > worst) {
            worst = pause;
            memcpy(slowest, line, sizeof slowest);
        }
    }
    fclose(f);
    qsort(epochs, count, sizeof *epochs, by_number);
    for (unsigned i = 0; i < count; ++i)
        if (!replay_epoch(i, end)) return complain("an epoch does not follow from the one before");
    if (worst > 0) printf("longest: %s", slowest);
    printf("%u ranks at the end, %u epochs, %llu steps, longest pause %llu ms: %s\n", ends, count,
        end, worst, ends && loss() == want ? "the loss of the serial program" : "ANOTHER LOSS");
    return !(ends && loss() == want);
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "train") == 0)
        return train(argv[2], (uint32_t)atoi(argv[3]), argc > 4 ? (uint32_t)atoi(argv[4]) : 20000);
    if (argc > 2 && strcmp(argv[1], "replay") == 0) return replay(argv[2]);
    return 2;
}

/*  21_elastic.c - four processes train; one is killed, three go on, and a new one joins

    You learn: the loop of cdp_elastic.h, which goes on in the same processes when ranks change.

        gcc -O2 examples/21_elastic.c -o 21_elastic -pthread -lm
        ./21_elastic loss.svg

    The first process serves the store and starts the others: itself, with the word "train". They
    train the model of text_model.h on the text of this repository. Each sequence belongs to
    one committed step, however many ranks there are. What all have alike, and what a newcomer
    receives, are the model and Adam's moments. Search for "elastic" to find the calls that matter.
    (cdprun does what main() does here, on machines of your own, too: on each
    cdprun -n 4 --nnodes MIN:MAX --stay --rdzv-endpoint HOST --job-key-file FILE ./program) */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define _GNU_SOURCE 1
#define CDP_IMPLEMENTATION
#include "../cdp_elastic.h"

#include "loss_curve.h"
#include "text_model.h"

#include "help.h"
#include <signal.h>
#include <sys/wait.h>

enum {
    STEPS = 900,
    KILL_AT = 300, /* steps */
    JOIN_AT = 550,
    WAIT_AT = 700, /* here three ranks wait for the new one */
    BATCH = 4,     /* sequences of one rank in one step */
    WIDTH = 32,
    CONTEXT = 32
};

/* What each rank reports to the first process: a step that it has committed, or its end. A step may
   be committed by some ranks only, and the others then receive it: so no rank speaks for all. */
typedef struct record {
    uint64_t step, samples, hash; /* hash: of the model, at the end; 0: not yet */
    double bits;
    uint64_t size;
} record;

static const plan rates = {
    .batch = BATCH, .seed = 1, .warmup = 30, .decay = 2 * STEPS, .rate = 0.006};

typedef struct learner {
    model m;
    corpus text;
    uint8_t *inputs, *targets;
    real *grads;   /* of all parameters, and then the loss */
    real *moments; /* Adam's first ones, then the second */
} learner;

static bool learner_open(learner *l, const char *program) {
    reason why;
    *l = (learner){0};
    if (!corpus_gather(&l->text, NULL, 0, program, CONTEXT, &why)) {
        complain(&why);
        return false;
    }
    model_create(&l->m, 1, WIDTH, 4, CONTEXT, BATCH);
    model_init(&l->m, rates.seed);
    l->inputs = need(BATCH, CONTEXT);
    l->targets = need(BATCH, CONTEXT);
    l->grads = need_reals(l->m.value_count + 1);
    l->moments = need_reals(2 * l->m.value_count);
    for (uint32_t i = 0; i < l->m.tensor_count; ++i)
        l->m.grads[i] = l->grads + l->m.tensors[i].offset;
    return true;
}

static void learner_close(learner *l) {
    model_free(&l->m);
    corpus_free(&l->text);
    free(l->inputs);
    free(l->targets);
    free(l->grads);
    free(l->moments);
}

/* Forward and backward on the sequences that belong to this rank in this step. */
static void forward_backward(learner *l, const cdp_elastic_now *now) {
    const uint64_t first = now->samples + (uint64_t)now->rank * BATCH;
    const real rows = BATCH * CONTEXT;
    memset(l->grads, 0, (l->m.value_count + 1) * sizeof *l->grads);
    for (uint64_t i = 0; i < BATCH; ++i) {
        const uint8_t *from = l->text.train
            + sequence_start(&(plan){.seed = 1, .context = CONTEXT}, &l->text, 0, first + i);
        memcpy(l->inputs + i * CONTEXT, from, CONTEXT);
        memcpy(l->targets + i * CONTEXT, from + 1, CONTEXT);
    }
    model_forward(&l->m, l->inputs, BATCH);
    l->grads[l->m.value_count] = (real)model_loss(&l->m, l->targets, BATCH, 1 / rows) / rows;
    model_backward(&l->m, l->inputs, BATCH);
}

static void optimizer(learner *l, uint64_t step) {
    for (uint32_t i = 0; i < l->m.tensor_count; ++i) {
        real *first = l->moments + l->m.tensors[i].offset;
        adam(&rates, step, value_of(&l->m, i), l->m.grads[i], first, first + l->m.value_count,
            l->m.tensors[i].count, false);
    }
}

static bool report_to(int fd, const cdp_elastic_now *now, double bits, uint64_t hash) {
    const record r = {now->step, now->samples, hash, bits, now->size};
    return write(fd, &r, sizeof r) == sizeof r;
}

/* On a fast machine the job could be over before the new process has started. It ends the epoch
   when it comes: then the group of that epoch has failed. */
static void wait_for_the_new_one(const cdp_elastic_now *now) {
    if (now->step != WAIT_AT || now->size != 3) return;
    for (int i = 0; i < 20000 && cdp_group_status(now->group) == CDP_OK; ++i)
        usleep(1000);
}

static int train_rank(int reports, const char *program) {
    learner l;
    if (!learner_open(&l, program)) return 1;
    const uint64_t count = l.m.value_count;
    const cdp_entry entries[] = {
        {.name = "model", .data = l.m.values, .count = count, .dtype = REAL_DTYPE},
        {.name = "moments", .data = l.moments, .count = 2 * count, .dtype = REAL_DTYPE}};
    cdp_elastic_desc desc = {.min_ranks = 2,
        .max_ranks = 4,     /* with so many the job begins at once; */
        .settle_ms = 10000, /* with fewer, if no other one comes for so long */
        .grow_ms = 200,
        .batch = BATCH,
        .entries = entries,
        .entry_count = 2};
    cdp_elastic *e;
    cdp_elastic_now now;
    cdp_status st;
    bool told = true;
    if (cdp_elastic_create_from_env(&desc, &e) != CDP_OK) return cdp_print_error(stderr);
    while ((st = cdp_elastic_next(e, &now)) == CDP_OK && now.step < STEPS && told) {
        if (now.changed && now.rank == 0)
            printf("step %llu: %u ranks, %u lost, %u joined: %.60s\n", llu(now.step), now.size,
                now.lost, now.joined, now.cause);
        fflush(stdout);
        wait_for_the_new_one(&now);
        forward_backward(&l, &now);
        if (cdp_allreduce(now.group, NULL, l.grads, count + 1, REAL_DTYPE, CDP_REDUCE_AVG)
            != CDP_OK)
            continue;
        if (cdp_elastic_commit(e) != CDP_OK) continue; /* this step counts nowhere here */
        optimizer(&l, now.step);                       /* only now */
        told = report_to(reports, &now, l.grads[count], 0);
    }
    if (st == CDP_OK) st = cdp_elastic_finish(e);
    if (st != CDP_OK) return cdp_print_error(stderr);
    told = told
        && report_to(reports, &now, l.grads[count],
            hash_bytes(1, l.m.values, count * sizeof *l.m.values) | 1);
    cdp_elastic_destroy(e);
    learner_close(&l);
    return !told;
}

/* ---- the first process ---- */

typedef struct course {
    double bits[STEPS];
    uint64_t size[STEPS]; /* 0: nobody has committed this step */
    uint64_t samples, hash;
    uint32_t ends;
    bool equal; /* the models at the end */
} course;

static pid_t start(const char *program, int reports) {
    char text[12];
    snprintf(text, sizeof text, "%d", reports);
    const pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", program, "train", text, program, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void note(course *c, const record *r) {
    if (r->hash) {
        if (c->ends && r->hash != c->hash) c->equal = false;
        c->hash = r->hash;
        c->samples = r->samples;
        ++c->ends;
        return;
    }
    if (r->step >= STEPS) return;
    c->size[r->step] = r->size; /* a step that was lost with its rank is done again: the last one */
    c->bits[r->step] = r->bits; /* counts */
}

/* A line where the number of ranks has changed, with the new number. The curve goes on. */
static bool draw_course(const course *c, const char *path) {
    reason why;
    const curve none = {0};
    curve smooth = {0};
    double mean = c->bits[0];
    for (uint64_t step = 0; step < STEPS; ++step) {
        mean += (c->bits[step] - mean) * 0.1;
        curve_add(&smooth, step, mean);
    }
    page p = draw_picture(&smooth, &none, "one rank is killed, and another one joins", 2);
    const frame f = frame_of(&smooth, &none);
    p.bytes -= strlen("</svg>\n");
    for (uint32_t step = 0; step < STEPS; ++step) {
        const double x = frame_x(&f, step);
        if (step && c->size[step] == c->size[step - 1]) continue;
        page_add(&p,
            "<line class=\"axis\" stroke-dasharray=\"4 4\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" "
            "y2=\"%d\"/>\n<text class=\"held-name\" x=\"%.1f\" y=\"%d\">%llu ranks</text>\n",
            x, x, PLOT_TOP, PLOT_BOTTOM, x + 6, PLOT_TOP + 12, llu(c->size[step]));
    }
    page_add(&p, "</svg>\n");
    const bool ok = file_write(path, p.at, p.bytes, &why);
    if (!ok) complain(&why);
    free(p.at);
    curve_free(&smooth);
    return ok;
}

/* Kills one rank and starts another, at these steps. Ends when no rank is left. */
static void watch(course *c, pid_t ranks[5], int reports[2], const char *program) {
    record r;
    bool killed = false;
    while (read(reports[0], &r, sizeof r) == sizeof r) {
        note(c, &r);
        if (!killed && r.step >= KILL_AT) {
            printf("one of them is killed\n");
            fflush(stdout);
            kill(ranks[1], SIGKILL);
            killed = true;
        }
        if (killed && !ranks[4] && r.size == 3 && r.step >= JOIN_AT) {
            printf("a new one is started\n");
            fflush(stdout);
            ranks[4] = start(program, reports[1]);
            close(reports[1]); /* now only the ranks hold it, and its end is theirs */
        }
    }
}

static bool verdict(const course *c, int good) {
    const double first = c->bits[0], last = c->bits[STEPS - 1];
    uint64_t steps = 0, counted = 0; /* as the sizes of the steps add up */
    for (uint32_t i = 0; i < STEPS; ++i) {
        steps += c->size[i] != 0;
        counted += c->size[i] * BATCH;
    }
    const bool each = steps == STEPS && counted == c->samples;
    const bool ok = each && c->equal && c->ends == 4 && good == 4 && last < 0.7 * first;
    printf("%llu steps with %llu sequences, each counted %s; loss %.2f to %.2f bits per byte; %u "
           "models %s\n",
        llu(steps), llu(c->samples), each ? "once" : "WRONGLY", first, last, c->ends,
        c->equal ? "equal" : "DIFFERENT");
    printf("%d of 5 processes ended well: %s\n", good, ok ? "right" : "wrong");
    return ok;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "21_elastic: four processes train, one is killed, one joins; the loss curve goes to "
            "SVG.\n"
            "usage: ./21_elastic [SVG]"))
        return 0;
    cdp_store_server_desc desc = {0};
    cdp_store_server *server;
    course c = {.equal = true};
    char port[12];
    pid_t ranks[5] = {0};
    int status, good = 0, reports[2];
    if (argc > 3 && strcmp(argv[1], "train") == 0) return train_rank(atoi(argv[2]), argv[3]);
    if (pipe(reports) != 0) return 1;
    if (cdp_store_server_create(&desc, &server) != CDP_OK) return cdp_print_error(stderr);
    snprintf(port, sizeof port, "%u", cdp_store_server_port(server));
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    for (int i = 0; i < 4; ++i)
        ranks[i] = start(argv[0], reports[1]);
    watch(&c, ranks, reports, argv[0]);
    for (int i = 0; i < 5; ++i)
        if (ranks[i] && waitpid(ranks[i], &status, 0) == ranks[i] && WIFEXITED(status))
            good += WEXITSTATUS(status) == 0;
    cdp_store_server_destroy(server);
    bool ok = verdict(&c, good);
    if (argc > 1) ok = draw_course(&c, argv[1]) && ok;
    if (argc > 1 && ok) printf("curve: %s\n", argv[1]);
    return !ok;
}

/*  29_elastic_checkpoint.c - a job that survives the loss of some ranks, and of all of them

    You learn: what cdp_elastic.h and cdp_checkpoint.h do for each other. Ranks that die, leave or
    come are the business of the first: the others have the state. If nobody has it any more, the
    job begins again, on however many ranks come, and goes on from the newest step that was saved.

        gcc -O2 examples/29_elastic_checkpoint.c -o 29_elastic_checkpoint -pthread -lm
        ./cdprun -n 4 --stay ./29_elastic_checkpoint run9 2000    kill it with SIGKILL, all of it
        ./cdprun -n 3 --stay ./29_elastic_checkpoint run9 2000    goes on; the loss is the same

    Search for "1.", "2." and "3." for the three places that matter. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_elastic.h"
#include "../cdp_checkpoint.h"

#include "help.h"
#include <stdlib.h>

enum {
    WEIGHTS = 12,
    SAMPLES = 60, /* of one step, dealt out over the ranks, however many these are */
    EVERY = 100   /* steps between two saves */
};

typedef struct learner {
    double w[WEIGHTS], momentum[WEIGHTS]; /* what all ranks have alike */
    const char *path;
    cdp_ckpt *ckpt; /* of the group of this epoch; NULL: not made yet */
    cdp_item items[2];
} learner;

static void learner_open(learner *l, const char *path) {
    static const char *const names[2] = {"w", "w.momentum"};
    memset(l, 0, sizeof *l);
    l->path = path;
    for (uint32_t i = 0; i < 2; ++i) {
        l->items[i].name = names[i];
        l->items[i].tensor.layout =
            (cdp_layout){.ndim = 1, .shape = {WEIGHTS}, .dtype = CDP_DTYPE_F64};
        l->items[i].tensor.data = i ? l->momentum : l->w;
    }
}

/* 1. Before the job is joined: the newest step on the disk, read by this process alone. It counts
   on rank 0 of the first epoch, from which the others receive it; what a newcomer to a running job
   has read is overwritten. */
static cdp_status learner_begin(learner *l, uint64_t *step) {
    cdp_ckpt_reader *r;
    cdp_status st = cdp_ckpt_open(l->path, NULL, &r);
    *step = 0;
    if (st == CDP_ERR_STATE) return CDP_OK; /* nothing was saved yet */
    if (st != CDP_OK) return st;
    for (uint32_t i = 0; st == CDP_OK && i < 2; ++i) {
        const uint32_t at = cdp_ckpt_find(r, l->items[i].name);
        const cdp_ckpt_entry e = cdp_ckpt_entry_at(r, at);
        if (e.bytes != sizeof l->w || e.dtype != CDP_DTYPE_F64)
            st = cdp_error_set(
                CDP_ERR_MISMATCH, -1, 0, "%s has another '%s'", l->path, l->items[i].name);
        if (st == CDP_OK) st = cdp_ckpt_verify(r, at);
        if (st == CDP_OK) st = cdp_ckpt_read(r, at, NULL, l->items[i].tensor.data);
    }
    *step = cdp_ckpt_step_of(r);
    cdp_ckpt_close(r);
    return st;
}

/* 2. All ranks of the epoch save at the same steps, whatever each of them remembers: a newcomer
   remembers nothing. A step that is there already was saved in an epoch that ended soon after, and
   holds the same. */
static cdp_status learner_save(learner *l, const cdp_elastic_now *now) {
    const cdp_ckpt_desc desc = {
        .group = now->group, .path = l->path, .items = l->items, .item_count = 2, .keep = 3};
    cdp_status st = l->ckpt ? CDP_OK : cdp_ckpt_create(&desc, &l->ckpt);
    uint64_t newest;
    if (st == CDP_OK) st = cdp_ckpt_save(l->ckpt, now->step);
    if (st != CDP_ERR_INVALID) return st;
    const cdp_error why =
        *cdp_last_error(); /* it exists already: of the step that it began with? */
    if (cdp_ckpt_newest(l->path, NULL, &newest) == CDP_OK && newest >= now->step) return CDP_OK;
    return cdp_error_set(why.status, -1, 0, "%s", why.text);
}

/* Adds the gradient of the samples of one rank, and their loss behind it. */
static void learner_pass(
    const learner *l, uint64_t step, uint32_t rank, uint32_t size, double *grad) {
    for (uint64_t i = rank; i < SAMPLES; i += size) {
        const uint64_t sample = step * SAMPLES + i;
        double x[WEIGHTS], wrong = (double)(sample * 13 % 7) - 3; /* no weights are right for all */
        for (uint32_t k = 0; k < WEIGHTS; ++k) {
            x[k] = (double)((sample * 7 + k * k * 5) % 11) - 5;
            wrong += (l->w[k] - 0.25 * (double)k) * x[k];
        }
        for (uint32_t k = 0; k < WEIGHTS; ++k)
            grad[k] += wrong * x[k] / SAMPLES;
        grad[WEIGHTS] += 0.5 * wrong * wrong / SAMPLES;
    }
}

static void learner_step(learner *l, const double *grad) {
    for (uint32_t k = 0; k < WEIGHTS; ++k) {
        l->momentum[k] = 0.9 * l->momentum[k] + grad[k];
        l->w[k] -= 1e-4 * l->momentum[k];
    }
}

static cdp_status train(learner *l, cdp_elastic *e, uint64_t end) {
    double grad[WEIGHTS + 1];
    cdp_elastic_now now;
    cdp_status st;
    while ((st = cdp_elastic_next(e, &now)) == CDP_OK && now.step < end) {
        if (now.changed) { /* 3. What was made of the group before goes with it. */
            cdp_ckpt_destroy(l->ckpt);
            l->ckpt = NULL;
            if (now.rank == 0)
                printf("%u ranks go on at step %llu\n", now.size, (unsigned long long)now.step);
            fflush(stdout);
        }
        if (now.step % EVERY == 0 && now.step && learner_save(l, &now) != CDP_OK) {
            if (cdp_group_status(now.group) != CDP_OK) continue; /* somebody died meanwhile */
            cdp_print_error(stderr); /* a full disk is no reason to stop */
        }
        memset(grad, 0, sizeof grad);
        learner_pass(l, now.step, now.rank, now.size, grad);
        if (cdp_allreduce(now.group, NULL, grad, WEIGHTS + 1, CDP_DTYPE_F64, CDP_REDUCE_SUM)
            != CDP_OK)
            continue;
        if (cdp_elastic_commit(e) != CDP_OK) continue;
        learner_step(l, grad);
    }
    cdp_ckpt_destroy(l->ckpt);
    l->ckpt = NULL;
    if (st == CDP_OK) st = cdp_elastic_finish(e);
    if (st == CDP_OK && now.rank == 0) {
        memset(grad, 0, sizeof grad);
        learner_pass(l, end, 0, 1, grad);
        printf("step %llu: loss %.6g\n", (unsigned long long)end, grad[WEIGHTS]);
    }
    return st;
}

int main(int argc, char **argv) {
    static const char usage[] = "usage: cdprun -n N --stay 29_elastic_checkpoint FOLDER STEPS\n"
                                "goes on from the newest step in FOLDER, saves every 100 steps";
    learner l;
    cdp_elastic *e;
    cdp_elastic_desc desc = {.grow_ms = 500};
    if (help(argc, argv, usage)) return 0;
    if (argc != 3) {
        fprintf(stderr, "%s\n", usage);
        return 2;
    }
    learner_open(&l, argv[1]);
    if (learner_begin(&l, &desc.step) != CDP_OK) return cdp_print_error(stderr);
    const cdp_entry entries[] = {
        {"w", l.w, WEIGHTS, CDP_DTYPE_F64}, {"momentum", l.momentum, WEIGHTS, CDP_DTYPE_F64}};
    desc.entries = entries;
    desc.entry_count = 2;
    if (cdp_elastic_create_from_env(&desc, &e) != CDP_OK) return cdp_print_error(stderr);
    const cdp_status st = train(&l, e, strtoull(argv[2], NULL, 10));
    if (st != CDP_OK) cdp_print_error(stderr);
    cdp_elastic_destroy(e);
    return st == CDP_OK ? 0 : 1;
}

/*  15_ring_attention.c - attention over a sequence that is cut over ranks (context parallel)

    You learn: to pass blocks around a ring of ranks while the last ones are in use.

        gcc -O2 examples/15_ring_attention.c -o ring_attention -pthread -lm
        cdprun -n 4 ./ring_attention             a sequence of 256 positions
        cdprun -n 4 ./ring_attention 1024        of 1024; a multiple of twice the ranks

    Queries stay where they are; keys and values pass from rank to rank, and while a rank uses one
    block the next one travels. Backward, gradients of keys and values travel along and come home.
    With a causal mask the first positions have little to do and the last ones much: the sequence
    is divided into 2n chunks, and rank i takes chunk i and chunk 2n-1-i, so that all have equal
    work. Each rank then computes the whole sequence alone, and compares its own positions. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_dtensor.h"

#include "help.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADS 2u
#define WIDTH 8u
#define ROW (HEADS * WIDTH)

typedef struct arrays {
    float *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv;
} arrays;

static void worked(cdp_status status) {
    if (status == CDP_OK) return;
    (void)cdp_error_record_from_env(NULL);
    cdp_print_error(stderr);
    exit(1);
}

static arrays arrays_of(uint64_t rows) {
    arrays a;
    float **const all[] = {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.dout, &a.dq, &a.dk, &a.dv};
    for (size_t i = 0; i < 9; ++i) {
        *all[i] = (float *)calloc((rows + 1) * ROW, sizeof(float));
        if (!*all[i]) exit(1);
    }
    return a;
}

static void arrays_free(arrays *a) {
    float *const all[] = {a->q, a->k, a->v, a->out, a->lse, a->dout, a->dq, a->dk, a->dv};
    for (size_t i = 0; i < 9; ++i)
        free(all[i]);
}

/* The same on all ranks: numbers that depend on the position in the sequence alone. */
static void fill(arrays *a, uint64_t length) {
    float *const all[] = {a->q, a->k, a->v, a->dout};
    for (size_t i = 0; i < 4; ++i)
        for (uint64_t k = 0; k < length * ROW; ++k)
            all[i][k] = sinf((float)(k * (2 * i + 3) % 1009)) * (i == 0 ? 2.0f : 1.0f);
}

/* The positions of one rank, out of a whole array of `row` numbers each. */
static void take(
    const uint64_t start[2], const uint64_t size[2], const float *whole, uint32_t row, float *own) {
    memcpy(own, whole + start[0] * row, size[0] * row * sizeof *own);
    memcpy(own + size[0] * row, whole + start[1] * row, size[1] * row * sizeof *own);
}

/* The largest difference between a rank's array and its positions of the whole. */
static double difference(const uint64_t start[2], const uint64_t size[2], const float *whole,
    uint32_t row, const float *own) {
    double most = 0;
    for (uint64_t i = 0; i < (size[0] + size[1]) * row; ++i) {
        const uint64_t r = i / row, at = r < size[0] ? start[0] + r : start[1] + r - size[0];
        const double off = fabs((double)own[i] - (double)whole[at * row + i % row]);
        most = off > most ? off : most;
    }
    return most;
}

static void attend(cdp_cp *cp, arrays *a) {
    worked(cdp_cp_attention(cp, a->q, a->k, a->v, a->out, a->lse));
    worked(cdp_cp_attention_backward(
        cp, a->q, a->k, a->v, a->out, a->lse, a->dout, a->dq, a->dk, a->dv));
}

/* One way to do it, beside one process; returns the largest difference on any rank. */
static double compare(cdp_mesh *mesh, const arrays *whole, uint64_t length, bool gather) {
    const cdp_cp_desc d = {.mesh = mesh,
        .length = length,
        .causal = true,
        .gather = gather,
        .heads = HEADS,
        .width = WIDTH};
    uint64_t start[2], size[2];
    const uint64_t rows = cdp_cp_rows(&d, cdp_mesh_coord(mesh, 0), start, size);
    cdp_cp *cp;
    arrays own = arrays_of(rows);
    worked(cdp_cp_create(&d, &cp));
    take(start, size, whole->q, ROW, own.q);
    take(start, size, whole->k, ROW, own.k);
    take(start, size, whole->v, ROW, own.v);
    take(start, size, whole->dout, ROW, own.dout);
    cdp_counts_clear(mesh);
    attend(cp, &own);
    double most = difference(start, size, whole->out, ROW, own.out);
    most = fmax(most, difference(start, size, whole->lse, HEADS, own.lse));
    most = fmax(most, difference(start, size, whole->dq, ROW, own.dq));
    most = fmax(most, difference(start, size, whole->dk, ROW, own.dk));
    most = fmax(most, difference(start, size, whole->dv, ROW, own.dv));
    cdp_cp_destroy(cp);
    arrays_free(&own);
    cdp_group *g = cdp_mesh_group(mesh, 0);
    worked(cdp_allreduce(g, NULL, &most, 1, CDP_DTYPE_F64, CDP_REDUCE_MAX));
    return most;
}

static void show(cdp_mesh *mesh, uint64_t length) {
    const cdp_cp_desc d = {.mesh = mesh, .length = length, .causal = true};
    for (uint32_t r = 0; r < cdp_mesh_size(mesh, 0); ++r) {
        uint64_t start[2], size[2], pairs = 0;
        (void)cdp_cp_rows(&d, r, start, size);
        for (uint32_t part = 0; part < 2; ++part)
            for (uint64_t i = 0; i < size[part]; ++i)
                pairs += start[part] + i + 1;
        printf("rank %u: positions %llu-%llu and %llu-%llu, %llu pairs of query and key\n", r,
            (unsigned long long)start[0], (unsigned long long)(start[0] + size[0] - 1),
            (unsigned long long)start[1], (unsigned long long)(start[1] + size[1] - 1),
            (unsigned long long)pairs);
    }
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "15_ring_attention: attention over a sequence that is cut over ranks, checked beside "
            "one process.\n"
            "usage: [cdprun -n 4] ./ring_attention [LENGTH]"))
        return 0;
    static char table[1000];
    const uint64_t length = argc > 1 ? strtoull(argv[1], NULL, 10) : 256;
    cdp_group *world, *self;
    cdp_mesh *mesh, *alone;
    bool good = true;
    worked(cdp_init_from_env(&(cdp_tcp_desc){.alone_ok = true}, &world));
    const uint32_t n = cdp_size(world), me = cdp_rank(world);
    if (!length || length % (2 * n)) {
        fprintf(stderr, "ring_attention: the length must be a multiple of %u\n", 2 * n);
        return 2;
    }
    worked(cdp_group_new(world, &me, 1, &self));
    worked(cdp_mesh_create(&(cdp_mesh_desc){.group = world, .names = {"cp"}}, &mesh));
    worked(cdp_mesh_create(&(cdp_mesh_desc){.group = self}, &alone));
    if (me == 0) show(mesh, length);

    arrays whole = arrays_of(length);
    cdp_cp *cp;
    fill(&whole, length);
    const cdp_cp_desc d = {
        .mesh = alone, .length = length, .causal = true, .heads = HEADS, .width = WIDTH};
    worked(cdp_cp_create(&d, &cp));
    attend(cp, &whole);
    cdp_cp_destroy(cp);

    worked(cdp_count_begin(mesh, "attention"));
    for (int gather = 0; gather < 2; ++gather) {
        const double most = compare(mesh, &whole, length, gather);
        good = good && most < 1e-5;
        (void)cdp_counts_draw(mesh, CDP_DRAW_TEXT, table, sizeof table);
        if (me == 0)
            printf("\n%s: the largest difference to one process is %.1e: %s\n%s",
                gather ? "gather" : "ring", most, most < 1e-5 ? "right" : "WRONG", table);
    }
    cdp_count_end(mesh);
    if (me == 0) printf("%s\n", good ? "all checks passed" : "SOME CHECKS FAILED");
    arrays_free(&whole);
    cdp_mesh_destroy(alone);
    cdp_mesh_destroy(mesh);
    cdp_group_destroy(self);
    cdp_group_destroy(world);
    return good ? 0 : 1;
}

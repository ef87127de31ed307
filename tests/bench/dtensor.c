/* One rank of the measurement of redistributions that dtensor.sh starts; 2 or 4 ranks.

   dtensor [--seconds S [--f64 | --large]]     --f64: what scalapack.c measures; --large: 1 and
                                               16 MiB alone
       RANK, WORLD_SIZE, MASTER_* in the environment, as usual

   Rank 0 prints a line for each pair and size: PAIR BYTES LEAST_US MEDIAN_US PROCESSOR_US COPY_US.
   A barrier precedes every redistribution; tensors are allocated once, plans are kept.
   PROCESSOR_US: processor time of all ranks for one redistribution. COPY_US: the least possible
   time: all ranks at once copy, from memory of their own, each byte of their results once, in
   rows as long as those of the pair; the processor time of that, least of all repetitions,
   divided by the cores that the ranks can use. 0: the pair reduces, or the tensor is small. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_dtensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST = 2000,
    COPY_LEAST = 1000000 /* bytes; the clock takes too long for less */
};

static double seconds = 0.5;
static cdp_dtype dtype = CDP_DTYPE_F32;

static uint64_t now(void) {
    return cdp_os_default()->now_ns(NULL);
}

/* Processor time of this process, in us. */
static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool tensor(const cdp_mesh *mesh, uint64_t side, const char *places, cdp_dtensor *out) {
    cdp_layout layout = {.mesh = mesh, .dtype = dtype, .ndim = 2, .shape = {side, side}};
    return cdp_layout_parse(&layout, places) == CDP_OK
        && cdp_dtensor_create(&layout, NULL, out) == CDP_OK;
}

/* Rank 0 decides when it is enough. */
static bool go_on(cdp_group *world, uint64_t end) {
    uint8_t more = now() < end;
    return cdp_broadcast(world, &more, 1, CDP_DTYPE_U8, 0) == CDP_OK && more;
}

/* The part of y that lies in x of rank `k`. False: none. */
static bool part(const cdp_dtensor *x, const cdp_dtensor *y, uint32_t k, cdp_box *out) {
    const cdp_mesh_desc *d = cdp_mesh_desc_of(x->layout.mesh);
    uint32_t coord[CDP_MESH_DIMS];
    cdp_box a, b;
    for (uint32_t by = d->ndim; by-- > 0; k /= d->shape[by])
        coord[by] = k % d->shape[by];
    if (!cdp_layout_box(&x->layout, coord, &a) || !cdp_layout_box(&y->layout, NULL, &b))
        return false;
    for (uint32_t i = 0; i < 2; ++i) {
        const uint64_t end = a.start[i] + a.size[i], stop = b.start[i] + b.size[i];
        out->start[i] = a.start[i] > b.start[i] ? a.start[i] : b.start[i];
        if (out->start[i] >= end || out->start[i] >= stop) return false;
        out->size[i] = (end < stop ? end : stop) - out->start[i];
    }
    for (uint32_t i = 0; i < 2; ++i) /* where rank k has it */
        a.start[i] = out->start[i] - a.start[i];
    for (uint32_t i = 0; i < 2; ++i)
        out->start[i] -= b.start[i];
    out->start[2] = a.start[0] * a.size[1] + a.start[1];
    out->start[3] = a.size[1];
    out->start[4] = b.size[1];
    return true;
}

/* Copies into y what rank k would send, from the same place of this rank's x. */
static void copy_part(const cdp_dtensor *x, const cdp_dtensor *y, const cdp_box *p) {
    const uint64_t elem = cdp_dtype_size(dtype), run = p->size[1] * elem;
    const uint64_t from = p->start[3] * elem, to = p->start[4] * elem;
    const uint8_t *in = (const uint8_t *)x->data + p->start[2] * elem;
    uint8_t *out = (uint8_t *)y->data + p->start[0] * to + p->start[1] * elem;
    if (run == from && run == to)
        memcpy(out, in, run * p->size[0]);
    else
        for (uint64_t i = 0; i < p->size[0]; ++i)
            memcpy(out + i * to, in + i * from, run);
}

/* Each byte of y once: of pieces that several ranks have, the first one counts. */
static void copy_all(const cdp_dtensor *x, const cdp_dtensor *y, uint32_t ranks) {
    cdp_box done[8];
    uint32_t n = 0;
    for (uint32_t k = 0; k < ranks && n < 8; ++k) {
        bool again = false;
        if (!part(x, y, k, &done[n])) continue;
        for (uint32_t i = 0; i < n; ++i)
            again = again || memcmp(done[i].start, done[n].start, 2 * sizeof *done[n].start) == 0;
        if (!again) copy_part(x, y, &done[n++]);
    }
}

/* The least possible time: see above. */
static bool copy_us(cdp_group *world, const cdp_dtensor *x, const cdp_dtensor *y, double *us) {
    const uint32_t ranks = cdp_size(world), cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    double least = 1e30;
    for (uint32_t i = 0; i < 40; ++i) {
        if (cdp_barrier(world) != CDP_OK) return false;
        const double start = used();
        copy_all(x, y, ranks);
        const double took = used() - start;
        if (took < least) least = took;
    }
    *us = least / (ranks < cores ? ranks : cores);
    return cdp_allreduce(world, us, us, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM) == CDP_OK;
}

/* Redistributes until the time is over; returns how often, or 0. *processor: of this rank. */
static uint32_t repeat(cdp_group *world, const cdp_dtensor *x, cdp_dtensor *y, uint64_t side,
    double *us, double *processor) {
    const uint64_t end = now() + (uint64_t)(seconds * 1e9);
    uint32_t n = 0;
    *processor = 0;
    for (bool more = true; more && n + 10 < MOST; more = go_on(world, end))
        for (uint32_t i = 0; i < (side > 1000 ? 1 : 10); ++i) {
            if (cdp_barrier(world) != CDP_OK) return 0;
            const double before = used();
            const uint64_t start = now();
            if (cdp_redistribute(x, y) != CDP_OK) return 0;
            us[n++] = (double)(now() - start) / 1e3;
            *processor += used() - before;
        }
    *processor /= n;
    return n;
}

static bool measure(
    cdp_group *world, const cdp_mesh *mesh, const char *from, const char *to, uint64_t side) {
    static double us[MOST];
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    double processor, copy = 0;
    cdp_dtensor x, y;
    if (!tensor(mesh, side, from, &x) || !tensor(mesh, side, to, &y)) return false;
    if (cdp_dtensor_fill(&x, &ramp) != CDP_OK || cdp_dtensor_fill(&y, &ramp) != CDP_OK)
        return false;
    for (uint32_t i = 0; i < 3; ++i)
        if (cdp_redistribute(&x, &y) != CDP_OK) return false;
    const uint32_t n = repeat(world, &x, &y, side, us, &processor);
    const uint64_t bytes = side * side * cdp_dtype_size(dtype);
    const bool copies = !strchr(from, 'P') && bytes >= COPY_LEAST;
    if (!n || (copies && !copy_us(world, &x, &y, &copy))) return false;
    if (cdp_allreduce(world, &processor, &processor, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM) != CDP_OK)
        return false;
    qsort(us, n, sizeof *us, by_size);
    if (cdp_rank(world) == 0)
        printf("%s->%s %llu %.1f %.1f %.1f %.1f\n", from, to, (unsigned long long)bytes, us[0],
            us[n / 2], processor, copy);
    cdp_dtensor_free(&x);
    cdp_dtensor_free(&y);
    return true;
}

int main(int argc, char **argv) {
    static const char *const one[][2] = {
        {"R", "S0"}, {"S0", "R"}, {"S1", "R"}, {"S0", "S1"}, {"P", "R"}, {"P", "S0"}};
    static const char *const two[][2] = {{"S0,S1", "S1,S0"}, {"S0,S0", "S1,S1"}, {"S0,S0", "R,S0"},
        {"R,S0", "S0,R"}, {"S0,S1", "R,R"}, {"P,S0", "S0,R"}};
    static const uint64_t sides[4] = {32, 128, 512, 2048}; /* 4 KiB to 16 MiB of f32 */
    cdp_group *world;
    cdp_mesh *line, *square = NULL;
    bool ok = true;
    if (argc >= 3 && strcmp(argv[1], "--seconds") == 0) seconds = atof(argv[2]);
    const bool f64 = argc == 4 && strcmp(argv[3], "--f64") == 0;
    const bool large = argc == 4 && strcmp(argv[3], "--large") == 0;
    if (f64) dtype = CDP_DTYPE_F64;
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    const cdp_mesh_desc flat = {.group = world};
    const cdp_mesh_desc grid = {.group = world, .ndim = 2, .shape = {2, 2}};
    if (cdp_mesh_create(&flat, &line) != CDP_OK) return cdp_print_error(stderr);
    if (cdp_size(world) == 4 && cdp_mesh_create(&grid, &square) != CDP_OK)
        return cdp_print_error(stderr);
    for (uint32_t s = 0; ok && f64 && s < 4; ++s) {
        static const uint64_t doubles[4] = {24, 88, 360, 1448};
        ok = measure(world, line, "S0", "S1", doubles[s])
            && (!square || measure(world, square, "S0,S1", "S0,S0", doubles[s]));
    }
    for (uint32_t s = large ? 2 : 0; ok && !f64 && s < 4; ++s) {
        for (uint32_t k = 0; ok && k < sizeof one / sizeof *one; ++k)
            ok = measure(world, line, one[k][0], one[k][1], sides[s]);
        for (uint32_t k = 0; ok && square && k < sizeof two / sizeof *two; ++k)
            ok = measure(world, square, two[k][0], two[k][1], sides[s]);
    }
    if (!ok) return cdp_print_error(stderr);
    cdp_mesh_destroy(square);
    cdp_mesh_destroy(line);
    cdp_group_destroy(world);
    return 0;
}

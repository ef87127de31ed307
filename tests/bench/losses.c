/* One process of the measurement of losses and attention that losses.sh starts.

   losses [--turns N]     build with -O3 -march=native; N turns of each case (default 7)

   Prints a line for each case: NAME MICROSECONDS, the least processor time of one forward and
   backward, f32, one thread. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_dtensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int turns = 7;

static void worked(cdp_status st) {
    if (st == CDP_OK) return;
    cdp_print_error(stderr);
    exit(1);
}

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static float *numbers(uint64_t count, uint32_t seed) {
    float *x = (float *)malloc(count * sizeof *x);
    if (!x) exit(1);
    for (uint64_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
    return x;
}

static void loss(const cdp_mesh *mesh, uint64_t rows, uint64_t classes) {
    const cdp_layout l = {
        .mesh = mesh, .dtype = CDP_DTYPE_F32, .ndim = 2, .shape = {rows, classes}};
    float *x = numbers(rows * classes, 1), *grad = numbers(rows * classes, 2);
    float *losses = numbers(rows, 3);
    int32_t *targets = (int32_t *)malloc(rows * sizeof *targets);
    double least = 0;
    if (!targets) exit(1);
    for (uint64_t i = 0; i < rows; ++i)
        targets[i] = (int32_t)((i * 31 + 7) % classes);
    for (int i = 0; i < turns; ++i) {
        const double from = used();
        worked(cdp_cross_entropy(&l, x, targets, losses, grad, 1.0));
        const double took = used() - from;
        if (i == 0 || took < least) least = took;
    }
    printf("loss_%ux%u %.1f\n", (unsigned)rows, (unsigned)classes, least);
    free(x);
    free(grad);
    free(losses);
    free(targets);
}

static void attention(
    cdp_mesh *mesh, uint64_t length, uint64_t heads, uint64_t width, bool causal) {
    const cdp_cp_desc d = {
        .mesh = mesh, .length = length, .causal = causal, .heads = heads, .width = width};
    const uint64_t count = length * heads * width;
    float *a[8], *lse = numbers(length * heads, 9);
    double least = 0;
    cdp_cp *cp;
    for (uint32_t i = 0; i < 8; ++i)
        a[i] = numbers(count, i);
    worked(cdp_cp_create(&d, &cp));
    for (int i = 0; i < turns; ++i) {
        const double from = used();
        worked(cdp_cp_attention(cp, a[0], a[1], a[2], a[3], lse));
        worked(cdp_cp_attention_backward(cp, a[0], a[1], a[2], a[3], lse, a[4], a[5], a[6], a[7]));
        const double took = used() - from;
        if (i == 0 || took < least) least = took;
    }
    cdp_cp_destroy(cp);
    printf("attention_%ux%ux%u%s %.1f\n", (unsigned)length, (unsigned)heads, (unsigned)width,
        causal ? "_causal" : "", least);
    for (uint32_t i = 0; i < 8; ++i)
        free(a[i]);
    free(lse);
}

int main(int argc, char **argv) {
    cdp_group *self;
    cdp_mesh *mesh;
    if (argc == 3 && strcmp(argv[1], "--turns") == 0) turns = atoi(argv[2]);
    worked(cdp_init_from_env(&(cdp_tcp_desc){.alone_ok = true}, &self));
    worked(cdp_mesh_create(&(cdp_mesh_desc){.group = self}, &mesh));
    loss(mesh, 256, 8192);
    loss(mesh, 64, 32000);
    loss(mesh, 2048, 1000);
    for (int causal = 0; causal < 2; ++causal) {
        attention(mesh, 512, 8, 64, causal);
        attention(mesh, 1024, 4, 128, causal);
    }
    cdp_mesh_destroy(mesh);
    cdp_group_destroy(self);
    return 0;
}

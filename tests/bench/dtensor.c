/* One rank of the measurement of redistributions that dtensor.sh starts; 2 or 4 ranks.

   dtensor [--seconds S [--f64]]     --f64: what scalapack.c measures
       RANK, WORLD_SIZE, MASTER_* in the environment, as usual

   Rank 0 prints a line for each pair and size: PAIR BYTES LEAST_US MEDIAN_US. A barrier precedes
   every redistribution; tensors are allocated once, plans are kept. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "cdp_dtensor.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MOST = 2000
};

static double seconds = 0.5;
static cdp_dtype dtype = CDP_DTYPE_F32;

static uint64_t now(void) {
    return cdp_os_default()->now_ns(NULL);
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

static bool measure(
    cdp_group *world, const cdp_mesh *mesh, const char *from, const char *to, uint64_t side) {
    static double us[MOST];
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    cdp_dtensor x, y;
    uint32_t n = 0;
    if (!tensor(mesh, side, from, &x) || !tensor(mesh, side, to, &y)) return false;
    if (cdp_dtensor_fill(&x, &ramp) != CDP_OK || cdp_dtensor_fill(&y, &ramp) != CDP_OK)
        return false;
    for (uint32_t i = 0; i < 3; ++i)
        if (cdp_redistribute(&x, &y) != CDP_OK) return false;
    const uint64_t end = now() + (uint64_t)(seconds * 1e9);
    for (bool more = true; more && n + 10 < MOST; more = go_on(world, end))
        for (uint32_t i = 0; i < (side > 1000 ? 1 : 10); ++i) {
            if (cdp_barrier(world) != CDP_OK) return false;
            const uint64_t start = now();
            if (cdp_redistribute(&x, &y) != CDP_OK) return false;
            us[n++] = (double)(now() - start) / 1e3;
        }
    qsort(us, n, sizeof *us, by_size);
    if (cdp_rank(world) == 0)
        printf("%s->%s %llu %.1f %.1f\n", from, to,
            (unsigned long long)(side * side * cdp_dtype_size(dtype)), us[0], us[n / 2]);
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
    for (uint32_t s = 0; ok && !f64 && s < 4; ++s) {
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

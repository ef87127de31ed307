/*  14_redistribute.c - how a tensor lies on a mesh of ranks, and how it is redistributed

    You learn: layouts (sharded, replicated, partial) and the plans between them, as pictures. No
    rank runs.

        gcc -O2 examples/14_redistribute.c -o redistribute -pthread -lm
        ./redistribute                                    a tour of four layouts and four plans
        ./redistribute 2x4 16x24 S0,S1 S1,S0              one of your own: mesh, shape, from, to
        ./redistribute 2x4 16x24 S0,S1 S1,S0 plan.svg     the same as a picture */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_dtensor.h"

#include "help.h"
#include <stdio.h>
#include <stdlib.h>

static char text[1 << 20];

/* "16x24" as numbers; returns how many, at most `most`. */
static uint32_t numbers(const char *s, uint32_t most, unsigned long long *out) {
    uint32_t n = 0;
    for (char *end; *s && n < most; s = *end ? end + 1 : end) {
        out[n++] = strtoull(s, &end, 10);
        if (end == s) return 0;
    }
    return n;
}

static cdp_mesh *mesh_on_paper(const char *shape) {
    unsigned long long sizes[CDP_MESH_DIMS];
    cdp_mesh_desc desc = {.paper_ranks = 1};
    cdp_mesh *mesh;
    desc.ndim = numbers(shape, CDP_MESH_DIMS, sizes);
    for (uint32_t d = 0; d < desc.ndim; ++d) {
        desc.shape[d] = (uint32_t)sizes[d];
        desc.paper_ranks *= desc.shape[d];
    }
    return cdp_mesh_create(&desc, &mesh) == CDP_OK ? mesh : NULL;
}

static bool layout_of(
    const cdp_mesh *mesh, const char *shape, const char *places, cdp_layout *out) {
    unsigned long long sizes[CDP_TENSOR_DIMS];
    cdp_layout layout = {.mesh = mesh};
    layout.ndim = numbers(shape, CDP_TENSOR_DIMS, sizes);
    for (uint32_t d = 0; d < layout.ndim; ++d)
        layout.shape[d] = sizes[d];
    *out = layout;
    return cdp_layout_parse(out, places) == CDP_OK;
}

static bool draw_layout(const char *mesh_shape, const char *shape, const char *places) {
    cdp_layout layout;
    cdp_mesh *mesh = mesh_on_paper(mesh_shape);
    const bool ok = mesh && layout_of(mesh, shape, places, &layout);
    if (ok) {
        cdp_layout_draw(&layout, CDP_DRAW_TEXT, text, sizeof text);
        printf("%s\n", text);
    }
    cdp_mesh_destroy(mesh);
    return ok;
}

static bool draw_plan(
    const char *mesh_shape, const char *shape, const char *from, const char *to, const char *svg) {
    cdp_plan_desc desc = {.kind = CDP_PLAN_BEST};
    cdp_plan *plan = NULL;
    cdp_mesh *mesh = mesh_on_paper(mesh_shape);
    const bool ok = mesh && layout_of(mesh, shape, from, &desc.from)
        && layout_of(mesh, shape, to, &desc.to) && cdp_plan_create(&desc, &plan) == CDP_OK;
    if (ok) {
        cdp_plan_draw(plan, svg ? CDP_DRAW_SVG : CDP_DRAW_TEXT, text, sizeof text);
        FILE *file = svg ? fopen(svg, "w") : stdout;
        if (file) fprintf(file, "%s\n", text);
        if (file && svg) fclose(file);
    }
    cdp_plan_destroy(plan);
    cdp_mesh_destroy(mesh);
    return ok;
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "14_redistribute: layouts and plans of redistributions as text and pictures; without "
            "arguments in a job.\n"
            "usage: [cdprun -n 4] ./redistribute [MESH SHAPE FROM TO [SVG]]"))
        return 0;
    if (argc >= 5) {
        const char *svg = argc > 5 ? argv[5] : NULL;
        const bool ok = draw_layout(argv[1], argv[2], argv[3])
            && draw_layout(argv[1], argv[2], argv[4])
            && draw_plan(argv[1], argv[2], argv[3], argv[4], svg);
        return ok ? 0 : cdp_print_error(stderr);
    }
    const bool ok = draw_layout("4", "10x6", "S0") /* rows; the last piece is short */
        && draw_layout("2x2", "5x8", "S0,S1")      /* a grid */
        && draw_layout("2x2", "8x4", "S0!1,S0")    /* the second dimension of the mesh cuts first */
        && draw_layout("2x4", "3x6x4", "S0,R")     /* three dimensions, as planes; replicas */
        && draw_plan("4", "8x8", "S0", "S1",
            NULL) /* an exchange, where PyTorch's CPU path gathers everything */
        && draw_plan(
            "2x2", "5x8", "S0,S1", "S1,S0", NULL)        /* one exchange, where PyTorch makes two */
        && draw_plan("2x2", "8x8", "P,S0", "S0,R", NULL) /* reduce first, then gather */
        && draw_plan("4", "7", "P", "R", NULL);          /* uneven parts of a sum */
    return ok ? 0 : cdp_print_error(stderr);
}

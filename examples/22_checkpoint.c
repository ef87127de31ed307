/*  22_checkpoint.c - a job of four ranks saves, one of three ranks goes on

    You learn: cdp_item, cdp_ckpt_save and cdp_ckpt_load. A matrix that is cut by columns is saved,
    and loaded cut by rows; an array that all ranks have; bytes of the program.

        gcc -O2 examples/22_checkpoint.c -o checkpoint_job -pthread -lm
        ./cdprun -n 4 ./checkpoint_job save run7      writes run7/step-00000100
        ./cdprun -n 3 ./checkpoint_job load run7      says whether everything is there

    The files are safetensors. In Python: safetensors.safe_open(
    "run7/step-00000100/model-00001-of-00001.safetensors", "pt").get_tensor("w") */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_checkpoint.h"

#include "help.h"
#include <stdio.h>
#include <string.h>

enum {
    ROWS = 50,
    COLUMNS = 24
};

typedef struct model {
    cdp_dtensor w; /* cut over the ranks */
    float bias[COLUMNS];
    char note[64];
    cdp_item items[2];
    cdp_ckpt_blob blob;
} model;

static cdp_status model_make(model *m, cdp_mesh *mesh, const char *how) {
    cdp_layout layout = {.mesh = mesh, .ndim = 2, .shape = {ROWS, COLUMNS}};
    cdp_status st = cdp_layout_parse(&layout, how);
    memset(m, 0, sizeof *m);
    if (st == CDP_OK) st = cdp_dtensor_create(&layout, NULL, &m->w);
    m->items[0].name = "w";
    m->items[0].tensor = m->w;
    m->items[1].name = "bias"; /* no mesh: every rank has all of it */
    m->items[1].tensor.layout = (cdp_layout){.ndim = 1, .shape = {COLUMNS}};
    m->items[1].tensor.data = m->bias;
    m->blob = (cdp_ckpt_blob){.name = "note", .data = m->note, .room = sizeof m->note};
    return st;
}

/* Element i of the matrix is i, whatever the layout: as if it had been trained. */
static cdp_status model_train(model *m) {
    const cdp_fill ramp = {.kind = CDP_FILL_RAMP, .b = 1};
    for (uint32_t i = 0; i < COLUMNS; ++i)
        m->bias[i] = 0.5f * (float)i;
    m->blob.bytes = (uint64_t)snprintf(m->note, sizeof m->note, "the loss was 2.5");
    return cdp_dtensor_fill(&m->w, &ramp);
}

/* Compares what was loaded with what was saved, on this rank. */
static bool model_right(const model *m) {
    cdp_box box;
    const uint64_t n = cdp_layout_box(&m->w.layout, NULL, &box);
    bool right = m->blob.bytes == 16 && memcmp(m->note, "the loss was 2.5", 16) == 0;
    for (uint64_t i = 0; i < n; ++i) {
        const uint64_t row = box.start[0] + i / box.size[1],
                       column = box.start[1] + i % box.size[1];
        const float want = (float)(row * COLUMNS + column), got = ((const float *)m->w.data)[i];
        right = right && memcmp(&want, &got, sizeof want) == 0;
    }
    for (uint32_t i = 0; i < COLUMNS; ++i) {
        const float want = 0.5f * (float)i;
        right = right && memcmp(&want, &m->bias[i], sizeof want) == 0;
    }
    return right;
}

static const char usage[] = "usage: cdprun -n N checkpoint_job save|load FOLDER\n"
                            "save writes step 100, load says whether everything is there";

int main(int argc, char **argv) {
    const bool save = argc == 3 && strcmp(argv[1], "save") == 0;
    cdp_group *world;
    cdp_mesh *mesh;
    cdp_ckpt *ckpt;
    model m;
    uint64_t step = 100;
    bool right = true;
    if (help(argc, argv, usage)) return 0;
    if (argc != 3 || (!save && strcmp(argv[1], "load") != 0)) {
        fprintf(stderr, "%s\n", usage);
        return 2;
    }
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    cdp_mesh_desc all = {.group = world};
    if (cdp_mesh_create(&all, &mesh) != CDP_OK) return cdp_print_error(stderr);
    if (model_make(&m, mesh, save ? "S1" : "S0") != CDP_OK) return cdp_print_error(stderr);
    cdp_ckpt_desc desc = {.group = world,
        .path = argv[2],
        .items = m.items,
        .item_count = 2,
        .blobs = &m.blob,
        .blob_count = 1};
    if (cdp_ckpt_create(&desc, &ckpt) != CDP_OK) return cdp_print_error(stderr);
    if (save) {
        if (model_train(&m) != CDP_OK) return cdp_print_error(stderr);
        if (cdp_ckpt_save(ckpt, step) != CDP_OK) return cdp_print_error(stderr);
    } else {
        if (cdp_ckpt_load(ckpt, NULL, CDP_CKPT_LATEST, &step) != CDP_OK)
            return cdp_print_error(stderr);
        right = model_right(&m);
    }
    const cdp_ckpt_info info = cdp_ckpt_info_of(ckpt);
    printf("rank %u of %u %s step %llu, %llu of %llu bytes of tensors: %s\n", cdp_rank(world),
        cdp_size(world), save ? "saved" : "loaded", (unsigned long long)step,
        (unsigned long long)(save ? info.bytes_written : info.bytes_read),
        (unsigned long long)info.total_bytes, right ? "right" : "WRONG");
    cdp_ckpt_destroy(ckpt);
    cdp_dtensor_free(&m.w);
    cdp_mesh_destroy(mesh);
    cdp_group_destroy(world);
    return right ? 0 : 1;
}

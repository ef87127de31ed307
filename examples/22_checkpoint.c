/*  22_checkpoint.c - a job of four ranks saves, one of three ranks goes on

    You learn: cdp_item, cdp_ckpt_save and cdp_ckpt_load. A matrix that is cut by columns is saved,
    and loaded cut by rows; an array that all ranks have; bytes of the program. Then sharded
    training (FSDP) that saves in the background, and goes on from the newest step on however many
    ranks start: the loss is that of a job that was never interrupted.

        gcc -O2 examples/22_checkpoint.c -o checkpoint_job -pthread -lm
        ./cdprun -n 4 ./checkpoint_job save run7      writes run7/step-00000100
        ./cdprun -n 3 ./checkpoint_job load run7      says whether everything is there
        ./cdprun -n 4 ./checkpoint_job train run8 50  50 steps of AdamW, saved every 10
        ./cdprun -n 3 ./checkpoint_job train run8 90  goes on at step 50; kill it, start it again

    The files are safetensors. In Python: safetensors.safe_open(
    "run7/step-00000100/model-00001-of-00001.safetensors", "pt").get_tensor("w") */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_checkpoint.h"
#include "../cdp_fsdp.h"

#include "help.h"
#include <stdio.h>
#include <stdlib.h>
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

/* ---- sharded training, saved in the background ---- */

enum {
    INPUTS = 8,
    OUTPUTS = 6,
    SAMPLES = 24, /* of a step, dealt out over the ranks */
    PARAMS = 2,
    ARRAYS = 3 /* of each parameter: its values, and what AdamW keeps */
};

typedef struct trainer {
    cdp_fsdp *shards;
    cdp_optim optim;
    cdp_item items[ARRAYS * PARAMS];
    cdp_ckpt_blob blob;
    uint64_t step;
} trainer;

/* Parameters begin as zeros. Names are those of PyTorch: of a module, and of its optimizer. */
static cdp_status trainer_make(trainer *t, cdp_group *world) {
    static const char *const names[ARRAYS][PARAMS] = {{"net.weight", "net.bias"},
        {"net.weight.exp_avg", "net.bias.exp_avg"},
        {"net.weight.exp_avg_sq", "net.bias.exp_avg_sq"}};
    const cdp_fsdp_param params[PARAMS] = {
        {.ndim = 2, .shape = {OUTPUTS, INPUTS}}, {.ndim = 1, .shape = {OUTPUTS}}};
    memset(t, 0, sizeof *t);
    t->optim = (cdp_optim){.kind = CDP_OPTIM_ADAMW, .lr = 0.05};
    const cdp_fsdp_desc desc = {.group = world,
        .params = params,
        .param_count = PARAMS,
        .optim = &t->optim,
        .divisor = SAMPLES};
    const cdp_status st = cdp_fsdp_create(&desc, &t->shards);
    for (uint32_t a = 0; a < ARRAYS; ++a)
        for (uint32_t p = 0; p < PARAMS; ++p) {
            cdp_item *const item = &t->items[a * PARAMS + p];
            item->name = names[a][p];
            item->file = a ? "optimizer" : "model";
            item->part = true; /* this rank has a part of it, or none */
            item->tensor.layout.ndim = params[p].ndim;
            memcpy(item->tensor.layout.shape, params[p].shape, sizeof params[p].shape);
        }
    for (uint32_t k = 0; k < cdp_fsdp_piece_count(t->shards); ++k) {
        const cdp_fsdp_piece piece = cdp_fsdp_piece_at(t->shards, k);
        for (uint32_t a = 0; a < ARRAYS; ++a) {
            cdp_item *const item = &t->items[a * PARAMS + piece.param];
            item->first = piece.first;
            item->count = piece.count;
            item->tensor.data = a ? piece.state[a - 1] : piece.data;
        }
    }
    t->blob = (cdp_ckpt_blob){.name = "optimizer.step", .data = &t->optim.step};
    t->blob.bytes = t->blob.room = sizeof t->optim.step;
    return st;
}

/* One forward and backward pass. Every rank learns the loss of all samples. */
static cdp_status trainer_pass(trainer *t, cdp_group *world, double *loss) {
    cdp_status st = cdp_fsdp_need(t->shards, 0);
    if (st != CDP_OK) return st;
    const float *const weight = cdp_fsdp_data(t->shards, 0),
                       *const bias = cdp_fsdp_data(t->shards, 1);
    float *const weight_grad = cdp_fsdp_grad(t->shards, 0),
                 *const bias_grad = cdp_fsdp_grad(t->shards, 1);
    if (!weight || !bias || !weight_grad || !bias_grad) return cdp_last_error()->status;
    *loss = 0;
    for (uint32_t i = cdp_rank(world); i < SAMPLES; i += cdp_size(world)) {
        const uint64_t sample = t->step * SAMPLES + i;
        for (uint32_t o = 0; o < OUTPUTS; ++o) {
            float wrong = bias[o] - 0.25f * (float)o; /* the bias and weights to be found */
            for (uint32_t k = 0; k < INPUTS; ++k)
                wrong += (weight[o * INPUTS + k] - 0.5f * (float)(o % 3))
                    * ((float)((sample * 7 + k * 5) % 11) - 5);
            for (uint32_t k = 0; k < INPUTS; ++k)
                weight_grad[o * INPUTS + k] += wrong * ((float)((sample * 7 + k * 5) % 11) - 5);
            bias_grad[o] += wrong;
            *loss += 0.5 * (double)wrong * (double)wrong / SAMPLES;
        }
    }
    st = cdp_fsdp_ready(t->shards, 0);
    if (st == CDP_OK) st = cdp_fsdp_backward_end(t->shards, 0, NULL);
    return st == CDP_OK ? cdp_allreduce(world, NULL, loss, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM) : st;
}

/* Trains up to step `end`, from the newest step that is there. */
static cdp_status train(cdp_group *world, const char *path, uint64_t end) {
    trainer t;
    cdp_ckpt *ckpt = NULL;
    double loss = 0;
    cdp_status st = trainer_make(&t, world);
    const cdp_ckpt_desc desc = {.group = world,
        .path = path,
        .items = t.items,
        .item_count = ARRAYS * PARAMS,
        .blobs = &t.blob,
        .blob_count = 1,
        .keep = 3,
        .late = true};
    if (st == CDP_OK) st = cdp_ckpt_create(&desc, &ckpt);
    if (st == CDP_OK) st = cdp_ckpt_load(ckpt, NULL, CDP_CKPT_LATEST, &t.step);
    if (st == CDP_OK)
        st = cdp_fsdp_loaded(t.shards);
    else if (st == CDP_ERR_STATE) /* nothing to go on from */
        st = CDP_OK;
    if (st == CDP_OK && cdp_rank(world) == 0)
        printf("%u ranks go on at step %llu\n", cdp_size(world), (unsigned long long)t.step);
    while (st == CDP_OK && t.step < end) {
        st = trainer_pass(&t, world, &loss);
        if (st == CDP_OK) st = cdp_ckpt_staged(ckpt); /* copies what is not written yet */
        if (st == CDP_OK) st = cdp_fsdp_step(t.shards);
        if (st == CDP_OK && ++t.step % 10 == 0) st = cdp_ckpt_wait(ckpt, CDP_NO_TIMEOUT);
        if (st == CDP_OK && t.step % 10 == 0) st = cdp_ckpt_save_async(ckpt, t.step);
    }
    if (st == CDP_OK) st = cdp_ckpt_wait(ckpt, CDP_NO_TIMEOUT);
    if (st == CDP_OK) st = trainer_pass(&t, world, &loss);
    if (st == CDP_OK) st = cdp_fsdp_drop(t.shards); /* only the loss was wanted */
    if (st == CDP_OK && cdp_rank(world) == 0)
        printf("step %llu: loss %.6g\n", (unsigned long long)t.step, loss);
    cdp_ckpt_destroy(ckpt);
    cdp_fsdp_destroy(t.shards);
    return st;
}

static const char usage[] = "usage: cdprun -n N checkpoint_job save|load FOLDER\n"
                            "save writes step 100, load says whether everything is there\n"
                            "       cdprun -n N checkpoint_job train FOLDER STEPS\n"
                            "goes on from the newest step in FOLDER, saves every 10 steps";

int main(int argc, char **argv) {
    const bool save = argc == 3 && strcmp(argv[1], "save") == 0;
    const bool trains = argc == 4 && strcmp(argv[1], "train") == 0;
    cdp_group *world;
    cdp_mesh *mesh;
    cdp_ckpt *ckpt;
    model m;
    uint64_t step = 100;
    bool right = true;
    if (help(argc, argv, usage)) return 0;
    if (!trains && (argc != 3 || (!save && strcmp(argv[1], "load") != 0))) {
        fprintf(stderr, "%s\n", usage);
        return 2;
    }
    if (cdp_init_from_env(NULL, &world) != CDP_OK) return cdp_print_error(stderr);
    if (trains) {
        const cdp_status st = train(world, argv[2], strtoull(argv[3], NULL, 10));
        if (st != CDP_OK) return cdp_print_error(stderr);
        cdp_group_destroy(world);
        return 0;
    }
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

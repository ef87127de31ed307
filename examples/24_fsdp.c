/*  24_fsdp.c - a transformer whose parameters, gradients and Adam state are divided over processes

    You learn: what sharded training (FSDP, stage 3 of ZeRO) adds to a program, and what it saves.

        gcc -O2 examples/24_fsdp.c -o fsdp -pthread -lm
        cdprun -n 4 ./fsdp                      on the text of this repository
        cdprun -n 4 ./fsdp --steps 100 ~/notes  your own text: files or folders

    The model of text_model.h is trained three times, on the same batches: with DDP, where every
    rank has all of it; with FSDP in f32; and with FSDP that gathers parameters as bf16 from f32
    masters. A unit is a layer: the embeddings, each block, the head. Search for "FSDP":

      1. open_shards(): the parameters with their units; `fill` makes the first values of the pieces
         that this rank owns, so no rank ever holds the whole model.
      2. use(): a unit is needed, and its values are where cdp_fsdp_data() says, until it is done.
         bf16 is widened for the kernels of this program, which compute in f32.
      3. step_of_shards(): backward adds to cdp_fsdp_grad(); each unit's gradients leave when it is
         ready.

    The verdict: losses of f32 shards are those of DDP up to the order of additions, those of bf16
    are near, and a rank needs what cdp_fsdp_preview() has said.                               */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"
#include "../cdp_fsdp.h"

#include "options.h"
#include "text_model.h"

enum {
    MOST_STEPS = 1000,
    SEQUENCES = 2 /* of each rank in a step */
};

typedef struct run {
    cdp_group *world;
    const corpus *text;
    plan plan;
    uint64_t steps;
    model model;
    cdp_optim optim;
    cdp_fsdp *shards;     /* or: */
    cdp_optimizer *whole; /* of model.ddp */
    float *wide;          /* a unit that was gathered as bf16 */
    cdp_fsdp_stats paper; /* what a rank will need */
    double loss[MOST_STEPS];
} run;

static uint32_t unit_count(const model *m) {
    return (uint32_t)m->layers + 2;
}
static uint32_t unit_of(const model *m, uint32_t tensor) {
    if (tensor < PARAM_BLOCKS) return 0;
    return tensor >= last_param(m, 0) ? unit_count(m) - 1
                                      : 1 + (tensor - PARAM_BLOCKS) / BLOCK_PARAMS;
}

static cdp_optim adamw(void) {
    return (cdp_optim){.kind = CDP_OPTIM_ADAMW, .lr = 3e-3, .beta2 = .99};
}

/* ---- FSDP, place 1 ---- */

/* Elements of one parameter. Each follows from its place alone, so cuts do not matter. */
static void first_values(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *out) {
    const run *r = (const run *)user;
    const char *const name = r->model.tensors[tensor].name;
    const double width = start_width(&r->model, tensor);
    for (uint64_t k = 0; k < count; ++k)
        if (has_suffix(name, ".gain") || has_suffix(name, ".bias"))
            out[k] = has_suffix(name, ".gain");
        else
            out[k] = (float)(width * (2 * draw_unit(r->plan.seed, tensor, first + k) - 1));
}

static bool open_shards(run *r, bool bf16) {
    const model *m = &r->model;
    cdp_fsdp_param *params = (cdp_fsdp_param *)need(m->tensor_count, sizeof *params);
    cdp_fsdp_desc desc = {.group = r->world,
        .params = params,
        .param_count = m->tensor_count,
        .compute = bf16 ? CDP_DTYPE_BF16 : CDP_DTYPE_F32,
        .optim = &r->optim,
        .fill = first_values,
        .user = r,
        .max_norm = 1};
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        params[i] = (cdp_fsdp_param){.name = m->tensors[i].name,
            .unit = unit_of(m, i),
            .ndim = 2,
            .shape = {m->tensors[i].rows, m->tensors[i].cols}};
    const bool ok = worked(cdp_fsdp_create(&desc, &r->shards))
        && worked(cdp_fsdp_preview(&desc, cdp_rank(r->world), &r->paper));
    free(params);
    return ok;
}

/* ---- FSDP, place 2 ---- */

/* The tensors of a unit lie one after the other. */
static bool use(run *r, uint32_t unit) {
    model *m = &r->model;
    const void *data = NULL;
    uint64_t count = 0;
    if (!worked(cdp_fsdp_need(r->shards, unit))) return false;
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        if (unit_of(m, i) != unit) continue;
        if (!data) data = cdp_fsdp_data(r->shards, i);
        m->tensors[i].offset = count;
        count += m->tensors[i].count;
    }
    m->values = (float *)(uintptr_t)data;
    if (!r->wide) return true;
    m->values = r->wide;
    return worked(cdp_convert(data, CDP_DTYPE_BF16, r->wide, CDP_DTYPE_F32, count, NULL));
}

/* ---- FSDP, place 3 ---- */

static bool use_backward(run *r, uint32_t unit) {
    model *m = &r->model;
    if (!use(r, unit)) return false;
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        if (unit_of(m, i) == unit && !(m->grads[i] = cdp_fsdp_grad(r->shards, i)))
            return worked(cdp_last_error()->status);
    return true;
}

/* Every unit is used forward, then the other way. */
static bool step_of_shards(run *r, const uint8_t *in, const uint8_t *out, double *bits) {
    model *m = &r->model;
    const uint32_t last = unit_count(m) - 1;
    const double rows = (double)(SEQUENCES * m->context);
    for (uint32_t u = 0; u <= last; ++u) {
        if (!use(r, u)) return false;
        if (u == 0) embed(m, in, SEQUENCES);
        if (u == last) head_forward(m, SEQUENCES);
        if (u && u < last)
            block_forward(m, u - 1, u < m->layers ? m->blocks[u].in : m->last, SEQUENCES);
        if (!worked(cdp_fsdp_done(r->shards, u))) return false;
    }
    *bits = model_loss(m, out, SEQUENCES, (real)(1 / rows)) / rows;
    for (uint32_t u = last + 1; u-- > 0;) {
        if (!use_backward(r, u)) return false;
        if (u == last) head_backward(m, SEQUENCES);
        if (u == 0) embed_backward(m, in, SEQUENCES);
        if (u && u < last) block_backward(m, u - 1, SEQUENCES);
        if (!worked(cdp_fsdp_ready(r->shards, u))) return false;
    }
    return worked(cdp_fsdp_backward_end(r->shards, 0, NULL)) && worked(cdp_fsdp_step(r->shards));
}

/* ---- DDP: every rank has everything ---- */

static bool open_whole(run *r) {
    model *m = &r->model;
    cdp_param *params = (cdp_param *)need(m->tensor_count, sizeof *params);
    cdp_ddp_desc desc = {.group = r->world, .params = params, .param_count = m->tensor_count};
    cdp_optimizer_desc optimizer = {.optim = &r->optim, .whole = true, .deferred = true};
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        params[i] = (cdp_param){
            .name = m->tensors[i].name, .count = m->tensors[i].count, .data = value_of(m, i)};
        first_values(r, i, 0, m->tensors[i].count, value_of(m, i));
    }
    bool ok = worked(cdp_ddp_create(&desc, &m->ddp));
    free(params);
    optimizer.ddp = m->ddp;
    ok = ok && worked(cdp_optimizer_create(&optimizer, &r->whole));
    for (uint32_t i = 0; ok && i < m->tensor_count; ++i)
        m->grads[i] = (float *)cdp_ddp_grad(m->ddp, i);
    return ok;
}

static bool step_of_whole(run *r, const uint8_t *in, const uint8_t *out, double *bits) {
    model *m = &r->model;
    const double rows = (double)(SEQUENCES * m->context);
    cdp_norm norm;
    cdp_ddp_zero_grad(m->ddp);
    model_forward(m, in, SEQUENCES);
    *bits = model_loss(m, out, SEQUENCES, (real)(1 / rows)) / rows;
    if (!worked(cdp_ddp_backward_begin(m->ddp))) return false;
    model_backward(m, in, SEQUENCES);
    if (!worked(cdp_ddp_backward_end(m->ddp)) || !worked(cdp_optimizer_norm(r->whole, &norm)))
        return false;
    return worked(cdp_optimizer_step(r->whole, norm.norm + 1e-6 > 1 ? 1 / (norm.norm + 1e-6) : 1));
}

/* ---- three runs ---- */

static bool train(run *r) {
    const uint64_t n = r->plan.context;
    uint8_t *in = (uint8_t *)need(SEQUENCES, n), *out = (uint8_t *)need(SEQUENCES, n);
    bool ok = true;
    for (uint64_t step = 0; ok && step < r->steps; ++step) {
        for (uint64_t i = 0; i < SEQUENCES; ++i) {
            const uint64_t at = sequence_start(
                &r->plan, r->text, step, cdp_rank(r->world) * (uint64_t)SEQUENCES + i);
            memcpy(in + i * n, r->text->train + at, n);
            memcpy(out + i * n, r->text->train + at + 1, n);
        }
        ok = r->shards ? step_of_shards(r, in, out, &r->loss[step])
                       : step_of_whole(r, in, out, &r->loss[step]);
        ok = ok
            && worked(
                cdp_allreduce(r->world, NULL, &r->loss[step], 1, CDP_DTYPE_F64, CDP_REDUCE_AVG));
    }
    free(in);
    free(out);
    return ok;
}

/* kind 0: DDP, 1: f32 shards, 2: bf16 gathered from f32 shards. */
static bool train_kind(run *r, int kind) {
    model *m = &r->model;
    cdp_fsdp_stats stats;
    reason why = {{0}};
    r->optim = adamw();
    model_create(m, r->plan.layers, r->plan.width, r->plan.heads, r->plan.context, SEQUENCES);
    real *const values = m->values;
    if (kind) {
        free(values); /* nobody needs the whole */
        m->values = NULL;
    }
    if (kind == 2) r->wide = need_reals(m->value_count);
    bool ok = (kind ? open_shards(r, kind == 2) : open_whole(r)) && train(r);
    stats = cdp_fsdp_stats_of(r->shards);
    if (kind && ok && stats.total_bytes != r->paper.total_bytes)
        ok = because(&why, "%llu bytes were needed, not %llu as on paper", llu(stats.total_bytes),
            llu(r->paper.total_bytes));
    if (why.text[0]) complain(&why);
    r->paper = stats;
    cdp_fsdp_destroy(r->shards);
    cdp_optimizer_destroy(r->whole);
    cdp_ddp_destroy(m->ddp);
    if (kind) m->values = NULL;
    free(r->wide);
    r->wide = NULL;
    r->shards = NULL;
    r->whole = NULL;
    model_free(m);
    return ok;
}

/* Of the first 40 steps: later ones differ more and more, as any two roundings do. */
static double largest_difference(const run *a, const run *b) {
    double most = 0;
    for (uint64_t i = 0; i < a->steps && i < 40; ++i)
        most = fmax(most, fabs(a->loss[i] - b->loss[i]) / a->loss[i]);
    return most;
}

static bool verdict(const run r[3]) {
    static const char *const kinds[] = {"DDP", "FSDP, f32", "FSDP, bf16, f32 masters"};
    const double f32 = largest_difference(&r[0], &r[1]), bf16 = largest_difference(&r[0], &r[2]);
    const uint64_t last = r[0].steps - 1;
    bool ok = f32 < 1e-4 && bf16 < 1e-3 && r[0].loss[last] < r[0].loss[0];
    printf("loss in bits per byte, first and last of %llu steps:\n", llu(r[0].steps));
    for (int k = 0; k < 3; ++k)
        printf("  %-24s %.4f  %.4f\n", kinds[k], r[k].loss[0], r[k].loss[last]);
    for (int k = 1; k < 3; ++k)
        printf("rank 0 holds %llu KB with %s: shards %llu, Adam %llu, slots %llu, gradients %llu\n",
            llu((r[k].paper.total_bytes + 1023) / 1024), k == 1 ? "f32" : "bf16",
            llu((r[k].paper.shard_bytes + r[k].paper.copy_bytes + 1023) / 1024),
            llu((r[k].paper.state_bytes + 1023) / 1024), llu((r[k].paper.slot_bytes + 1023) / 1024),
            llu((r[k].paper.gradient_bytes + 1023) / 1024));
    printf("of losses: f32 differs by %.1e at most, bf16 by %.1e\n", f32, bf16);
    printf("%s\n", ok ? "all checks passed" : "FAILED");
    return ok;
}

static int usage(const char *program, int code) {
    fprintf(code ? stderr : stdout,
        "usage: %s [--steps N] [--layers N] [--width N] [FILE or FOLDER...]\n"
        "Trains the transformer of text_model.h with DDP, with FSDP, and with FSDP in bf16, and\n"
        "compares losses. --steps: 1 to %d (default: 40). --layers: default 4. --width: a "
        "multiple\n"
        "of 4 (default: 32). Start it with cdprun -n 4, or alone.\n",
        program, (int)MOST_STEPS);
    return code;
}

int main(int argc, char **argv) {
    static run runs[3];
    run first = {
        .steps = 40, .plan = {.layers = 4, .width = 32, .heads = 2, .context = 32, .seed = 1}};
    corpus text = {0};
    reason why;
    bool alone, ok = true;
    const option options[] = {{"--steps", &first.steps, MOST_STEPS},
        {"--layers", &first.plan.layers, 1000}, {"--width", &first.plan.width, 4096}};
    if (argc > 1 && !strcmp(argv[1], "--help")) return usage(argv[0], 0);
    const int at = read_options(argc, argv, options, 3);
    if (!at || first.plan.width % 4) return usage(argv[0], 2);
    if (!corpus_gather(&text, argv + at, argc - at, argv[0], first.plan.context, &why)) {
        complain(&why);
        return 1;
    }
    if (!join_world(&first.world, &alone)) return 1;
    first.text = &text;
    for (int kind = 0; ok && kind < 3; ++kind) {
        runs[kind] = first;
        ok = train_kind(&runs[kind], kind);
    }
    if (ok && cdp_rank(first.world) == 0) ok = verdict(runs);
    cdp_group_destroy(first.world);
    corpus_free(&text);
    return ok ? 0 : 1;
}

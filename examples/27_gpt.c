/*  27_gpt.c - a GPT of any size on any text: data, shards, tensors and stages over ranks, in any
    combination

    You learn: how one program uses cdp_fsdp.h, cdp_dtensor.h, cdp_pipeline.h, cdp_checkpoint.h and
    cdp_elastic.h together. 03_train_text.c is the first thing to read; the model is in gpt_model.h.

        gcc -O2 examples/27_gpt.c -o gpt -pthread -lm
        ./gpt                                              one process, the text of this repository
        cdprun -n 4 ./gpt ~/notes                          4 ranks divide the model (ZeRO 3)
        cdprun -n 4 ./gpt --shard 1                        each has all of it: data parallel
        cdprun -n 4 ./gpt --tensor 2 --pipeline 2 --check 20
        cdprun -n 4 ./gpt --save run7 --until 200; cdprun -n 2 ./gpt --save run7
        cdprun -n 4 --stay --max-restarts 3 ./gpt --save run7    ranks die and come back

    Ranks are a mesh [pipeline, copies, shards, tensor]. Each stage of the pipeline has some of the
    units of the model (tables, blocks, end). Blocks are cut over the ranks of `tensor`, heads and
    hidden values; what a rank has of its stage is divided over `shards`, by cdp_fsdp.h; and ranks
    of `copies` hold the same. Sequences of a step are dealt out over copies and shards, and each
    rank takes its own in --micro parts, which are the micro-batches of the pipeline. Search for:

      >>data       which sequences a rank takes; the learning rate
      >>shards     which values a rank holds, and updates
      >>passes     forward and backward of a micro-batch on a stage
      >>stages     the pipeline that calls them, also where it has a single stage
      >>steps      training, scores, checkpoints, pictures
      >>elastic    ranks die and join: the others divide the model anew, and go on from the newest
                   checkpoint

    A checkpoint is safetensors with the names of GPT-2 ("h.0.attn.c_attn.weight"), and is loaded by
    any number of ranks, divided in any way. The last line is the verdict.                      */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_elastic.h"
#include "../cdp_checkpoint.h"
#include "../cdp_fsdp.h"
#include "../cdp_pipeline.h"

#include "gpt_model.h"
#include "options.h"

enum {
    MOST_RANKS = 4096,
    MOST_CHECKED = 1000,
    ARRAYS = 3,    /* of a parameter: its values, and what AdamW keeps */
    EVENTS = 10000 /* of a step, for its picture */
};

/* The mesh of all ranks; that of a stage lacks the first dimension. */
enum {
    PIPELINE,
    COPIES,
    SHARDS,
    TENSOR,
    DIMS
};

typedef struct settings {
    plan plan; /* plan.accumulate: micro-batches; plan.decay: all steps */
    uint64_t until, every, print, pipeline, tensor, shard, zero, bits, check, lose;
    const char *save, *picture;
} settings;

/* What a checkpoint has besides tensors. */
typedef struct saved {
    plan plan;
    uint64_t text; /* its hash */
} saved;

/* A job that goes on when ranks die or join. */
typedef struct job {
    cdp_elastic *elastic;
    cdp_elastic_now now; /* .changed: other ranks since the run began */
} job;

typedef struct run {
    const settings *set;
    job *job; /* NULL: a rank that dies ends it */
    const corpus *text;
    cdp_group *world;
    cdp_mesh *mesh, **stages; /* of all ranks; of each stage */
    uint32_t at[DIMS], size[DIMS];
    gpt gpt;
    uint64_t first, units; /* of this stage */
    gpt_param *params;     /* its parameters */
    uint32_t param_count;
    gpt_memory *slots;
    uint32_t slot_count;
    model scratch;
    cdp_fsdp *shards;
    float *wide; /* a unit that was gathered as bf16 */
    cdp_schedule *schedule, *forwards;
    cdp_pipeline *train, *score;
    cdp_pipe_edge stream;        /* what goes from stage to stage */
    cdp_group *groups[DIMS - 1]; /* that passes of a stage use */
    bool scoring;
    cdp_ckpt *ckpt;
    cdp_item *items;
    char (*names)[64];
    saved saved;
    cdp_ckpt_blob blob;
    uint64_t step, begun;
    bool failed;                     /* the verdict */
    double loss[MOST_CHECKED], rate; /* of the first steps; tokens per second */
} run;

/* ---- >>data ---------------------------------------------------------------------------------- */

static uint64_t data_ranks(const run *r) {
    return (uint64_t)r->size[COPIES] * r->size[SHARDS];
}
static uint64_t sequences_of(const run *r) {
    return r->set->plan.batch / (data_ranks(r) * r->set->plan.accumulate);
}

/* The place of sequence `index` of a step, or of the score: these lie evenly in the held-out part.
 */
static const uint8_t *sequence_at(const run *r, uint64_t index) {
    const plan *p = &r->set->plan;
    if (!r->scoring) return r->text->train + sequence_start(p, r->text, r->step, index);
    return r->text->held + (r->text->held_bytes - p->context - 1) * index / p->batch;
}

/* Sequences of this rank's micro-batch. */
static void draw_micro(const run *r, uint32_t micro, gpt_memory *m) {
    const uint64_t n = r->set->plan.context, mine = sequences_of(r);
    const uint64_t rank = (uint64_t)r->at[COPIES] * r->size[SHARDS] + r->at[SHARDS];
    for (uint64_t i = 0; i < mine; ++i) {
        const uint8_t *from = sequence_at(r, (rank * r->set->plan.accumulate + micro) * mine + i);
        memcpy(m->in + i * n, from, n);
        memcpy(m->targets + i * n, from + 1, n);
    }
}

/* Up to the full rate in a straight line, then down to a tenth in half a cosine. */
static double rate_of(const plan *p, uint64_t step) {
    if (step < p->warmup) return p->rate * (double)(step + 1) / (double)p->warmup;
    const double pi = 3.14159265358979323846;
    const double gone = (double)(step - p->warmup) / (double)(p->decay - p->warmup);
    return p->rate * (.1 + .9 * .5 * (1 + cos(pi * gone)));
}

/* ---- >>shards -------------------------------------------------------------------------------- */

/* Units of a stage: [first_unit(s), first_unit(s + 1)). */
static uint64_t first_unit(const run *r, uint32_t stage) {
    const uint64_t layers = r->gpt.layers, stages = r->size[PIPELINE];
    if (stage == 0) return 0;
    return stage == stages ? unit_count(&r->gpt) : 1 + layers * stage / stages;
}

/* Parameters of a stage, and the same for cdp_fsdp.h. Returns how many; both are to be freed. */
static uint32_t params_of(const run *r, uint32_t stage, gpt_param **out, cdp_fsdp_param **shards) {
    const uint64_t first = first_unit(r, stage), units = first_unit(r, stage + 1) - first;
    gpt_param *p = *out = (gpt_param *)need(units * PARTS, sizeof *p);
    cdp_fsdp_param *f = *shards = (cdp_fsdp_param *)need(units * PARTS, sizeof *f);
    uint32_t n = 0;
    for (uint32_t u = 0; u < units; ++u)
        for (uint32_t end = n + gpt_unit_of(&r->gpt, first + u, p + n); n < end; ++n) {
            const uint64_t mid = gpt_mid(&r->gpt, &p[n]);
            f[n] = (cdp_fsdp_param){.name = p[n].name,
                .unit = u,
                .ndim = 3,
                .shape = {p[n].outer, mid, p[n].inner},
                .grain = p[n].outer > 1 ? mid * p[n].inner : p[n].inner,
                .copy = !p[n].cut && r->at[TENSOR]}; /* the norm counts it once */
        }
    return n;
}

static void first_values(void *user, uint32_t param, uint64_t first, uint64_t count, float *out) {
    const run *r = (const run *)user;
    gpt_fill(&r->gpt, &r->params[param], r->set->plan.seed, first, count, out);
}

/* AdamW of one piece; vectors do not decay. */
static cdp_status update(void *user, const cdp_fsdp_piece *piece) {
    const run *r = (const run *)user;
    const plan *p = &r->set->plan;
    const bool vector = r->params[piece->param].shape[1] == 1;
    const cdp_optim optim = {.kind = CDP_OPTIM_ADAMW,
        .step = r->step + 1,
        .lr = rate_of(p, r->step),
        .beta2 = .95,
        .weight_decay = vector ? CDP_OPTIM_ZERO : p->weight_decay};
    const cdp_optim_range range = {.param = piece->data,
        .state = {piece->state[0], piece->state[1]},
        .grad = piece->grad,
        .count = piece->count,
        .scale = piece->scale};
    return cdp_optim_update(&optim, &range);
}

static bool open_shards(run *r) {
    static const cdp_fsdp_stage zero[] = {CDP_FSDP_OPTIMIZER, CDP_FSDP_GRADIENTS, CDP_FSDP_FULL};
    cdp_fsdp_param *shards;
    cdp_fsdp_desc desc = {.group = cdp_mesh_group(r->mesh, SHARDS),
        .replicate = r->size[COPIES] > 1 ? cdp_mesh_group(r->mesh, COPIES) : NULL,
        .norm_group = r->world,
        .stage = zero[r->set->zero - 1],
        .compute = r->set->bits == 16 ? CDP_DTYPE_BF16 : CDP_DTYPE_F32,
        .update = update,
        .states = ARRAYS - 1,
        .fill = first_values,
        .user = r,
        .max_norm = 1,
        .events = r->set->picture ? EVENTS : 0};
    desc.param_count = r->param_count = params_of(r, r->at[PIPELINE], &r->params, &shards);
    desc.params = shards;
    const bool ok = worked(cdp_fsdp_create(&desc, &r->shards));
    free(shards);
    if (ok && r->set->bits == 16) r->wide = need_reals(gpt_most_elements(&r->gpt));
    return ok;
}

/* The values of a unit, and for backward its gradients. */
static bool use(run *r, uint64_t unit, gpt_unit *u, bool backward) {
    const uint32_t local = (uint32_t)(unit - r->first);
    uint32_t param = 0, i = 0;
    uint64_t at = 0;
    if (!worked(cdp_fsdp_need(r->shards, local))) return false;
    while (r->params[param].number < unit * PARTS)
        ++param;
    for (; param < r->param_count && r->params[param].number / PARTS == unit; ++param, ++i) {
        const void *data = cdp_fsdp_data(r->shards, param);
        const uint64_t count = gpt_elements(&r->gpt, &r->params[param]);
        u->value[i] = (const float *)data;
        if (r->wide) {
            u->value[i] = r->wide + at;
            if (!worked(
                    cdp_convert(data, CDP_DTYPE_BF16, r->wide + at, CDP_DTYPE_F32, count, NULL)))
                return false;
        }
        at += count;
        if (backward && !(u->grad[i] = cdp_fsdp_grad(r->shards, param)))
            return worked(cdp_last_error()->status);
    }
    return true;
}

static bool used(run *r, uint64_t unit, bool backward) {
    const uint32_t local = (uint32_t)(unit - r->first);
    return worked(backward ? cdp_fsdp_ready(r->shards, local) : cdp_fsdp_done(r->shards, local));
}

/* ---- >>passes -------------------------------------------------------------------------------- */

/* What the ranks of `tensor` have is added up: twice in a block forward, twice backward. */
static bool sum_parts(void *user, real *x, size_t count) {
    const run *r = (const run *)user;
    if (r->size[TENSOR] == 1) return true;
    return worked(cdp_allreduce(
        cdp_mesh_group(r->mesh, TENSOR), NULL, x, count, CDP_DTYPE_F32, CDP_REDUCE_SUM));
}

static uint64_t stream_count(const run *r) {
    return sequences_of(r) * r->gpt.context * r->gpt.width;
}
static bool is_block(const run *r, uint64_t unit) {
    return unit && unit <= r->gpt.layers;
}

/* Where a unit of this stage writes: into the first or the next block, or what leaves the last
   one. */
static real *behind(const run *r, gpt_memory *m, uint64_t unit) {
    const uint64_t next = unit + 1 - (r->first ? r->first : 1);
    return next < m->inside.layers ? m->inside.blocks[next].in : m->inside.last;
}

static bool forward_units(run *r, gpt_memory *m, double *loss) {
    const double tokens = (double)(sequences_of(r) * r->gpt.context);
    for (uint64_t unit = r->first; unit < r->first + r->units; ++unit) {
        gpt_unit u;
        bool ok = use(r, unit, &u, false);
        if (ok && unit == 0) gpt_tables(&r->gpt, &u, m, behind(r, m, unit));
        if (ok && is_block(r, unit))
            ok = gpt_block(&r->gpt, &u, m, unit - (r->first ? r->first : 1), behind(r, m, unit));
        if (ok && unit > r->gpt.layers)
            *loss = gpt_end(&r->gpt, &u, m, (real)(1 / (tokens * (double)r->set->plan.accumulate)))
                / tokens;
        if (!ok || !used(r, unit, false)) return false;
    }
    return true;
}

static bool backward_units(run *r, gpt_memory *m, real *stream) {
    for (uint64_t unit = r->first + r->units; unit-- > r->first;) {
        gpt_unit u;
        bool ok = use(r, unit, &u, true);
        if (ok && unit == 0) gpt_tables_backward(&r->gpt, &u, m, stream);
        if (ok && is_block(r, unit))
            ok = gpt_block_backward(&r->gpt, &u, m, unit - (r->first ? r->first : 1), stream);
        if (ok && unit > r->gpt.layers) gpt_end_backward(&r->gpt, &u, m, stream);
        if (!ok || !used(r, unit, true)) return false;
    }
    return true;
}

static cdp_status forward(void *user, const cdp_pipe_micro *now) {
    run *r = (run *)user;
    gpt_memory *m = &r->slots[now->slot];
    const size_t bytes = stream_count(r) * sizeof(real);
    draw_micro(r, now->micro, m);
    if (r->first) memcpy(m->inside.blocks[0].in, now->in[0], bytes);
    if (!forward_units(r, m, now->loss)) return cdp_last_error()->status;
    if (!now->loss) memcpy(now->out[0], m->inside.last, bytes);
    return CDP_OK;
}

static cdp_status backward(void *user, const cdp_pipe_micro *now) {
    run *r = (run *)user;
    gpt_memory *m = &r->slots[now->slot];
    const bool last = r->first + r->units > r->gpt.layers + 1;
    real *const stream = r->first ? (real *)now->grad_in[0] : r->scratch.stream;
    if (!last) memcpy(stream, now->grad_out[0], stream_count(r) * sizeof(real));
    /* ZeRO 1 keeps whole gradients: they travel once in a step */
    if (r->set->zero == 1 && !worked(cdp_fsdp_no_sync(r->shards, !now->last)))
        return cdp_last_error()->status;
    return backward_units(r, m, stream) ? CDP_OK : cdp_last_error()->status;
}

/* ---- >>stages -------------------------------------------------------------------------------- */

static bool open_pipeline(
    run *r, cdp_pipe_kind kind, uint32_t tag, cdp_schedule **schedule, cdp_pipeline **out) {
    const uint32_t ranks = r->size[PIPELINE], at = r->at[PIPELINE];
    const cdp_schedule_desc plan = {
        .kind = kind, .ranks = ranks, .micros = (uint32_t)r->set->plan.accumulate};
    const cdp_pipe_stage stage = {.in = &r->stream,
        .out = &r->stream,
        .in_count = at > 0,
        .out_count = at + 1 < ranks,
        .forward = forward,
        .backward = backward,
        .groups = r->groups,
        .group_count = DIMS - 1,
        .user = r};
    cdp_pipeline_desc desc = {
        .group = cdp_mesh_group(r->mesh, PIPELINE), .stages = &stage, .stage_count = 1, .tag = tag};
    if (!worked(cdp_schedule_create(&plan, schedule))) return false;
    desc.schedule = *schedule;
    return worked(cdp_pipeline_create(&desc, out));
}

static bool open_stage(run *r) {
    const uint64_t blocks = r->units - (r->first == 0) - (r->first + r->units > r->gpt.layers + 1);
    const uint32_t tags = 2 * r->size[PIPELINE] * (uint32_t)r->set->plan.accumulate;
    r->stream = (cdp_pipe_edge){stream_count(r), CDP_DTYPE_F32};
    for (uint32_t d = COPIES; d < DIMS; ++d)
        r->groups[d - 1] = cdp_mesh_group(r->mesh, d);
    if (!open_pipeline(r, CDP_PIPE_1F1B, 0, &r->schedule, &r->train)
        || !open_pipeline(r, CDP_PIPE_EVAL, tags, &r->forwards, &r->score))
        return false;
    r->slot_count = cdp_schedule_peak(r->schedule, r->at[PIPELINE]);
    r->slots = (gpt_memory *)need(r->slot_count, sizeof *r->slots);
    gpt_reserve_scratch(&r->gpt, &r->scratch, sequences_of(r));
    for (uint32_t i = 0; i < r->slot_count; ++i) {
        gpt_reserve(&r->gpt, &r->slots[i], sequences_of(r), blocks,
            r->at[PIPELINE] + 1 == r->size[PIPELINE]);
        gpt_share(&r->slots[i], &r->scratch);
    }
    return true;
}

/* The mean loss of all ranks' micro-batches, in bits per byte. */
static bool mean_loss(run *r, cdp_pipeline *pipeline, double *bits) {
    if (!worked(cdp_pipeline_losses(pipeline, NULL, bits))) return false;
    *bits /= (double)r->set->plan.accumulate;
    return worked(cdp_allreduce(r->world, NULL, bits, 1, CDP_DTYPE_F64, CDP_REDUCE_AVG));
}

/* What the model makes of text that it has not seen. */
static bool score(run *r, double *bits) {
    r->scoring = true;
    const bool ok = worked(cdp_pipeline_step(r->score)) && mean_loss(r, r->score, bits);
    r->scoring = false;
    return ok;
}

/* ---- >>steps --------------------------------------------------------------------------------- */

/* How many rows of a parameter each rank of `shards` has: rows are what cdp_fsdp.h may cut between.
 */
static bool rows_of(
    const run *r, const cdp_fsdp_param *params, uint32_t count, uint32_t param, uint64_t *rows) {
    const cdp_fsdp_param *p = &params[param];
    const cdp_fsdp_desc desc = {.params = params, .param_count = count};
    const uint64_t all = p->shape[0] * p->shape[1] * p->shape[2];
    uint64_t at = 0, start, end;
    for (uint32_t i = 0; i < param; ++i)
        if (params[i].unit == p->unit)
            at += params[i].shape[0] * params[i].shape[1] * params[i].shape[2];
    for (uint32_t k = 0; k < r->size[SHARDS]; ++k) {
        if (!worked(cdp_fsdp_range(&desc, p->unit, false, r->size[SHARDS], k, &start, &end)))
            return false;
        start = start > at ? start : at;
        end = end < at + all ? end : at + all;
        rows[k] = start < end ? (end - start) / p->grain : 0;
    }
    return true;
}

/* A parameter in a checkpoint: its second dimension as two, parts and what is in a part. Shards
   have rows of the first dimension, if it has several, or else of the third. */
static bool item_of(const run *r, uint32_t stage, const gpt_param *p, const uint64_t *rows,
    const char *name, const char *file, cdp_item *item) {
    const uint64_t parts = p->cut ? r->gpt.parts : 1;
    cdp_layout *l = &item->tensor.layout;
    *item = (cdp_item){.name = name, .file = file, .ndim = p->shape[1] > 1 ? 2 : 1};
    memcpy(item->shape, p->shape, sizeof p->shape);
    *l = (cdp_layout){
        .mesh = r->stages[stage], .ndim = 4, .shape = {p->outer, parts, p->mid / parts, p->inner}};
    l->place[SHARDS - 1] = (cdp_place){.kind = CDP_PLACE_SHARD, .dim = p->outer > 1 ? 0 : 2};
    if (p->cut) l->place[TENSOR - 1] = (cdp_place){.kind = CDP_PLACE_SHARD, .dim = 1};
    return worked(cdp_mesh_cut(r->stages[stage], SHARDS - 1, rows, &l->place[SHARDS - 1].cut));
}

/* Items of a stage: ARRAYS for each parameter. Those of this rank's stage get its memory. */
static bool items_of(run *r, uint32_t stage, cdp_item *items, char (*names)[64], uint32_t *made) {
    static const char *const ends[ARRAYS] = {"", ".exp_avg", ".exp_avg_sq"};
    gpt_param *p;
    cdp_fsdp_param *shards;
    uint64_t *rows = (uint64_t *)need(r->size[SHARDS], sizeof *rows);
    bool ok = true;
    *made = params_of(r, stage, &p, &shards);
    for (uint32_t i = 0; ok && i < *made; ++i) {
        ok = rows_of(r, shards, *made, i, rows);
        for (uint32_t a = 0; ok && a < ARRAYS; ++a) {
            const uint32_t k = ARRAYS * i + a;
            snprintf(names[k], sizeof *names, "%s%s", p[i].name, ends[a]);
            ok = item_of(r, stage, &p[i], rows, names[k], a ? "optimizer" : "model", &items[k]);
        }
    }
    for (uint32_t i = 0; stage == r->at[PIPELINE] && i < cdp_fsdp_piece_count(r->shards); ++i) {
        const cdp_fsdp_piece piece = cdp_fsdp_piece_at(r->shards, i);
        for (uint32_t a = 0; a < ARRAYS; ++a)
            items[ARRAYS * piece.param + a].tensor.data = a ? piece.state[a - 1] : piece.data;
    }
    free(rows);
    free(p);
    free(shards);
    return ok;
}

static bool open_checkpoint(run *r) {
    const uint64_t most = ARRAYS * PARTS * unit_count(&r->gpt);
    uint32_t count = 0, made;
    r->items = (cdp_item *)need(most, sizeof *r->items);
    r->names = (char(*)[64])need(most, sizeof *r->names);
    for (uint32_t stage = 0; stage < r->size[PIPELINE]; ++stage, count += ARRAYS * made)
        if (!items_of(r, stage, r->items + count, r->names + count, &made)) return false;
    r->saved = (saved){r->set->plan, r->text->hash};
    r->blob = (cdp_ckpt_blob){
        .name = "plan", .data = &r->saved, .bytes = sizeof r->saved, .room = sizeof r->saved};
    const cdp_ckpt_desc desc = {.group = r->world,
        .path = r->set->save,
        .items = r->items,
        .item_count = count,
        .blobs = &r->blob,
        .blob_count = 1,
        .keep = 3};
    return worked(cdp_ckpt_create(&desc, &r->ckpt));
}

/* From the newest step in the folder, if there is one; else the beginning is saved. */
static bool resume(run *r, reason *why) {
    const saved mine = {r->set->plan, r->text->hash};
    const cdp_status st = cdp_ckpt_load(r->ckpt, NULL, CDP_CKPT_LATEST, &r->begun);
    if (st == CDP_ERR_STATE) return worked(cdp_ckpt_save(r->ckpt, 0));
    if (!worked(st) || !worked(cdp_fsdp_loaded(r->shards))) return false;
    if (r->blob.bytes != sizeof mine || r->saved.text != mine.text)
        return because(why, "%s was trained on another text", r->set->save);
    r->saved.plan.accumulate = mine.plan.accumulate; /* of these ranks */
    if (memcmp(&r->saved.plan, &mine.plan, sizeof mine.plan))
        return because(why,
            "%s has other settings (sizes, batch, seed, steps, warmup or rate); give these again, "
            "or another folder",
            r->set->save);
    r->step = r->begun;
    if (cdp_rank(r->world) == 0)
        printf("%u ranks go on at step %llu\n", cdp_size(r->world), llu(r->step));
    return true;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool one_step(run *r, double *bits, cdp_fsdp_info *info) {
    return worked(cdp_pipeline_step(r->train)) && mean_loss(r, r->train, bits)
        && worked(cdp_fsdp_backward_end(r->shards, 0, info)) && worked(cdp_fsdp_step(r->shards));
}

/* Every step of a job ends here, for all of its ranks. *ended: some rank says that all is done.
   False: a rank is lost, or there are others now. */
static bool meet(job *j, bool *ended) {
    uint32_t any = *ended;
    if (!worked(cdp_allreduce(j->now.group, NULL, &any, 1, CDP_DTYPE_U32, CDP_REDUCE_MAX))
        || !worked(cdp_elastic_commit(j->elastic)))
        return false;
    *ended = any != 0;
    return *ended || (worked(cdp_elastic_next(j->elastic, &j->now)) && !j->now.changed);
}

/* To see what the others do: the last rank of the first ones ends without a word. */
static void lose_a_rank(const run *r) {
    const cdp_elastic_now *now = &r->job->now;
    if (now->epoch == 1 && r->step == r->set->lose && now->rank + 1 == now->size) _exit(1);
}

/* Up to step `until`. `who`: what lines begin with; NULL: none is printed. */
static bool train(run *r, uint64_t until, const char *who) {
    const settings *set = r->set;
    const double tokens = (double)(set->plan.batch * set->plan.context), start = seconds();
    double before = start;
    for (const uint64_t first = r->step; r->step < until;) {
        cdp_fsdp_info info;
        double bits;
        const double rate = rate_of(&set->plan, r->step);
        if (!one_step(r, &bits, &info)) return false;
        if (r->step < MOST_CHECKED) r->loss[r->step] = bits;
        ++r->step;
        const double now = seconds();
        if (who && (r->step % set->print == 0 || r->step == until)) {
            printf("%s: step %llu of %llu, %.6f bits per byte, norm %.4f, rate %.2e, %.0f tokens "
                   "per second\n",
                who, llu(r->step), llu(set->plan.decay), bits, info.norm, rate,
                tokens / (now - before));
            fflush(stdout);
        }
        before = now;
        r->rate = tokens * (double)(r->step - first) / (now - start);
        if (r->ckpt && (r->step % set->every == 0 || r->step == until)
            && !worked(cdp_ckpt_save(r->ckpt, r->step)))
            return false;
        if (r->job) lose_a_rank(r);
        if (r->job && !meet(r->job, &(bool){false})) return false;
    }
    return true;
}

static bool write_picture(const run *r, const char *name, const char *text, uint64_t bytes) {
    char path[1024];
    reason why;
    snprintf(path, sizeof path, "%s-%s.svg", r->set->picture, name);
    if (file_write(path, text, bytes, &why)) {
        printf("wrote %s\n", path);
        return true;
    }
    complain(&why);
    return false;
}

/* Of rank 0: the stages of all ranks in its pipeline in the last step; its gathers, reductions and
   memory. */
static bool draw_step(run *r) {
    const uint64_t rows = cdp_schedule_info_of(r->schedule).rows;
    double *times = (double *)need(2 * rows, sizeof *times);
    const cdp_pipe_times ran = {times, times + rows};
    bool ok = worked(cdp_pipeline_times(r->train, &ran));
    for (int kind = 0; ok && kind < 2 && cdp_rank(r->world) == 0; ++kind) {
        uint64_t room = 0;
        char *text = NULL;
        for (int pass = 0; pass < 2; ++pass) {
            if (pass) text = (char *)need(room, 1);
            room = 1
                + (kind ? cdp_fsdp_trace(r->shards, CDP_TRACE_SVG, text, room)
                        : cdp_schedule_draw(
                            r->schedule, NULL, &ran, CDP_PIPE_PICTURE_SVG, text, room));
        }
        ok = write_picture(r, kind ? "memory" : "step", text, room - 1);
        free(text);
    }
    free(times);
    return ok;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool open_mesh(run *r, const uint32_t *size) {
    cdp_mesh_desc all = {
        .group = r->world, .ndim = DIMS, .names = {"pipeline", "copies", "shards", "tensor"}};
    cdp_mesh_desc stage = {
        .group = r->world, .ndim = DIMS - 1, .names = {"copies", "shards", "tensor"}};
    const uint32_t ranks = cdp_size(r->world) / size[PIPELINE];
    uint32_t *list = (uint32_t *)need(ranks, sizeof *list);
    memcpy(all.shape, size, sizeof r->size);
    memcpy(stage.shape, size + 1, sizeof r->size - sizeof *size);
    stage.ranks = list;
    r->stages = (cdp_mesh **)need(size[PIPELINE], sizeof(cdp_mesh *));
    bool ok = worked(cdp_mesh_create(&all, &r->mesh));
    for (uint32_t s = 0; ok && s < size[PIPELINE]; ++s) {
        for (uint32_t i = 0; i < ranks; ++i)
            list[i] = s * ranks + i;
        ok = worked(cdp_mesh_create(&stage, &r->stages[s]));
    }
    free(list);
    for (uint32_t d = 0; ok && d < DIMS; ++d) {
        r->size[d] = size[d];
        r->at[d] = cdp_mesh_coord(r->mesh, d);
    }
    return ok;
}

static bool open_run(run *r, const uint32_t *size) {
    const plan *p = &r->set->plan;
    if (!open_mesh(r, size)) return false;
    r->gpt = (gpt){.layers = p->layers,
        .width = p->width,
        .heads = p->heads,
        .context = p->context,
        .part = r->at[TENSOR],
        .parts = r->size[TENSOR],
        .sum = sum_parts,
        .user = r};
    r->first = first_unit(r, r->at[PIPELINE]);
    r->units = first_unit(r, r->at[PIPELINE] + 1) - r->first;
    return open_shards(r) && open_stage(r);
}

static void close_run(run *r) {
    cdp_ckpt_destroy(r->ckpt);
    cdp_pipeline_destroy(r->train);
    cdp_pipeline_destroy(r->score);
    cdp_schedule_destroy(r->schedule);
    cdp_schedule_destroy(r->forwards);
    cdp_fsdp_destroy(r->shards);
    for (uint32_t i = 0; i < r->slot_count; ++i)
        gpt_release(&r->slots[i]);
    model_free(&r->scratch);
    for (uint32_t s = 0; r->stages && s < r->size[PIPELINE]; ++s)
        cdp_mesh_destroy(r->stages[s]);
    cdp_mesh_destroy(r->mesh);
    free(r->slots);
    free(r->stages);
    free(r->params);
    free(r->wide);
    free(r->items);
    free(r->names);
}

/* Rank 0 makes the first steps in one process. */
static bool run_alone(run *r, cdp_group *world) {
    const uint32_t size[DIMS] = {1, 1, 1, 1};
    bool ok = worked(cdp_group_split(world, cdp_rank(world) ? CDP_NO_COLOR : 0, 0, &r->world));
    if (ok && r->world) ok = open_run(r, size) && train(r, r->set->check, "alone");
    if (r->world) close_run(r);
    cdp_group_destroy(r->world);
    return ok && worked(cdp_barrier(world));
}

static bool same_losses(const run *alone, const run *all) {
    const double limit = all->set->bits == 16 ? 1e-2 : 1e-4;
    double most = 0;
    for (uint64_t i = all->begun; i < all->set->check; ++i)
        most = fmax(most, fabs(all->loss[i] - alone->loss[i]) / alone->loss[i]);
    printf("losses of %llu steps differ from those of one process by %.1e at most\n",
        llu(all->set->check - all->begun), most);
    printf("tokens per second: %.0f of %u ranks, %.0f of one process\n", all->rate,
        cdp_size(all->world), alone->rate);
    return most < limit;
}

static bool verdict(const run *alone, const run *all, const double score[2]) {
    const cdp_fsdp_stats has = cdp_fsdp_stats_of(all->shards);
    const bool same = all->set->check <= all->begun || same_losses(alone, all);
    const bool learned = all->step < all->begun + 10 || score[1] < score[0];
    printf("rank 0 holds %llu KB: values and gradients %llu, Adam %llu, gathered %llu, whole "
           "gradients %llu\n",
        llu(has.total_bytes / 1024), llu((has.shard_bytes + has.copy_bytes) / 1024),
        llu(has.state_bytes / 1024), llu(has.slot_bytes / 1024), llu(has.gradient_bytes / 1024));
    printf("held-out text: %.4f bits per byte, then %.4f\n", score[0], score[1]);
    printf("%s\n", same && learned ? "all checks passed" : "FAILED");
    return same && learned;
}

static bool run_all(run *r, const run *alone, const uint32_t *size) {
    double scores[2];
    reason why = {{0}};
    bool ok = open_run(r, size) && (!r->set->save || (open_checkpoint(r) && resume(r, &why)))
        && score(r, &scores[0]) && train(r, r->set->until, cdp_rank(r->world) ? NULL : "all")
        && score(r, &scores[1]) && (!r->set->picture || r->step == r->begun || draw_step(r));
    if (why.text[0]) complain(&why);
    if (ok && cdp_rank(r->world) == 0) r->failed = !verdict(alone, r, scores);
    close_run(r);
    return ok;
}

static int usage(const char *program, int code) {
    fprintf(code ? stderr : stdout,
        "usage: %s [OPTION...] [FILE or FOLDER...]\n"
        "Trains a GPT on text, byte by byte. Start it with cdprun -n 4, or alone.\n"
        "  the model        --layers 4  --width 64  --heads 4  --context 64\n"
        "  the training     --steps 200  --warmup 20  --rate 1000 (millionths)  --batch 16\n"
        "                   --seed 1  --micro 2 (parts of a rank's batch)\n"
        "  ranks            --pipeline 1 (stages)  --tensor 1 (ranks that cut a block)\n"
        "                   --shard N (ranks that divide one copy; default: all that are left)\n"
        "                   --zero 3 (values too), 2 (gradients and state) or 1 (state alone)\n"
        "  --bits 16        values are gathered as bf16 from f32 masters\n"
        "  --save FOLDER    checkpoints, every --every 100 steps; goes on from the newest one\n"
        "  --until N        ends after step N of --steps\n"
        "  --check N        rank 0 makes N steps alone before, and compares\n"
        "  --print N        a line every N steps\n"
        "  --picture NAME   NAME-step.svg and NAME-memory.svg: the last step\n"
        "  --lose N         under cdprun --stay the last rank dies after step N\n",
        program);
    return code;
}

/* Fills in what was not given, and the sizes of the mesh. */
static bool settle(settings *s, uint32_t ranks, uint32_t *size, reason *why) {
    plan *p = &s->plan;
    if (ranks % (s->pipeline * s->tensor))
        return because(why, "%u ranks are no multiple of --pipeline %llu times --tensor %llu",
            ranks, llu(s->pipeline), llu(s->tensor));
    const uint64_t data = ranks / (s->pipeline * s->tensor);
    if (!s->shard) s->shard = data;
    if (data % s->shard)
        return because(why,
            "--shard %llu must divide the %llu ranks that --pipeline and --tensor "
            "leave",
            llu(s->shard), llu(data));
    if (p->batch % (data * p->accumulate))
        return because(why,
            "--batch %llu must be a multiple of %llu: %llu ranks have --micro %llu "
            "parts each",
            llu(p->batch), llu(data * p->accumulate), llu(data), llu(p->accumulate));
    if (p->layers < s->pipeline)
        return because(why, "--layers must be at least --pipeline %llu", llu(s->pipeline));
    if (p->width % p->heads || p->heads % s->tensor || p->width < 2)
        return because(why, "--width must be a multiple of --heads, and --heads of --tensor");
    if (!s->until || s->until > p->decay) s->until = p->decay;
    if (p->warmup >= p->decay) p->warmup = p->decay - 1;
    if (s->check > s->until) s->check = s->until;
    if (!s->print) s->print = s->until / 20 ? s->until / 20 : 1;
    const uint64_t all[DIMS] = {s->pipeline, data / s->shard, s->shard, s->tensor};
    for (int d = 0; d < DIMS; ++d)
        size[d] = (uint32_t)all[d];
    return true;
}

/* ---- >>elastic ------------------------------------------------------------------------------- */

/* A run with the ranks that are here now. As many of them train as can divide the batch and the
   model; the others wait. False, and ended unchanged: a rank is lost, or this run failed. */
static bool run_epoch(job *j, const settings *wanted, const corpus *text, bool *ended) {
    static run r;
    settings set;
    uint32_t size[DIMS], n = j->now.size + 1;
    reason why;
    do
        set = *wanted;
    while (--n && !settle(&set, n, size, &why));
    if (!n) {
        complain(&why);
        return false;
    }
    r = (run){.set = &set, .job = j, .text = text};
    if (j->now.rank == 0)
        printf("%u ranks, %u train%s%.200s\n", j->now.size, n, j->now.epoch > 1 ? ": " : "",
            j->now.epoch > 1 ? j->now.cause : "");
    const bool trains = j->now.rank < n;
    bool ok = worked(cdp_group_split(j->now.group, trains ? 0 : CDP_NO_COLOR, 0, &r.world));
    if (ok && trains) ok = *ended = run_all(&r, NULL, size);
    do
        ok = ok && meet(j, ended);
    while (ok && !*ended);
    *ended = ok;
    cdp_group_destroy(r.world);
    return ok && !r.failed;
}

static bool run_elastic(settings *set, const corpus *text) {
    const cdp_elastic_desc desc = {.grow_ms = 200};
    job j = {0};
    bool ended = false, good = false;
    set->check = 0;
    if (!worked(cdp_elastic_create_from_env(&desc, &j.elastic))) return false;
    bool ok = worked(cdp_elastic_next(j.elastic, &j.now));
    while (ok && !ended) {
        j.now.changed = false;
        good = run_epoch(&j, set, text, &ended);
        /* without a change this rank alone has failed */
        if (!ended && !j.now.changed)
            ok = worked(cdp_elastic_next(j.elastic, &j.now)) && j.now.changed;
    }
    ok = ok && worked(cdp_elastic_finish(j.elastic));
    cdp_elastic_destroy(j.elastic);
    return ok && good;
}

/* A world that is here once and for all. */
static bool run_world(settings *set, const corpus *text) {
    static run alone, all;
    uint32_t size[DIMS];
    reason why;
    bool single;
    if (!join_world(&all.world, &single)) return false;
    bool ok = settle(set, cdp_size(all.world), size, &why);
    if (!ok) complain(&why);
    alone.set = all.set = set;
    alone.text = all.text = text;
    ok = ok && (!set->check || run_alone(&alone, all.world)) && run_all(&all, &alone, size);
    cdp_group_destroy(all.world);
    return ok && !all.failed;
}

int main(int argc, char **argv) {
    static settings set = {.plan = {.layers = 4,
                               .width = 64,
                               .heads = 4,
                               .context = 64,
                               .batch = 16,
                               .accumulate = 2,
                               .seed = 1,
                               .warmup = 20,
                               .decay = 200,
                               .weight_decay = .1},
        .every = 100,
        .pipeline = 1,
        .tensor = 1,
        .zero = 3,
        .bits = 32};
    uint64_t rate = 1000;
    corpus text = {0};
    reason why;
    const option options[] = {{"--layers", &set.plan.layers, 1000},
        {"--width", &set.plan.width, 16384}, {"--heads", &set.plan.heads, 1024},
        {"--context", &set.plan.context, 65536}, {"--batch", &set.plan.batch, 1u << 20},
        {"--micro", &set.plan.accumulate, 4096}, {"--seed", &set.plan.seed, UINT64_MAX},
        {"--warmup", &set.plan.warmup, UINT32_MAX}, {"--steps", &set.plan.decay, UINT32_MAX},
        {"--rate", &rate, 1000000}, {"--until", &set.until, UINT32_MAX},
        {"--every", &set.every, UINT32_MAX}, {"--print", &set.print, UINT32_MAX},
        {"--pipeline", &set.pipeline, MOST_RANKS}, {"--tensor", &set.tensor, MOST_RANKS},
        {"--shard", &set.shard, MOST_RANKS}, {"--zero", &set.zero, 3}, {"--bits", &set.bits, 32},
        {"--check", &set.check, MOST_CHECKED}, {"--lose", &set.lose, UINT32_MAX}};
    if (argc > 1 && !strcmp(argv[1], "--help")) return usage(argv[0], 0);
    set.save = take_text(&argc, argv, "--save");
    set.picture = take_text(&argc, argv, "--picture");
    const int at = read_options(argc, argv, options, sizeof options / sizeof *options);
    if (!at || (set.bits != 16 && set.bits != 32)) return usage(argv[0], 2);
    set.plan.rate = (double)rate * 1e-6;
    if (!corpus_gather(&text, argv + at, argc - at, argv[0], set.plan.context, &why)) {
        complain(&why);
        return 2;
    }
    const bool ok = getenv("CDP_ELASTIC") ? run_elastic(&set, &text) : run_world(&set, &text);
    corpus_free(&text);
    return ok ? 0 : 1;
}

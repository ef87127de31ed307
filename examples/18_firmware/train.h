/*  train.h - two ranks train the model of model.h with DDP. The boards and the PC run this same
    code. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef TRAIN_INCLUDED
#define TRAIN_INCLUDED

#define TRAIN_PARAMS 4u

static const struct {
    uint32_t at, count;
} train_param[TRAIN_PARAMS] = {{MODEL_W1, MODEL_B1 - MODEL_W1}, {MODEL_B1, MODEL_W2 - MODEL_B1},
    {MODEL_W2, MODEL_B2 - MODEL_W2}, {MODEL_B2, MODEL_COUNT - MODEL_B2}};

/* A small machine has no thread and little memory. */
static cdp_group_desc train_group_desc(uint32_t rank, cdp_transport *transport, const cdp_os *os) {
    const cdp_group_desc d = {.rank = rank,
        .world_size = 2,
        .transport = transport,
        .os = os,
        .timeout_ms = 30000,
        .no_thread = true,
        .no_spin = true,
        .records = 1,
        .max_pending = 1,
        .stage_bytes = 256,
        .operations = 4,
        .waits = 2};
    return d;
}

static cdp_status train_steps(model *m, cdp_ddp *ddp, uint32_t rank, float *loss) {
    cdp_status st = CDP_OK;
    uint32_t step, i;
    for (step = 0; step < MODEL_STEPS && st == CDP_OK; ++step) {
        model g;
        *loss = model_batch(m, step, rank, &g);
        st = cdp_ddp_backward_begin(ddp);
        for (i = TRAIN_PARAMS; i-- > 0 && st == CDP_OK;) { /* the last layer is ready first */
            memcpy(cdp_ddp_grad(ddp, i), g.v + train_param[i].at,
                train_param[i].count * sizeof(float));
            st = cdp_ddp_ready(ddp, i);
        }
        if (st == CDP_OK) st = cdp_ddp_backward_end(ddp);
        for (i = 0; i < TRAIN_PARAMS && st == CDP_OK; ++i)
            model_step(m->v + train_param[i].at, (const float *)cdp_ddp_grad(ddp, i),
                train_param[i].count);
    }
    return st;
}

/* Trains as one of two ranks. Afterwards `m` is the model, equal on both ranks, and `loss` the mean
   of both ranks' losses in the last step. `transport` becomes the group's. */
static cdp_status train(
    model *m, uint32_t rank, cdp_transport *transport, const cdp_os *os, float *loss) {
    const cdp_group_desc gd = train_group_desc(rank, transport, os);
    cdp_group *world = NULL;
    cdp_ddp *ddp = NULL;
    cdp_param params[TRAIN_PARAMS];
    cdp_ddp_desc d = {.params = params, .param_count = TRAIN_PARAMS};
    uint32_t i;
    cdp_status st = cdp_group_create(&gd, &world);
    if (st != CDP_OK) return st;
    model_init(m, rank + 1); /* cdp_ddp_create copies rank 0's parameters to both */
    for (i = 0; i < TRAIN_PARAMS; ++i)
        params[i] = (cdp_param){.data = m->v + train_param[i].at, .count = train_param[i].count};
    d.group = world;
    st = cdp_ddp_create(&d, &ddp);
    if (st == CDP_OK) st = train_steps(m, ddp, rank, loss);
    if (st == CDP_OK) st = cdp_allreduce(world, loss, loss, 1, CDP_DTYPE_F32, CDP_REDUCE_AVG);
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(world);
    return st;
}

#ifndef TRAIN_RANKS_ONLY
/* The same training in one program without ranks. */
static float train_alone(model *m) {
    float loss = 0;
    uint32_t step, i;
    model_init(m, 1);
    for (step = 0; step < MODEL_STEPS; ++step) {
        model a, b;
        loss = model_batch(m, step, 0, &a);
        loss = (loss + model_batch(m, step, 1, &b)) / 2;
        for (i = 0; i < MODEL_COUNT; ++i)
            a.v[i] = (a.v[i] + b.v[i]) / 2;
        model_step(m->v, a.v, MODEL_COUNT);
    }
    return loss;
}
#endif

#endif

/* Creation of a ddp and the end of a backward pass in frames: the same bits and errors as the calls
   that wait, steps of at most 64 KiB, and a sentence for each mistake. One thread polls all ranks,
   so nothing here depends on time. */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "ranks.h"

#define PARAMS 5u
#define BUFFERS 2u
#define STEP (64u * 1024u)

/* Values of one rank: small ones, a large one, gradients in the caller's memory and in buckets. */
typedef struct model {
    float *data[PARAMS], *grad[PARAMS];
    float buffer[BUFFERS][40];
    cdp_param params[PARAMS];
    cdp_buffer buffers[BUFFERS];
    cdp_ddp *ddp;
} model;

static const uint64_t counts[PARAMS] = {7, 60000, 300, 0, 40000};

static void model_open(model *m, uint32_t rank) {
    static const char *const names[PARAMS] = {"a", "b", "c", "d", "e"};
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < PARAMS; ++i) {
        m->data[i] = (float *)calloc(counts[i] + 1, sizeof(float));
        m->grad[i] = (float *)calloc(counts[i] + 1, sizeof(float));
        for (uint64_t k = 0; k < counts[i]; ++k)
            m->data[i][k] = (float)(rank * 1000 + i * 100) + (float)(k % 97) * 0.25f;
        m->params[i].name = names[i];
        m->params[i].data = m->data[i];
        m->params[i].count = counts[i];
        if (i % 2 == 0) m->params[i].grad = m->grad[i];
    }
    for (uint32_t i = 0; i < BUFFERS; ++i) {
        for (uint32_t k = 0; k < 40; ++k)
            m->buffer[i][k] = (float)(rank + i + k);
        m->buffers[i].data = m->buffer[i];
        m->buffers[i].count = 40;
    }
}

static void model_close(model *m) {
    cdp_ddp_destroy(m->ddp);
    for (uint32_t i = 0; i < PARAMS; ++i) {
        free(m->data[i]);
        free(m->grad[i]);
    }
}

static cdp_ddp_desc model_desc(const model *m, cdp_group *g) {
    cdp_ddp_desc d;
    memset(&d, 0, sizeof d);
    d.group = g;
    d.params = m->params;
    d.param_count = PARAMS;
    d.buffers = m->buffers;
    d.buffer_count = BUFFERS;
    d.divisor = 3; /* buckets are divided after they were summed */
    d.bucket_bytes = 100000;
    return d;
}

/* The gradient of this pass: in no way exact, so that another order of additions shows. */
static void model_fill(const model *m, uint32_t rank, uint32_t step) {
    for (uint32_t i = 0; i < PARAMS; ++i) {
        float *g = m->params[i].grad ? m->grad[i] : (float *)cdp_ddp_grad(m->ddp, i);
        for (uint64_t k = 0; k < counts[i]; ++k)
            g[k] = 1.0f / (float)(1 + rank + step * 7 + i * 3 + k % 1013);
    }
}

static void pass_marks(model *m, uint32_t rank, uint32_t step) {
    OK(cdp_ddp_backward_begin(m->ddp));
    model_fill(m, rank, step);
    for (uint32_t i = PARAMS; i-- > 0;)
        OK(cdp_ddp_ready(m->ddp, i));
}

static uint64_t hash_of(const model *m) {
    uint64_t h = 14695981039346656037ull;
    for (uint32_t i = 0; i < PARAMS; ++i) {
        h = cdp__hash(h, m->data[i], counts[i] * sizeof(float));
        h = cdp__hash(h, m->params[i].grad ? (void *)m->grad[i] : cdp_ddp_grad(m->ddp, i),
            counts[i] * sizeof(float));
    }
    return cdp__hash(h, m->buffer, sizeof m->buffer);
}

/* Polls all ranks in turn until none has anything under way. Returns how many calls that took. */
static uint32_t poll_all(model *m, cdp_status *st, uint32_t n, uint32_t budget_us) {
    uint32_t calls = 0;
    bool more = true;
    for (uint32_t r = 0; r < n; ++r)
        st[r] = CDP_PENDING;
    while (more) {
        more = false;
        for (uint32_t r = 0; r < n; ++r) {
            if (st[r] != CDP_PENDING) continue;
            st[r] = cdp_ddp_poll(m[r].ddp, budget_us);
            more = more || st[r] == CDP_PENDING;
            ++calls;
        }
    }
    return calls;
}

typedef struct trained {
    uint32_t frames; /* bit r: rank r uses frames */
    uint64_t hash[4];
} trained;

static cdp_status wait_in_frames(cdp_ddp *ddp) {
    cdp_status st;
    while ((st = cdp_ddp_poll(ddp, 50)) == CDP_PENDING)
        test_sleep_ms(0);
    return st;
}

static void rank_trains(cdp_group *g, void *arg) {
    trained *t = (trained *)arg;
    const uint32_t rank = cdp_rank(g);
    const bool frames = t->frames >> rank & 1;
    model m;
    model_open(&m, rank);
    const cdp_ddp_desc d = model_desc(&m, g);
    if (!frames) OK(cdp_ddp_create(&d, &m.ddp));
    if (frames && OK(cdp_ddp_create_start(&d, &m.ddp))) OK(wait_in_frames(m.ddp));
    for (uint32_t step = 0; step < 2; ++step) {
        pass_marks(&m, rank, step);
        if (!frames) OK(cdp_ddp_backward_end(m.ddp));
        if (frames && OK(cdp_ddp_backward_end_start(m.ddp))) OK(wait_in_frames(m.ddp));
    }
    t->hash[rank] = hash_of(&m);
    OK(cdp_barrier(g));
    model_close(&m);
}

TEST(frames_give_the_bits_of_calls_that_wait) {
    uint64_t want = 0;
    for (uint32_t frames = 0; frames < 8; ++frames) {
        trained t = {frames, {0}};
        run_counted(3, rank_trains, &t);
        if (!frames) want = t.hash[0];
        for (uint32_t r = 0; r < 3; ++r)
            T_EQ(want, t.hash[r]);
    }
}

TEST(one_thread_trains_all_ranks_in_frames) {
    cdp_group_desc like;
    trained waits = {0, {0}};
    cdp_status st[3];
    model m[3];
    world w;
    run_counted(3, rank_trains, &waits);
    memset(&like, 0, sizeof like);
    like.no_thread = true;
    like.os = counted_os();
    if (!world_open(&w, 3, &like, 0)) return;
    for (uint32_t r = 0; r < 3; ++r) {
        model_open(&m[r], r);
        const cdp_ddp_desc d = model_desc(&m[r], w.group[r]);
        OK(cdp_ddp_create_start(&d, &m[r].ddp));
    }
    (void)poll_all(m, st, 3, 0);
    for (uint32_t r = 0; r < 3; ++r)
        T_EQ(CDP_OK, st[r]);
    for (uint32_t step = 0; step < 2; ++step) {
        /* begin copies buffers, which waits: not in frames, so this model has none from here on */
        for (uint32_t r = 0; r < 3; ++r)
            m[r].ddp->buffers_due = false;
        for (uint32_t r = 0; r < 3; ++r)
            pass_marks(&m[r], r, step);
        for (uint32_t r = 0; r < 3; ++r)
            OK(cdp_ddp_backward_end_start(m[r].ddp));
        (void)poll_all(m, st, 3, 0);
        for (uint32_t r = 0; r < 3; ++r) {
            T_EQ(CDP_OK, st[r]);
            T_EQ(CDP_OK, cdp_ddp_poll(m[r].ddp, 0)); /* nothing is under way */
        }
    }
    for (uint32_t r = 0; r < 3; ++r) {
        T_EQ(waits.hash[r], hash_of(&m[r]));
        model_close(&m[r]);
    }
    world_close(&w);
    T_EQ(0, counted.held);
}

static cdp_group *alone(void) {
    cdp_group_desc d;
    cdp_group *g = NULL;
    memset(&d, 0, sizeof d);
    d.world_size = 1;
    d.no_thread = true;
    OK(cdp_group_create(&d, &g));
    return g;
}

/* How much of these bytes has changed since *before, which is brought up to date. */
static uint64_t changed(const float *now, float *before, uint64_t count) {
    uint64_t n = 0;
    for (uint64_t k = 0; k < count; ++k) {
        n += now[k] != before[k];
        before[k] = now[k];
    }
    return n * sizeof(float);
}

/* What cdp_ddp_poll() copies itself goes in steps, whatever the size of a parameter. */
TEST(a_look_copies_64_kib_at_most) {
    enum {
        COUNT = 1 << 20
    };
    cdp_group *g = alone();
    cdp_ddp *ddp = NULL;
    cdp_param p;
    cdp_ddp_desc d;
    float *data = (float *)calloc(COUNT, 4), *grad = (float *)calloc(COUNT, 4);
    float *before = (float *)calloc(COUNT, 4);
    uint64_t most = 0, all = 0, looks = 0;
    memset(&p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    p.data = data;
    p.grad = grad;
    p.count = COUNT;
    d.group = g;
    d.params = &p;
    d.param_count = 1;
    d.divisor = 4;
    OK(cdp_ddp_create_start(&d, &ddp));
    while (cdp_ddp_poll(ddp, 0) == CDP_PENDING)
        ++looks;
    T(looks >= COUNT * 4 / STEP); /* the bucket is cleared in steps */
    OK(cdp_ddp_backward_begin(ddp));
    for (uint32_t k = 0; k < COUNT; ++k)
        before[k] = grad[k] = 8;
    OK(cdp_ddp_ready(ddp, 0));
    OK(cdp_ddp_backward_end_start(ddp));
    looks = 0;
    while (cdp_ddp_poll(ddp, 0) == CDP_PENDING) {
        const uint64_t now = changed(grad, before, COUNT);
        all += now;
        if (now > most) most = now;
        ++looks;
    }
    all += changed(grad, before, COUNT);
    T_EQ(2, grad[0]);
    T_EQ(2, grad[COUNT - 1]);
    T_EQ(COUNT * 4, all);
    T_EQ(STEP, most);
    T(looks >= 2ull * COUNT * 4 / STEP); /* divided, and copied */
    cdp_ddp_destroy(ddp);
    cdp_group_destroy(g);
    free(data);
    free(grad);
    free(before);
}

TEST(mistakes_while_something_is_under_way_are_sentences) {
    cdp_group *g = alone();
    const uint32_t row = 0;
    model m;
    model_open(&m, 0);
    const cdp_ddp_desc d = model_desc(&m, g);
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_poll(NULL, 0));
    REFUSED(CDP_ERR_INVALID, " is NULL", cdp_ddp_backward_end_start(NULL));
    REFUSED(CDP_ERR_INVALID, "desc is NULL", cdp_ddp_create_start(NULL, &m.ddp));
    OK(cdp_ddp_create_start(&d, &m.ddp));
    REFUSED(CDP_ERR_STATE, "cdp_ddp_create_start has begun", cdp_ddp_backward_begin(m.ddp));
    REFUSED(CDP_ERR_STATE, "call cdp_ddp_poll", cdp_ddp_forward_begin(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_ready(m.ddp, 0));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_ready_rows(m.ddp, 0, &row, 1, &row));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_backward_end(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_backward_end_start(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_no_sync(m.ddp, true));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_verify(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_join(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_clip(m.ddp, 1, NULL));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_set_hook(m.ddp, NULL));
    T(cdp_ddp_grad(m.ddp, 0) == NULL);
    T_TEXT("is under way", cdp_last_error()->text);
    cdp_ddp_zero_grad(m.ddp);
    while (cdp_ddp_poll(m.ddp, 0) == CDP_PENDING) {
    }
    REFUSED(CDP_ERR_STATE, "no backward pass is open", cdp_ddp_backward_end_start(m.ddp));
    pass_marks(&m, 0, 0);
    OK(cdp_ddp_backward_end_start(m.ddp));
    REFUSED(
        CDP_ERR_STATE, "cdp_ddp_backward_end_start has begun", cdp_ddp_backward_end_start(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_backward_end(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_backward_begin(m.ddp));
    REFUSED(CDP_ERR_STATE, "is under way", cdp_ddp_ready(m.ddp, 0));
    T(cdp_ddp_grad(m.ddp, 1) != NULL);
    while (cdp_ddp_poll(m.ddp, 0) == CDP_PENDING) {
    }
    T_EQ(1, cdp_ddp_stats_of(m.ddp).steps); /* none of that spoiled it */
    /* the mistake of a pass comes from the poll, as from the call that waits */
    OK(cdp_ddp_backward_begin(m.ddp));
    OK(cdp_ddp_backward_end_start(m.ddp));
    REFUSED(CDP_ERR_STATE, "never marked ready", cdp_ddp_poll(m.ddp, 0));
    model_close(&m);
    cdp_group_destroy(g);
}

/* A local pass has nothing to wait for, and its mistake is no failure of the group. */
TEST(a_local_pass_ends_in_frames) {
    cdp_group *g = alone();
    model m;
    model_open(&m, 0);
    const cdp_ddp_desc d = model_desc(&m, g);
    OK(cdp_ddp_create(&d, &m.ddp));
    OK(cdp_ddp_no_sync(m.ddp, true));
    pass_marks(&m, 0, 0);
    OK(cdp_ddp_backward_end_start(m.ddp));
    OK(cdp_ddp_poll(m.ddp, 0));
    OK(cdp_ddp_backward_begin(m.ddp));
    OK(cdp_ddp_ready(m.ddp, 0));
    REFUSED(CDP_ERR_STATE, "twice", cdp_ddp_ready(m.ddp, 0));
    OK(cdp_ddp_backward_end_start(m.ddp));
    REFUSED(CDP_ERR_STATE, "twice", cdp_ddp_poll(m.ddp, 0));
    OK(cdp_group_status(g));
    OK(cdp_ddp_backward_begin(m.ddp));
    OK(cdp_ddp_ready(m.ddp, 0));
    OK(cdp_ddp_backward_end_start(m.ddp));
    model_close(&m); /* nobody waits for it */
    OK(cdp_group_status(g));
    cdp_group_destroy(g);
}

/* Rank 1 has another model, or other settings: all get the sentence of the call that waits, and the
   group stays usable. */
TEST(models_that_differ_are_found_in_frames) {
    for (uint32_t what = 0; what < 2; ++what) {
        cdp_group_desc like;
        cdp_status st[3];
        model m[3];
        world w;
        memset(&like, 0, sizeof like);
        like.no_thread = true;
        like.os = counted_os();
        if (!world_open(&w, 3, &like, 0)) return;
        for (uint32_t r = 0; r < 3; ++r) {
            model_open(&m[r], r);
            if (r == 1 && !what) m[r].params[2].name = "other";
            cdp_ddp_desc d = model_desc(&m[r], w.group[r]);
            d.find_unused = r == 1 && what;
            OK(cdp_ddp_create_start(&d, &m[r].ddp));
        }
        (void)poll_all(m, st, 3, 0);
        for (uint32_t r = 0; r < 3; ++r) {
            T_EQ(CDP_ERR_MISMATCH, st[r]);
            REFUSED(CDP_ERR_MISMATCH, what ? "find_unused of rank 1" : "'other'",
                cdp_ddp_poll(m[r].ddp, 0)); /* again */
            T_EQ(1, cdp_last_error()->peer);
            REFUSED(
                CDP_ERR_STATE, "creation of this ddp has failed", cdp_ddp_backward_begin(m[r].ddp));
            OK(cdp_group_status(w.group[r]));
            model_close(&m[r]);
        }
        world_close(&w);
        T_EQ(0, counted.held);
    }
}

/* A rank gives up its ddp while the others wait for it: they are told, and do not wait for their
   deadline. */
TEST(a_ddp_destroyed_on_the_way_breaks_the_group) {
    for (uint32_t looks = 0; looks < 40; looks += 3)
        for (uint32_t ends = 0; ends < 2; ++ends) {
            cdp_group_desc like;
            cdp_status st[3];
            bool over = false;
            model m[3];
            world w;
            memset(&like, 0, sizeof like);
            like.no_thread = true;
            like.os = counted_os();
            if (!world_open(&w, 3, &like, 0)) return;
            for (uint32_t r = 0; r < 3; ++r) {
                model_open(&m[r], r);
                cdp_ddp_desc d = model_desc(&m[r], w.group[r]);
                d.buffer_count = 0;
                OK(cdp_ddp_create_start(&d, &m[r].ddp));
            }
            if (ends) {
                (void)poll_all(m, st, 3, 0);
                for (uint32_t r = 0; r < 3; ++r)
                    pass_marks(&m[r], r, 0);
                for (uint32_t r = 0; r < 3; ++r)
                    OK(cdp_ddp_backward_end_start(m[r].ddp));
            }
            for (uint32_t k = 0; k < looks && !over; ++k)
                for (uint32_t r = 0; r < 3; ++r)
                    over = cdp_ddp_poll(m[r].ddp, 0) != CDP_PENDING || over;
            if (!over) {
                cdp_ddp_destroy(m[2].ddp);
                m[2].ddp = NULL;
                REFUSED(CDP_ERR_STATE, ends ? "its backward pass" : "its creation",
                    cdp_group_status(w.group[2]));
                cdp_group_destroy(w.group[2]);
                w.group[2] = NULL;
                (void)poll_all(m, st, 2, 0);
                for (uint32_t r = 0; r < 2; ++r) { /* later on they may have had all they need */
                    if (st[r] == CDP_OK && looks) continue;
                    T_EQ(CDP_ERR_STATE, st[r]);
                    T_EQ(CDP_ERR_STATE, cdp_group_status(w.group[r]));
                    T_TEXT("rank 2/3 destroyed a ddp", cdp_last_error()->text);
                }
            }
            for (uint32_t r = 0; r < 3; ++r)
                model_close(&m[r]);
            world_close(&w);
            T_EQ(0, counted.held);
        }
}

/* Whichever allocation fails, nothing is left. */
TEST(a_creation_without_memory_leaves_nothing) {
    for (int64_t at = 1; at < 200; ++at) {
        cdp_group_desc like;
        model m;
        cdp_group *g = NULL;
        cdp_status st;
        memset(&like, 0, sizeof like);
        like.world_size = 1;
        like.no_thread = true;
        like.os = counted_os();
        OK(cdp_group_create(&like, &g));
        model_open(&m, 0);
        const cdp_ddp_desc d = model_desc(&m, g);
        counted.fail_at = counted.calls + at;
        st = cdp_ddp_create_start(&d, &m.ddp);
        T(st == CDP_OK || (st == CDP_ERR_NOMEM && !m.ddp));
        while (m.ddp && (st = cdp_ddp_poll(m.ddp, 0)) == CDP_PENDING) {
        }
        T(st == CDP_OK || st == CDP_ERR_NOMEM);
        counted.fail_at = 0;
        model_close(&m);
        cdp_group_destroy(g);
        T_EQ(0, counted.held);
        if (st == CDP_OK && at > 20) return;
    }
    T(false);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"frames_give_the_bits_of_calls_that_wait", frames_give_the_bits_of_calls_that_wait, 60},
        {"one_thread_trains_all_ranks_in_frames", one_thread_trains_all_ranks_in_frames, 60},
        {"a_look_copies_64_kib_at_most", a_look_copies_64_kib_at_most, 60},
        {"mistakes_while_something_is_under_way_are_sentences",
            mistakes_while_something_is_under_way_are_sentences, 20},
        {"a_local_pass_ends_in_frames", a_local_pass_ends_in_frames, 20},
        {"models_that_differ_are_found_in_frames", models_that_differ_are_found_in_frames, 20},
        {"a_ddp_destroyed_on_the_way_breaks_the_group", a_ddp_destroyed_on_the_way_breaks_the_group,
            60},
        {"a_creation_without_memory_leaves_nothing", a_creation_without_memory_leaves_nothing, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/*  03_train_text.c - train a small language model on text, with any number of processes

    You learn: what data parallel training (DDP) adds to a training program, in five places.

        gcc -O2 examples/03_train_text.c -o train_text -pthread -lm
        ./train_text                            one process, on the text of this repository
        cdprun -n 4 ./train_text                four processes: the same batches, the same model
        cdprun -n 4 ./train_text ~/my/notes     your own text: files or folders

    The model and its optimizer are in text_model.h; this file trains it. Search for "DDP" to find
    each of the five places:

      1. trainer_open(): every process builds the whole model. cdp_ddp_create() compares the models
         and copies the parameters of rank 0 to all others, whatever those started with.
      2. draw_sequences(): the seed and the number of the step decide which sequences make up a
         global batch. Each rank takes its part of them, so one process and eight see the same
         batches.
      3. gradient_done() in text_model.h: gradients live in the library's buckets. The backward pass
         adds to the memory of cdp_ddp_grad(), and calls cdp_ddp_ready() when the gradient of a
         parameter is complete, last layer first. Full buckets travel while the layers below are
         still being computed.
      4. trainer_step(): after cdp_ddp_backward_end() every rank holds the same mean gradient, bit
         for bit. Every rank does the same arithmetic in Adam, so the models stay equal without
         being sent again.
      5. compare_replicas(): at the end the ranks compare a hash of everything they hold. "Equal,
         bit for bit" is cheap to check, so every run checks it.

    Contents (search for ">>"): checkpoint, options, trainer, verdicts, main.                    */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_tcp.h"

#include "loss_curve.h"
#include "text_model.h"

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Asked before hours of training rather than after them. */
static bool can_write(const char *path, reason *why) {
    char folder[1024];
    if (!path || access(folder_of(path, folder), W_OK) == 0) return true;
    return because(why, "cannot write %s: its folder: %s", path, strerror(errno));
}

/* ---- >>checkpoint ---------------------------------------------------------------------------- */

/* The file: this header, then parameters, first and second moments (value_count numbers each),
   then the hash of all that. */
typedef struct header {
    char magic[8];
    /* in the machine's byte order, so that a machine of the other order refuses the file */
    uint64_t version;
    uint64_t real_bytes, value_count, step, text_hash;
    plan plan;
} header;

#define CHECKPOINT_MAGIC "cdptext\n"
#define CHECKPOINT_VERSION 1u

static header header_of(const plan *p, const model *m, uint64_t step, uint64_t text_hash) {
    header h = {.version = CHECKPOINT_VERSION,
        .real_bytes = sizeof(real),
        .value_count = m->value_count,
        .step = step,
        .text_hash = text_hash,
        .plan = *p};
    memcpy(h.magic, CHECKPOINT_MAGIC, sizeof h.magic);
    return h;
}

static bool checkpoint_save(
    const char *path, const header *h, const real *values, const real *moments, reason *why) {
    const size_t part = (size_t)h->value_count * sizeof(real), bytes = sizeof *h + 3 * part;
    uint8_t *file = (uint8_t *)need(bytes + 8, 1);
    memcpy(file, h, sizeof *h);
    memcpy(file + sizeof *h, values, part);
    memcpy(file + sizeof *h + part, moments, 2 * part);
    const uint64_t hash = hash_bytes(0, file, bytes);
    memcpy(file + bytes, &hash, 8);
    const bool ok = file_write(path, file, bytes + 8, why);
    free(file);
    return ok;
}

/* What the bytes of a file mean. Nothing in them is believed before the size fits and the hash
   is right. */
static bool checkpoint_parse(
    const uint8_t *file, size_t bytes, const char *path, header *h, reason *why) {
    uint64_t hash;
    if (bytes < sizeof *h + 8)
        return because(why, "%s is cut off: %zu bytes are too few for a checkpoint", path, bytes);
    memcpy(h, file, sizeof *h);
    if (memcmp(h->magic, CHECKPOINT_MAGIC, sizeof h->magic) != 0)
        return because(why, "%s is not a checkpoint of this program", path);
    if (h->version != CHECKPOINT_VERSION)
        return because(why, "%s has checkpoint format %llu, this program reads format %u", path,
            llu(h->version), CHECKPOINT_VERSION);
    if (h->real_bytes != sizeof(real))
        return because(why, "%s holds numbers of %llu bytes, this program uses %zu", path,
            llu(h->real_bytes), sizeof(real));
    const size_t room = (bytes - sizeof *h - 8) / sizeof(real);
    if (h->value_count > room / 3
        || bytes != sizeof *h + 8 + 3 * (size_t)h->value_count * sizeof(real))
        return because(why,
            "%s is cut off or damaged: it has %zu bytes, and %llu parameters need another size",
            path, bytes, llu(h->value_count));
    memcpy(&hash, file + bytes - 8, 8);
    if (hash != hash_bytes(0, file, bytes - 8))
        return because(why, "%s is damaged: its checksum is wrong", path);
    return true;
}

/* `state` gets parameters, first and second moments in one piece; free() it. */
static bool checkpoint_load(const char *path, header *h, real **state, reason *why) {
    uint8_t *file;
    size_t bytes;
    if (!file_read(path, &file, &bytes, why)) return false;
    const bool ok = checkpoint_parse(file, bytes, path, h, why);
    if (ok) {
        *state = need_reals(3 * h->value_count);
        memcpy(*state, file + sizeof *h, 3 * (size_t)h->value_count * sizeof(real));
    }
    free(file);
    return ok;
}

/* ---- >>options ------------------------------------------------------------------------------- */

typedef struct settings {
    plan plan;
    uint64_t steps, log_every, eval_every, eval_bytes, sample, digits, bucket_kib, save_every,
        check_steps, hook;
    const char *save, *load, *svg, *trace;
    bool check, quiet, help;
    bool given[32]; /* per option: it was on the command line */
    char **paths;
    int path_count;
} settings;

typedef struct option {
    const char *name;
    char letter;
    char kind;     /* 'n' whole number, 'f' number, 's' text, 'b' switch */
    size_t offset; /* of its value in settings */
    double least, most;
    const char *help;
} option;

#define AT(member) offsetof(settings, member)
static const option OPTIONS[] = {
    {"layers", 'l', 'n', AT(plan.layers), 1, 64, "transformer blocks"},
    {"width", 'w', 'n', AT(plan.width), 1, 4096,
        "numbers per byte in the stream between the blocks"},
    {"heads", 0, 'n', AT(plan.heads), 1, 256, "attention heads; must divide the width"},
    {"context", 'c', 'n', AT(plan.context), 2, 4096,
        "bytes the model looks back, and the length of a sequence"},
    {"steps", 'n', 'n', AT(steps), 1, 1e9,
        "steps of training in all (a resumed run counts on from its checkpoint)"},
    {"batch", 'b', 'n', AT(plan.batch), 1, 1e6,
        "sequences per step over all ranks; must divide by ranks x accumulate"},
    {"accumulate", 'k', 'n', AT(plan.accumulate), 1, 1e6,
        "parts in which a rank takes its share of a batch; only the last one sends"},
    {"seed", 's', 'n', AT(plan.seed), 0, 1e15,
        "first parameters, order of the text, and the sample"},
    {"lr", 0, 'f', AT(plan.rate), 1e-9, 10, "learning rate of Adam"},
    {"weight-decay", 0, 'f', AT(plan.weight_decay), 0, 10,
        "decoupled weight decay of all weight matrices"},
    {"warmup", 0, 'n', AT(plan.warmup), 0, 1e9, "steps until the learning rate is full"},
    {"decay", 0, 'n', AT(plan.decay), 0, 1e9,
        "steps until it has fallen to a tenth (0: the number of steps)"},
    {"bucket-kib", 0, 'n', AT(bucket_kib), 1, 1e6,
        "size of a bucket, the unit in which gradients travel"},
    {"hook", 0, 'n', AT(hook), 0, 5,
        "how gradients travel: 0 as they are, 1 f16, 2 bf16, 3 8 bits, 4 PowerSGD, 5 top 1 of 100"},
    {"trace", 0, 's', AT(trace), 0, 0,
        "draw the last step of rank 0 here: FILE.svg, FILE.json for ui.perfetto.dev, FILE.txt"},
    {"save", 'o', 's', AT(save), 0, 0,
        "write a checkpoint here at the end (and the curve to FILE.svg)"},
    {"save-every", 0, 'n', AT(save_every), 0, 1e9, "and after every so many steps (0: no)"},
    {"load", 'i', 's', AT(load), 0, 0,
        "go on from this checkpoint; it also sets the options above up to --decay"},
    {"svg", 0, 's', AT(svg), 0, 0, "draw the loss curve here"},
    {"log-every", 0, 'n', AT(log_every), 1, 1e9, "steps between two progress lines"},
    {"eval-every", 0, 'n', AT(eval_every), 0, 1e9,
        "steps between two scores on held-out text (0: only at the end)"},
    {"eval-bytes", 0, 'n', AT(eval_bytes), 1, 1e12,
        "held-out bytes to take the score from, at most"},
    {"digits", 'd', 'n', AT(digits), 1, 12, "decimals of reported scores"},
    {"sample", 0, 'n', AT(sample), 0, 1e6, "bytes of text to make up at the end"},
    {"check", 0, 'b', AT(check), 0, 0, "train again on rank 0 alone, same batches, and compare"},
    {"check-steps", 0, 'n', AT(check_steps), 0, 1e9,
        "compare after so many steps only (implies --check; 0: all)"},
    {"quiet", 'q', 'b', AT(quiet), 0, 0, "print the verdict and errors only"},
    {"help", 'h', 'b', AT(help), 0, 0, "print this"},
};
#undef AT
#define OPTION_COUNT (sizeof OPTIONS / sizeof *OPTIONS)
#define PLAN_SIZES 4u    /* the first options are the model's sizes, */
#define PLAN_OPTIONS 12u /* and these and more are in the plan; --steps, between them, is not */

static settings settings_default(void) {
    return (settings){.plan = {.layers = 2,
                          .width = 64,
                          .heads = 4,
                          .context = 32,
                          .batch = 32,
                          .accumulate = 1,
                          .seed = 1,
                          .warmup = 20,
                          .rate = 0.006},
        .steps = 300,
        .log_every = 20,
        .eval_every = 60,
        .eval_bytes = 16384,
        .sample = 240,
        .digits = 3,
        .bucket_kib = 64};
}

static void *option_value(const settings *s, const option *o) {
    return (char *)(uintptr_t)s + o->offset;
}

static void print_help(FILE *to) {
    const settings s = settings_default();
    fprintf(to,
        "usage: train_text [options] [file or folder ...]\n\n"
        "Trains a small language model on text, in one process or in many:\n"
        "    ./train_text                     alone, on the text of this repository\n"
        "    cdprun -n 4 ./train_text notes/  four ranks, on all text below notes/\n"
        "Ranks see the same global batches as one process, so the results agree. Exit code:\n"
        "0 when the run and all its checks are good, 1 when not, 2 for a wrong command line.\n\n");
    for (size_t i = 0; i < OPTION_COUNT; ++i) {
        const option *o = &OPTIONS[i];
        const char *argument = " N";
        char name[40], letter[8] = "   ";
        if (o->kind == 'b') argument = "";
        if (o->kind == 's') argument = " FILE";
        if (o->letter) snprintf(letter, sizeof letter, "-%c,", o->letter);
        snprintf(name, sizeof name, "--%s%s", o->name, argument);
        fprintf(to, "  %s %-17s %s", letter, name, o->help);
        if (o->kind == 'n' && strcmp(o->name, "decay") && strcmp(o->name, "check-steps"))
            fprintf(to, " [%llu]", llu(*(uint64_t *)option_value(&s, o)));
        if (o->kind == 'f') fprintf(to, " [%g]", *(double *)option_value(&s, o));
        fputc('\n', to);
    }
}

static bool option_set(settings *s, const option *o, const char *text, reason *why) {
    char *end = NULL;
    errno = 0;
    if (o->kind == 's') {
        *(const char **)option_value(s, o) = text;
        return *text ? true : because(why, "--%s wants the name of a file", o->name);
    }
    const double fraction = strtod(text, &end);
    const bool number =
        end != text && *end == 0 && errno == 0 && fraction >= o->least && fraction <= o->most;
    if (o->kind == 'f') *(double *)option_value(s, o) = fraction;
    if (o->kind == 'f')
        return number
            || because(why, "--%s wants a number from %g to %g, not \"%s\"", o->name, o->least,
                o->most, text);
    *(uint64_t *)option_value(s, o) = strtoull(text, &end, 10);
    return (number && isdigit((unsigned char)*text) && *end == 0)
        || because(why, "--%s wants a whole number from %.0f to %.0f, not \"%s\"", o->name,
            o->least, o->most, text);
}

/* The option that `word` names: "--steps", "--steps=9" (then *value points behind the sign), or
   "-n". */
static const option *option_find(const char *word, const char **value) {
    const size_t length = strcspn(word, "=");
    for (size_t i = 0; i < OPTION_COUNT; ++i) {
        const option *o = &OPTIONS[i];
        if (word[1] == '-'
                ? strlen(o->name) == length - 2 && strncmp(word + 2, o->name, length - 2) == 0
                : o->letter && o->letter == word[1] && length == 2) {
            *value = word[length] ? word + length + 1 : NULL;
            return o;
        }
    }
    return NULL;
}

static bool settings_parse(settings *s, int argc, char **argv, reason *why) {
    *s = settings_default();
    s->paths = (char **)need((uint64_t)argc + 1, sizeof *s->paths);
    bool options = true;
    for (int i = 1; i < argc; ++i) {
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (!options || argv[i][0] != '-' || argv[i][1] == 0) {
            s->paths[s->path_count++] = argv[i];
        } else {
            const char *value;
            const option *o = option_find(argv[i], &value);
            if (!o) return because(why, "there is no option %s; --help lists them", argv[i]);
            s->given[o - OPTIONS] = true;
            if (o->kind == 'b' && value) return because(why, "--%s takes no value", o->name);
            if (o->kind == 'b') {
                *(bool *)option_value(s, o) = true;
                continue;
            }
            if (!value && ++i >= argc) return because(why, "--%s needs a value", o->name);
            if (!option_set(s, o, value ? value : argv[i], why)) return false;
        }
    }
    if (s->plan.decay == 0) s->plan.decay = s->steps;
    s->check = s->check || s->check_steps > 0;
    return true;
}

/* How many numbers a model of these sizes has. */
static uint64_t value_count_of(const plan *p) {
    return (2 * VOCABULARY + p->context + 2) * p->width
        + p->layers * (12 * p->width + 4) * p->width;
}

/* A checkpoint brings its plan along. The command line may change how to train on, but not what
   the model is. */
static bool settings_adopt(settings *s, const header *h, reason *why) {
    settings loaded = *s;
    loaded.plan = h->plan;
    for (size_t i = 0; i < PLAN_OPTIONS; ++i) {
        const option *o = &OPTIONS[i];
        if (o->offset >= sizeof(plan)) continue;
        const double number = o->kind == 'f' ? *(double *)option_value(&loaded, o)
                                             : (double)*(uint64_t *)option_value(&loaded, o);
        if (!(number >= o->least && number <= o->most))
            return because(why, "the checkpoint has an impossible --%s", o->name);
        uint64_t *mine = (uint64_t *)option_value(s, o),
                 *theirs = (uint64_t *)option_value(&loaded, o);
        if (i < PLAN_SIZES && s->given[i] && *mine != *theirs)
            return because(why,
                "the checkpoint's model has --%s %llu, the command line asks for %llu", o->name,
                llu(*theirs), llu(*mine));
        if (!s->given[i]) memcpy(mine, theirs, 8);
    }
    if (h->value_count != value_count_of(&h->plan))
        return because(why, "the checkpoint's parameters do not fit its model");
    if (h->step >= s->steps)
        return because(why,
            "the checkpoint already has %llu steps; ask for more than that with --steps",
            llu(h->step));
    return true;
}

static bool settings_fit(const settings *s, uint64_t ranks, uint64_t done, reason *why) {
    const plan *p = &s->plan;
    if (p->width % p->heads)
        return because(
            why, "a width of %llu does not divide into %llu heads", llu(p->width), llu(p->heads));
    if (p->batch % (ranks * p->accumulate))
        return because(why,
            "a batch of %llu sequences does not divide into %llu rank%s x %llu part%s (--batch, "
            "--accumulate)",
            llu(p->batch), llu(ranks), ranks == 1 ? "" : "s", llu(p->accumulate),
            p->accumulate == 1 ? "" : "s");
    if (s->hook && s->check)
        return because(
            why, "--check compares with gradients that nothing was taken from: leave --hook 0");
    if (s->check_steps && (s->check_steps > s->steps || s->check_steps <= done))
        return because(why,
            "--check-steps must be one of the steps that this run takes: %llu to %llu",
            llu(done) + 1, llu(s->steps));
    return true;
}

/* ---- >>trainer ------------------------------------------------------------------------------- */

typedef struct trainer {
    plan plan;
    const corpus *text;
    cdp_group *world;
    cdp_ddp *ddp;
    model model;
    /* Adam's first moments, then the second, each in the order of model.values */
    real *moments;
    uint64_t step;             /* steps done */
    uint64_t share;            /* sequences of one forward pass on this rank */
    uint8_t *inputs, *targets; /* share x context */
} trainer;

static void trainer_close(trainer *t) {
    cdp_ddp_destroy(t->ddp);
    model_free(&t->model);
    free(t->moments);
    free(t->inputs);
    free(t->targets);
    *t = (trainer){0};
}

/* Gradients may travel as less than they are. */
static bool trainer_hook(trainer *t, uint64_t number) {
    static const cdp_hook_kind kinds[] = {CDP_HOOK_ALLREDUCE, CDP_HOOK_FP16, CDP_HOOK_BF16,
        CDP_HOOK_QUANTIZE, CDP_HOOK_POWERSGD, CDP_HOOK_TOPK};
    const cdp_hook_desc desc = {.kind = kinds[number], .rank = 2, .start = 10};
    cdp_hook hook;
    return !number
        || (worked(cdp_hook_create(&desc, &hook)) && worked(cdp_ddp_set_hook(t->ddp, &hook)));
}

/* The last step as a picture, for people, for Perfetto, and in figures. */
static bool trainer_trace(const trainer *t, const char *file, reason *why) {
    static const struct {
        cdp_trace_format format;
        const char *ending;
    } kinds[] = {{CDP_TRACE_SVG, ".svg"}, {CDP_TRACE_JSON, ".json"}, {CDP_TRACE_TEXT, ".txt"}};
    bool ok = true;
    for (int k = 0; k < 3 && ok; ++k) {
        const uint64_t size = cdp_ddp_trace(t->ddp, kinds[k].format, NULL, 0);
        char *text = (char *)need(size + 1, 1), path[1024];
        snprintf(path, sizeof path, "%s%s", file, kinds[k].ending);
        (void)cdp_ddp_trace(t->ddp, kinds[k].format, text, size + 1);
        ok = file_write(path, text, (size_t)size, why);
        free(text);
    }
    return ok;
}

/* DDP, places 1 and 3: describe the parameters, get everybody's copy made equal, and learn where
   the gradients live. */
static bool trainer_join(trainer *t, uint64_t bucket_bytes) {
    model *m = &t->model;
    cdp_param *params = (cdp_param *)need(m->tensor_count, sizeof *params);
    for (uint32_t i = 0; i < m->tensor_count; ++i)
        params[i] = (cdp_param){.name = m->tensors[i].name,
            .data = value_of(m, i),
            .count = m->tensors[i].count,
            .rows = m->tensors[i].rows,
            .dtype = REAL_DTYPE};
    const cdp_ddp_desc desc = {.group = t->world,
        .params = params,
        .param_count = m->tensor_count,
        .first_bucket_bytes = bucket_bytes,
        .bucket_bytes = bucket_bytes};
    const bool ok = worked(cdp_ddp_create(&desc, &t->ddp));
    free(params);
    for (uint32_t i = 0; ok && i < m->tensor_count; ++i)
        m->grads[i] = (real *)cdp_ddp_grad(t->ddp, i);
    m->ddp = t->ddp;
    return ok;
}

/* `step` and `state` are those of a checkpoint, or 0 and NULL. Only rank 0 needs the state, and
   only rank 0 draws first parameters: the others get them. */
static bool trainer_open(trainer *t, const settings *s, const corpus *text, cdp_group *world,
    uint64_t step, const real *state) {
    const plan *p = &s->plan;
    *t = (trainer){.plan = *p, .text = text, .world = world, .step = step};
    t->share = p->batch / cdp_size(world) / p->accumulate;
    model_create(&t->model, p->layers, p->width, p->heads, p->context, t->share);
    const uint64_t count = t->model.value_count;
    t->moments = need_reals(2 * count);
    t->inputs = (uint8_t *)need(t->share, p->context);
    t->targets = (uint8_t *)need(t->share, p->context);
    if (state) {
        memcpy(t->model.values, state, (size_t)count * sizeof(real));
        memcpy(t->moments, state + count, 2 * (size_t)count * sizeof(real));
    } else if (cdp_rank(world) == 0) {
        model_init(&t->model, p->seed);
    }
    return trainer_join(t, s->bucket_kib * 1024) && trainer_hook(t, s->hook)
        && (step == 0 || worked(cdp_broadcast(world, t->moments, 2 * count, REAL_DTYPE, 0)));
}

static void draw_sequences(trainer *t, uint64_t part) {
    const uint64_t n = t->plan.context,
                   first = (cdp_rank(t->world) * t->plan.accumulate + part) * t->share;
    for (uint64_t i = 0; i < t->share; ++i) {
        const uint8_t *from =
            t->text->train + sequence_start(&t->plan, t->text, t->step, first + i);
        memcpy(t->inputs + i * n, from, n);
        memcpy(t->targets + i * n, from + 1, n); /* the answer to each byte is the one after it */
    }
}

/* DDP, place 4: one step on one global batch. `bits` gets this rank's mean loss. */
static bool trainer_step(trainer *t, double *bits) {
    model *m = &t->model;
    const uint64_t parts = t->plan.accumulate, rows = t->share * t->plan.context * parts;
    *bits = 0;
    cdp_ddp_zero_grad(t->ddp);
    for (uint64_t part = 0; part < parts; ++part) {
        draw_sequences(t, part);
        model_forward(m, t->inputs, t->share);
        *bits += model_loss(m, t->targets, t->share, 1 / (real)rows) / (double)rows;
        /* All parts but the last only add up here; the last one sends the sum. */
        if (!worked(cdp_ddp_no_sync(t->ddp, part + 1 < parts))
            || !worked(cdp_ddp_backward_begin(t->ddp)))
            return false;
        model_backward(m, t->inputs, t->share);
        if (!worked(cdp_ddp_backward_end(t->ddp))) return false;
    }
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        real *first = t->moments + m->tensors[i].offset, *second = first + m->value_count;
        /* a parameter that no rank used has no gradient: like PyTorch's, this Adam skips it */
        if (!cdp_ddp_used(t->ddp, i)) continue;
        adam(&t->plan, t->step, value_of(m, i), m->grads[i], first, second, m->tensors[i].count,
            m->tensors[i].rows > 1);
    }
    ++t->step;
    return true;
}

/* Bits per byte on held-out text: windows from all over it, dealt out to the ranks, the sums
   added up. */
static bool trainer_score(trainer *t, uint64_t most_bytes, double *score, uint64_t *scored) {
    const uint64_t n = t->plan.context, all = (t->text->held_bytes - 1) / n;
    const uint64_t wanted = most_bytes / n ? most_bytes / n : 1,
                   windows = wanted < all ? wanted : all;
    double sum = 0;
    for (uint64_t i = cdp_rank(t->world); i < windows;) {
        uint64_t filled = 0;
        for (; filled < t->share && i < windows; ++filled, i += cdp_size(t->world)) {
            const uint8_t *from = t->text->held + i * all / windows * n;
            memcpy(t->inputs + filled * n, from, n);
            memcpy(t->targets + filled * n, from + 1, n);
        }
        model_forward(&t->model, t->inputs, filled);
        sum += model_loss(&t->model, t->targets, filled, 0);
    }
    if (!worked(cdp_allreduce(t->world, NULL, &sum, 1, CDP_DTYPE_F64, CDP_REDUCE_SUM)))
        return false;
    *scored = windows * n;
    *score = sum / (double)*scored;
    return true;
}

/* What the end of a run has to say about it. */
typedef struct report {
    curve train, held;
    uint64_t train_ns, first_step; /* time spent in steps, and the step at which the run began */
    bool terminal, speaks;         /* progress overwrites itself; this rank prints */
    /* rank 0: the parameters after `snapshot_step` steps, for --check */
    real *snapshot;
    uint64_t snapshot_step;
} report;

static void report_progress(
    const report *r, const settings *s, const trainer *t, double bits, double bytes_per_second) {
    if (!r->speaks) return;
    const cdp_ddp_stats stats = cdp_ddp_stats_of(t->ddp);
    const double left = (double)(s->steps - t->step) * (double)r->train_ns / 1e9
        / (double)(t->step - r->first_step);
    printf("%sstep %*llu/%llu  %.*f bits/byte  %.0f tokens/s", r->terminal ? "\r" : "",
        snprintf(NULL, 0, "%llu", llu(s->steps)),
        /* a token is a byte */
        llu(t->step), llu(s->steps), (int)s->digits, bits, bytes_per_second);
    if (cdp_size(t->world) > 1 && stats.total_comm_ns > 0)
        printf("  %3.0f %% of communication hidden",
            100 * (1 - (double)stats.total_exposed_ns / (double)stats.total_comm_ns));
    printf("  %d:%02d left%s", (int)left / 60, (int)left % 60, r->terminal ? "\033[K" : "\n");
    if (r->terminal) fflush(stdout);
}

static void report_line_end(const report *r) {
    if (r->speaks && r->terminal) putchar('\n');
}

static bool checkpoint_write(const trainer *t, const settings *s, reason *why) {
    const header h = header_of(&t->plan, &t->model, t->step, t->text->hash);
    return checkpoint_save(s->save, &h, t->model.values, t->moments, why);
}

/* Rank 0 did something that can fail (`ok`, and if not, `why`): all ranks learn of it and go the
   same way. Without this the others would wait in their next collective for a rank that has
   given up. */
static bool all_learn(cdp_group *world, bool ok, reason *why) {
    struct {
        int64_t ok;
        reason why;
    } news = {.ok = ok, .why = *why};
    if (!worked(cdp_broadcast(world, &news, sizeof news, CDP_DTYPE_U8, 0))) return false;
    *why = news.why;
    if (!news.ok) complain(why);
    return news.ok != 0;
}

static bool save_on_rank_0(const trainer *t, const settings *s) {
    reason why = {{0}};
    const bool ok = cdp_rank(t->world) != 0 || checkpoint_write(t, s, &why);
    return all_learn(t->world, ok, &why);
}

static bool score_and_note(trainer *t, const settings *s, report *r, uint64_t *scored) {
    double score;
    if (!trainer_score(t, s->eval_bytes, &score, scored)) return false;
    curve_add(&r->held, t->step, score);
    return true;
}

static bool train(trainer *t, const settings *s, report *r) {
    double sum = 0;
    uint64_t since = 0, ns = 0, scored;
    r->first_step = t->step;
    while (t->step < s->steps) {
        double bits;
        const uint64_t begun = now_ns();
        if (!trainer_step(t, &bits)) return false;
        ns += now_ns() - begun;
        sum += bits;
        ++since;
        const bool last = t->step == s->steps;
        if (t->step % s->log_every == 0 || last) {
            /* talking costs a round trip, so only now and then */
            double mean = sum / (double)since;
            if (!worked(cdp_allreduce(t->world, NULL, &mean, 1, CDP_DTYPE_F64, CDP_REDUCE_AVG)))
                return false;
            r->train_ns += ns;
            curve_add(&r->train, t->step, mean);
            report_progress(r, s, t, mean,
                (double)(since * t->plan.batch * t->plan.context) / ((double)ns / 1e9));
            sum = 0;
            since = 0;
            ns = 0;
        }
        if (r->snapshot && t->step == r->snapshot_step)
            memcpy(r->snapshot, t->model.values, (size_t)t->model.value_count * sizeof(real));
        if (s->eval_every && t->step % s->eval_every == 0 && !last
            && !score_and_note(t, s, r, &scored))
            return false;
        if (s->save && s->save_every && t->step % s->save_every == 0 && !last
            && !save_on_rank_0(t, s))
            return false;
    }
    report_line_end(r);
    return true;
}

/* ---- >>verdicts ------------------------------------------------------------------------------ */

/* DDP, place 5: do all ranks hold the same bits? */
static bool compare_replicas(const trainer *t, const report *r, bool *equal) {
    const uint32_t ranks = cdp_size(t->world);
    const size_t bytes = (size_t)t->model.value_count * sizeof(real);
    const uint64_t hash = hash_bytes(hash_bytes(0, t->model.values, bytes), t->moments, 2 * bytes);
    uint64_t *all = (uint64_t *)need(ranks, sizeof *all);
    const bool ok = worked(cdp_allgather(t->world, &hash, all, 1, CDP_DTYPE_I64));
    *equal = ok;
    for (uint32_t i = 0; i < ranks; ++i)
        *equal = *equal && all[i] == all[0];
    if (ok && r->speaks && *equal && ranks > 1)
        printf("replicas: bit-identical on all %u ranks, parameters and moments (%016llx)\n", ranks,
            llu(hash));
    for (uint32_t i = 0; ok && cdp_rank(t->world) == 0 && !*equal && i < ranks; ++i)
        printf("replicas: DIFFERENT: rank %u has %016llx\n", i, llu(all[i]));
    free(all);
    return ok;
}

typedef struct difference {
    /* both relative to the largest value of the same tensor, respectively of all */
    double largest, mean_square;
    const char *tensor; /* where the largest one is */
} difference;

/* Element by element a relative difference would say little, since many parameters are close to
   zero. So: the largest |a - b| of a tensor, divided by the largest |b| of that tensor. */
static difference compare_models(const model *m, const real *a, const real *b) {
    difference d = {0, 0, "none"};
    double square = 0, whole = 0;
    for (uint32_t i = 0; i < m->tensor_count; ++i) {
        double gap = 0, top = 0;
        for (uint64_t k = 0, at = m->tensors[i].offset; k < m->tensors[i].count; ++k, ++at) {
            const double delta = fabs((double)a[at] - (double)b[at]), size = fabs((double)b[at]);
            if (delta > gap || delta != delta) gap = delta; /* not-a-number, once seen, stays */
            top = size > top ? size : top;
            square += delta * delta;
            whole += size * size;
        }
        const double relative = gap > 0 || gap != gap ? gap / top : 0;
        if (relative > d.largest || relative != relative) {
            d.largest = relative;
            d.tensor = m->tensors[i].name;
        }
    }
    d.mean_square = sqrt(square / whole);
    return d;
}

#define CHECK_TOLERANCE 0.01
#define CHECK_SCORE_TOLERANCE 0.01

/* The same run, alone on rank 0. Float additions in another order give other last digits, and
   training amplifies them (Adam divides by the size of the gradient, however small it is), so
   equal bits are not to be expected. */
static bool check_alone(const settings *s, const corpus *text, const header *from,
    const real *state, const report *r, bool *good) {
    cdp_group *solo = NULL;
    trainer t = {0};
    double bits, alone = 0, together = 0;
    uint64_t scored;
    bool ok = worked(cdp_group_create(&(cdp_group_desc){.world_size = 1}, &solo))
        && trainer_open(&t, s, text, solo, from ? from->step : 0, state);
    while (ok && t.step < r->snapshot_step) {
        ok = trainer_step(&t, &bits);
        if (r->speaks && r->terminal) {
            printf("\rchecking: step %llu/%llu in one process\033[K", llu(t.step),
                llu(r->snapshot_step));
            fflush(stdout);
        }
    }
    if (r->speaks && r->terminal) printf("\r\033[K");
    const difference d =
        ok ? compare_models(&t.model, r->snapshot, t.model.values) : (difference){0};
    ok = ok && trainer_score(&t, s->eval_bytes, &alone, &scored);
    if (ok) memcpy(t.model.values, r->snapshot, (size_t)t.model.value_count * sizeof(real));
    ok = ok && trainer_score(&t, s->eval_bytes, &together, &scored);
    *good = ok && d.largest <= CHECK_TOLERANCE && fabs(alone - together) <= CHECK_SCORE_TOLERANCE;
    if (ok && r->speaks)
        printf("one process: after %llu steps the largest difference is %.2g of the largest value "
               "of its tensor (%s), all in all %.2g;\n"
               "             held out %.*f there, %.*f here\n",
            llu(r->snapshot_step), d.largest, d.tensor, d.mean_square, (int)s->digits, alone,
            (int)s->digits, together);
    trainer_close(&t);
    cdp_group_destroy(solo);
    return ok;
}

/* Rank 0 checks while the others wait for its result: as long as that may take, not only as long
   as one operation. */
static bool check_and_tell(cdp_group *world, const settings *s, const corpus *text,
    const header *from, const real *state, const report *r, bool *good) {
    const uint64_t patience_ms = 600000 + r->train_ns / 1000000 * cdp_size(world) * 8;
    int64_t result = 1;
    cdp_work work;
    if (cdp_rank(world) == 0) result = check_alone(s, text, from, state, r, good) && *good;
    const cdp_request request = {.kind = CDP_COLL_BROADCAST,
        .out = &result,
        .count = 1,
        .dtype = CDP_DTYPE_I64,
        .timeout_ms = (uint32_t)(patience_ms < 0xfffffffe ? patience_ms : 0xfffffffe)};
    if (!worked(cdp_start(world, &request, &work)) || !worked(cdp_work_wait(work))) return false;
    *good = result != 0;
    return true;
}

/* The next byte after `history`, drawn from the model's distribution. */
static uint8_t next_byte(
    model *m, const uint8_t *history, uint64_t length, uint8_t *window, uint64_t seed) {
    const uint64_t n = m->context, seen = length < n ? length : n;
    memset(window, 0, n);
    memcpy(window, history + length - seen, seen);
    model_forward(m, window, 1); /* what lies behind the last byte seen cannot reach its row */
    const real *row = m->logits + (seen - 1) * VOCABULARY;
    double weight[VOCABULARY], sum = 0, top = (double)row[0];
    for (uint32_t j = 1; j < VOCABULARY; ++j)
        top = fmax(top, (double)row[j]);
    for (uint32_t j = 0; j < VOCABULARY; ++j)
        sum += weight[j] = exp((double)row[j] - top);
    double left = draw_unit(seed, 0x73616d706c65u, length) * sum;
    for (uint32_t j = 0; j + 1 < VOCABULARY; ++j)
        if ((left -= weight[j]) < 0) return (uint8_t)j;
    return VOCABULARY - 1;
}

/* The model goes on from the middle of a word in the held-out text. */
static void print_sample(model *m, const corpus *from, uint64_t bytes, uint64_t seed) {
    uint8_t *text = (uint8_t *)need(bytes + m->context, 1),
            *window = (uint8_t *)need(m->context, 1);
    size_t at = from->held_bytes / 2; /* where the sample takes over */
    while (at + 1 < from->held_bytes && !(isalpha(from->held[at - 1]) && isalpha(from->held[at])))
        ++at;
    memcpy(text, from->held + at - m->context, m->context);
    printf("sample:\n    | ");
    for (uint64_t i = m->context; i < m->context + bytes; ++i) {
        const uint8_t c = text[i] = next_byte(m, text, i, window, seed);
        if (c == '\n')
            printf("\n    | ");
        else if (c >= 32 && c < 127)
            putchar(c);
        else
            printf("\\x%02x", c);
    }
    putchar('\n');
    free(text);
    free(window);
}

/* ---- >>main ---------------------------------------------------------------------------------- */

/* Rank 0 reads the checkpoint; all ranks learn what is in it, or why it cannot be read. */
static bool load_on_rank_0(cdp_group *world, settings *s, header *h, real **state) {
    reason why = {{0}};
    bool ok = true;
    if (cdp_rank(world) == 0) {
        ok = checkpoint_load(s->load, h, state, &why);
        settings trial = *s;
        ok = ok && settings_adopt(&trial, h, &why);
    }
    if (!all_learn(world, ok, &why) || !worked(cdp_broadcast(world, h, sizeof *h, CDP_DTYPE_U8, 0)))
        return false;
    if (settings_adopt(s, h, &why)) return true;
    complain(&why);
    return false;
}

/* Every rank says whether it can start, with which plan and on which text; all must be able, and
   all must agree. */
static bool all_agree(cdp_group *world, bool ok, const settings *s, const corpus *text) {
    const uint32_t ranks = cdp_size(world);
    const uint64_t rest[] = {s->steps, s->bucket_kib, s->log_every, s->eval_every, s->eval_bytes,
        s->save != NULL, s->save_every, s->check, s->check_steps, s->hook};
    const uint64_t mine[3] = {
        ok, hash_bytes(hash_bytes(0, &s->plan, sizeof s->plan), rest, sizeof rest), text->hash};
    uint64_t *all = (uint64_t *)need(ranks, sizeof mine);
    bool agreed = worked(cdp_allgather(world, mine, all, 3, CDP_DTYPE_I64));
    for (uint32_t i = 0; agreed && i < ranks; ++i) {
        reason why;
        const uint64_t *theirs = all + 3 * i;
        if (theirs[0] == 0)
            agreed = ok && because(&why, "rank %u could not start; it says why", i);
        else if (ok && theirs[1] != all[1])
            agreed = because(&why, "rank %u was started with other options than rank 0", i);
        else if (ok && theirs[2] != all[2])
            agreed = because(&why,
                "rank %u found another text than rank 0; all ranks must read the same files", i);
        if (!agreed && ok) complain(&why);
    }
    free(all);
    return agreed && ok;
}

static void print_start(const settings *s, const trainer *t, bool alone) {
    const corpus *c = t->text;
    if (alone)
        printf("train_text: no launcher, so this process runs alone (four of them: cdprun -n 4 "
               "./train_text)\n");
    printf("text: %llu files, %zu bytes to learn from and %zu held out", llu(c->files),
        c->train_bytes, c->held_bytes);
    if (c->skipped) printf(" (%llu files skipped: they are not text)", llu(c->skipped));
    printf("\nmodel: %llu layers, width %llu, %llu heads, context %llu: %llu parameters, %.0f KiB "
           "of gradients in %u buckets\n",
        llu(s->plan.layers), llu(s->plan.width), llu(s->plan.heads), llu(s->plan.context),
        llu(t->model.value_count), (double)(t->model.value_count * sizeof(real)) / 1024,
        cdp_ddp_stats_of(t->ddp).bucket_count);
    printf("batch: %llu sequences = %llu bytes per step over %u rank%s; steps %llu to %llu\n",
        llu(s->plan.batch), llu(s->plan.batch * s->plan.context), cdp_size(t->world),
        cdp_size(t->world) == 1 ? "" : "s", llu(t->step) + 1, llu(s->steps));
}

static bool draw_result(const settings *s, const report *r, uint32_t ranks) {
    char path[1024], title[160];
    reason why;
    if (!s->svg && !s->save) return true;
    snprintf(path, sizeof path, "%s%s", s->svg ? s->svg : s->save, s->svg ? "" : ".svg");
    snprintf(title, sizeof title, "%llu layers of width %llu, batch %llu x %llu bytes, %u rank%s",
        llu(s->plan.layers), llu(s->plan.width), llu(s->plan.batch), llu(s->plan.context), ranks,
        ranks == 1 ? "" : "s");
    page p = draw_picture(&r->train, &r->held, title, s->digits);
    const bool ok = file_write(path, p.at, p.bytes, &why);
    free(p.at);
    if (!ok)
        complain(&why);
    else if (r->speaks)
        printf("curve: %s\n", path);
    return ok;
}

/* The end of a run. Whatever needs all ranks comes first; then only rank 0 still has something
   to do. */
static bool conclude(
    trainer *t, const settings *s, report *r, const header *from, const real *state) {
    uint64_t scored = 0;
    bool equal = false, good = true;
    if (!score_and_note(t, s, r, &scored)) return false;
    const double score = r->held.bits[r->held.count - 1];
    if (r->speaks) {
        printf("speed: %.0f tokens per second over all ranks, %.1f s of training\n",
            (double)((t->step - r->first_step) * t->plan.batch * t->plan.context)
                / ((double)r->train_ns / 1e9),
            (double)r->train_ns / 1e9);
        printf("held out: %.*f bits per byte over %llu bytes (guessing blindly: 8)\n",
            (int)s->digits, score, llu(scored));
    }
    if (!compare_replicas(t, r, &equal)) return false;
    if (s->save && !save_on_rank_0(t, s)) return false;
    if (s->trace && cdp_rank(t->world) == 0) {
        reason why;
        if (!trainer_trace(t, s->trace, &why)) complain(&why);
    }
    if (s->save && r->speaks) printf("checkpoint: %s\n", s->save);
    if (s->check && !check_and_tell(t->world, s, t->text, from, state, r, &good)) return false;
    if (cdp_rank(t->world) != 0) return equal && good;
    if (r->speaks && s->sample) print_sample(&t->model, t->text, s->sample, s->plan.seed);
    const bool drawn = draw_result(s, r, cdp_size(t->world)), finite = isfinite(score);
    const char *compared = "";
    if (s->check) compared = good ? ", agrees with one process" : ", DIFFERS from one process";
    printf("%s: %.*f bits per byte held out, replicas %s%s\n",
        equal && good && drawn && finite ? "PASS" : "FAIL", (int)s->digits, score,
        equal ? "identical" : "DIFFERENT", compared);
    return equal && good && drawn && finite;
}

static bool run(settings *s, cdp_group *world, const char *program, bool alone) {
    header from = {.step = 0};
    real *state = NULL;
    corpus text = {0};
    trainer t = {0};
    reason why;
    const bool first = cdp_rank(world) == 0;
    report r = {.terminal = isatty(1), .speaks = first && !s->quiet};
    if (s->load && !load_on_rank_0(world, s, &from, &state)) return false;
    bool ok = settings_fit(s, cdp_size(world), from.step, &why)
        && corpus_gather(&text, s->paths, s->path_count, program, s->plan.context, &why);
    ok = ok && (!first || (can_write(s->save, &why) && can_write(s->svg, &why)));
    if (!ok) complain(&why);
    ok = all_agree(world, ok, s, &text) && trainer_open(&t, s, &text, world, from.step, state);
    if (ok && r.speaks) print_start(s, &t, alone);
    if (ok && s->check && first) {
        r.snapshot = need_reals(t.model.value_count);
        r.snapshot_step = s->check_steps ? s->check_steps : s->steps;
    }
    ok = ok && train(&t, s, &r) && conclude(&t, s, &r, &from, state);
    trainer_close(&t);
    corpus_free(&text);
    free(state);
    free(r.snapshot);
    curve_free(&r.train);
    curve_free(&r.held);
    return ok;
}

int main(int argc, char **argv) {
    settings s;
    reason why;
    cdp_group *world = NULL;
    bool alone;
    setvbuf(stdout, NULL, _IOLBF, 0); /* launchers read lines */
    if (!settings_parse(&s, argc, argv, &why)) {
        complain(&why);
        return 2;
    }
    if (s.help) {
        print_help(stdout);
        return 0;
    }
    if (!join_world(&world, &alone)) return 1;
    const bool ok = run(&s, world, argv[0], alone);
    cdp_group_destroy(world);
    free(s.paths);
    return ok ? 0 : 1;
}

/* What a group remembers and says of itself: records, dumps, descriptions; which algorithm runs;
   reproducible reductions. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include "ranks.h"

#include <fcntl.h>
#include <sys/stat.h>

static void allreduce_some(cdp_group *g, void *arg) {
    float x[100];
    uint32_t i, k;
    for (k = 0; k < *(const uint32_t *)arg; ++k) {
        for (i = 0; i < 100; ++i)
            x[i] = (float)i;
        T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, 100, CDP_DTYPE_F32, CDP_REDUCE_MAX));
    }
}

/* ---- records ---- */

TEST(records_are_the_last_operations) {
    cdp_group_desc like = {.records = 5};
    cdp_record r[16];
    uint32_t times = 3, n, i;
    world w;
    if (!world_open(&w, 3, &like, 0)) return;
    T_EQ(0, cdp_group_records(w.group[0], r, 16));
    world_threads(&w, allreduce_some, &times);
    T_EQ(3, cdp_group_records(w.group[1], r, 16));
    world_threads(&w, allreduce_some, &times);
    n = cdp_group_records(w.group[1], r, 16);
    T_EQ(5, n); /* of six */
    for (i = 0; i < n; ++i) {
        T_EQ(2 + i, r[i].seq);
        T(r[i].state == CDP_RECORD_DONE && r[i].kind == CDP_COLL_ALLREDUCE
            && r[i].dtype == CDP_DTYPE_F32 && r[i].op == CDP_REDUCE_MAX && r[i].count == 100);
        T(strcmp(r[i].algorithm, "at once") == 0 && r[i].round == r[i].rounds && r[i].rounds > 0
            && r[i].waits_for == -1);
        T(r[i].start_ns && r[i].end_ns >= r[i].start_ns
            && (!i || r[i].start_ns >= r[i - 1].end_ns));
    }
    T_EQ(2, cdp_group_records(w.group[1], r, 2));
    T(r[0].seq == 5 && r[1].seq == 6); /* the newest */
    world_close(&w);
}

TEST(records_of_what_is_still_going_on) {
    cdp_group_desc like = {.no_thread = true, .records = 4};
    cdp_record r[16];
    cdp_work work[3];
    float x[3][64];
    uint32_t i;
    world w;
    if (!world_open(&w, 2, &like, 0)) return;
    memset(x, 0, sizeof x);
    for (i = 0; i < 3; ++i)
        T_EQ(CDP_OK, cdp_broadcast_async(w.group[1], x[i], 64, CDP_DTYPE_F32, 0, &work[i]));
    T_EQ(3, cdp_group_records(w.group[1], r, 16));
    T(r[0].state == CDP_RECORD_RUNNING && r[0].waits_for == 0 && r[0].round == 0 && r[0].rounds == 1
        && !r[0].end_ns);
    T(r[1].state == CDP_RECORD_QUEUED && !r[1].algorithm && r[1].seq == 2 && r[1].count == 64);
    T(r[2].state == CDP_RECORD_QUEUED && r[2].seq == 3);
    cdp_group_abort(w.group[1], "enough");
    T_EQ(CDP_ERR_ABORTED, cdp_work_wait(work[0]));
    T_EQ(3, cdp_group_records(w.group[1], r, 16));
    T(r[0].state == CDP_RECORD_FAILED && r[1].state == CDP_RECORD_QUEUED);
    world_close(&w);
}

TEST(records_of_wrong_arguments) {
    cdp_record r;
    T_EQ(0, cdp_group_records(NULL, &r, 1));
}

/* ---- dumps ---- */

static char *read_all(const char *path) {
    static char text[65536];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return text;
}

/* Brackets and quotes close, and nothing but what JSON knows stands between them. */
static bool looks_like_json(const char *s) {
    char open[64];
    uint32_t depth = 0;
    bool quoted = false;
    for (; *s; ++s) {
        if (quoted) {
            if ((unsigned char)*s < ' ') return false;
            if (*s == '\\' && !*++s)
                return false;
            else if (*s == '"')
                quoted = false;
        } else if (*s == '"') {
            quoted = true;
        } else if (*s == '{' || *s == '[') {
            if (depth == sizeof open) return false;
            open[depth++] = *s;
        } else if (*s == '}' || *s == ']') {
            if (!depth || open[--depth] != (*s == '}' ? '{' : '[')) return false;
        }
    }
    return !quoted && depth == 0;
}

TEST(a_dump_tells_all) {
    const uint32_t pair[2] = {1, 0};
    char path[64];
    uint32_t times = 2;
    cdp_group *two;
    const char *text;
    world w;
    snprintf(path, sizeof path, "/tmp/cdp_dump_%d", (int)getpid());
    if (!world_open(&w, 2, NULL, 0)) return;
    world_threads(&w, allreduce_some, &times);
    T_EQ(CDP_OK, cdp_group_new(w.group[0], pair, 2, &two));
    T_EQ(CDP_OK, cdp_group_dump(w.group[0], path));
    text = read_all(path);
    T(looks_like_json(text));
    T(strstr(text, "\"is\": \"world\"") && strstr(text, "\"is\": \"group\"")
        && strstr(text, "\"ranks\": [1, 0]"));
    T(strstr(text,
        "\"seq\": 2, \"state\": \"done\", \"kind\": \"allreduce\", \"dtype\": \"f32\", \"count\": "
        "100, \"op\": \"max\""));
    unlink(path);
    T_EQ(CDP_ERR_IO, cdp_group_dump(w.group[0], "/nowhere/at/all"));
    T(strstr(cdp_last_error()->text, "/nowhere/at/all"));
    T_EQ(CDP_ERR_INVALID, cdp_group_dump(w.group[0], NULL));
    T_EQ(CDP_ERR_INVALID, cdp_group_dump(NULL, path));
    cdp_group_destroy(two);
    world_close(&w);
}

TEST(a_failure_leaves_a_dump) {
    char prefix[64], path[80];
    cdp_group_desc like = {
        .dump_path = prefix, .timeout_ms = 200, .logger = {.level = CDP_LOG_SILENT}};
    float x[4] = {0};
    const char *text;
    world w;
    snprintf(prefix, sizeof prefix, "/tmp/cdp_fail_%d \"quoted\"", (int)getpid());
    snprintf(path, sizeof path, "%s.1.json", prefix);
    if (!world_open(&w, 2, &like, 0)) return;
    /* rank 0 never comes */
    T_EQ(CDP_ERR_TIMEOUT, cdp_allreduce(w.group[1], NULL, x, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T(strstr(cdp_last_error()->text, "rank 0"));
    text = read_all(path);
    T(looks_like_json(text));
    T(strstr(text, "\"health\": \"failed\"") && strstr(text, "\"state\": \"failed\"")
        && strstr(text, "\"waits_for\": 0") && strstr(text, "\"peer\": 0"));
    unlink(path);
    world_close(&w);
    snprintf(path, sizeof path, "%s.0.json", prefix);
    unlink(path);
}

/* A disk that is full after so many bytes. */
static uint64_t disk_left;

static int64_t full_disk(void *user, int32_t fd, uint64_t at, const void *from, uint64_t n) {
    if (!disk_left) return -ENOSPC;
    n = n < disk_left ? n : disk_left;
    disk_left -= n;
    return cdp_os_default()->files.write_at(user, fd, at, from, n);
}

TEST(a_dump_on_a_full_disk_is_an_error) {
    char path[64];
    cdp_os os = *cdp_os_default();
    cdp_group_desc like = {.os = &os};
    uint32_t times = 40;
    uint64_t bytes;
    world w;
    os.files.write_at = full_disk;
    snprintf(path, sizeof path, "/tmp/cdp_full_%d", (int)getpid());
    if (!world_open(&w, 2, &like, 0)) return;
    world_threads(&w, allreduce_some, &times);
    disk_left = 1000000;
    T_EQ(CDP_OK, cdp_group_dump(w.group[0], path));
    bytes = strlen(read_all(path));
    T_EQ(1000000, bytes + disk_left);
    T(bytes > 4096 && looks_like_json(read_all(path))); /* in several pieces */
    for (uint64_t room = 0; room < bytes; room += room + 611 < bytes ? 611 : bytes - room) {
        disk_left = room;
        T_EQ(CDP_ERR_IO, cdp_group_dump(w.group[0], path));
        T_EQ(ENOSPC, cdp_last_error()->sys_errno);
        T(strstr(cdp_last_error()->text, path) != NULL);
    }
    disk_left = bytes - 1; /* only the last byte is missing */
    T_EQ(CDP_ERR_IO, cdp_group_dump(w.group[0], path));
    unlink(path);
    world_close(&w);
}

/* A reader that begins late, and then reads slowly. */
static void *read_slowly(void *arg) {
    int fd = *(int *)arg;
    char room[512];
    ssize_t n;
    usleep(100000);
    while ((n = read(fd, room, sizeof room)) > 0)
        usleep(200);
    return NULL;
}

TEST(a_dump_into_a_full_pipe_waits_for_its_reader) {
    char path[64];
    cdp_group_desc like = {0};
    const char fill[512] = "";
    uint32_t times = 40;
    pthread_t reader;
    int fd;
    world w;
    snprintf(path, sizeof path, "/tmp/cdp_pipe_%d", (int)getpid());
    T_EQ(0, mkfifo(path, 0600));
    fd = open(path, O_RDWR); /* so that the reader sees no end while the dump opens it */
    T(fd >= 0);
    if (!world_open(&w, 2, &like, 0)) return;
    world_threads(&w, allreduce_some, &times);
    T_EQ(0, fcntl(fd, F_SETFL, O_NONBLOCK));
    while (write(fd, fill, sizeof fill) > 0) {
    }
    T_EQ(CDP_ERR_IO, cdp_group_dump(w.group[0], path)); /* nobody reads */
    T_EQ(EAGAIN, cdp_last_error()->sys_errno);
    T_EQ(0, fcntl(fd, F_SETFL, 0));
    T_EQ(0, pthread_create(&reader, NULL, read_slowly, &fd));
    T_EQ(CDP_OK, cdp_group_dump(w.group[0], path));
    pthread_cancel(reader);
    pthread_join(reader, NULL);
    close(fd);
    unlink(path);
    world_close(&w);
}

TEST(the_umask_decides_who_may_read_a_dump) {
    static const mode_t masks[] = {0, 022, 027, 077};
    char path[64];
    cdp_group_desc like = {0};
    struct stat st;
    const mode_t before = umask(0);
    world w;
    snprintf(path, sizeof path, "/tmp/cdp_umask_%d", (int)getpid());
    if (!world_open(&w, 1, &like, 0)) return;
    for (uint32_t i = 0; i < sizeof masks / sizeof *masks; ++i) {
        unlink(path);
        umask(masks[i]);
        T_EQ(CDP_OK, cdp_group_dump(w.group[0], path));
        T_EQ(0, stat(path, &st));
        T_EQ(0666 & ~masks[i], st.st_mode & 0777);
    }
    umask(before);
    unlink(path);
    world_close(&w);
}

TEST(an_os_without_files_writes_no_dumps) {
    cdp_os os = *cdp_os_default();
    cdp_group_desc like = {.os = &os};
    const cdp_group_desc alone = {.world_size = 1, .os = &os, .dump_path = "/tmp/never"};
    cdp_group *g = NULL;
    world w;
    memset(&os.files, 0, sizeof os.files);
    if (!world_open(&w, 2, &like, 0)) return;
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_group_dump(w.group[0], "/tmp/never"));
    T_TEXT("has no files", cdp_last_error()->text);
    world_close(&w);
    T_EQ(CDP_ERR_UNSUPPORTED, cdp_group_create(&alone, &g));
    T_TEXT("dump_path", cdp_last_error()->text);
    T(!g && access("/tmp/never", F_OK) != 0);
}

/* ---- descriptions, choices ---- */

TEST(a_description_says_what_is_set) {
    const cdp_choice rows[] = {
        {CDP_COLL_ALLREDUCE, "ring", 100, 7}, {CDP_COLL_ALLREDUCE, "recursive doubling", 0, 0}};
    cdp_group_desc like = {.timeout_ms = 1234, .choices = rows, .choice_count = 2};
    char text[4096];
    world w;
    if (!world_open(&w, 3, &like, 0)) return;
    T(cdp_describe(w.group[2], text, sizeof text) == strlen(text));
    T(strstr(text, "rank 2 of 3") && strstr(text, "timeout_ms = 1234 ms (set)")
        && strstr(text, "piece_bytes = 1048576 (default)") && strstr(text, "links:\n  rank 0: "));
    T_TEXT("\narithmetic: " CDP__ARITHMETIC "\n", text);
    T(strstr(text,
        "allreduce: ring, up to 100 bytes, up to 7 ranks (choices)\n  allreduce: recursive "
        "doubling (choices)\n  allreduce: at once, up to 4096 bytes, up to 4 ranks, in shared "
        "memory\n  allreduce: recursive doubling, up to 16384 bytes\n  allreduce: fixed order, up "
        "to "
        "16 ranks, where partial results are wider\n"));
    T_TEXT("\n  allreduce: direct, up to 8 ranks, in shared memory\n", text);
    const uint64_t whole = strlen(text);
    T_EQ(whole, cdp_describe(w.group[2], text, 10)); /* cut, but the whole length is told */
    T_EQ(9, strlen(text));
    T_EQ(whole, cdp_describe(w.group[2], NULL, 10));
    T_EQ(whole, cdp_describe(w.group[2], text, 0));
    T_EQ(0, cdp_describe(NULL, text, 10));
    T_EQ(0, strlen(text));
    world_close(&w);
}

static const char *algorithm_of_last(cdp_group *g) {
    cdp_record r;
    return cdp_group_records(g, &r, 1) ? r.algorithm : "none";
}

typedef struct sized {
    uint64_t count;
    const char *algorithm;
} sized;

static void allreduce_sized(cdp_group *g, void *arg) {
    const sized *s = (const sized *)arg;
    float *x = (float *)calloc((size_t)s->count, sizeof *x);
    T_EQ(CDP_OK, cdp_allreduce(g, NULL, x, s->count, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    if (strcmp(s->algorithm, algorithm_of_last(g)) != 0) {
        T_EQ(0, 1);
        printf("  %llu: %s\n", (unsigned long long)s->count, algorithm_of_last(g));
    }
    free(x);
}

TEST(choices_choose) {
    const cdp_choice rows[] = {{CDP_COLL_ALLREDUCE, "ring", 40, 0},
        {CDP_COLL_BROADCAST, "binomial tree", 0, 0}, {CDP_COLL_ALLREDUCE, "fixed order", 400, 4},
        {CDP_COLL_ALLREDUCE, "ring", 4000, 2}};
    cdp_group_desc like = {.choices = rows, .choice_count = 4, .small_bytes = 8000};
    sized sizes[] = {{10, "ring"}, {11, "fixed order"}, {100, "fixed order"}, {101, "at once"},
        {125, "at once"}, {126, "recursive doubling"}, {500, "recursive doubling"},
        {501, "direct"}};
    uint32_t i;
    world w;
    if (!world_open(&w, 3, &like, 0)) return;
    for (i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        world_threads(&w, allreduce_sized, &sizes[i]);
    world_close(&w);
}

static void refused(cdp_group_desc *d, const char *word) {
    cdp_group *g = NULL;
    T_EQ(CDP_ERR_INVALID, cdp_group_create(d, &g));
    T(!g && strstr(cdp_last_error()->text, word));
}

TEST(wrong_choices_are_refused) {
    cdp_choice row = {CDP_COLL_ALLREDUCE, "rings", 0, 0};
    cdp_group_desc d = {.world_size = 1, .choices = &row, .choice_count = 1};
    refused(&d,
        "there is no algorithm \"rings\" for allreduce; there is: ring, recursive doubling, fixed "
        "order");
    row.algorithm = NULL;
    refused(&d, "there is no algorithm");
    row.algorithm = "ring";
    row.kind = (cdp_coll_kind)99;
    refused(&d, "there is no algorithm");
    row.kind = CDP_COLL_ALLREDUCE;
    d.reproducible = true;
    refused(&d, "reproducible");
    d.choices = NULL;
    refused(&d, "choices is NULL");
}

TEST(different_choices_are_named) {
    const cdp_choice row = {CDP_COLL_ALLREDUCE, "ring", 0, 0};
    float x[2][4] = {{0}};
    cdp_work work[2];
    cdp_hub_desc h = {.world_size = 2};
    cdp_hub *hub;
    cdp_group *g[2];
    uint32_t r;
    T_EQ(CDP_OK, cdp_hub_create(&h, &hub));
    for (r = 0; r < 2; ++r) {
        const cdp_group_desc d = {.rank = r,
            .world_size = 2,
            .hub = hub,
            .no_thread = true,
            .choices = &row,
            .choice_count = r,
            .logger = {.level = CDP_LOG_SILENT}};
        T_EQ(CDP_OK, cdp_group_create(&d, &g[r]));
        T_EQ(CDP_OK,
            cdp_allreduce_async(g[r], NULL, x[r], 4, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[r]));
    }
    for (r = 0; r < 1000 && cdp_group_status(g[0]) == CDP_OK; ++r) {
        (void)cdp_poll(g[0], 0);
        (void)cdp_poll(g[1], 0);
    }
    T_EQ(CDP_ERR_MISMATCH, cdp_group_status(g[0]));
    T(strstr(cdp_last_error()->text, "ring") && strstr(cdp_last_error()->text, "at once"));
    for (r = 0; r < 2; ++r)
        cdp_group_destroy(g[r]);
    cdp_hub_destroy(hub);
}

/* ---- reproducible ---- */

#define REPRO_COUNT 70001u

typedef struct repro {
    cdp_dtype dtype;
    cdp_reduce_op op;
    uint64_t piece; /* elements per call */
    uint64_t hash[RANKS_MAX];
} repro;

/* The same numbers by rank, reduced in calls of `piece` elements by all three kinds of
   operation; the hash of what comes out. */
static void reduce_in_pieces(cdp_group *g, void *arg) {
    repro *t = (repro *)arg;
    const uint32_t n = cdp_size(g), rank = cdp_rank(g);
    const uint64_t elem = cdp_dtype_size(t->dtype), bytes = REPRO_COUNT * elem;
    uint8_t *in = (uint8_t *)malloc((size_t)bytes), *all = (uint8_t *)malloc((size_t)bytes),
            *one = (uint8_t *)malloc((size_t)bytes);
    uint64_t state = 99 + rank, i, at, counts[RANKS_MAX];
    for (i = 0; i < REPRO_COUNT; ++i) {
        const double x = ((double)(test_random(&state) % 2000001) - 1e6) * (i % 3 ? 1e-3 : 1e3);
        if (t->dtype == CDP_DTYPE_F64)
            ((double *)(void *)in)[i] = x;
        else if (t->dtype == CDP_DTYPE_F32)
            ((float *)(void *)in)[i] = (float)x;
        /* f16 or bf16 near one */
        else
            ((uint16_t *)(void *)in)[i] =
                (uint16_t)(0x3c00 + test_random(&state) % 0x400 + (test_random(&state) % 2 << 15));
    }
    memset(all, 0, (size_t)bytes);
    memset(one, 0, (size_t)bytes);
    for (at = 0; at < REPRO_COUNT; at += t->piece) {
        const uint64_t count = REPRO_COUNT - at < t->piece ? REPRO_COUNT - at : t->piece;
        const cdp_request rs = {.kind = CDP_COLL_REDUCE_SCATTER,
            .in = in + at * elem,
            .out = one + at * elem,
            .dtype = t->dtype,
            .op = t->op,
            .in_counts = counts};
        uint64_t left = count, k;
        cdp_work work;
        T_EQ(CDP_OK, cdp_allreduce(g, in + at * elem, all + at * elem, count, t->dtype, t->op));
        T_EQ(CDP_OK,
            cdp_reduce(
                g, in + at * elem, one + at * elem, count, t->dtype, t->op, (uint32_t)(at % n)));
        if (at % n == rank)
            T(memcmp(one + at * elem, all + at * elem, (size_t)(count * elem)) == 0);
        for (i = 0, k = 0; i < n; ++i, left -= k)
            counts[i] = k = i + 1 == n ? left : left / 2;
        T_EQ(CDP_OK, cdp_start(g, &rs, &work));
        T_EQ(CDP_OK, cdp_work_wait(work));
        for (i = 0, k = 0; i < rank; ++i)
            k += counts[i];
        T(memcmp(one + at * elem, all + (at + k) * elem, (size_t)(counts[rank] * elem)) == 0);
    }
    t->hash[rank] = cdp__hash(CDP__HASH_START, all, bytes);
    free(in);
    free(all);
    free(one);
}

static uint64_t repro_hash(
    uint32_t n, const cdp_group_desc *like, cdp_dtype dtype, cdp_reduce_op op, uint64_t piece) {
    repro t = {dtype, op, piece, {0}};
    uint32_t r;
    world w;
    if (!world_open(&w, n, like, 0)) return 0;
    world_threads(&w, reduce_in_pieces, &t);
    for (r = 1; r < n; ++r)
        T(t.hash[r] == t.hash[0]);
    world_close(&w);
    return t.hash[0];
}

TEST(reproducible_bits_depend_on_the_numbers_alone) {
    static const cdp_dtype dtypes[] = {CDP_DTYPE_F32, CDP_DTYPE_F64, CDP_DTYPE_F16, CDP_DTYPE_BF16};
    static const cdp_reduce_op ops[] = {CDP_REDUCE_SUM, CDP_REDUCE_AVG, CDP_REDUCE_PRODUCT};
    static const uint32_t sizes[] = {2, 3, 5, 8};
    static const uint64_t pieces[] = {REPRO_COUNT, 33333, 10007};
    uint32_t z, d, k, variants = 0;
    for (z = 0; z < 4; ++z)
        for (d = 0; d < 4; ++d) {
            /* ranks do the same with each dtype: those that are watched take turns with them */
            if (TEST_THREADS_WATCHED && d != z) continue;
            uint64_t first = 0;
            for (k = 0; k < 3; ++k, ++variants) {
                const cdp_choice fixed = {CDP_COLL_ALLREDUCE, "fixed order", 0, 0};
                const cdp_group_desc like = {.reproducible = true,
                    .small_bytes = k == 1 ? 1u << 30 : 1,
                    .piece_bytes = k == 2 ? 1000 : 0,
                    .choices = &fixed,
                    .choice_count = k == 2};
                const uint64_t hash = repro_hash(sizes[z], &like, dtypes[d], ops[d % 3], pieces[k]);
                if (k == 0) first = hash;
                T_EQ(first, hash);
            }
        }
    T_EQ(TEST_THREADS_WATCHED ? 12 : 48, variants);
}

static void ring_in_pieces(cdp_group *g, void *arg) {
    repro *t = (repro *)arg;
    float *x = (float *)malloc(REPRO_COUNT * sizeof *x);
    uint64_t state = 7 + cdp_rank(g), i, at;
    for (i = 0; i < REPRO_COUNT; ++i)
        x[i] = (float)(test_random(&state) % 2000001) * 1e-3f;
    for (at = 0; at < REPRO_COUNT; at += t->piece)
        T_EQ(CDP_OK,
            cdp_allreduce(g, NULL, x + at,
                REPRO_COUNT - at < t->piece ? REPRO_COUNT - at : t->piece, CDP_DTYPE_F32,
                CDP_REDUCE_SUM));
    t->hash[cdp_rank(g)] = cdp__hash(CDP__HASH_START, x, REPRO_COUNT * sizeof *x);
    free(x);
}

/* The test above means something: without the option the bits do depend on how the numbers were
   cut. */
TEST(without_it_they_depend_on_the_sizes) {
    const cdp_group_desc like = {.small_bytes = 1};
    repro a = {CDP_DTYPE_F32, CDP_REDUCE_SUM, REPRO_COUNT, {0}},
          b = {CDP_DTYPE_F32, CDP_REDUCE_SUM, 10007, {0}};
    world w;
    if (!world_open(&w, 5, &like, 0)) return;
    world_threads(&w, ring_in_pieces, &a);
    world_threads(&w, ring_in_pieces, &b);
    T(a.hash[0] != b.hash[0]);
    world_close(&w);
}

/* ---- who is stuck ---- */

#define main who_is_stuck_main
#include "../../tools/who_is_stuck.c"
#undef main

/* What the tool says of these dumps, with an option or NULL. */
static const char *verdict(char *option, char paths[][64], uint32_t n) {
    static char text[65536];
    char *argv[RANKS_MAX + 2] = {"who_is_stuck"}, out[64];
    const int saved = dup(1);
    uint32_t i;
    int args = 1;
    if (option) argv[args++] = option;
    for (i = 0; i < n; ++i)
        argv[args++] = paths[i];
    snprintf(out, sizeof out, "/tmp/cdp_verdict_%d", (int)getpid());
    fflush(stdout);
    if (!freopen(out, "w", stdout)) abort();
    (void)who_is_stuck_main(args, argv);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    snprintf(text, sizeof text, "%s", read_all(out));
    unlink(out);
    return text;
}

typedef struct scene {
    cdp_group *g[4];
    cdp_work work[4][4];
    float x[4][4][8];
} scene;

/* A scene on four polled ranks: what has been called is moved as far as it goes; then everybody
   dumps but those in `silent`. */
static const char *played(void (*play)(scene *), uint32_t silent) {
    static scene s;
    const cdp_group_desc like = {.no_thread = true, .logger = {.level = CDP_LOG_SILENT}};
    static char text[16384];
    char paths[4][64];
    uint32_t r, i, n = 0;
    world w;
    memset(&s, 0, sizeof s);
    if (!world_open(&w, 4, &like, 0)) return "";
    memcpy(s.g, w.group, sizeof s.g);
    play(&s);
    for (i = 0; i < 400; ++i)
        (void)cdp_poll(s.g[i % 4], 0);
    for (r = 0; r < 4; ++r) {
        snprintf(paths[n], sizeof paths[n], "/tmp/cdp_scene_%d.%u.json", (int)getpid(), r);
        if (!(silent >> r & 1)) T_EQ(CDP_OK, cdp_group_dump(s.g[r], paths[n++]));
    }
    snprintf(text, sizeof text, "%s", verdict(NULL, paths, n));
    for (r = 0; r < n; ++r)
        unlink(paths[r]);
    world_close(&w);
    return text;
}

static void play_all(scene *s, uint32_t but, uint32_t k, uint64_t count) {
    uint32_t r;
    for (r = 0; r < 4; ++r)
        if (r != but)
            T_EQ(CDP_OK,
                cdp_allreduce_async(s->g[r], NULL, s->x[r][k], count, CDP_DTYPE_F32, CDP_REDUCE_SUM,
                    &s->work[r][k]));
}

static void play_one_is_missing(scene *s) {
    play_all(s, 9, 0, 8);
    play_all(s, 2, 1, 8);
}

static void play_mismatch(scene *s) {
    play_all(s, 9, 0, 8);
    play_all(s, 3, 1, 8);
    T_EQ(CDP_OK, cdp_broadcast_async(s->g[3], s->x[3][1], 8, CDP_DTYPE_F32, 0, &s->work[3][1]));
}

static void play_chain(scene *s) {
    T_EQ(CDP_OK, cdp_recv_async(s->g[0], s->x[0][0], 8, CDP_DTYPE_F32, 1, 5, &s->work[0][0]));
    T_EQ(CDP_OK, cdp_recv_async(s->g[1], s->x[1][0], 8, CDP_DTYPE_F32, 3, 6, &s->work[1][0]));
    T_EQ(CDP_OK, cdp_recv_async(s->g[3], s->x[3][0], 8, CDP_DTYPE_F32, 2, 7, &s->work[3][0]));
}

static void play_circle(scene *s) {
    play_chain(s);
    T_EQ(CDP_OK, cdp_recv_async(s->g[2], s->x[2][0], 8, CDP_DTYPE_F32, 0, 8, &s->work[2][0]));
}

static void play_well(scene *s) {
    play_all(s, 9, 0, 8);
}

static bool says(const char *text, const char *words) {
    if (strstr(text, words)) return true;
    printf("  \"%s\" is missing in:\n%s", words, text);
    return false;
}

TEST(who_is_stuck_finds_the_cause) {
    T(says(played(play_one_is_missing, 0),
        "waits for nobody: it does something else than communicate, or has ended\n  cause: rank "
        "2\n"));
    T(says(played(play_one_is_missing, 1u << 2),
        "left no dump: it has crashed, is stopped, or was not asked\n  cause: rank 2\n"));
    T(says(played(play_mismatch, 0),
        "cause: ranks call different things: rank 0 calls allreduce #2 (8 x f32 sum, root 0), rank "
        "3 calls broadcast #2"));
    T(says(played(play_chain, 0),
        "rank 0 waits for rank 1, which waits for rank 3, which waits for rank 2, which waits for "
        "nobody"));
    T(says(played(play_circle, 0), "a circle"));
    T(says(played(play_well, 0), "nobody waits for anybody\n"));
}

TEST(who_is_stuck_refuses_what_is_no_dump) {
    static const char *const bad[] = {"", "{", "[]", "{\"cdp_dump\": 1, \"rank\": 0}",
        "{\"cdp_dump\": 1, \"rank\": 70000, \"groups\": []}",
        "{\"cdp_dump\": 1, \"rank\": 0, \"groups\": [{}]}", "{\"a\": \"",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["};
    char path[64], name[] = "who_is_stuck", *argv[] = {name, path};
    uint32_t i;
    snprintf(path, sizeof path, "/tmp/cdp_bad_%d", (int)getpid());
    for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        FILE *f = fopen(path, "w");
        if (f) {
            fputs(bad[i], f);
            fclose(f);
        }
        T_EQ(2, who_is_stuck_main(2, argv));
    }
    unlink(path);
}

/* ---- a trace of all ranks ---- */

typedef struct event {
    char name[48], cat[16];
    long long at, took, rank, track;
} event;

/* Reads a trace; *n: the number of events but names. */
static const event *events_of(const char *text, uint32_t *n) {
    static event all[512];
    json *v, *e;
    cursor = text;
    v = read_value(0);
    *n = 0;
    T(cursor && strspn(cursor, "\n ") == strlen(cursor) && looks_like_json(text));
    T(!strstr(text, ",]") && !strstr(text, "[,") && !strstr(text, "}{"));
    for (e = member(v, "traceEvents") ? member(v, "traceEvents")->first : NULL; e; e = e->next) {
        if (strcmp(text_of(e, "ph"), "X") != 0 || *n == 512) continue;
        snprintf(all[*n].name, sizeof all->name, "%s", text_of(e, "name"));
        snprintf(all[*n].cat, sizeof all->cat, "%s", text_of(e, "cat"));
        all[*n].at = number_of(e, "ts", -1);
        all[*n].took = number_of(e, "dur", -1);
        all[*n].rank = number_of(e, "pid", -1);
        all[(*n)++].track = number_of(e, "tid", -1);
    }
    json_free(v);
    return all;
}

/* Lets `shift` pass on the clock of a dump, as if it were that of another machine. */
static void change_clock(const char *path, long long shift) {
    char *text = read_all(path), *at = strstr(text, "\"clock_us\": ");
    FILE *f;
    if (!T(at != NULL)) return;
    f = fopen(path, "w");
    if (!f) abort();
    at += strlen("\"clock_us\": ");
    fprintf(f, "%.*s%lld%s", (int)(at - text), text, atoll(at) + shift, strchr(at, ','));
    fclose(f);
}

static void work_together(cdp_group *g, void *arg) {
    const uint32_t n = cdp_size(g), me = cdp_rank(g), times = 3;
    float x[100] = {0}, y[100];
    for (uint32_t k = 0; k < 2; ++k) {
        allreduce_some(g, (void *)(uintptr_t)&times);
        T_EQ(CDP_OK,
            cdp_sendrecv(g, x, 100, (me + 1) % n, y, 100, (me + n - 1) % n, CDP_DTYPE_F32, 7));
        T_EQ(CDP_OK, cdp_barrier(g));
    }
    (void)arg;
}

/* Of ranks whose clocks differ by `shift` from each one to the next: the events stand in the order
   of one clock, and no rank ends a collective before all have begun it. */
static void trace_with(long long shift) {
    const uint32_t n = 4;
    char paths[4][64], name[48], trace[] = "--trace";
    const event *e;
    uint32_t events, r, i, k, seen;
    world w;
    if (!world_open(&w, n, NULL, 0)) return;
    world_threads(&w, work_together, NULL);
    for (r = 0; r < n; ++r) {
        snprintf(paths[r], sizeof paths[r], "/tmp/cdp_trace_%d.%u.json", (int)getpid(), r);
        T_EQ(CDP_OK, cdp_group_dump(w.group[r], paths[r]));
        change_clock(paths[r], shift * r);
    }
    e = events_of(verdict(trace, paths, n), &events);
    T_EQ(n * (8 + 2 * 2), events); /* 8 collectives; 2 messages out, 2 in */
    for (i = 0; i < events; ++i)
        T(e[i].at >= (i ? e[i - 1].at : 0) && e[i].took >= 0 && e[i].rank >= 0 && e[i].rank < n);
    for (k = 1; k <= 8; ++k) {
        long long last_begin = -1, first_end = 1LL << 60;
        snprintf(name, sizeof name, "%s #%u", k % 4 ? "allreduce" : "barrier", k);
        for (i = seen = 0; i < events; ++i) {
            if (strcmp(e[i].name, name) != 0) continue;
            ++seen;
            T(strcmp(e[i].cat, "collective") == 0);
            if (e[i].at > last_begin) last_begin = e[i].at;
            if (e[i].at + e[i].took < first_end) first_end = e[i].at + e[i].took;
        }
        T_EQ(n, seen);
        T(first_end + 1000 >= last_begin); /* us; clocks are seconds apart before */
    }
    for (r = 0; r < n; ++r)
        unlink(paths[r]);
    world_close(&w);
}

TEST(a_trace_shows_all_ranks_on_one_clock) {
    trace_with(0);
    trace_with(5000000);   /* another machine started later */
    trace_with(-37000000); /* or earlier */
}

/* What has begun and not ended is there until the dump, and says so; what waits is not. */
TEST(a_trace_shows_what_has_not_ended) {
    const cdp_group_desc like = {.no_thread = true, .logger = {.level = CDP_LOG_SILENT}};
    char paths[2][64], trace[] = "--trace";
    static float x[2][8];
    cdp_work work[2];
    const event *e;
    const char *text;
    uint32_t events, i;
    world w;
    if (!world_open(&w, 2, &like, 0)) return;
    for (i = 0; i < 2; ++i)
        T_EQ(CDP_OK,
            cdp_allreduce_async(
                w.group[1], NULL, x[i], 8, CDP_DTYPE_F32, CDP_REDUCE_SUM, &work[i]));
    for (i = 0; i < 100; ++i)
        (void)cdp_poll(w.group[1], 0);
    test_sleep_ms(20);
    snprintf(paths[0], sizeof paths[0], "/tmp/cdp_trace_%d.1.json", (int)getpid());
    T_EQ(CDP_OK, cdp_group_dump(w.group[1], paths[0]));
    text = verdict(trace, paths, 1);
    T(says(text, "\"waits_for\": 0") && says(text, "\"name\": \"rank 1\"")
        && says(text, "\"name\": \"world\""));
    e = events_of(text, &events);
    T_EQ(1, events);
    T(strcmp(e[0].name, "allreduce #1 running") == 0 && e[0].took >= 20000);
    unlink(paths[0]);
    world_close(&w);
}

TEST(a_trace_of_a_group_that_did_nothing_is_empty) {
    char paths[1][64], trace[] = "--trace", name[] = "who_is_stuck", *argv[] = {name, trace};
    uint32_t events;
    world w;
    T_EQ(2, who_is_stuck_main(2, argv)); /* no files */
    if (!world_open(&w, 1, NULL, 0)) return;
    snprintf(paths[0], sizeof paths[0], "/tmp/cdp_trace_%d.json", (int)getpid());
    T_EQ(CDP_OK, cdp_group_dump(w.group[0], paths[0]));
    (void)events_of(verdict(trace, paths, 1), &events);
    T_EQ(0, events);
    unlink(paths[0]);
    world_close(&w);
}

/* ---- the caller's place ---- */

static void calls_differ(cdp_group *g, void *arg) {
    float x[4] = {0};
    cdp_work w = {NULL, 0};
    cdp_status st;
    char here[40];
    (void)arg;
    if (cdp_rank(g) == 0)
        st = CDP_AT(cdp_allreduce(g, NULL, x, 4, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    else
        st = CDP_AT(cdp_allreduce(g, NULL, x, 3, CDP_DTYPE_F32, CDP_REDUCE_SUM));
    T_EQ(CDP_ERR_MISMATCH, st);
    snprintf(here, sizeof here, " (called at test_recorder.c:%d)",
        __LINE__ - (cdp_rank(g) == 0 ? 5 : 3));
    T_TEXT(here, cdp_last_error()->text);
    T_TEXT("ranks call different things", cdp_last_error()->text);
    st = CDP_AT(CDP_AT(cdp_work_wait(w))); /* it is not said twice */
    T(st == CDP_OK || !strstr(strstr(cdp_last_error()->text, "called at") + 1, "called at"));
}

TEST(an_error_says_where_the_caller_is) {
    cdp_error *e = cdp__error_slot();
    run_ranks(2, NULL, 0, calls_differ, NULL);
    T_EQ(CDP_ERR_INVALID, CDP_AT(cdp_barrier(NULL)));
    T_TEXT("group is NULL (called at test_recorder.c:", cdp_last_error()->text);
    T_EQ(CDP_OK, CDP_AT(CDP_OK));
    (void)!cdp_barrier(NULL);
    T_EQ(CDP_ERR_INVALID, cdp_error_at("a/b\\c.c", 7, CDP_ERR_INVALID));
    T_TEXT("group is NULL (called at c.c:7)", e->text);
    (void)!cdp_barrier(NULL);
    T_EQ(CDP_ERR_IO, cdp_error_at("c.c", 7, CDP_ERR_IO)); /* another error than the last one */
    T_EQ(CDP_ERR_INVALID, cdp_error_at(NULL, 7, CDP_ERR_INVALID));
    T(!strstr(e->text, "called at"));
    memset(e->text, 'x', sizeof e->text - 3); /* no room: it is cut */
    e->text[sizeof e->text - 3] = 0;
    T_EQ(CDP_ERR_INVALID, cdp_error_at("c.c", 7, CDP_ERR_INVALID));
    T_EQ(sizeof e->text - 1, strlen(e->text));
}

/* ---- groups with settings of their own ---- */

static const cdp_choice own_choices[] = {{.kind = CDP_COLL_ALLREDUCE, .algorithm = "ring"}};

static void groups_of_their_own(cdp_group *g, void *arg) {
    const uint32_t ranks[] = {2, 0}, both[] = {0, 1};
    const cdp_group_desc own = {.timeout_ms = 43210,
        .choices = own_choices,
        .choice_count = 1,
        .records = 7,
        .max_pending = 3};
    const cdp_group_desc exact = {.reproducible = true};
    cdp_group *part = NULL, *child = NULL, *same = NULL;
    uint32_t listed[3] = {9, 9, 9}, twice = 2;
    char text[12000];
    cdp_record r[8];
    (void)arg;
    T(cdp_group_ranks(g, listed, 3) == 3 && listed[0] == 0 && listed[2] == 2);
    if (cdp_rank(g) == 1) return;
    T_EQ(CDP_OK, cdp_group_new_with(g, ranks, 2, &own, &part));
    T(cdp_group_ranks(part, listed, 1) == 2 && listed[0] == 2 && listed[1] == 1);
    T(cdp_group_ranks(part, NULL, 0) == 2 && cdp_group_ranks(NULL, listed, 3) == 0);
    T(cdp_group_desc_of(part)->timeout_ms == 43210 && cdp_group_desc_of(part)->records == 7
        && cdp_group_desc_of(part)->max_pending == 3
        && cdp_group_desc_of(part)->piece_bytes == cdp_group_desc_of(g)->piece_bytes);
    T(cdp_group_desc_of(g)->timeout_ms == 60000);
    T(cdp_describe(part, text, sizeof text) < sizeof text);
    T_TEXT("timeout_ms = 43210 ms (set)", text);
    T_TEXT("piece_bytes = 1048576 (default)", text);
    T_TEXT("  allreduce: ring (choices)\n", text);
    T_EQ(CDP_OK, cdp_group_new(part, both, 2, &child)); /* inherits, and outlives it */
    T_EQ(CDP_OK, cdp_group_new_with(part, both, 2, &exact, &same));
    allreduce_some(part, &twice);
    T_EQ(2, cdp_group_records(part, r, 8));
    T(strcmp(r[1].algorithm, "ring") == 0);
    cdp_group_destroy(part);
    allreduce_some(child, &twice);
    T_EQ(2, cdp_group_records(child, r, 8));
    T(strcmp(r[1].algorithm, "ring") == 0 && cdp_group_desc_of(child)->timeout_ms == 43210);
    cdp_group_destroy(child);
    T(cdp_group_desc_of(same)->reproducible && cdp_group_desc_of(same)->timeout_ms == 43210);
    T(cdp_describe(same, text, sizeof text) < sizeof text);
    T_TEXT("  allreduce: ring (choices) (not while reproducible)\n", text);
    allreduce_some(same, &twice);
    T_EQ(2, cdp_group_records(same, r, 8));
    T(strcmp(r[1].algorithm, "ring") != 0);
    cdp_group_destroy(same);
}

TEST(a_group_has_settings_of_its_own) {
    run_counted(3, groups_of_their_own, NULL);
}

TEST(settings_that_a_world_shares_are_refused) {
    const cdp_choice odd = {.kind = CDP_COLL_ALLREDUCE, .algorithm = "by post"};
    cdp_group *g = group_of_one(counted_os()), *part = g;
    static uint32_t level;
    const cdp_group_desc shared[] = {{.spin_us = 1}, {.no_thread = true}, {.world_size = 1},
        {.dump_path = "x"}, {.logger.level = CDP_LOG_INFO}, {.logger.lines_per_second = 1},
        {.logger.level_at = &level}};
    const cdp_group_desc wrong = {.choices = &odd, .choice_count = 1};
    const uint32_t own = 0;
    uint32_t i;
    for (i = 0; i < sizeof shared / sizeof *shared; ++i)
        REFUSED(CDP_ERR_INVALID, "cdp_group_new_with: own has a member that groups of one world",
            cdp_group_new_with(g, &own, 1, &shared[i], &part));
    REFUSED(CDP_ERR_INVALID, "cdp_group_new_with: choices[0]: there is no algorithm \"by post\"",
        cdp_group_new_with(g, &own, 1, &wrong, &part));
    T(part == NULL);
    REFUSED(CDP_ERR_INVALID, "cdp_group_new_with: count is 0",
        cdp_group_new_with(g, &own, 0, NULL, &part));
    T_EQ(CDP_OK, cdp_group_new_with(g, &own, 1, NULL, &part));
    cdp_group_destroy(part);
    cdp_group_destroy(g);
    T_EQ(0, counted.held);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"an_error_says_where_the_caller_is", an_error_says_where_the_caller_is, 20},
        {"a_group_has_settings_of_its_own", a_group_has_settings_of_its_own, 20},
        {"settings_that_a_world_shares_are_refused", settings_that_a_world_shares_are_refused, 20},
        {"records_are_the_last_operations", records_are_the_last_operations, 20},
        {"records_of_what_is_still_going_on", records_of_what_is_still_going_on, 20},
        {"records_of_wrong_arguments", records_of_wrong_arguments, 20},
        {"a_dump_tells_all", a_dump_tells_all, 20},
        {"a_failure_leaves_a_dump", a_failure_leaves_a_dump, 20},
        {"a_dump_on_a_full_disk_is_an_error", a_dump_on_a_full_disk_is_an_error, 20},
        {"a_dump_into_a_full_pipe_waits_for_its_reader",
            a_dump_into_a_full_pipe_waits_for_its_reader, 20},
        {"the_umask_decides_who_may_read_a_dump", the_umask_decides_who_may_read_a_dump, 10},
        {"an_os_without_files_writes_no_dumps", an_os_without_files_writes_no_dumps, 20},
        {"a_description_says_what_is_set", a_description_says_what_is_set, 20},
        {"choices_choose", choices_choose, 20},
        {"wrong_choices_are_refused", wrong_choices_are_refused, 20},
        {"different_choices_are_named", different_choices_are_named, 20},
        {"who_is_stuck_finds_the_cause", who_is_stuck_finds_the_cause, 20},
        {"who_is_stuck_refuses_what_is_no_dump", who_is_stuck_refuses_what_is_no_dump, 20},
        {"a_trace_shows_all_ranks_on_one_clock", a_trace_shows_all_ranks_on_one_clock, 60},
        {"a_trace_shows_what_has_not_ended", a_trace_shows_what_has_not_ended, 20},
        {"a_trace_of_a_group_that_did_nothing_is_empty",
            a_trace_of_a_group_that_did_nothing_is_empty, 20},
        {"reproducible_bits_depend_on_the_numbers_alone",
            reproducible_bits_depend_on_the_numbers_alone, 120},
        {"without_it_they_depend_on_the_sizes", without_it_they_depend_on_the_sizes, 20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/* The parts of cdp.h below the group: text, errors, bytes, frames, kernels, buckets, the loop,
   the operating system. */
#define CDP_MAX_POLL_STACK 4 /* the heap path of poll is to be reached */
#define CDP_IMPLEMENTATION
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

/* What the system says when the library sets flags of a descriptor: no, to one of its commands. */
static int refused_command = -1;

static int refusing_fcntl(int fd, int command, ...) {
    va_list ap;
    int value;
    if (command == refused_command) {
        errno = EPERM;
        return -1;
    }
    if (command == F_GETFL || command == F_GETFD) return fcntl(fd, command);
    va_start(ap, command);
    value = va_arg(ap, int);
    va_end(ap);
    return fcntl(fd, command, value);
}

#define fcntl refusing_fcntl
#define CDP__OWN_FCNTL /* this program compiles the implementation itself */
#include "cdp.h"
#undef fcntl
#include "test.h"

#include <math.h>
#include <pthread.h>

/* ---- text and errors ---- */

static const char *formatted(char *dst, uint64_t size, const char *f, ...) {
    cdp__text t = cdp__text_of(dst, size);
    va_list ap;
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
    return dst;
}

TEST(formatter_equals_printf) {
    static const int64_t values[] = {
        0, 1, -1, 9, 10, 255, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    char ours[200], theirs[200];
    for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
        const long long v = values[i];
        cdp__format(ours, sizeof ours, "%d %u %x|%ld %lu|%lld %llu %llx|%zu|%s|%c|100%%", (int)v,
            (unsigned)v, (unsigned)v, (long)v, (unsigned long)v, v, (unsigned long long)v,
            (unsigned long long)v, (size_t)v, "text", 'c');
        snprintf(theirs, sizeof theirs, "%d %u %x|%ld %lu|%lld %llu %llx|%zu|%s|%c|100%%", (int)v,
            (unsigned)v, (unsigned)v, (long)v, (unsigned long)v, v, (unsigned long long)v,
            (unsigned long long)v, (size_t)v, "text", 'c');
        T(strcmp(ours, theirs) == 0);
    }
}

TEST(formatter_cuts_and_survives) {
    char small[8];
    memset(small, 'x', sizeof small);
    cdp__format(small, sizeof small, "%s", "much longer than that");
    T(strcmp(small, "much lo") == 0);
    cdp__format(small, 1, "%d", 12345);
    T(small[0] == 0);
    small[0] = 'k';
    cdp__format(small, 0, "%d", 12345); /* no room at all: nothing is written */
    T(small[0] == 'k');
    cdp__format(small, 2, "%d", -7);
    T(strcmp(small, "-") == 0);
    /* a directive cut by the end of the format */
    T(strcmp(formatted(small, sizeof small, "a%"), "a%") == 0);
    T(strcmp(formatted(small, sizeof small, "%s", (const char *)NULL), "(null)") == 0);
}

/* How many arguments an unknown directive would take is unknown, too. */
TEST(formatter_shows_what_it_does_not_know) {
    char out[40];
    T(!strcmp(formatted(out, sizeof out, "%d of %5u bytes, %s", 7, 8u, "x"), "7 of %5u bytes, %s"));
    T(!strcmp(formatted(out, sizeof out, "%.1f ms", 1.5), "%.1f ms"));
    T(!strcmp(formatted(out, sizeof out, "%s: %lq!", "x", 1L), "x: %lq!"));
    T(!strcmp(formatted(out, sizeof out, "%d%z", 100), "100%z"));
}

/* NULL means stderr. */
static void print_error_to_nowhere(void) {
    char text[64] = "";
    FILE *f = tmpfile();
    const int kept = dup(2);
    if (!T(f && kept >= 0)) return;
    fflush(stderr);
    T(dup2(fileno(f), 2) == 2);
    T_EQ(1, cdp_print_error(NULL));
    T(dup2(kept, 2) == 2);
    close(kept);
    rewind(f);
    T(fgets(text, sizeof text, f) != NULL);
    T_TEXT("cdp: INVALID: x", text);
    fclose(f);
}

TEST(errors_are_complete_sentences) {
    const cdp_error *e = cdp_last_error();
    char text[64];
    FILE *f = tmpfile();
    T_EQ(CDP_ERR_IO, cdp_error_set(CDP_ERR_IO, 3, ECONNRESET, "peer %d left", 3));
    T(e == cdp_last_error());
    T_EQ(CDP_ERR_IO, e->status);
    T_EQ(3, e->peer);
    T_EQ(-1, e->rank);
    T_EQ(ECONNRESET, e->sys_errno);
    T_TEXT("peer 3 left: ", e->text);
    T_TEXT("(errno 104)", e->text);
    /* an argument that is the error being replaced */
    cdp_error_set(CDP_ERR_STATE, -1, 0, "again: %s", e->text);
    T_TEXT("again: peer 3 left", e->text);
    cdp__fail(CDP_ERR_INVALID, "x");
    T_EQ(__LINE__ - 1, e->line); /* the place of the call */
    T_EQ(0, e->sys_errno);
    if (T(f != NULL)) {
        T_EQ(1, cdp_print_error(f));
        rewind(f);
        T(fgets(text, sizeof text, f) != NULL);
        T(strcmp(text, "cdp: INVALID: x\n") == 0);
        fclose(f);
    }
    print_error_to_nowhere();
}

/* An error names the file of the library that found it, by its own name. */
TEST(errors_name_their_file) {
    T_EQ(CDP_ERR_INVALID, cdp__fail(CDP_ERR_INVALID, "x"));
    T(strcmp("cdp.h", cdp_last_error()->file) == 0);
    static const char *const names[] = {"", "cdp.h", "cdp_store.h", "cdp_tcp.h", "cdp_nccl.h",
        "cdp_dtensor.h", "cdp_rpc.h", "cdp_mem.h"};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; ++i)
        T(strcmp(names[i], cdp__file_name(0xfffff00fu | i << 8)) == 0);
    /* the highest line and the lowest status that fit */
    T_EQ(CDP_ERR_BUSY, cdp__error_of(0xfffff100u | (uint8_t)CDP_ERR_BUSY, 7, ENOENT, "y"));
    T_EQ(0xfffff, cdp_last_error()->line);
    T(strcmp("cdp.h", cdp_last_error()->file) == 0);
    T_EQ(CDP_ERR_BUSY, cdp_last_error()->status);
    T_EQ(7, cdp_last_error()->peer);
    T_EQ(ENOENT, cdp_last_error()->sys_errno);
}

static void *other_thread_error(void *arg) {
    *(bool *)arg = cdp_last_error()->status == CDP_OK;
    cdp__fail(CDP_ERR_NOMEM, "elsewhere");
    return NULL;
}

TEST(errors_belong_to_threads) {
    pthread_t t;
    bool clean = false;
    cdp__fail(CDP_ERR_STATE, "here");
    pthread_create(&t, NULL, other_thread_error, &clean);
    pthread_join(t, NULL);
    T(clean);
    T_EQ(CDP_ERR_STATE, cdp_last_error()->status);
}

static const char *recorded(const char *path) {
    static char text[4096];
    FILE *f = fopen(path, "r");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return text;
}

/* The seconds are the only thing that is not known before. */
static void record_and_compare(
    const char *path, const char *message, const char *want_message, const char *want_stack) {
    char want[4096];
    const long long before = (long long)time(NULL);
    T_EQ(CDP_OK, cdp_error_record(path, message));
    const char *got = recorded(path), *stamp = strstr(got, "\"timestamp\": \"");
    T(stamp != NULL);
    const long long at = stamp ? atoll(stamp + 14) : 0;
    T(at >= before && at <= (long long)time(NULL) + 1); /* time() may be a tick behind */
    stamp = strstr(got, "\"timestamp_us\": \"");
    T(stamp != NULL);
    const long long us = stamp ? atoll(stamp + 17) : 0;
    T_EQ(at, us / 1000000);
    snprintf(want, sizeof want,
        "{\"message\": {\"message\": \"%s\", \"extraInfo\": {\"py_callstack\": \"%s\", "
        "\"timestamp\": \"%lld\", \"timestamp_us\": \"%lld\"}}}\n",
        want_message, want_stack, at, us);
    if (!T(strcmp(got, want) == 0)) printf("got  %swant %s", got, want);
}

TEST(errors_are_recorded_for_launchers) {
    char path[64], stack[256];
    snprintf(path, sizeof path, "/tmp/cdp_test_core.%d.json", (int)getpid());
    record_and_compare(path, "plain", "plain", "plain");
    record_and_compare(
        path, "a\"b\\c\nd\x7f", "a\\\"b\\\\c\\u000ad\\u007f", "a\\\"b\\\\c\\u000ad\\u007f");
    record_and_compare(path, "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80",
        "\\u00e4 \\u20ac \\ud83d\\ude00", "\\u00e4 \\u20ac \\ud83d\\ude00");
    /* no UTF-8 */
    record_and_compare(path, "\xff \xc0\x80 \xed\xa0\x80 \xf5\x80\x80\x80 \xe2\x82",
        "? ?? ??? ???? ??", "? ?? ??? ???? ??");
    cdp__fail(CDP_ERR_TIMEOUT, "rank 1/2: late");
    snprintf(stack, sizeof stack, "TIMEOUT: rank 1/2: late\\n  at %s:%u", cdp_last_error()->file,
        cdp_last_error()->line);
    record_and_compare(path, NULL, "TIMEOUT: rank 1/2: late", stack);
    T_EQ(CDP_ERR_INVALID, cdp_error_record(NULL, "x"));
    T_EQ(CDP_ERR_IO, cdp_error_record("/no/such/directory/x", "x"));
    T_EQ(CDP_ERR_IO, cdp_error_record("/dev/full", "x"));
    T_EQ(CDP_ERR_TIMEOUT, cdp_last_error()->status); /* still the failure itself */
    unlink(path);
    unsetenv("TORCHELASTIC_ERROR_FILE");
    T_EQ(CDP_OK, cdp_error_record_from_env("nowhere"));
    setenv("TORCHELASTIC_ERROR_FILE", path, 1);
    T_EQ(CDP_OK, cdp_error_record_from_env("where the variable says"));
    T_TEXT("where the variable says", recorded(path));
    unsetenv("TORCHELASTIC_ERROR_FILE");
    unlink(path);
}

TEST(names_exist_for_everything) {
    for (int i = 1; i >= CDP_ERR_BUSY; --i) {
        T(strcmp(cdp_status_name((cdp_status)i), "?") != 0);
        T(strcmp(cdp_status_text((cdp_status)i), "an unknown status") != 0);
        T(cdp__status_is_error(i) == (i < 0));
        T(cdp__status_row_of(i)->group == (i < 0 && i >= CDP_ERR_INTERNAL));
    }
    for (int i = 0; i < CDP_DTYPE_COUNT; ++i)
        T(strcmp(cdp_dtype_name((cdp_dtype)i), "?") != 0 && cdp_dtype_size((cdp_dtype)i) > 0);
    for (int i = 0; i < CDP_REDUCE_COUNT; ++i)
        T(strcmp(cdp_reduce_name((cdp_reduce_op)i), "?") != 0);
    for (int i = 0; i < CDP_COLL_COUNT; ++i)
        T(strcmp(cdp_coll_name((cdp_coll_kind)i), "?") != 0);
    static const int bad[] = {-1, 1000, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i) {
        T(!cdp__status_is_error(bad[i] == -1 ? CDP_ERR_BUSY - 1 : bad[i]));
        T(strcmp(cdp_status_name((cdp_status)(bad[i] == -1 ? CDP_ERR_BUSY - 1 : bad[i])), "?")
            == 0);
        T(strcmp(cdp_dtype_name((cdp_dtype)bad[i]), "?") == 0);
        T_EQ(0, cdp_dtype_size((cdp_dtype)bad[i]));
        T(strcmp(cdp_reduce_name((cdp_reduce_op)bad[i]), "?") == 0);
        T(strcmp(cdp_coll_name((cdp_coll_kind)bad[i]), "?") == 0);
    }
}

static char logged[700];
static int log_count;
static void log_sink(cdp_log_level level, const char *text, int32_t rank, void *user) {
    (void)level;
    (void)rank;
    T(user == &log_count);
    ++log_count;
    snprintf(logged, sizeof logged, "%s", text);
}

TEST(log_levels) {
    cdp_logger l = {.func = log_sink, .user = &log_count};
    log_count = 0;
    cdp__log(&l, CDP_LOG_INFO, 1, "not wanted");
    T_EQ(0, log_count);
    cdp__log(&l, CDP_LOG_WARN, 1, "value %d", 7);
    T_EQ(1, log_count);
    T(strcmp(logged, "value 7") == 0);
    l.level = CDP_LOG_SILENT;
    cdp__log(&l, CDP_LOG_ERROR, 1, "never");
    T_EQ(1, log_count);
    l.level = CDP_LOG_DEBUG;
    cdp__log(&l, CDP_LOG_DEBUG, 1, "wanted");
    T_EQ(2, log_count);
}

/* ---- bytes, hash, frames ---- */

TEST(bytes_are_little_endian) {
    static const uint8_t want[8] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    uint8_t got[9];
    uint64_t state = 1, product;
    cdp__put_u64(got + 1, 0x1122334455667788u);
    T(memcmp(got + 1, want, 8) == 0);
    cdp__put_u32(got, 0x55667788u);
    T(memcmp(got, want, 4) == 0);
    for (int i = 0; i < 1000; ++i) {
        const uint64_t v = test_random(&state);
        cdp__put_u64(got, v);
        T(cdp__get_u64(got) == v);
        cdp__put_u32(got, (uint32_t)v);
        T(cdp__get_u32(got) == (uint32_t)v);
    }
    T(cdp__mul_fits(UINT64_MAX / 2, 1, &product) && product == UINT64_MAX / 2);
    T(!cdp__mul_fits(UINT64_MAX / 2 + 1, 1, &product));
    T(cdp__mul_fits(1ull << 32, (1ull << 31) - 1, &product) && product == ((1ull << 31) - 1) << 32);
    T(!cdp__mul_fits(1ull << 32, 1ull << 31, &product));
    T(!cdp__mul_fits(UINT64_MAX, 2, &product));
    T(cdp__mul_fits(UINT64_MAX, 0, &product) && product == 0);
}

TEST(hash_is_fnv_1a) {
    T(cdp__hash(CDP__HASH_START, "", 0) == 0xcbf29ce484222325ull);
    T(cdp__hash(CDP__HASH_START, "a", 1) == 0xaf63dc4c8601ec8cull); /* published test vectors */
    T(cdp__hash(CDP__HASH_START, "foobar", 6) == 0x85944171f73967e8ull);
    T(cdp__hash(cdp__hash(CDP__HASH_START, "foo", 3), "bar", 3) == 0x85944171f73967e8ull);
}

static cdp__head random_head(uint64_t *state) {
    cdp__head f;
    memset(&f, 0, sizeof f);
    f.type = CDP__MESSAGE_DATA;
    f.kind = (uint8_t)test_random(state);
    f.dtype = (uint8_t)test_random(state);
    f.op = (uint8_t)test_random(state);
    f.algo = (uint8_t)test_random(state);
    f.bytes = (uint32_t)(test_random(state) >> 35);
    f.ack = (uint32_t)test_random(state);
    f.channel = test_random(state);
    f.parts = test_random(state);
    f.round = (uint32_t)test_random(state);
    f.root = (uint32_t)test_random(state);
    f.seq = test_random(state);
    f.count = test_random(state);
    return f;
}

TEST(headers_survive_the_wire) {
    uint64_t state = 2;
    for (int i = 0; i < 1000; ++i) {
        uint8_t wire[CDP__HEAD_BYTES];
        const cdp__head a = random_head(&state);
        cdp__head b;
        memset(&b, 0, sizeof b);
        cdp__head_encode(&a, wire);
        T(cdp__head_decode(wire, &b));
        T(cdp__same_call(&a, &b));
        T(a.type == b.type && a.bytes == b.bytes && a.round == b.round);
        T(a.ack == b.ack && a.channel == b.channel);
        b.round ^= 1;
        b.bytes ^= 1;
        T(cdp__same_call(&a, &b)); /* another place in the same call */
        wire[i % 8] ^= (uint8_t)(1 << i / 8 % 8);
        if (i % 8 == 5) wire[5] = 99;
        T(!cdp__head_decode(wire, &b));
    }
}

TEST(headers_notice_every_difference) {
    uint64_t state = 3;
    const cdp__head a = random_head(&state);
    cdp__head b[8];
    for (int i = 0; i < 8; ++i)
        b[i] = a;
    ++b[0].kind;
    ++b[1].dtype;
    ++b[2].op;
    ++b[3].algo;
    ++b[4].root;
    ++b[5].seq;
    ++b[6].count;
    ++b[7].parts;
    for (int i = 0; i < 8; ++i)
        T(!cdp__same_call(&a, &b[i]));
}

TEST(headers_of_random_bytes) {
    uint64_t state = 4;
    uint32_t accepted = 0;
    for (int i = 0; i < 200000; ++i) {
        uint8_t wire[CDP__HEAD_BYTES];
        char text[128];
        cdp__head f;
        for (uint32_t k = 0; k < CDP__HEAD_BYTES; ++k)
            wire[k] = (uint8_t)test_random(&state);
        if (i % 2) cdp__put_u32(wire, CDP__HEAD_MAGIC);
        if (i % 2) wire[4] = CDP_WIRE_VERSION;
        if (i % 2) wire[6] = CDP__HEAD_LITTLE_ENDIAN;
        if (i % 2) wire[7] = 0;
        if (i % 4 == 1) wire[5] = (uint8_t)(i / 4 % 12);
        if (i % 8 == 5) cdp__put_u32(wire + 40, (uint32_t)test_random(&state) % 1000);
        if (!cdp__head_decode(wire, &f)) continue;
        ++accepted;
        T(f.type >= CDP__MESSAGE_DATA && f.type <= CDP__MESSAGE_ENDPOINT);
        T(f.bytes <= cdp__body_max(f.type));
        cdp__call_text(&f, text, sizeof text); /* whatever it says, it can be printed */
        T(strlen(text) < sizeof text);
    }
    T(accepted > 1000);
}

TEST(header_texts) {
    cdp__head f;
    char text[128];
    memset(&f, 0, sizeof f);
    f.kind = CDP_COLL_ALLREDUCE;
    f.seq = 17;
    f.count = 12;
    f.dtype = CDP_DTYPE_I64;
    f.op = CDP_REDUCE_MAX;
    f.algo = CDP__DOUBLING;
    cdp__call_text(&f, text, sizeof text);
    T(strcmp(text, "allreduce #17 of 12 x i64 max, recursive doubling") == 0);
    f.root = CDP__TAG_BUCKET | 2u << 16 | 5;
    cdp__call_text(&f, text, sizeof text);
    T(strstr(text, " for bucket 5 of ddp 2") != NULL);
    f.root |= 0xffff; /* what join and hooks send for no bucket */
    cdp__call_text(&f, text, sizeof text);
    T(strstr(text, " beside the buckets of ddp 2") && !strstr(text, "65535"));
    f.kind = CDP_COLL_BROADCAST;
    f.root = 3;
    cdp__call_text(&f, text, sizeof text);
    T(strcmp(text, "broadcast #17 of 12 x i64 from rank 3") == 0);
    f.kind = CDP_COLL_BARRIER;
    cdp__call_text(&f, text, sizeof text);
    T(strcmp(text, "barrier #17") == 0);
}

static void record_fill(cdp__failure_record *r) {
    memset(r, 0, sizeof *r);
    r->status = CDP_ERR_TIMEOUT;
    r->observer = 5;
    r->peer = 2;
    r->end.named = 7;
    r->end.why = CDP__WHY_SILENT;
    r->end.hops = 3;
    r->end.last.waiter = 2;
    r->end.last.target = 7;
    r->end.last.at.channel = 77;
    r->end.last.at.seq = 1ull << 41;
    r->end.last.at.round = 6;
    r->domain = 1ull << 50;
    r->at.channel = 1ull << 50;
    r->at.seq = 1ull << 40;
    r->at.round = 9;
    r->call.kind = CDP_COLL_BROADCAST;
    r->call.dtype = CDP_DTYPE_I64;
    r->call.seq = 1ull << 40;
    r->call.root = 3;
    r->other.kind = CDP_COLL_REDUCE;
    r->rounds = 12;
    r->group_size = 4;
    r->timeout_ms = 2000;
    r->sys_errno = 104;
    r->moved = 8;
    r->expected = 1ull << 33;
    r->hops = 1;
    r->corrections = 2;
    r->sending = true;
}

/* Texts that other processes have written reach terminals and logs. */
TEST(foreign_texts_are_printable) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain ~", "plain ~"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\x1b[2J\r\n\t\x7f", "?[2J????"}, /* control characters */
        {"\xc2\x9b"
         "2J",
            "?2J"},                   /* those that a terminal takes for an escape */
        {"\xff\xfe\x80", "???"},      /* never the first byte of a character */
        {"\xc0\xaf", "??"},           /* too long for what it says */
        {"\xed\xa0\x80", "???"},      /* half of a pair */
        {"\xf4\x90\x80\x80", "????"}, /* beyond the last character */
        {"a\xe2\x82", "a??"},         /* cut */
    };
    cdp__failure_record a, b;
    uint8_t wire[CDP__FAILURE_MAX];
    char out[40];
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        cdp__text_foreign(out, sizeof out, cases[i].in, strlen(cases[i].in));
        T(strcmp(cases[i].out, out) == 0);
        record_fill(&a);
        cdp__format(a.text, sizeof a.text, "%s", cases[i].in);
        T(cdp__failure_decode(wire, cdp__failure_encode(&a, wire), 8, &b));
        T(strcmp(cases[i].out, b.text) == 0);
    }
    cdp__text_foreign(out, 5, "abc\xc3\xa9", 5); /* whole characters alone */
    T_TEXT("abc", out);
    T_EQ(3, strlen(out));
    cdp__text_foreign(out, sizeof out, "a\0b", 3);
    T_TEXT("a?b", out);
    cdp__text_foreign(out, sizeof out, NULL, 0);
    T_EQ(0, strlen(out));
    cdp__text_foreign_in(out, sizeof out, "a\0b", 3);
    T_EQ(1, strlen(out));
}

/* Each cause behind each text: whole sentences, which name the rank that they are about. */
TEST(causes_of_failures_are_sentences) {
    static const struct {
        cdp__why why;
        const char *text;
    } rows[] = {{CDP__WHY_TEXT, ""},
        {CDP__WHY_SILENT, "; rank 7 does not answer: look at what its process is doing"},
        {CDP__WHY_BUSY, "; rank 7 waits for nobody: it computes, or calls something else"},
        {CDP__WHY_SENT, "; rank 7 has done its part: the link to it is cut"},
        {CDP__WHY_CIRCLE, "; these ranks wait for each other; compare the order of their calls"},
        {CDP__WHY_EARLIER, "; rank 7 failed, and others have left because of that"},
        {CDP__WHY_TURN, ""},
        {CDP__WHY_AWAITED,
            "; rank 3 had not finished starting, and waited for rank 7; rank 7 does "
            "not answer: look at what its process is doing"},
        {CDP__WHY_FIRST, "; rank 0 is gone, too, and its store with it"},
        {CDP__WHY_LEFT, "; rank 7 has left"},
        {CDP__WHY_CUT,
            "; the host of rank 7 acknowledges nothing that rank 0 sends: it is down, or the "
            "network drops all or large packets"}};
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        for (uint32_t said = 0; said < 2; ++said) {
            cdp__failure_record r;
            char want[400];
            cdp_error e;
            memset(&r, 0, sizeof r);
            r.status = CDP_ERR_TIMEOUT;
            r.call.kind = CDP_COLL_NONE;
            r.peer = r.end.last.target = 3;
            r.end.named = 7;
            r.end.why = rows[i].why;
            const char *then =
                "; that rank is waiting too, and in the end everybody waits for rank 7";
            r.timeout_ms = 50;
            if (said) strcpy(r.text, "somebody said so");
            cdp__failure_text(&r, 0, 8, &e);
            if (said && rows[i].why != CDP__WHY_TEXT)
                then = "; in the end everybody waits for rank 7";
            if (rows[i].why == CDP__WHY_AWAITED) then = "";
            snprintf(want, sizeof want, "rank 0/8: %s%s%s",
                said ? "somebody said so" : "the deadline of 50 ms passed while waiting for rank 3",
                then, rows[i].text);
            T_EQ(0, strcmp(want, e.text));
            if (strcmp(want, e.text) != 0) printf("%s\n%s\n", want, e.text);
        }
}

TEST(failure_records) {
    cdp__failure_record a, b;
    cdp_error e;
    uint8_t wire[CDP__FAILURE_MAX];
    uint64_t state = 5;
    uint32_t n;
    record_fill(&a);
    n = cdp__failure_encode(&a, wire);
    T_EQ(CDP__FAILURE_HEAD, n);
    T(cdp__failure_decode(wire, n, 8, &b));
    T(memcmp(&a, &b, sizeof a) == 0);
    T(!cdp__failure_decode(wire, n, 7, &b)); /* a rank that is not of this world */
    cdp__failure_text(&a, 0, 8, &e);
    T(e.status == CDP_ERR_TIMEOUT && e.peer == 7 && e.origin == 5 && e.rank == 0 && e.round == 9
        && e.kind == CDP_COLL_BROADCAST && e.op_seq == 1ull << 40 && e.sys_errno == 104);
    T(strstr(e.text, "told by rank 5/8") && strstr(e.text, "deadline of 2000 ms")
        && strstr(e.text, "everybody waits for rank 7; rank 7 does not answer: look at")
        && strstr(e.text, "(it took 8 of 8589934592 bytes)"));
    a.expected = a.moved = 0; /* a barrier */
    cdp__failure_text(&a, 0, 8, &e);
    T(strstr(e.text, "waiting for rank") && !strstr(e.text, "bytes"));
    a.end.why = CDP__WHY_SILENT;
    memset(a.text, 'y', sizeof a.text - 1); /* the longest text */
    n = cdp__failure_encode(&a, wire);
    T(n <= CDP__FAILURE_MAX);
    T(cdp__failure_decode(wire, n, 8, &b));
    T_EQ(sizeof a.text - 1, strlen(b.text));
    for (uint32_t k = 0; k < n; ++k)
        T(!cdp__failure_decode(wire, k, 8, &b));
    T(!cdp__failure_decode(wire, n + 1, 8, &b));
    memset(a.text, 0, sizeof a.text);
    memcpy(a.text, "a\x1b[2J\n\x7f\tz", 9);
    n = cdp__failure_encode(&a, wire);
    T(cdp__failure_decode(wire, n, 8, &b));
    T(strcmp(b.text, "a?[2J???z") == 0); /* nothing that moves a terminal's cursor */
    for (int i = 0; i < 200000; ++i) {
        const uint64_t bytes = n - test_random(&state) % 3;
        record_fill(&a);
        cdp__failure_encode(&a, wire);
        for (uint32_t k = 0; k < 1 + (uint32_t)i % 4; ++k)
            wire[test_random(&state) % n] = (uint8_t)test_random(&state);
        if (!cdp__failure_decode(wire, bytes, 8, &b)) continue;
        T(b.status < CDP_OK && b.status >= CDP_ERR_INTERNAL && b.call.kind < CDP_COLL_COUNT
            && b.end.why < CDP__WHY_COUNT && b.observer >= 0 && b.observer < 8 && b.peer < 8
            && b.end.named >= -1 && b.end.named < 8 && strlen(b.text) < sizeof b.text);
        cdp__failure_text(&b, 0, 8, &e);
    }
}

TEST(wait_messages) {
    cdp__wait_message a, b;
    cdp__answer_message c, d;
    uint8_t wire[CDP__WAIT_BYTES];
    uint32_t n;
    memset(&a, 0, sizeof a);
    a.at.channel = 1ull << 60;
    a.at.seq = 9;
    a.serial = 12;
    a.probe = 300;
    a.call_count = CDP__WAIT_CALLS;
    for (uint32_t i = 0; i < CDP__WAIT_CALLS; ++i) {
        a.calls[i].kind = CDP_COLL_ALLREDUCE;
        a.calls[i].seq = 9 - i;
    }
    n = cdp__wait_encode(&a, wire);
    T(n == sizeof wire && n <= CDP__FAILURE_MAX && cdp__wait_decode(wire, n, &b));
    T(memcmp(&a, &b, sizeof a) == 0);
    for (uint32_t k = 0; k < n; ++k)
        T(!cdp__wait_decode(wire, k, &b));
    wire[24] = CDP__WAIT_CALLS + 1;
    T(!cdp__wait_decode(wire, n, &b));
    memset(&c, 0, sizeof c);
    c.at = a.at;
    c.serial = 12;
    c.end.named = 3;
    c.end.why = CDP__WHY_SENT;
    c.end.picks = 2;
    c.end.last.target = 3;
    n = cdp__answer_encode(&c, wire);
    T(cdp__answer_decode(wire, n, 4, &d) && memcmp(&c, &d, sizeof c) == 0);
    T(!cdp__answer_decode(wire, n - 1, 4, &d) && !cdp__answer_decode(wire, n, 3, &d));
    wire[CDP__WAIT_AT_BYTES + 4] = CDP__WHY_COUNT;
    T(!cdp__answer_decode(wire, n, 4, &d));
}

/* ---- reductions ---- */

/* One element by the definition in the header; written apart from the kernels. */
#define REFERENCE(suffix, T_, SUM)                                                                 \
    static T_ reference_##suffix(T_ acc, T_ x, cdp_reduce_op op, bool swap) {                      \
        const T_ l = swap ? x : acc, r = swap ? acc : x;                                           \
        if (op == CDP_REDUCE_MIN) return r < l ? r : l;                                            \
        if (op == CDP_REDUCE_MAX) return r > l ? r : l;                                            \
        return SUM;                                                                                \
    }                                                                                              \
    static void check_##suffix(                                                                    \
        cdp_dtype dtype, cdp_reduce_op op, bool swap, uint64_t n, uint64_t *state) {               \
        T_ *acc = (T_ *)calloc(n + 2, sizeof *acc), *x = (T_ *)calloc(n + 2, sizeof *x),           \
           *want = (T_ *)calloc(n + 2, sizeof *x);                                                 \
        for (uint64_t i = 0; i < n + 2; ++i) {                                                     \
            acc[i] = value_##suffix(test_random(state));                                           \
            x[i] = value_##suffix(test_random(state));                                             \
            want[i] = i && i <= n ? reference_##suffix(acc[i], x[i], op, swap) : acc[i];           \
        }                                                                                          \
        cdp__reduce(dtype, op, swap, acc + 1, x + 1, n);                                           \
        test_check(memcmp(acc, want, (n + 2) * sizeof *acc) == 0, __FILE__, __LINE__,              \
            "%s %s swap %d n %llu", cdp_dtype_name(dtype), cdp_reduce_name(op), swap,              \
            (unsigned long long)n);                                                                \
        free(acc), free(x), free(want);                                                            \
    }                                                                                              \
    static void check_divide_##suffix(cdp_dtype dtype, uint32_t by, uint64_t n, uint64_t *state) { \
        T_ *a = (T_ *)calloc(n + 2, sizeof *a), *want = (T_ *)calloc(n + 2, sizeof *a);            \
        for (uint64_t i = 0; i < n + 2; ++i) {                                                     \
            a[i] = value_##suffix(test_random(state));                                             \
            want[i] = i && i <= n ? (T_)nearest_##suffix(a[i], by) : a[i];                         \
        }                                                                                          \
        cdp__divide(dtype, a + 1, n, by);                                                          \
        test_check(memcmp(a, want, (n + 2) * sizeof *a) == 0, __FILE__, __LINE__,                  \
            "%s / %u n %llu", cdp_dtype_name(dtype), by, (unsigned long long)n);                   \
        free(a), free(want);                                                                       \
    }

static float nearest_f32(float a, uint32_t by) {
    return a / (float)by;
}
static double nearest_f64(double a, uint32_t by) {
    return a / (double)by;
}
/* Of numbers of at most 32 bits, and exactly of others. */
static int64_t nearest_i64(int64_t a, uint32_t by) {
    const int64_t down = a / (int64_t)by, left = a % (int64_t)by;
    if (2 * (left < 0 ? -left : left) < (int64_t)by) return down;
    return left < 0 ? down - 1 : down + 1;
}
#define nearest_i32 nearest_i64
#define nearest_u8 nearest_i64

/* All sorts of floats: ordinary, huge, tiny, signed zeros, infinities, NaN. */
static float value_f32(uint64_t r) {
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1e38f, -1e38f, 1e-44f, 1.0f};
    return r % 8 ? (float)((double)(int64_t)r / 1e15) : odd[r / 8 % 8];
}
static double value_f64(uint64_t r) {
    static const double odd[] = {0.0, -0.0, INFINITY, -INFINITY, 1e308, -1e308, 5e-324, 1.0};
    return r % 8 ? (double)(int64_t)r / 1e15 : odd[r / 8 % 8];
}
static int32_t value_i32(uint64_t r) {
    if (r % 16) return (int32_t)(uint32_t)(r >> 20);
    return r & 16 ? INT32_MIN : INT32_MAX;
}
static int64_t value_i64(uint64_t r) {
    if (r % 16) return (int64_t)r;
    return r & 16 ? INT64_MIN : INT64_MAX;
}
static uint8_t value_u8(uint64_t r) {
    return (uint8_t)(r >> 30);
}

static const uint64_t kernel_sizes[] = {
    0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 4097};

REFERENCE(f32, float, isnan(l + r) ? NAN : l + r) /* one NaN for all, whatever went in */
REFERENCE(f64, double, isnan(l + r) ? (double)NAN : l + r)
REFERENCE(i32, int32_t, (int32_t)((uint32_t)l + (uint32_t)r))
REFERENCE(i64, int64_t, (int64_t)((uint64_t)l + (uint64_t)r))
REFERENCE(u8, uint8_t, (uint8_t)(l + r))

TEST(kernels_against_a_plain_loop) {
    uint64_t state = 6;
    for (int op = CDP_REDUCE_SUM; op <= CDP_REDUCE_MAX; ++op)
        for (int swap = 0; swap < 2; ++swap)
            for (size_t s = 0; s < sizeof kernel_sizes / sizeof *kernel_sizes; ++s) {
                const uint64_t n = kernel_sizes[s];
                check_f32(CDP_DTYPE_F32, (cdp_reduce_op)op, swap, n, &state);
                check_f64(CDP_DTYPE_F64, (cdp_reduce_op)op, swap, n, &state);
                check_i32(CDP_DTYPE_I32, (cdp_reduce_op)op, swap, n, &state);
                check_i64(CDP_DTYPE_I64, (cdp_reduce_op)op, swap, n, &state);
                check_u8(CDP_DTYPE_U8, (cdp_reduce_op)op, swap, n, &state);
            }
}

TEST(kernels_with_nan) {
    static const cdp_reduce_op ops[] = {
        CDP_REDUCE_SUM, CDP_REDUCE_PRODUCT, CDP_REDUCE_MIN, CDP_REDUCE_MAX};
    /* a NaN with a sign and a payload; the only one that comes out */
    const uint32_t odd = 0xffc12345u, one = 0x7fc00000u;
    for (int swap = 0; swap < 2; ++swap)
        for (int op = 0; op < 4; ++op) {
            float acc[3] = {0, 1.0f, 0}, x[3] = {1.0f, 0, 0};
            memcpy(&acc[0], &odd, 4);
            memcpy(&x[1], &odd, 4);
            memcpy(&acc[2], &odd, 4);
            memcpy(&x[2], &odd, 4);
            /* on either side, or on both, it makes the result NaN */
            cdp__reduce(CDP_DTYPE_F32, ops[op], swap, acc, x, 3);
            for (int i = 0; i < 3; ++i)
                T(memcmp(&acc[i], &one, 4) == 0);
        }
    for (int swap = 0; swap < 2; ++swap) { /* of equal operands the left one stays */
        float low[2] = {0.0f, -0.0f}, high[2] = {0.0f, -0.0f}, x[2] = {-0.0f, 0.0f};
        cdp__reduce(CDP_DTYPE_F32, CDP_REDUCE_MIN, swap, low, x, 2);
        cdp__reduce(CDP_DTYPE_F32, CDP_REDUCE_MAX, swap, high, x, 2);
        for (int i = 0; i < 2; ++i)
            T(!signbit(low[i]) == (i == swap) && !signbit(high[i]) == (i == swap));
    }
}

/* Every combination that a call accepts has a kernel. */
TEST(kernels_exist) {
    for (int d = CDP_DTYPE_F32; d < CDP_DTYPE_COUNT; ++d)
        for (int op = CDP_REDUCE_SUM; op < CDP_REDUCE_COUNT; ++op)
            for (int swap = 0; swap < 2; ++swap)
                if (cdp__reduce_exists((cdp_dtype)d, (cdp_reduce_op)op)) {
                    T(cdp__kernel_of((cdp_dtype)d, (cdp_reduce_op)op, swap));
                    T(op != CDP_REDUCE_AVG || cdp__kernel_at((cdp_dtype)d, CDP__DO_DIVIDE));
                    T(op != CDP_REDUCE_PREMUL_SUM || cdp__kernel_at((cdp_dtype)d, CDP__DO_SCALE));
                }
}

TEST(divide_to_the_nearest) {
    static const uint32_t by[] = {1, 2, 3, 7, 8, 100};
    uint64_t state = 7;
    for (size_t b = 0; b < sizeof by / sizeof *by; ++b)
        for (size_t s = 0; s < sizeof kernel_sizes / sizeof *kernel_sizes; ++s) {
            const uint64_t n = kernel_sizes[s];
            check_divide_f32(CDP_DTYPE_F32, by[b], n, &state);
            check_divide_f64(CDP_DTYPE_F64, by[b], n, &state);
            check_divide_i32(CDP_DTYPE_I32, by[b], n, &state);
            check_divide_i64(CDP_DTYPE_I64, by[b], n, &state);
            check_divide_u8(CDP_DTYPE_U8, by[b], n, &state);
        }
    int32_t negative = -7;
    cdp__divide(CDP_DTYPE_I32, &negative, 1, 2);
    T_EQ(-4, negative); /* a half, away from zero */
}

TEST(average_of_bytes_over_many_ranks) {
    /* A group of 256 or more ranks: the divisor does not fit into a u8. */
    volatile uint32_t ranks = 256;
    uint8_t v[3] = {200, 255, 0};
    cdp__divide(CDP_DTYPE_U8, v, 3, ranks);
    T(v[0] == 1 && v[1] == 1 && v[2] == 0);
    v[0] = 200;
    cdp__divide(CDP_DTYPE_U8, v, 1, ranks + 44);
    T_EQ(1, v[0]);
}

/* ---- bucket plan ---- */

static void plan_is(const char *what, const cdp_param *params, uint32_t n, uint64_t first,
    uint64_t rest, const uint32_t *want, int line) {
    uint32_t got[64], buckets = 0;
    const uint64_t limits[2] = {first, rest};
    const uint32_t count = cdp__bucket_plan_make(params, n, limits, 2, got);
    for (uint32_t i = 0; i < n; ++i) {
        if (want[i] + 1 > buckets) buckets = want[i] + 1;
        test_check(got[i] == want[i], __FILE__, line, "%s: parameter %u is in bucket %u, not %u",
            what, i, got[i], want[i]);
    }
    test_check(count == buckets, __FILE__, line, "%s: %u buckets, not %u", what, count, buckets);
}
#define PLAN(what, params, first, rest, ...)                                                 \
    do {                                                                                     \
        static const uint32_t want_[] = {__VA_ARGS__};                                       \
        plan_is(what, params, sizeof params / sizeof *params, first, rest, want_, __LINE__); \
    } while (0)
#define F32(n) \
    { .count = (n), .dtype = CDP_DTYPE_F32 }
#define F64(n) \
    { .count = (n), .dtype = CDP_DTYPE_F64 }

/* Known results of the same rule; parameters are taken from the last to the first, so each list
   is written backwards. */
TEST(bucket_plan_table) {
    static const cdp_param a[] = {F32(50), F32(100), F32(200), F32(100)};
    PLAN("each reaches the limit or is left over", a, 400, 400, 3, 2, 1, 0);
    /* f32, f64, f32, f64, f32 backwards */
    static const cdp_param b[] = {F32(10), F64(10), F32(10), F64(10), F32(10)};
    PLAN("dtypes do not share, limits advance per dtype", b, 40, 80, 3, 2, 3, 1, 0);
    static const cdp_param c[] = {F32(2), F32(2), F32(2), F32(2), F32(2), F32(2)};
    PLAN("a first bucket of its own size", c, 8, 16, 3, 2, 2, 1, 1, 0);
    static const cdp_param d[] = {F32(2), F32(0), F32(2), F32(0)};
    PLAN("zero elements go along", d, 8, 8, 1, 1, 0, 0);
    static const cdp_param one[] = {F32(0)};
    PLAN("one empty parameter", one, 8, 8, 0);
    static const cdp_param large[] = {F32(1), F32(1000000), F32(1)};
    PLAN("a large one joins what is open", large, 100, 100, 1, 0, 0);
    cdp_param e[32];
    uint32_t want[32];
    /* position from the end: two of 0.5 MiB, then thirty of 1 MiB */
    for (uint32_t i = 0; i < 32; ++i) {
        const uint32_t from_end = 31 - i;
        memset(&e[i], 0, sizeof e[i]);
        e[i].dtype = CDP_DTYPE_F32;
        e[i].count = from_end < 2 ? 131072 : 262144;
        want[i] = (from_end >= 2) + (from_end >= 27);
    }
    plan_is("the default limits", e, 32, 1048576, 26214400, want, __LINE__);
}

/* For any parameters: buckets are numbered in the order in which a backward pass completes them;
   each holds one dtype; each but the last of its dtype reaches its limit, and would not without
   its last parameter. */
TEST(bucket_plan_properties) {
    uint64_t state = 8;
    for (int run = 0; run < 3000; ++run) {
        cdp_param p[40];
        uint32_t of[40], n = 1 + (uint32_t)(test_random(&state) % 40), last_bucket = 0,
                         closed[3] = {0};
        const uint64_t first = 1 + test_random(&state) % 200, rest = 1 + test_random(&state) % 400;
        uint64_t total[40] = {0}, final[40] = {0};
        int dtype[40], completion[40];
        for (uint32_t i = 0; i < n; ++i) {
            memset(&p[i], 0, sizeof p[i]);
            p[i].dtype = test_random(&state) % 3 ? CDP_DTYPE_F32 : CDP_DTYPE_F64;
            p[i].count = test_random(&state) % 4 ? test_random(&state) % 60 : 0;
        }
        const uint64_t limits[2] = {first, rest};
        const uint32_t count = cdp__bucket_plan_make(p, n, limits, 2, of);
        T(count >= 1 && count <= n);
        memset(dtype, 0, sizeof dtype);
        memset(completion, -1, sizeof completion);
        for (uint32_t i = n; i-- > 0;) {
            const uint64_t bytes = p[i].count * cdp_dtype_size(p[i].dtype);
            if (!T(of[i] < count)) return;
            T(!dtype[of[i]] || dtype[of[i]] == (int)p[i].dtype);
            dtype[of[i]] = (int)p[i].dtype;
            total[of[i]] += bytes;
            final[of[i]] = bytes;
            completion[of[i]] = (int)(n - 1 - i);
        }
        for (uint32_t b = 0; b < count; ++b) {
            T(completion[b] >= 0);
            if (b) T(completion[b] > completion[b - 1]);
        }
        for (uint32_t b = 0; b < count; ++b) {
            const uint64_t limit = closed[dtype[b]]++ ? rest : first;
            bool last = true;
            for (uint32_t c = b + 1; c < count; ++c)
                last = last && dtype[c] != dtype[b];
            if (!last) T(total[b] >= limit);
            if (!last) T(total[b] - final[b] < limit);
        }
        (void)last_bucket;
    }
}

/* ---- loop ---- */

typedef struct fixture {
    cdp__loop loop;
    cdp__io io[6];
    cdp__timer timer[4];
    int calls, order[16];
} fixture;
static fixture fx;

static bool fixture_open(void) {
    memset(&fx, 0, sizeof fx);
    return T_EQ(CDP_OK, cdp__loop_open(&fx.loop, cdp_os_default()));
}

/* Two connected non-blocking sockets. */
static bool socket_pair(int fd[2]) {
    if (!T(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0)) return false;
    for (int i = 0; i < 2; ++i)
        fcntl(fd[i], F_SETFL, O_NONBLOCK);
    return true;
}

static void on_timer(cdp__timer *t) {
    fx.order[fx.calls++] = (int)(t - fx.timer);
    /* a timer that removes another one that is due, too */
    if (t == &fx.timer[0]) cdp__loop_timer_clear(&fx.timer[1]);
    if (t == &fx.timer[2] && fx.calls < 5) cdp__loop_timer_set(&fx.loop, t, 0, on_timer, NULL);
}

TEST(loop_timers) {
    const cdp_os *os = cdp_os_default();
    if (!fixture_open()) return;
    const uint64_t now = os->now_ns(NULL);
    /* a busy machine may stop us for a while */
    cdp__loop_timer_set(&fx.loop, &fx.timer[3], now + 400 * CDP__MS, on_timer, NULL);
    T(cdp__loop_run(&fx.loop, NULL, now + 5 * CDP__MS) == CDP_OK);
    T_EQ(0, fx.calls);
    T(os->now_ns(NULL) >= now + 5 * CDP__MS);
    T(cdp__loop_run(&fx.loop, NULL, CDP__NEVER) == CDP_OK);
    T_EQ(1, fx.calls);
    T(os->now_ns(NULL) >= now + 400 * CDP__MS);
    cdp__loop_timer_set(&fx.loop, &fx.timer[0], 1, on_timer, NULL);
    cdp__loop_timer_set(&fx.loop, &fx.timer[1], 1, on_timer, NULL);
    T(cdp__loop_run(&fx.loop, NULL, 0) == CDP_OK);
    T_EQ(2, fx.calls);
    T_EQ(0, fx.order[1]);
    /* one that sets itself again fires again, others are not starved */
    cdp__loop_timer_set(&fx.loop, &fx.timer[2], 1, on_timer, NULL);
    T(cdp__loop_run(&fx.loop, NULL, 0) == CDP_OK);
    T_EQ(5, fx.calls);
    cdp__loop_timer_set(&fx.loop, &fx.timer[2], CDP__NEVER, on_timer, NULL);
    T(cdp__loop_next_timer(&fx.loop) == CDP__NEVER);
    cdp__loop_timer_clear(&fx.timer[2]);
    cdp__loop_timer_clear(&fx.timer[2]);
    cdp__loop_close(&fx.loop);
    cdp__loop_close(&fx.loop);
}

static void *wake_later(void *arg) {
    test_sleep_ms(30);
    cdp__loop_wake((cdp__loop *)arg);
    cdp__loop_wake((cdp__loop *)arg);
    return NULL;
}

TEST(loop_wakes_from_another_thread) {
    pthread_t t;
    if (!fixture_open()) return;
    for (int i = 0; i < 3; ++i) {
        const uint64_t start = test_now_ns();
        pthread_create(&t, NULL, wake_later, &fx.loop);
        T(cdp__loop_run(&fx.loop, NULL, start + 5000 * CDP__MS) == CDP_OK);
        T(test_now_ns() - start < 1000 * CDP__MS);
        pthread_join(t, NULL);
        /* the second wake-up may have come after the first look */
        T(cdp__loop_run(&fx.loop, NULL, 0) == CDP_OK);
    }
    const uint64_t start = test_now_ns();
    T(cdp__loop_run(&fx.loop, NULL, start + 20 * CDP__MS) == CDP_OK); /* cleared: it sleeps again */
    T(test_now_ns() - start >= 19 * CDP__MS);
    cdp__loop_close(&fx.loop);
}

static int wait_socket;

static int32_t add_fails(const cdp_os *os, void *watch, int32_t fd, uint32_t bits, void *owner) {
    (void)os;
    (void)watch;
    (void)fd;
    (void)bits;
    (void)owner;
    return -ENOMEM;
}

/* While this thread waits, another one adds a socket, for which there is no memory. */
static int32_t wait_with_a_new_socket(
    void *user, void *watch, cdp_ready *out, uint32_t max, uint64_t deadline_ns) {
    (void)user;
    (void)watch;
    (void)out;
    (void)max;
    (void)deadline_ns;
    cdp__loop_add(&fx.loop, &fx.io[0], wait_socket, NULL, NULL);
    return 0;
}

TEST(loop_reports_a_socket_added_during_a_wait) {
    cdp_os os = *cdp_os_default();
    int fd[2];
    if (!fixture_open() || !socket_pair(fd)) return;
    os.net.watch_add = add_fails;
    os.net.watch_wait = wait_with_a_new_socket;
    wait_socket = fd[0];
    fx.loop.os = &os;
    T_EQ(CDP_OK, cdp__loop_run(&fx.loop, NULL, 0));
    T_EQ(CDP_ERR_NOMEM, cdp__loop_run(&fx.loop, NULL, 0));
    fx.loop.os = cdp_os_default();
    T_EQ(CDP_OK, cdp__loop_run(&fx.loop, NULL, 0)); /* once */
    cdp__loop_remove(&fx.loop, &fx.io[0]);
    cdp__loop_close(&fx.loop);
    close(fd[1]);
}

static void on_io_remove_all(cdp__io *io) {
    (void)io;
    ++fx.calls;
    for (int i = 0; i < 6; ++i)
        cdp__loop_remove(&fx.loop, &fx.io[i]);
}

TEST(loop_callbacks_may_remove_anything) {
    int other[6];
    if (!fixture_open()) return;
    /* all readable at once; the first one removes all, itself included */
    for (int i = 0; i < 6; ++i) {
        int fd[2];
        if (!socket_pair(fd)) return;
        other[i] = fd[1];
        T(write(fd[1], "x", 1) == 1);
        cdp__loop_add(&fx.loop, &fx.io[i], fd[0], on_io_remove_all, NULL);
    }
    T_EQ(6, fx.loop.io_count);
    T(cdp__loop_run(&fx.loop, NULL, 0) == CDP_OK);
    T_EQ(1, fx.calls);
    T_EQ(0, fx.loop.io_count);
    T(cdp__loop_run(&fx.loop, NULL, 0) == CDP_OK);
    T_EQ(1, fx.calls);
    for (int i = 0; i < 6; ++i)
        close(other[i]);
    cdp__loop_close(&fx.loop);
}

static void on_io_count(cdp__io *io) {
    (void)io;
    ++fx.calls;
}

TEST(loop_asks_only_for_what_is_unknown) {
    int fd[2];
    char c;
    cdp_iov v = {&c, 1};
    if (!fixture_open() || !socket_pair(fd)) return;
    cdp__loop_add(&fx.loop, &fx.io[0], fd[0], on_io_count, NULL);
    T(cdp__io_recv(&fx.loop, &fx.io[0], &v, 1) == 0);
    T(!(fx.io[0].ready & CDP_IO_READ));
    T(write(fd[1], "ab", 2) == 2);
    T(cdp__loop_run(&fx.loop, NULL, CDP__NEVER) == CDP_OK);
    T_EQ(1, fx.calls);
    T(fx.io[0].ready & CDP_IO_READ);
    T(cdp__loop_run(&fx.loop, NULL, 0) == CDP_OK); /* there is data, but that is known: silence */
    T_EQ(1, fx.calls);
    T(cdp__io_recv(&fx.loop, &fx.io[0], &v, 1) == 1 && c == 'a');
    T(fx.io[0].ready & CDP_IO_READ);
    T(cdp__io_recv(&fx.loop, &fx.io[0], &v, 1) == 1 && c == 'b');
    T(cdp__io_recv(&fx.loop, &fx.io[0], &v, 1) == 0);
    close(fd[1]);
    T(cdp__loop_run(&fx.loop, NULL, 1000 * CDP__MS + test_now_ns()) == CDP_OK);
    T(cdp__io_recv(&fx.loop, &fx.io[0], &v, 1) == CDP_IO_EOF);
    cdp__loop_remove(&fx.loop, &fx.io[0]);
    cdp__loop_remove(&fx.loop, &fx.io[0]);
    cdp__loop_close(&fx.loop);
}

TEST(loop_reports_a_broken_socket_once) {
    const cdp_os *os = cdp_os_default();
    cdp_addr at, bound, from;
    const struct linger hard = {1, 0};
    int32_t listener, a, b = -EAGAIN;
    memset(&at, 0, sizeof at);
    at.family = 4;
    at.ip[0] = 127;
    at.ip[3] = 1;
    if (!fixture_open()) return;
    listener = os->net.listen_at(NULL, &at, &bound);
    a = os->net.connect_to(NULL, &bound);
    if (!T(listener >= 0 && a >= 0)) return;
    for (int i = 0; i < 1000 && b == -EAGAIN; ++i) {
        b = os->net.accept_next(NULL, listener, &from);
        test_sleep_ms(1);
    }
    if (!T(b >= 0)) return;
    cdp__loop_add(&fx.loop, &fx.io[0], a, on_io_count, NULL);
    /* nothing is asked for; a reset must be noticed nevertheless */
    fx.io[0].ready = CDP_IO_READ | CDP_IO_WRITE;
    setsockopt(b, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    os->net.close_fd(NULL, b);
    T(cdp__loop_run(&fx.loop, NULL, test_now_ns() + 2000 * CDP__MS) == CDP_OK);
    T_EQ(1, fx.calls);
    T(fx.io[0].broken);
    const uint64_t start = test_now_ns();
    /* it is left out now: no busy loop */
    T(cdp__loop_run(&fx.loop, NULL, start + 30 * CDP__MS) == CDP_OK);
    T(test_now_ns() - start >= 29 * CDP__MS);
    T_EQ(1, fx.calls);
    cdp__loop_remove(&fx.loop, &fx.io[0]);
    os->net.close_fd(NULL, listener);
    cdp__loop_close(&fx.loop);
}

/* ---- os ---- */

static cdp_addr loopback(uint16_t port) {
    cdp_addr a;
    memset(&a, 0, sizeof a);
    a.family = 4;
    a.ip[0] = 127;
    a.ip[3] = 1;
    a.port = port;
    return a;
}

/* The default os, and the same with the watch of systems without epoll. */
static cdp_os both_os(int which) {
    cdp_os os = *cdp_os_default();
    if (which == 1) cdp__pollwatch_use(&os.net, cdp__os_poll);
    return os;
}

/* Waits until `fd` alone has one of `want`; what it had. */
static uint32_t got_of(const cdp_os *os, int32_t fd, uint32_t want, uint64_t ms) {
    const uint64_t until = test_now_ns() + ms * CDP__MS;
    cdp_ready r;
    uint32_t got = 0;
    void *w = NULL;
    if (!T_EQ(0, os->net.watch_open(os, &w))) return 0;
    T_EQ(0, os->net.watch_add(os, w, fd, want, &fx));
    while (!(got & (want | CDP_IO_ERROR)) && test_now_ns() < until)
        if (os->net.watch_wait(os->user, w, &r, 1, until) == 1 && T(r.owner == &fx)) got |= r.got;
    os->net.watch_remove(os->user, w, fd);
    os->net.watch_close(os, w);
    return got & (want | CDP_IO_ERROR);
}

TEST(os_waits_keep_deadlines) {
    static const uint32_t ms[] = {0, 1, 5, 50};
    for (int i = 0; i < 12; ++i) {
        const cdp_os os = both_os(i % 2);
        const uint64_t start = os.now_ns(NULL), deadline = start + ms[i / 3] * CDP__MS;
        cdp_ready r;
        void *w = NULL;
        if (i % 3 == 2) {
            while (os.now_ns(NULL) < deadline)
                os.sleep_until(NULL, deadline);
        } else if (T_EQ(0, os.net.watch_open(&os, &w))) {
            T_EQ(0, os.net.watch_wait(NULL, w, &r, 1, ms[i / 3] ? deadline : 0));
            T_EQ(0, os.net.watch_wait(NULL, w, &r, 1, 1)); /* long past */
            os.net.watch_close(&os, w);
        }
        const uint64_t took = os.now_ns(NULL) - start;
        T(took >= ms[i / 3] * CDP__MS);
        T_WITHIN((ms[i / 3] + 40), took);
    }
    T(cdp__os_poll_ms(CDP__NEVER) == -1);
    T(cdp__os_poll_ms(UINT64_MAX - 1) == 1 << 30);
}

/* What is there is reported once, and again only when that is asked for. */
TEST(os_watches_many_descriptors) {
    for (int which = 0; which < 2; ++which) {
        const cdp_os os = both_os(which);
        cdp_ready r[64];
        uint32_t times[100] = {0}, got[100] = {0};
        int fd[100][2], n, turns = 0;
        char c;
        void *w = NULL;
        if (!T_EQ(0, os.net.watch_open(&os, &w))) return;
        for (int i = 0; i < 100; ++i) {
            if (!socket_pair(fd[i])) return;
            T(write(fd[i][1], "ab", 2) == 2);
            T_EQ(0, os.net.watch_add(&os, w, fd[i][0], CDP_IO_READ | CDP_IO_WRITE, &fd[i]));
        }
        /* more than fit: each gets its turn */
        while ((n = os.net.watch_wait(NULL, w, r, 64, test_now_ns() + 20 * CDP__MS)) > 0
            && ++turns < 10)
            for (int i = 0; i < n; ++i) {
                const long at = (int(*)[2])r[i].owner - fd;
                ++times[at];
                got[at] |= r[i].got;
            }
        for (int i = 0; i < 100; ++i)
            T(times[i] == 1 && got[i] == (CDP_IO_READ | CDP_IO_WRITE));
        /* not read to its end, and asked for again */
        T(read(fd[7][0], &c, 1) == 1);
        os.net.watch_change(NULL, w, fd[7][0], CDP_IO_READ, &fd[7]);
        T_EQ(1, os.net.watch_wait(NULL, w, r, 64, test_now_ns() + 2000 * CDP__MS));
        T(r[0].owner == &fd[7] && (r[0].got & CDP_IO_READ));
        /* read to its end; something new is reported, something removed is not */
        T(read(fd[7][0], &c, 1) == 1 && read(fd[7][0], &c, 1) < 0);
        if (os.net.watch_used_up) os.net.watch_used_up(NULL, w, fd[7][0], CDP_IO_READ);
        T_EQ(0, os.net.watch_wait(NULL, w, r, 64, 0));
        os.net.watch_remove(NULL, w, fd[8][0]);
        T(write(fd[8][1], "x", 1) == 1 && write(fd[7][1], "x", 1) == 1);
        T_EQ(1, os.net.watch_wait(NULL, w, r, 64, test_now_ns() + 2000 * CDP__MS));
        T(r[0].owner == &fd[7] && (r[0].got & CDP_IO_READ));
        for (int i = 0; i < 100; ++i) {
            if (i != 8) os.net.watch_remove(NULL, w, fd[i][0]);
            close(fd[i][0]);
            close(fd[i][1]);
        }
        T_EQ(0, os.net.watch_wait(NULL, w, r, 64, 0));
        os.net.watch_close(&os, w);
    }
}

TEST(os_connections) {
    const cdp_os *os = cdp_os_default();
    cdp_addr at = loopback(0), bound, from, local;
    char text[8];
    cdp_iov in = {text, sizeof text},
            out[3] = {{(void *)(uintptr_t) "ab", 2}, {NULL, 0}, {(void *)(uintptr_t) "cd", 2}};
    const int32_t listener = os->net.listen_at(NULL, &at, &bound);
    if (!T(listener >= 0)) return;
    T(bound.family == 4 && bound.port && bound.ip[0] == 127);
    T_EQ(-EAGAIN, os->net.accept_next(NULL, listener, &from));
    const int32_t a = os->net.connect_to(NULL, &bound);
    T_EQ(CDP_IO_WRITE, got_of(os, a, CDP_IO_WRITE, 1000));
    T_EQ(0, os->net.connect_result(NULL, a));
    T_EQ(CDP_IO_READ, got_of(os, listener, CDP_IO_READ, 1000));
    const int32_t b = os->net.accept_next(NULL, listener, &from);
    if (!T(b >= 0)) return;
    T_EQ(0, os->net.local_addr(NULL, a, &local));
    T(local.port == from.port && memcmp(local.ip, from.ip, 4) == 0);
    T_EQ(0, os->net.recv_iov(NULL, b, &in, 1)); /* later */
    T_EQ(4, os->net.send_iov(NULL, a, out, 3));
    T_EQ(CDP_IO_READ, got_of(os, b, CDP_IO_READ, 1000));
    T_EQ(4, os->net.recv_iov(NULL, b, &in, 1));
    T(memcmp(text, "abcd", 4) == 0);
    os->net.close_fd(NULL, a);
    T_EQ(CDP_IO_READ, got_of(os, b, CDP_IO_READ, 1000));
    T_EQ(CDP_IO_EOF, os->net.recv_iov(NULL, b, &in, 1));
    int64_t r = 0;
    /* no SIGPIPE, but an error */
    for (int i = 0; i < 100 && r >= 0; ++i) {
        r = os->net.send_iov(NULL, b, out, 1);
        test_sleep_ms(1);
    }
    T(r == -EPIPE || r == -ECONNRESET);
    os->net.close_fd(NULL, b);
    os->net.close_fd(NULL, listener);
}

TEST(os_full_socket_means_later) {
    const cdp_os *os = cdp_os_default();
    static char block[65536];
    cdp_iov v = {block, sizeof block};
    int fd[2];
    int64_t r = 1;
    if (!socket_pair(fd)) return;
    for (int i = 0; i < 10000 && r > 0; ++i)
        r = os->net.send_iov(NULL, fd[0], &v, 1);
    T_EQ(0, r);
    close(fd[0]);
    close(fd[1]);
}

TEST(os_connect_refused_is_an_errno) {
    const cdp_os *os = cdp_os_default();
    cdp_addr at = loopback(0), bound;
    const int32_t listener = os->net.listen_at(NULL, &at, &bound);
    if (!T(listener >= 0)) return;
    os->net.close_fd(NULL, listener); /* a port that was just free */
    const int32_t fd = os->net.connect_to(NULL, &bound);
    if (fd < 0) {
        T_EQ(-ECONNREFUSED, fd);
        return;
    }
    T(got_of(os, fd, CDP_IO_WRITE, 2000) & CDP_IO_ERROR);
    T_EQ(-ECONNREFUSED, os->net.connect_result(NULL, fd));
    os->net.close_fd(NULL, fd);
}

TEST(os_bad_descriptors) {
    const cdp_os *os = cdp_os_default();
    cdp_addr a;
    char c = 0;
    cdp_iov v = {&c, 1};
    void *w = NULL;
    T_EQ(-EBADF, os->net.send_iov(NULL, -1, &v, 1));
    T_EQ(-EBADF, os->net.recv_iov(NULL, -1, &v, 1));
    T_EQ(-EBADF, os->net.accept_next(NULL, -1, &a));
    T_EQ(-EBADF, os->net.local_addr(NULL, -1, &a));
    T_EQ(-EBADF, os->net.connect_result(NULL, -1));
    T_EQ(0, os->net.watch_open(os, &w));
    T_EQ(-EBADF, os->net.watch_add(os, w, 1000000, CDP_IO_READ, NULL));
    os->net.watch_close(os, w);
    a = loopback(0);
    a.ip[0] = 203;
    a.ip[3] = 77; /* not an address of this machine */
    T(os->net.listen_at(NULL, &a, &a) < 0);
}

/* A descriptor that stays blocking could hold a rank up beyond any deadline, so what fcntl() says
   counts. */
TEST(os_refuses_descriptors_that_stay_blocking) {
    static const int commands[] = {F_GETFL, F_SETFL, F_SETFD};
    const cdp_os *os = cdp_os_default();
    cdp_addr at = loopback(0), bound;
    const int32_t listener = os->net.listen_at(NULL, &at, &bound);
    T(listener >= 0);
    T_EQ(-EBADF, os->net.adopt(NULL, -1));
    for (uint32_t i = 0; i < 3; ++i) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        T(fd >= 0);
        refused_command = commands[i];
        T_EQ(-EPERM, os->net.adopt(NULL, listener));
        T_EQ(-EPERM, cdp__os_protect(fd));
        refused_command = -1;
        T_EQ(-1, fcntl(fd, F_GETFD)); /* it was closed */
    }
    T_EQ(0, os->net.adopt(NULL, listener));
    T(fcntl(listener, F_GETFL) & O_NONBLOCK);
    T(fcntl(listener, F_GETFD) & FD_CLOEXEC);
    os->net.close_fd(NULL, listener);
}

TEST(os_resolves_localhost) {
    cdp_addr a[4];
    const int32_t n = cdp_os_default()->net.resolve(NULL, "localhost", 1234, a, 4, CDP__NEVER);
    T(n >= 1);
    for (int32_t i = 0; i < n && i < 4; ++i)
        T(a[i].port == 1234 && (a[i].family == 4 || a[i].family == 6));
    T_EQ(
        -ENOENT, cdp_os_default()->net.resolve(NULL, "no-such-name..invalid", 1, a, 4, CDP__NEVER));
}

static void without_a_network_main(void *arg) {
    struct addrinfo *list;
    cdp_addr a[4];
    *(bool *)arg = syscall(SYS_unshare, 0x40000000 /* CLONE_NEWNET */)
        == 0; /* of this thread alone, and of those that it begins */
    if (!*(bool *)arg) return;
    const int rc = getaddrinfo("name.invalid", NULL, NULL, &list);
    if (!T(rc != 0)) freeaddrinfo(list);
    T_EQ(rc == EAI_AGAIN ? -EAGAIN : -ENOENT,
        cdp_os_default()->net.resolve(NULL, "name.invalid", 1, a, 4, CDP__NEVER));
}

/* A name server that cannot be reached does not say that there is no such name. */
TEST(os_resolver_that_nobody_answers) {
    bool done = false;
    cdp_os_default()->threads.join(cdp_os_default(),
        cdp_os_default()->threads.start(cdp_os_default(), without_a_network_main, &done));
    if (!done) test_skip("network namespaces need root");
}

TEST(os_ipv6_addresses_survive) {
    cdp_addr a, b;
    cdp__sockaddr s;
    memset(&a, 0, sizeof a);
    a.family = 6;
    a.port = 4711;
    a.scope = 3;
    for (int i = 0; i < 16; ++i)
        a.ip[i] = (uint8_t)(i + 1);
    cdp__os_to_native(&a, &s);
    cdp__os_from_native(&s, &b);
    T(memcmp(&a, &b, sizeof a) == 0);
}

TEST(os_memory_and_random) {
    const cdp_os *os = cdp_os_default();
    uint8_t a[64] = {0}, b[64] = {0};
    void *p = os->alloc(NULL, 1000);
    T(p && (uintptr_t)p % 64 == 0);
    os->release(NULL, p);
    os->release(NULL, NULL);
    T(os->alloc(NULL, UINT64_MAX - 100) == NULL);
    T(os->random(NULL, a, sizeof a) == CDP_OK && os->random(NULL, b, sizeof b) == CDP_OK);
    T(memcmp(a, b, sizeof a) != 0);
}

TEST(os_condition_waits_to_its_deadline) {
    const cdp_os *os = cdp_os_default();
    void *m = os->threads.mutex_create(cdp_os_default()),
         *c = os->threads.cond_create(cdp_os_default());
    const uint64_t start = os->now_ns(NULL);
    os->threads.mutex_lock(NULL, m);
    while (os->now_ns(NULL) < start + 40 * CDP__MS)
        os->threads.cond_wait(NULL, c, m, start + 40 * CDP__MS);
    os->threads.mutex_unlock(NULL, m);
    T_WITHIN(200, os->now_ns(NULL) - start);
    os->threads.cond_destroy(cdp_os_default(), c);
    os->threads.mutex_destroy(cdp_os_default(), m);
}

TEST(deadlines) {
    const cdp_os *os = cdp_os_default();
    T(cdp__deadline(os, CDP_NO_TIMEOUT) == CDP__NEVER);
    const uint64_t now = os->now_ns(NULL), d = cdp__deadline(os, 4294967294u);
    T(d > now && d - now >= 4294967294u * CDP__MS);
}

TEST(build_says_version_and_compiler) {
    char version[64];
    const char *text = cdp_build();
    T_EQ(CDP_VERSION, cdp_version());
    snprintf(version, sizeof version, "cdp %d.%d.%d, wire version %d, ", CDP_VERSION_MAJOR,
        CDP_VERSION_MINOR, CDP_VERSION_PATCH, CDP_WIRE_VERSION);
    T(strncmp(text, version, strlen(version)) == 0);
    T(strstr(text, sizeof(void *) == 8 ? "64 bits" : "32 bits") != NULL);
    T(strstr(text, "_SLOTS_") != NULL && strchr(text, '\n') == NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"formatter_equals_printf", formatter_equals_printf, 10},
        {"formatter_cuts_and_survives", formatter_cuts_and_survives, 10},
        {"formatter_shows_what_it_does_not_know", formatter_shows_what_it_does_not_know, 10},
        {"errors_are_complete_sentences", errors_are_complete_sentences, 10},
        {"errors_are_recorded_for_launchers", errors_are_recorded_for_launchers, 10},
        {"errors_name_their_file", errors_name_their_file, 10},
        {"errors_belong_to_threads", errors_belong_to_threads, 10},
        {"names_exist_for_everything", names_exist_for_everything, 10},
        {"log_levels", log_levels, 10},
        {"bytes_are_little_endian", bytes_are_little_endian, 10},
        {"hash_is_fnv_1a", hash_is_fnv_1a, 10},
        {"headers_survive_the_wire", headers_survive_the_wire, 10},
        {"headers_notice_every_difference", headers_notice_every_difference, 10},
        {"headers_of_random_bytes", headers_of_random_bytes, 10},
        {"header_texts", header_texts, 10},
        {"foreign_texts_are_printable", foreign_texts_are_printable, 10},
        {"causes_of_failures_are_sentences", causes_of_failures_are_sentences, 10},
        {"failure_records", failure_records, 10},
        {"wait_messages", wait_messages, 10},
        {"kernels_against_a_plain_loop", kernels_against_a_plain_loop, 10},
        {"kernels_with_nan", kernels_with_nan, 10},
        {"kernels_exist", kernels_exist, 10},
        {"divide_to_the_nearest", divide_to_the_nearest, 10},
        {"average_of_bytes_over_many_ranks", average_of_bytes_over_many_ranks, 10},
        {"bucket_plan_table", bucket_plan_table, 10},
        {"bucket_plan_properties", bucket_plan_properties, 10},
        {"loop_timers", loop_timers, 10},
        {"loop_wakes_from_another_thread", loop_wakes_from_another_thread, 20},
        {"loop_reports_a_socket_added_during_a_wait", loop_reports_a_socket_added_during_a_wait,
            10},
        {"loop_callbacks_may_remove_anything", loop_callbacks_may_remove_anything, 10},
        {"loop_asks_only_for_what_is_unknown", loop_asks_only_for_what_is_unknown, 10},
        {"loop_reports_a_broken_socket_once", loop_reports_a_broken_socket_once, 10},
        {"os_waits_keep_deadlines", os_waits_keep_deadlines, 10},
        {"os_watches_many_descriptors", os_watches_many_descriptors, 10},
        {"os_connections", os_connections, 10},
        {"os_full_socket_means_later", os_full_socket_means_later, 10},
        {"os_connect_refused_is_an_errno", os_connect_refused_is_an_errno, 10},
        {"os_bad_descriptors", os_bad_descriptors, 10},
        {"os_refuses_descriptors_that_stay_blocking", os_refuses_descriptors_that_stay_blocking,
            10},
        {"os_resolves_localhost", os_resolves_localhost, 20},
        {"os_resolver_that_nobody_answers", os_resolver_that_nobody_answers, 60},
        {"os_ipv6_addresses_survive", os_ipv6_addresses_survive, 10},
        {"os_memory_and_random", os_memory_and_random, 10},
        {"os_condition_waits_to_its_deadline", os_condition_waits_to_its_deadline, 10},
        {"deadlines", deadlines, 10},
        {"build_says_version_and_compiler", build_says_version_and_compiler, 10},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

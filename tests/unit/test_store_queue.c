/* cdp_store.h: queues, lists of keys, barriers, clones and large values, on every store that has
   them; what a timeout says. */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "test.h"

#include "store_raw.h"

/* A call in a thread of its own. */
typedef struct caller {
    cdp_store *s;
    const char *key;
    uint32_t count, timeout_ms; /* count 0: a pop */
    cdp_status status;
    char got[64], text[600];
    void *thread;
} caller;

static void caller_main(void *arg) {
    caller *c = (caller *)arg;
    void *value = NULL;
    uint64_t bytes = 0;
    c->status = c->count ? cdp_store_barrier(c->s, c->key, c->count, c->timeout_ms)
                         : cdp_store_queue_pop(c->s, c->key, &value, &bytes, c->timeout_ms);
    snprintf(c->text, sizeof c->text, "%s", c->status < 0 ? cdp_last_error()->text : "");
    snprintf(c->got, sizeof c->got, "%s", value ? (const char *)value : "");
    cdp_store_free(c->s, value);
}

static void caller_start(caller *c, cdp_store *s, const char *key, uint32_t count) {
    memset(c, 0, sizeof *c);
    c->s = s;
    c->key = key;
    c->count = count;
    c->timeout_ms = 20000;
    c->thread = cdp_os_default()->threads.start(cdp_os_default(), caller_main, c);
}

static cdp_status caller_end(caller *c) {
    cdp_os_default()->threads.join(cdp_os_default(), c->thread);
    if (c->status < 0) printf("     %s\n", c->text);
    return c->status;
}

static void pop_is(cdp_store *s, const char *key, const char *want) {
    void *value;
    uint64_t bytes;
    OK(cdp_store_queue_try_pop(s, key, &value, &bytes));
    if (!want) T(value == NULL && bytes == 0);
    if (want) T(value && bytes == strlen(want) && memcmp(value, want, (size_t)bytes + 1) == 0);
    cdp_store_free(s, value);
}

/* `other` is the same store, through another client where that makes a difference. */
static void queues_of(cdp_store *s, cdp_store *other) {
    static const char *const key = "q";
    int64_t n, keys;
    bool there;
    caller c[3];
    OK(cdp_store_num_keys(s, &keys));
    pop_is(s, "q", NULL);
    /* a push is done by the end of the next call that has an answer */
    OK(cdp_store_queue_push(s, "q", "one", 3));
    OK(cdp_store_queue_len(s, "q", &n));
    T_EQ(1, n);
    OK(cdp_store_queue_push(other, "q", "", 0));
    OK(cdp_store_queue_len(other, "q", &n));
    T_EQ(2, n);
    OK(cdp_store_queue_push(s, "q", "three", 5));
    /* no key, but a wait for its name is over */
    OK(cdp_store_num_keys(s, &n));
    T_EQ(keys, n);
    OK(cdp_store_check(s, &key, 1, &there));
    T(there);
    OK(cdp_store_wait(s, &key, 1, 1000));
    OK(cdp_store_delete(s, "q", &there));
    T(!there);
    OK(cdp_store_queue_len(s, "q", &n));
    T_EQ(3, n);
    pop_is(s, "q", "one");
    pop_is(s, "q", "");
    pop_is(other, "q", "three");
    pop_is(s, "q", NULL);
    OK(cdp_store_check(s, &key, 1, &there));
    T(!there);
    /* each value for one of those who wait */
    caller_start(&c[0], other, "r", 0);
    test_sleep_ms(30);
    OK(cdp_store_queue_push(s, "r", "a", 1));
    OK(caller_end(&c[0]));
    T(strcmp(c[0].got, "a") == 0);
}

static void lists_of(cdp_store *s) {
    cdp_bytes *keys;
    uint64_t count, i;
    uint32_t seen = 0;
    OK(cdp_store_list_keys(s, &keys, &count));
    const uint64_t before = count;
    cdp_store_free(s, keys);
    for (i = 0; i < 40; ++i) {
        char key[16];
        snprintf(key, sizeof key, "list%u", (unsigned)i);
        OK(cdp_store_set(s, key, "x", 1));
    }
    OK(cdp_store_set(s, "", "empty", 5));
    OK(cdp_store_list_keys(s, &keys, &count));
    T_EQ(before + 41, count);
    for (i = 0; i < count; ++i) {
        const char *text = (const char *)keys[i].data;
        T(strlen(text) == keys[i].bytes);
        if (strncmp(text, "list", 4) == 0) seen += (uint32_t)atoi(text + 4);
    }
    T_EQ(39 * 40 / 2, seen);
    cdp_store_free(s, keys);
    for (i = 0; i < 40; ++i) {
        char key[16];
        snprintf(key, sizeof key, "list%u", (unsigned)i);
        OK(cdp_store_delete(s, key, NULL));
    }
    OK(cdp_store_delete(s, "", NULL));
}

/* Long enough for an answer of the store, on a machine that others use, too. */
static uint32_t answer_ms(void) {
    return 40 * TEST_SLACK * test__scale();
}

static void barriers_of(cdp_store *s, cdp_store *other) {
    caller c;
    const uint64_t start = now_ms();
    OK(cdp_store_barrier(s, "alone", 1, 1000));
    OK(cdp_store_barrier(s, "alone", 2, 1000)); /* counted on: take a fresh key each time */
    caller_start(&c, other, "two", 2);
    test_sleep_ms(30);
    T(now_ms() - start >= 29);
    OK(cdp_store_barrier(s, "two", 2, 10000));
    OK(caller_end(&c));
    ST(cdp_store_barrier(s, "three", 3, answer_ms()), CDP_ERR_TIMEOUT);
    TEXT("cdp_store_barrier of \"");
    TEXT("not everybody has come");
    T(value_is(s, "three", "1"));
    OK(cdp_store_set(s, "four", "no number", 9));
    OK(cdp_store_delete(s, "four", NULL));
}

TEST(hash_stores) {
    cdp_store *h, *clone;
    OK(cdp_hash_store_create((const cdp_hash_store_desc *)NULL, &h));
    queues_of(h, h);
    lists_of(h);
    barriers_of(h, h);
    ST(cdp_store_clone(h, &clone), CDP_ERR_UNSUPPORTED);
    TEXT("any number of threads");
    cdp_store_destroy(h);
}

TEST(tcp_stores) {
    cdp_store_server *s = server_open();
    cdp_store *a = client_open(cdp_store_server_port(s)), *b = NULL;
    OK(cdp_store_clone(a, &b));
    if (b) {
        queues_of(a, b);
        lists_of(a);
        barriers_of(a, b);
    }
    cdp_store_destroy(a);
    T(b && value_is(b, "three", "1")); /* a clone stands by itself */
    cdp_store_destroy(b);
    cdp_store_server_destroy(s);
}

TEST(prefix_stores) {
    cdp_store_server *s = server_open();
    cdp_store *a = client_open(cdp_store_server_port(s)), *p = NULL, *q = NULL, *b = NULL;
    cdp_bytes *keys;
    uint64_t count;
    OK(cdp_prefix_store_create(a, "p", &p));
    OK(cdp_prefix_store_create(p, "q", &q));
    OK(cdp_store_clone(q, &b));
    OK(cdp_store_set(a, "p", "", 0));
    OK(cdp_store_set(a, "other", "", 0));
    OK(cdp_store_set(p, "mine", "", 0));
    if (b) queues_of(q, b);
    lists_of(q);
    if (b) barriers_of(q, b);
    OK(cdp_store_list_keys(a, &keys, &count));
    T_EQ(6, count); /* "p", "other", "p/mine", three barriers */
    cdp_store_free(a, keys);
    cdp_store_destroy(q);
    cdp_store_destroy(p);
    cdp_store_destroy(a);
    OK(cdp_store_set(b, "late", "x", 1));
    T(value_is(b, "late", "x"));
    cdp_store_destroy(b);
    cdp_store_server_destroy(s);
}

TEST(file_stores) {
    char path[64];
    cdp_file_store_desc d;
    cdp_store *s, *other, *none;
    void *value;
    int64_t n;
    memset(&d, 0, sizeof d);
    snprintf(path, sizeof path, "/tmp/cdp_test_store_queue.%d", (int)getpid());
    unlink(path);
    d.path = path;
    OK(cdp_file_store_create(&d, &s));
    OK(cdp_file_store_create(&d, &other));
    lists_of(s);
    barriers_of(s, other);
    ST(cdp_store_queue_push(s, "q", "x", 1), CDP_ERR_UNSUPPORTED);
    TEXT("have no queues");
    ST(cdp_store_queue_pop(s, "q", &value, NULL, 100), CDP_ERR_UNSUPPORTED);
    ST(cdp_store_queue_len(s, "q", &n), CDP_ERR_UNSUPPORTED);
    ST(cdp_store_clone(s, &none), CDP_ERR_UNSUPPORTED);
    cdp_store_destroy(s);
    cdp_store_destroy(other);
    unlink(path);
}

/* A clone proves the same key. */
TEST(clones_with_a_key) {
    cdp_store_server_desc d = server_desc();
    cdp_tcp_store_desc cd;
    cdp_store_server *s;
    cdp_store *a = NULL, *b = NULL;
    d.job_key = "0123456789abcdef0123";
    OK(cdp_store_server_create(&d, &s));
    cd = client_desc(cdp_store_server_port(s));
    cd.job_key = d.job_key;
    OK(cdp_tcp_store_create(&cd, &a));
    OK(cdp_store_clone(a, &b));
    OK(cdp_store_set(a, "k", "v", 1));
    T(b && value_is(b, "k", "v"));
    cdp_store_destroy(b);
    cdp_store_destroy(a);
    cdp_store_server_destroy(s);
}

/* Values above the default limit, where both sides say so. */
TEST(large_values) {
    enum {
        BYTES = 20 << 20
    };
    char *big = (char *)calloc(BYTES, 1);
    cdp_store_server_desc d = server_desc();
    cdp_tcp_store_desc cd;
    cdp_store_server *s;
    cdp_store *a = NULL, *p = NULL;
    void *value;
    uint64_t bytes;
    big[BYTES - 1] = 7;
    d.max_value_bytes = BYTES;
    OK(cdp_store_server_create(&d, &s));
    cd = client_desc(cdp_store_server_port(s));
    OK(cdp_tcp_store_create(&cd, &a));
    ST(cdp_store_set(a, "big", big, BYTES), CDP_ERR_INVALID);
    TEXT("at most 8388608 are allowed (max_value_bytes)");
    cdp_store_destroy(a);
    cd.max_value_bytes = BYTES;
    OK(cdp_tcp_store_create(&cd, &a));
    OK(cdp_prefix_store_create(a, "p", &p));
    OK(cdp_store_set(p, "big", big, BYTES));
    OK(cdp_store_get(p, "big", &value, &bytes, 20000));
    T(bytes == BYTES && memcmp(value, big, BYTES) == 0);
    cdp_store_free(p, value);
    ST(cdp_store_set(a, "big", big, (uint64_t)BYTES + 1), CDP_ERR_INVALID);
    cdp_store_destroy(p);
    cdp_store_destroy(a);
    cdp_store_server_destroy(s);
    free(big);
}

typedef struct polled_server {
    cdp_store_server *s;
    bool stop;
    void *thread;
} polled_server;

static void polled_main(void *arg) {
    polled_server *p = (polled_server *)arg;
    while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE))
        (void)cdp_store_server_poll(p->s, cdp_os_default()->now_ns(NULL) + CDP__MS);
}

static void polled_stop(polled_server *p) {
    __atomic_store_n(&p->stop, true, __ATOMIC_RELEASE);
    if (p->thread) cdp_os_default()->threads.join(cdp_os_default(), p->thread);
    p->thread = NULL;
}

/* That nobody has set a key, and that the store does not answer, are two things. */
TEST(timeouts_say_why) {
    static const char *const keys[] = {"a", "b"};
    cdp_store_server_desc d = server_desc();
    polled_server p = {NULL, false, NULL};
    cdp_store *c;
    caller waiting;
    cdp_bytes values[2];
    void *value;
    int64_t n;
    d.no_thread = true;
    OK(cdp_store_server_create(&d, &p.s));
    p.thread = cdp_os_default()->threads.start(cdp_os_default(), polled_main, &p);
    c = client_open(cdp_store_server_port(p.s));
    ST(cdp_store_get(c, "a", &value, NULL, answer_ms()), CDP_ERR_TIMEOUT);
    TEXT("nobody has set it (the store at 127.0.0.1:");
    ST(cdp_store_wait(c, keys, 2, answer_ms()), CDP_ERR_TIMEOUT);
    TEXT("nobody has set it");
    ST(cdp_store_multi_get(c, keys, 2, values, &value, answer_ms()), CDP_ERR_TIMEOUT);
    TEXT("nobody has set it");
    ST(cdp_store_queue_pop(c, "a", &value, NULL, answer_ms()), CDP_ERR_TIMEOUT);
    TEXT("the queue is empty");
    /* two calls at a time: the second is not sent before the first is over */
    caller_start(&waiting, c, "later", 0);
    test_sleep_ms(30);
    ST(cdp_store_get(c, "a", &value, NULL, 50), CDP_ERR_TIMEOUT);
    TEXT("an earlier call on this client has not ended (cdp_store_clone");
    {
        cdp_store *other = client_open(cdp_store_server_port(p.s));
        OK(cdp_store_queue_push(other, "later", "x", 1));
        OK(caller_end(&waiting));
        cdp_store_destroy(other);
    }
    polled_stop(&p);
    ST(cdp_store_get(c, "a", &value, NULL, 50), CDP_ERR_TIMEOUT);
    TEXT("the store does not answer (the store at 127.0.0.1:");
    cdp_store_set_timeout(c, 50);
    ST(cdp_store_add(c, "n", 1, &n), CDP_ERR_TIMEOUT);
    cdp_store_destroy(c);
    cdp_store_server_destroy(p.s);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"hash_stores", hash_stores, 30},
        {"tcp_stores", tcp_stores, 30},
        {"prefix_stores", prefix_stores, 30},
        {"file_stores", file_stores, 30},
        {"clones_with_a_key", clones_with_a_key, 30},
        {"large_values", large_values, 60},
        {"timeouts_say_why", timeouts_say_why, 30},
    };
    caller none;
    cdp_store *h;
    signal(SIGPIPE, SIG_IGN);
    /* ThreadSanitizer's own thread begins with the first thread, and would be counted against the
       first test. */
    if (cdp_hash_store_create((const cdp_hash_store_desc *)NULL, &h) != CDP_OK) return 1;
    caller_start(&none, h, "first", 1);
    (void)caller_end(&none);
    cdp_store_destroy(h);
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

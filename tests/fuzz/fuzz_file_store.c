/* Whatever may lie in the file of a file store, fed to its reader and to users of it.

   Inputs made from a seed: records, cut, repeated and damaged. How to run it: fuzz.h.

   The bytes are read in pieces by the record parser and the map in every case, and every 16th
   input also lies in a real file (on a file system in memory where there is one) that a store
   opens, reads, writes to and opens again. Nothing may crash, leak or read beyond the input; how
   it was cut into pieces must not matter; what was whole before half a record stays; a file that
   is refused is not touched; and what a store wrote can be read. */
#include "fuzz.h"

static uint64_t live, calls, fail_at;

static void *store_alloc(void *user, uint64_t bytes) {
    void *p = ++calls == fail_at || bytes > (64u << 20) ? NULL : malloc((size_t)bytes);
    (void)user;
    live += p != NULL;
    return p;
}

static void store_release(void *user, void *p) {
    (void)user;
    live -= p != NULL;
    free(p);
}

static cdp_os fuzz_os(void) {
    cdp_os os = *cdp_os_default();
    os.alloc = store_alloc;
    os.release = store_release;
    return os;
}

/* ---- the parser and the map ---- */

typedef struct outcome {
    cdp_status status;
    uint64_t at, hash, keys;
    bool torn;
} outcome;

/* As cdp__file_read() does it, from memory: pieces of `piece` bytes, or of what the record
   needs. */
static outcome replay_records(
    const cdp_os *os, const uint8_t *data, uint64_t size, uint64_t piece) {
    cdp__file_store f;
    outcome o;
    char path[] = "memory";
    uint64_t i;
    memset(&f, 0, sizeof f);
    memset(&o, 0, sizeof o);
    f.os = os;
    f.path = path;
    f.pin = -1;
    cdp__kv_open(&f.kv, os, 1, UINT64_MAX);
    while (f.at < size && !f.torn && o.status == CDP_OK) {
        const uint64_t n = cdp__min(piece, size - f.at);
        uint8_t *copy = (uint8_t *)malloc((size_t)n); /* so that a look beyond it is seen */
        uint64_t need = 0, before = f.at;
        memcpy(copy, data + f.at, (size_t)n);
        o.status = cdp__file_apply_all(&f, copy, n, size, &need);
        free(copy);
        T(f.at <= size && f.at >= before);
        /* it gets on */
        T(f.at > before || f.torn || o.status != CDP_OK || (need > n && need <= size - f.at));
        if (need > piece) piece = need;
    }
    o.at = f.at;
    o.torn = f.torn;
    o.keys = f.kv.present_count;
    for (i = 0; i < f.kv.bucket_count; ++i)
        for (const cdp__kv_entry *e = f.kv.buckets[i]; e; e = e->next) {
            T(e->present);
            /* in any order */
            o.hash +=
                cdp__hash(cdp__hash(7, cdp__kv_key(e), e->key_bytes), e->value, e->value_bytes);
        }
    cdp__kv_close(&f.kv);
    return o;
}

/* ---- real files ---- */

static char path[64];

static void remove_file(void) {
    unlink(path);
}

static void write_file(const uint8_t *data, size_t size) {
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    T(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static void compare_file(const uint8_t *data, size_t size) {
    static uint8_t got[1 << 20];
    const int fd = open(path, O_RDONLY);
    T(fd >= 0 && read(fd, got, sizeof got) >= (ssize_t)size && memcmp(got, data, size) == 0);
    close(fd);
}

static void use_file(const uint8_t *data, size_t size, outcome o) {
    const cdp_os os = fuzz_os();
    const cdp_file_store_desc d = {.path = path, .timeout_ms = 1000, .os = &os};
    static const char *const keys[] = {"a", "b"};
    cdp_store *s = NULL, *t = NULL;
    int64_t n = 0, m = 0;
    void *value = NULL;
    uint64_t bytes;
    cdp_status st;
    if (!*path) {
        cdp__format(path, sizeof path, "%s/cdp_fuzz_file_%d",
            access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
        atexit(remove_file);
    }
    write_file(data, size);
    st = cdp_file_store_create(&d, &s);
    T(st == o.status || fail_at);
    /* not touched, but for half a record that may be cut off before the memory is out */
    if (st != CDP_OK) {
        compare_file(data, o.status == CDP_OK ? (size_t)o.at : size);
        T(live == 0);
        return;
    }
    compare_file(data, (size_t)o.at);
    if (!fail_at) {
        T(cdp_store_num_keys(s, &n) == CDP_OK && n >= 1);
        T(cdp_store_set(s, "a", "x", 1) == CDP_OK
            && cdp_store_append(s, "b", "y", 1) != CDP_ERR_STORE);
        st = cdp_store_add(s, "c", 3, &m);
        T(st == CDP_OK || st == CDP_ERR_INVALID);
        T(cdp_store_delete(s, "d", NULL) == CDP_OK);
        T(cdp_file_store_create(&d, &t) == CDP_OK); /* whoever comes later reads the same */
        T(cdp_store_num_keys(s, &n) == CDP_OK && cdp_store_num_keys(t, &m) == CDP_OK && n == m);
        T(cdp_store_wait(t, keys, 2, 1000) == CDP_OK);
        T(cdp_store_get(t, "a", &value, &bytes, 1000) == CDP_OK && bytes == 1
            && *(char *)value == 'x');
        cdp_store_free(t, value);
        /* an allocation fails: an error, and afterwards everything is as before or as wanted */
    } else {
        st = cdp_store_set(s, "a", "x", 1);
        T(st == CDP_OK || st == CDP_ERR_NOMEM);
        st = cdp_store_compare_set(s, "b", "", 0, "y", 1, &value, &bytes);
        T(st == CDP_OK || st == CDP_ERR_NOMEM);
        cdp_store_free(s, value);
    }
    cdp_store_destroy(t);
    cdp_store_destroy(s);
    T(live == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const cdp_os os = fuzz_os();
    static uint64_t count;
    uint64_t piece;
    outcome a, b;
    if (size < 2) return 0;
    piece = 1 + data[0];
    fail_at = 0;
    a = replay_records(&os, data + 2, size - 2, UINT64_MAX);
    b = replay_records(&os, data + 2, size - 2, piece);
    T(a.status == b.status && a.at == b.at && a.hash == b.hash && a.keys == b.keys
        && a.torn == b.torn);
    T(live == 0);
    T(a.status == CDP_OK || a.status == CDP_ERR_STORE);
    T((a.at == size - 2) == (a.status == CDP_OK && !a.torn));
    if (a.at) { /* what is whole does not depend on what follows */
        b = replay_records(&os, data + 2, a.at, piece);
        T(b.status == CDP_OK && b.at == a.at && b.hash == a.hash && !b.torn);
    }
    if (data[1] % 16 == 0 || count++ % 16 == 0) {
        fail_at = data[1] & 16 ? 1 + data[1] / 32 * 3 : 0;
        calls = 0;
        use_file(data + 2, size - 2, a);
    }
    return 0;
}

/* ---- inputs of its own ---- */

#ifndef FUZZ_LIB
static uint8_t *put_field(uint8_t *p, const char *text, uint32_t bytes) {
    uint32_t said = bytes;
    if (!pick(150)) said = pick(3) ? pick(2000) : (uint32_t)(random_state >> 7);
    cdp__put_u32(p, said);
    memcpy(p + 4, text, bytes);
    return p + 4 + bytes;
}

static size_t make_input(uint64_t seed, uint8_t *out) {
    static const char *const keys[] = {"/a", "/b", "/c", "/", "-/a", "-/b", "-/", "cleanup/",
        "refcount/", "/outer/in/key", "-", "kk", "", "more_words/", "/\1\2"};
    static const char *const values[] = {
        "", "x", "12", "-3", "text", "a value that is somewhat longer than the others", " 7z"};
    uint8_t *p = out + 2;
    (void)seed;
    out[0] = (uint8_t)pick(256);
    out[1] = (uint8_t)pick(256);
    for (uint32_t n = pick(25); n; --n) {
        const char *const key = keys[pick(40) ? pick(10) : pick(15)],
                          *const value = values[pick(7)];
        p = put_field(p, key, (uint32_t)strlen(key));
        p = put_field(p, value, (uint32_t)strlen(value));
    }
    if (pick(3) == 0 && p > out + 2) p -= pick((uint32_t)(p - out - 2)); /* cut */
    for (uint32_t n = pick(4) ? 0 : pick(5); n && p > out + 2; --n)
        out[2 + pick((uint32_t)(p - out - 2))] = (uint8_t)pick(256);
    if (pick(20) == 0)
        for (uint32_t n = pick(100); n; --n)
            *p++ = (uint8_t)pick(256);
    return (size_t)(p - out);
}
#endif

/* One user of a file store, told what to do line by line; for test_file_store.py. Values are
   hexadecimal, "-" is the empty one. Answers each line with one line. */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"

static uint64_t from_hex(const char *s, char *out) {
    uint64_t n = 0;
    unsigned byte;
    if (*s == '-') return 0;
    for (; sscanf(s, "%2x", &byte) == 1; s += 2)
        out[n++] = (char)byte;
    return n;
}

static void answer(cdp_status st, const void *value, uint64_t bytes) {
    printf("%s ", cdp_status_name(st));
    for (uint64_t i = 0; i < bytes; ++i)
        printf("%02x", ((const unsigned char *)value)[i]);
    puts(bytes ? "" : "-");
}

int main(int argc, char **argv) {
    static char line[70000], op[20], key[1000], a[66000], b[66000], va[33000], vb[33000];
    cdp_file_store_desc d = {
        .path = argv[1], .world_size = argc > 2 ? (uint32_t)atoi(argv[2]) : 0, .timeout_ms = 20000};
    cdp_store *file, *s, *prefix = NULL;
    if (argc < 2 || cdp_file_store_create(&d, &file) != CDP_OK) return cdp_print_error(stderr);
    s = file;
    if (argc > 3 && cdp_prefix_store_create(file, argv[3], &prefix) == CDP_OK) s = prefix;
    puts("OK -");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        void *value = NULL;
        uint64_t bytes = 0;
        int64_t n = 0;
        bool is = false;
        const char *keys[1] = {key};
        cdp_status st = CDP_ERR_INTERNAL;
        *a = *b = 0;
        if (sscanf(line, "%19s %999s %65999s %65999s", op, key, a, b) < 1) continue;
        if (strcmp(key, "-") == 0) *key = 0;
        if (strcmp(op, "set") == 0)
            answer(cdp_store_set(s, key, va, from_hex(a, va)), NULL, 0);
        else if (strcmp(op, "append") == 0)
            answer(cdp_store_append(s, key, va, from_hex(a, va)), NULL, 0);
        else if (strcmp(op, "get") == 0) {
            st = cdp_store_get(s, key, &value, &bytes, (uint32_t)atoi(a));
            answer(st, value, bytes);
        } else if (strcmp(op, "cas") == 0) {
            const uint64_t na = from_hex(a, va), nb = from_hex(b, vb);
            st = cdp_store_compare_set(s, key, va, na, vb, nb, &value, &bytes);
            answer(st, value, bytes);
        } else if (strcmp(op, "wait") == 0) {
            answer(cdp_store_wait(s, keys, 1, (uint32_t)atoi(a)), NULL, 0);
        } else {
            if (strcmp(op, "add") == 0) st = cdp_store_add(s, key, atoll(a), &n);
            if (strcmp(op, "adds") == 0)
                for (int i = 0; i < atoi(a); ++i)
                    st = cdp_store_add(s, key, 1, &n);
            if (strcmp(op, "num") == 0) st = cdp_store_num_keys(s, &n);
            if (strcmp(op, "delete") == 0) {
                st = cdp_store_delete(s, key, &is);
                n = is;
            }
            if (strcmp(op, "check") == 0) {
                st = cdp_store_check(s, keys, 1, &is);
                n = is;
            }
            printf("%s %lld\n", cdp_status_name(st), (long long)n);
        }
        cdp_store_free(s, value);
        fflush(stdout);
    }
    cdp_store_destroy(prefix);
    cdp_store_destroy(file);
    return 0;
}

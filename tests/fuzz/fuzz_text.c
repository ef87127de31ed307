/*  JSON: the reader of src/text, and the writer.

    Inputs made from a seed: pieces of JSON in any order, a valid text that is damaged, any bytes.
    How to run it: fuzz.h.

    For any input, nothing is read out of bounds, and the reader ends. What it has read can be
    written, in ASCII; read again it has the same pieces with the same values, and written again it
    is the same text. Any bytes as a string are a valid text. */
#include "fuzz.h"
#include "cdp_mem.h"

enum {
    ROOM = 1 << 16
};

/* Copies the pieces of a text as JSON; returns the length, 0 if it is no JSON. `kinds` counts. */
static uint64_t copied(const uint8_t *data, uint64_t bytes, char *out, uint64_t *kinds) {
    static char text[ROOM];
    cdp__json_reader r = cdp__json_open(data, bytes);
    cdp__text t = cdp__text_of(out, ROOM);
    char close[CDP__JSON_DEEP];
    bool comma = false;
    uint64_t steps = 0;
    memset(kinds, 0, 16 * sizeof *kinds);
    for (;;) {
        const cdp__json_kind kind = cdp__json_next(&r);
        ++kinds[kind];
        T(r.at <= bytes && r.depth <= CDP__JSON_DEEP && ++steps <= bytes + 2);
        if (kind == CDP__JSON_BAD) {
            T(r.why && *r.why);
            return 0;
        }
        if (kind == CDP__JSON_END) break;
        if (comma && kind != CDP__JSON_CLOSE) cdp__text_char(&t, ',');
        comma = kind != CDP__JSON_KEY && kind != CDP__JSON_DICT && kind != CDP__JSON_LIST;
        switch (kind) {
        case CDP__JSON_DICT:
        case CDP__JSON_LIST:
            close[r.depth - 1] = kind == CDP__JSON_DICT ? '}' : ']';
            cdp__text_char(&t, kind == CDP__JSON_DICT ? '{' : '[');
            break;
        case CDP__JSON_CLOSE: cdp__text_char(&t, close[r.depth]); break;
        case CDP__JSON_KEY:
        case CDP__JSON_TEXT: {
            const uint64_t n = cdp__json_decode(&r, text);
            T(n <= r.length && n < ROOM);
            text[n] = 0;
            T(strlen(text) == n);
            cdp__json_string(&t, text);
            if (kind == CDP__JSON_KEY) cdp__text_char(&t, ':');
            break;
        }
        case CDP__JSON_WHOLE: cdp__text_add(&t, "%lld", (long long)r.whole); break;
        case CDP__JSON_REAL: cdp__json_real(&t, r.real, false); break;
        case CDP__JSON_TRUE: cdp__text_add(&t, "true"); break;
        case CDP__JSON_FALSE: cdp__text_add(&t, "false"); break;
        default: cdp__text_add(&t, "null"); break;
        }
    }
    T(t.used < ROOM);
    return cdp__text_end(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char first[ROOM], second[ROOM];
    uint64_t kinds[16], again[16], n, i;
    uint8_t *copy;
    cdp__text t = cdp__text_of(first, ROOM);
    if (size > ROOM / 8) return 0;
    copy = (uint8_t *)malloc(size + 1); /* reading on is noticed */
    memcpy(copy, data, size);
    n = copied(copy, size, first, kinds);
    if (n) {
        for (i = 0; i < n; ++i)
            T(first[i] >= 32 && first[i] < 127);
        T(copied((const uint8_t *)first, n, second, again) == n);
        T(memcmp(first, second, n) == 0);
        again[CDP__JSON_REAL] += again[CDP__JSON_NULL]; /* what is not finite was written as null */
        kinds[CDP__JSON_REAL] += kinds[CDP__JSON_NULL];
        again[CDP__JSON_NULL] = kinds[CDP__JSON_NULL] = 0;
        T(memcmp(kinds, again, sizeof kinds) == 0);
    }
    copy[size] = 0;
    t = cdp__text_of(first, ROOM);
    cdp__json_string(&t, (const char *)copy);
    T(copied((const uint8_t *)first, cdp__text_end(&t), second, kinds) == t.used);
    T(kinds[CDP__JSON_TEXT] == 1 && memcmp(first, second, t.used) == 0);
    cdp__text_foreign(second, 64, copy, size);
    T(strlen(second) < 64);
    free(copy);
    return 0;
}

#ifndef FUZZ_LIB
static size_t make_input(uint64_t seed, uint8_t *out) {
    static const char *const pieces[] = {"{", "}", "[", "]", ",", ":", "\"key\":", "\"a\"", "1",
        "-0.5", "1e", "e+300", "123456789012345678901234567890", "9223372036854775807", "true",
        "false", "null", "NaN", "-Infinity", " ", "\n", "\"\\u00e4\\ud83d\\ude00\"", "\"\\ud800",
        "\\n\"", "\xc3\xa4", "\xff", "0.1", "1e-320", "\"\xe2\x82\xac\"", "[1,2.5,{\"k\":[null]}]"};
    size_t n = 0;
    for (uint32_t left = 1 + pick(30); left && seed % 4; --left) {
        const char *const piece = pieces[pick(sizeof pieces / sizeof *pieces)];
        if (n && seed % 4 == 3 && pick(2)) out[n++] = ',';
        if (!n && seed % 4 > 1) out[n++] = '[';
        memcpy(out + n, piece, strlen(piece));
        n += strlen(piece);
    }
    if (seed % 4 > 1) out[n++] = ']';
    for (uint32_t left = seed % 4 ? pick(2) : 1 + pick(40); left; --left)
        out[seed % 4 ? pick((uint32_t)n) : n++] = (uint8_t)pick(256);
    return n;
}
#endif

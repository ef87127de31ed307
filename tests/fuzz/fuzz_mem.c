/*  A snapshot file that comes from anywhere: cdp_mem_read, pickle and JSON.

    Inputs made from a seed: a file that cdp_mem.h wrote, damaged; opcodes of a pickle in any order;
    pieces of JSON. How to run it: fuzz.h.

    For any input, nothing is read or written out of bounds, memory is bounded by the size of the
    file, and what was read can be written in every form; its pickle, read again, is the same. */
#include "fuzz.h"
#include "cdp_mem.h"

static uint64_t taken, most;
static void *counted_alloc(void *user, uint64_t bytes) {
    void *p;
    (void)user;
    T(bytes < 1u << 30);
    if (posix_memalign(&p, 64, bytes + 64) != 0) abort();
    memcpy(p, &bytes, sizeof bytes);
    taken += bytes;
    if (taken > most) most = taken;
    return (char *)p + 64;
}
static void counted_free(void *user, void *p) {
    uint64_t bytes;
    (void)user;
    if (!p) return;
    memcpy(&bytes, (char *)p - 64, sizeof bytes);
    taken -= bytes;
    free((char *)p - 64);
}

typedef struct written {
    char *at;
    size_t bytes, room;
} written;
static bool sink(void *user, const void *data, uint64_t bytes) {
    written *const w = (written *)user;
    if (w->bytes + bytes > w->room) {
        w->room = 2 * (w->bytes + bytes);
        w->at = (char *)realloc(w->at, w->room);
    }
    memcpy(w->at + w->bytes, data, bytes);
    w->bytes += bytes;
    return w->bytes < 1u << 26; /* JSON repeats what a pickle shares */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cdp_os os = *cdp_os_default();
    cdp_mem_shot *s, *again;
    written a = {NULL, 0, 0}, b = {NULL, 0, 0};
    char text[300];
    int64_t more = 1;
    uint8_t *const copy = (uint8_t *)malloc(size + 1); /* reading on is noticed */
    memcpy(copy, data, size);
    os.alloc = counted_alloc;
    os.release = counted_free;
    taken = most = 0;
    if (cdp_mem_read(copy, size, &os, &s) == CDP_OK) {
        for (int f = CDP_MEM_PICKLE; f <= CDP_MEM_PEAK; ++f) {
            written w = {NULL, 0, 0};
            const cdp_status st = cdp_mem_write(s, (cdp_mem_format)f, sink, &w);
            T(st == CDP_OK || st == CDP_ERR_IO);
            free(w.at);
        }
        T(cdp_mem_write(s, CDP_MEM_PICKLE, sink, &a) == CDP_OK);
        T(cdp_mem_read(a.at, a.bytes, &os, &again) == CDP_OK);
        T(cdp_mem_write(again, CDP_MEM_PICKLE, sink, &b) == CDP_OK);
        T(a.bytes == b.bytes && memcmp(a.at, b.at, a.bytes) == 0);
        (void)cdp_mem_compare(s, again, &more, text, sizeof text);
        T(more == 0);
        cdp_mem_shot_free(again);
        cdp_mem_shot_free(s);
    } else
        T(!s);
    T(taken == 0);
    T(most <= 4096 * 64 + 3000 * (uint64_t)(size + 1) + 60 * (uint64_t)a.bytes);
    free(a.at);
    free(b.at);
    free(copy);
    return 0;
}

#ifndef FUZZ_LIB
/* A real file, made once. */
static const written *a_file(void) {
    static written w;
    cdp_mem_source host;
    cdp_mem_desc d;
    cdp_mem *m;
    cdp_mem_shot *s;
    void *p[20];
    if (w.bytes) return &w;
    memset(&d, 0, sizeof d);
    d.record.history = CDP_MEM_HISTORY_ALL;
    d.record.stacks = CDP_MEM_STACKS_SITE;
    d.source = &host;
    T(cdp_mem_source_host(NULL, 1u << 30, &host) == CDP_OK && cdp_mem_create(&d, &m) == CDP_OK);
    for (int i = 0; i < 20; ++i) {
        cdp_mem_label(i % 3 ? "layer" : "batch");
        T(cdp_mem_alloc_at(m, NULL, 1 + (uint64_t)i * 100000, NULL, CDP_MEM_HERE, &p[i]) == CDP_OK);
        cdp_mem_label(NULL);
    }
    for (int i = 0; i < 20; i += 2)
        T(cdp_mem_free(m, p[i]) == CDP_OK);
    T(cdp_mem_snapshot(&m, 1, false, &s) == CDP_OK);
    T(cdp_mem_write(s, CDP_MEM_PICKLE, sink, &w) == CDP_OK);
    cdp_mem_shot_free(s);
    for (int i = 1; i < 20; i += 2)
        T(cdp_mem_free(m, p[i]) == CDP_OK);
    cdp_mem_destroy(m);
    return &w;
}

static size_t from_opcodes(uint8_t *out) {
    static const char opcodes[] = "NK\x88\x89MJ\x8aGX\x8c])}(euas.ldt\x85\x86\x87qrhj\x94\x95";
    static const char *const words[] = {"segments", "device_traces", "blocks", "frames", "size",
        "address", "addr", "action", "alloc", "state", "name", "device", "total_size"};
    size_t n = 2;
    out[0] = 0x80;
    out[1] = (uint8_t)(2 + pick(3));
    for (uint32_t left = pick(200); left; --left) {
        const uint32_t k = pick(4);
        if (k == 0) {
            const char *const word = words[pick(13)];
            out[n++] = 0x8c;
            out[n++] = (uint8_t)strlen(word);
            memcpy(out + n, word, strlen(word));
            n += strlen(word);
        } else if (k == 1) {
            out[n++] = 'K';
            out[n++] = (uint8_t)pick(256);
        } else
            out[n++] = (uint8_t)opcodes[pick(sizeof opcodes - 1)];
    }
    out[n++] = '.';
    return n;
}

/* Values of protocols 0 and 1, some of them in a dict that is a snapshot. */
static size_t from_lines(uint8_t *out) {
    static const char *const pieces[] = {"I7\n", "I01\n", "L-5L\n", "F1.5e3\n", "Fnan\n",
        "Vk\\u20ac\xe4\n", "S'a\\x41\\n'\n", "p0\n", "g0\n", "p1\n", "g1\n", "(l", "(d", "(lp1\n",
        "a", "s", "t", "0", "1", "2", "(", "N", "U\001x", "Vblocks\n", "Vsize\n", "Vframes\n",
        "Vother\n"};
    size_t n = (size_t)sprintf((char *)out, "(dVsegments\n(l");
    for (uint32_t left = pick(6); left; --left)
        n += (size_t)sprintf(
            (char *)out + n, "(dVnew\nVvalue\nsVlist\n(lI1\naI2\nas%s", pick(9) ? "a" : "s");
    n += (size_t)sprintf((char *)out + n, "sVdevice_traces\n(ls");
    for (uint32_t left = pick(60); left; --left)
        n += (size_t)sprintf((char *)out + n, "%s", pieces[pick(sizeof pieces / sizeof *pieces)]);
    out[n++] = '.';
    return n;
}

static size_t from_json(uint8_t *out) {
    static const char *const pieces[] = {"{\"segments\":[",
        "{\"device\":0,\"address\":4096,\"total_size\":512,\"blocks\":[",
        "{\"size\":512,\"state\":\"active_allocated\"}", "]}", "],\"device_traces\":[[",
        "{\"action\":\"alloc\",\"addr\":4096,\"size\":5}", "]]}", ",", "[", "]", "{", "}",
        "\"\\u00e4\\n\"", "-1.5", "99999999999999999999", "true", "null", ":", " ",
        "\"new\":{\"a\":[1e3,{}]},", "\"later\":null,"};
    size_t n = 0;
    for (uint32_t left = 1 + pick(20), i = 0; i < left; ++i) {
        const char *const piece = pieces[pick(3) ? i % 7 : pick(21)];
        memcpy(out + n, piece, strlen(piece));
        n += strlen(piece);
    }
    return n;
}

static size_t make_input(uint64_t seed, uint8_t *out) {
    const written *w;
    size_t n;
    if (seed % 8 == 0) return from_lines(out);
    if (seed % 4 == 0) return from_opcodes(out);
    if (seed % 4 == 1) return from_json(out);
    w = a_file();
    n = w->bytes;
    memcpy(out, w->at, n);
    for (uint32_t left = seed % 4 == 2 ? 1 + pick(4) : pick(40); left; --left) {
        const uint32_t at = pick((uint32_t)n);
        switch (pick(4)) {
        case 0: out[at] = (uint8_t)pick(256); break;
        case 1: out[at] ^= (uint8_t)(1u << pick(8)); break;
        case 2: n = at + 1; break;
        default: memmove(out + at, out + at / 2, n - at); break;
        }
    }
    return n;
}
#endif

/*  A store for PyTorch to talk to, or a client of PyTorch's, driven by lines on stdin;
    test_store.py starts it.

        store serve [KEY]         prints the port, serves until stdin ends; what it refuses goes to
                                  stderr
        store client PORT         one command a line, one answer a line; values are hexadecimal, "-"
                                  is an empty one
            set K V   get K MS   add K N   cas K OLD NEW   wait MS K...   check K...   del K   num
            append K V   mset K V...   mget MS K... */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include <stdio.h>

#define WORDS 64

static cdp_bytes unhex(const char *s, uint8_t **room) {
    cdp_bytes b;
    b.data = *room;
    b.bytes = 0;
    for (; *s && *s != '-' && *s > ' '; s += 2, ++b.bytes)
        *(*room)++ = (uint8_t)(cdp__addr_hex(s[0]) << 4 | cdp__addr_hex(s[1]));
    return b;
}

static void print_value(const void *data, uint64_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    for (uint64_t i = 0; i < bytes; ++i)
        printf("%02x", p[i]);
    printf(bytes ? " " : "- ");
}

/* Prints the answer, without its end of line. */
static cdp_status run(cdp_store *s, char **w, uint32_t n, uint8_t *room) {
    const char *const *keys = (const char *const *)w;
    const uint32_t ms = n > 1 ? (uint32_t)atoi(w[1]) : 0;
    cdp_bytes a, b, values[WORDS];
    uint64_t bytes;
    int64_t number = 0;
    bool flag = false;
    void *value = NULL;
    cdp_status st = CDP_ERR_INVALID;
    if (!strcmp(w[0], "set")) {
        a = unhex(w[2], &room);
        st = cdp_store_set(s, w[1], a.data, a.bytes);
    } else if (!strcmp(w[0], "append")) {
        a = unhex(w[2], &room);
        st = cdp_store_append(s, w[1], a.data, a.bytes);
    } else if (!strcmp(w[0], "get")) {
        st = cdp_store_get(s, w[1], &value, &bytes, (uint32_t)atoi(w[2]));
        if (st == CDP_OK) print_value(value, bytes);
    } else if (!strcmp(w[0], "add")) {
        st = cdp_store_add(s, w[1], atoll(w[2]), &number);
        printf("%lld ", (long long)number);
    } else if (!strcmp(w[0], "cas")) {
        a = unhex(w[2], &room);
        b = unhex(w[3], &room);
        st = cdp_store_compare_set(s, w[1], a.data, a.bytes, b.data, b.bytes, &value, &bytes);
        if (st == CDP_OK) print_value(value, bytes);
    } else if (!strcmp(w[0], "wait")) {
        st = cdp_store_wait(s, keys + 2, n - 2, ms);
    } else if (!strcmp(w[0], "check")) {
        st = cdp_store_check(s, keys + 1, n - 1, &flag);
        printf("%d ", flag);
    } else if (!strcmp(w[0], "del")) {
        st = cdp_store_delete(s, w[1], &flag);
        printf("%d ", flag);
    } else if (!strcmp(w[0], "num")) {
        st = cdp_store_num_keys(s, &number);
        printf("%lld ", (long long)number);
    } else if (!strcmp(w[0], "mset")) {
        const char *names[WORDS];
        for (uint32_t i = 1; i + 1 < n; i += 2) {
            names[i / 2] = w[i];
            values[i / 2] = unhex(w[i + 1], &room);
        }
        st = cdp_store_multi_set(s, names, values, (n - 1) / 2);
    } else if (!strcmp(w[0], "mget")) {
        st = cdp_store_multi_get(s, keys + 2, n - 2, values, &value, ms);
        for (uint32_t i = 0; st == CDP_OK && i < n - 2; ++i)
            print_value(values[i].data, values[i].bytes);
    }
    cdp_store_free(s, value);
    return st;
}

static int client(uint16_t port) {
    static char line[5 << 20];
    static uint8_t room[3 << 20];
    cdp_tcp_store_desc d = {
        .host = "127.0.0.1", .port = port, .timeout_ms = 30000, .count_me = true};
    cdp_store *s;
    if (cdp_tcp_store_create(&d, &s) != CDP_OK) {
        printf("cannot connect: %s\n", cdp_last_error()->text);
        return 1;
    }
    printf("dialect %s\n", ((cdp__client *)s->self)->old ? "of 1.13" : "of 2.x");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char *w[WORDS];
        uint32_t n = 0;
        for (char *p = strtok(line, " \n"); p && n < WORDS; p = strtok(NULL, " \n"))
            w[n++] = p;
        const cdp_status st = run(s, w, n, room);
        printf("%s\n", cdp_status_name(st));
        if (st != CDP_OK && st != CDP_ERR_TIMEOUT)
            fprintf(stderr, "%s: %s\n", w[0], cdp_last_error()->text);
        fflush(stdout);
    }
    cdp_store_destroy(s);
    return 0;
}

int main(int argc, char **argv) {
    cdp_store_server_desc d = {.job_key = argc > 2 ? argv[2] : NULL};
    cdp_store_server *s;
    if (argc == 3 && !strcmp(argv[1], "client")) return client((uint16_t)atoi(argv[2]));
    if (cdp_store_server_create(&d, &s) != CDP_OK) return cdp_print_error(stderr);
    printf("%u\n", cdp_store_server_port(s));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    cdp_store_server_destroy(s);
    return 0;
}

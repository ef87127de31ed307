/* cdp_store.h: its pure parts, the server byte by byte, the client against real and false servers,
   every call of every store, waits, threads, over loopback sockets. */
#define CDP_IMPLEMENTATION
#include "cdp_store.h"
#include "test.h"

#include "store_raw.h"
#include "ports.h"
#include <fcntl.h>
#include <sys/wait.h>

/* ---- pure ------------------------------------------------------------------------------------ */

TEST(addr) {
    static const char *const same[] = {"1.2.3.4:80", "0.0.0.0:0", "255.255.255.255:65535", "[::]:0",
        "[::1]:80", "[fe80::1%3]:7", "[1:2:3:4:5:6:7:8]:9", "[1::8]:1", "[2001:db8::1:0:0:1]:1",
        "[1:0:2:3:4:5:6:7]:1", "[0:2:3:4:5:6:7:8]:1", "[1:2:3:4:5:6::]:1"};
    static const char *const pairs[][2] = {{"1.2.3.4", "1.2.3.4:0"}, {"::1", "[::1]:0"},
        {"[::1]", "[::1]:0"}, {"::", "[::]:0"}, {"::ffff:1.2.3.4", "[::ffff:102:304]:0"},
        {"1:2:3:4:5:6:1.2.3.4", "[1:2:3:4:5:6:102:304]:0"}, {"fe80::1%12", "[fe80::1%12]:0"},
        {"2001:DB8:0:0:1:0:0:1", "[2001:db8::1:0:0:1]:0"}, {"::1.2.3.4", "[::102:304]:0"},
        {"1:0:0:0:0:0:0:0", "[1::]:0"}, {"::2:3:4:5:6:7:8", "[0:2:3:4:5:6:7:8]:0"}};
    static const char *const bad[] = {"", "localhost", "1.2.3", "1.2.3.4.5", "256.1.1.1",
        "01.2.3.4", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:+1", "1.2.3.4 ", ":", ":::", "1::2::3",
        "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "12345::", "[::1", "::1]", "[::1]:", "[::1]x",
        "fe80::1%", "fe80::1%eth0", "1:2:3:4:5:6:7::8:9", "g::1", "[1.2.3.4]",
        "1:2:3:4:5:6:7:1.2.3.4", "::1:", "1:", "-1.2.3.4"};
    char text[64];
    cdp_addr a;
    uint32_t i;
    for (i = 0; i < sizeof same / sizeof *same; ++i) {
        const bool ok = cdp__addr_parse(same[i], &a);
        cdp__addr_text(&a, text, sizeof text);
        if (!T(ok && strcmp(text, same[i]) == 0)) printf("     %s became %s\n", same[i], text);
    }
    for (i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
        const bool ok = cdp__addr_parse(pairs[i][0], &a);
        cdp__addr_text(&a, text, sizeof text);
        if (!T(ok && strcmp(text, pairs[i][1]) == 0))
            printf("     %s became %s\n", pairs[i][0], text);
    }
    for (i = 0; i < sizeof bad / sizeof *bad; ++i)
        if (!T(!cdp__addr_parse(bad[i], &a))) printf("     %s was taken\n", bad[i]);
    memset(&a, 0, sizeof a);
    cdp__addr_text(&a, text, 5);
    T(strlen(text) == 4);
}

TEST(number) {
    static const struct {
        const char *text;
        bool ok;
        int64_t v;
    } t[] = {
        {"0", true, 0},
        {"5", true, 5},
        {"-2", true, -2},
        {"+7", true, 7},
        {" 7", true, 7},
        {"\t\n\v\f\r 7x", true, 7},
        {"12abc", true, 12},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999", false, 0},
        {"", false, 0},
        {" ", false, 0},
        {"-", false, 0},
        {"hello", false, 0},
        {"- 1", false, 0},
        {"007", true, 7},
    };
    uint32_t i;
    char text[24];
    for (i = 0; i < sizeof t / sizeof *t; ++i) {
        int64_t v = 0;
        const bool ok = cdp__number_parse((const uint8_t *)t[i].text, strlen(t[i].text), &v);
        if (!T(ok == t[i].ok && v == t[i].v)) printf("     \"%s\"\n", t[i].text);
    }
    T(cdp__number_text(INT64_MIN, text) == 20 && strcmp(text, "-9223372036854775808") == 0);
}

/* The parser gives the same items for every way to cut the input, and asks for no more than an
   item needs. */
TEST(wire_splits) {
    static const char *const input =
        "01 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76 02 02 00 00 00 00 00 00 00 2f "
        "78 00 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 66 69 72 73 74"
        "06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 00 00 00 00 00 00 00 00 05 00 00 "
        "00 00 00 00 00 00 07 0d 34 12 00 00 04 01 00 00 00 00 00 00 00 6e f9 ff ff ff ff ff ff ff"
        "0b 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 01 00 00 00 00 00 00 00 31";
    static const cdp__wire_limits max = {8192, 8388608, 131072};
    uint8_t all[512];
    const uint32_t n = hex(input, all);
    uint64_t first = 0;
    uint32_t step;
    for (step = 1; step <= n; ++step) {
        cdp__wire w;
        cdp__wire_item it;
        uint64_t at = 0, have = 0, used, sum = CDP__HASH_START, items = 0;
        memset(&w, 0, sizeof w);
        w.table = cdp__wire_v2;
        while (at < n) {
            const cdp__wire_result r = cdp__wire_next(&w, &max, all + at, have - at, &it, &used);
            if (r == CDP__WIRE_BAD) break;
            if (r == CDP__WIRE_MORE) {
                if (!T(used > have - at && at + used <= n)) break;
                /* not what it asks for: what the network gives */
                have = cdp__min(n, cdp__max(have + step, have));
                continue;
            }
            at += used;
            ++items;
            sum = cdp__hash(sum, &it.cmd, sizeof it.cmd);
            sum = cdp__hash(sum, &it.number, sizeof it.number);
            sum = cdp__hash(sum, it.key.data, it.key.bytes);
            sum = cdp__hash(sum, it.value[1].data, it.value[1].bytes);
            sum = (sum << 2 | (uint64_t)it.first << 1 | it.last) ^ sum;
        }
        if (step == 1) first = sum;
        T(at == n && items == 11 && sum == first);
    }
}

TEST(wire_limits) {
    static const cdp__wire_limits max = {4, 6, 3};
    static const struct {
        const char *in;
        cdp__wire_result r;
    } t[] = {
        {"01 04 00 00 00 00 00 00 00", CDP__WIRE_MORE},
        {"01 05 00 00 00 00 00 00 00", CDP__WIRE_BAD},
        {"01 ff ff ff ff ff ff ff ff", CDP__WIRE_BAD},
        {"01 01 00 00 00 00 00 00 00 61 06 00 00 00 00 00 00 00", CDP__WIRE_MORE},
        {"01 01 00 00 00 00 00 00 00 61 07 00 00 00 00 00 00 00", CDP__WIRE_BAD},
        {"01 01 00 00 00 00 00 00 00 61 00 00 00 00 00 00 00 80", CDP__WIRE_BAD},
        {"06 03 00 00 00 00 00 00 00", CDP__WIRE_ITEM},
        {"06 04 00 00 00 00 00 00 00", CDP__WIRE_BAD},
        {"00", CDP__WIRE_BAD},
        {"13", CDP__WIRE_BAD},
        {"13", CDP__WIRE_BAD},
        {"47", CDP__WIRE_BAD},
        {"ff", CDP__WIRE_BAD},
        {"06", CDP__WIRE_MORE},
    };
    uint32_t i;
    for (i = 0; i < sizeof t / sizeof *t; ++i) {
        cdp__wire w;
        cdp__wire_item it;
        uint8_t in[64];
        uint64_t used;
        const uint32_t n = hex(t[i].in, in);
        memset(&w, 0, sizeof w);
        w.table = cdp__wire_v2;
        if (!T(cdp__wire_next(&w, &max, in, n, &it, &used) == t[i].r)) printf("     %s\n", t[i].in);
    }
}

/* ---- server, byte by byte -------------------------------------------------------------------- */

typedef struct step {
    const char *send, *answer;
} step;

static const step script[] = {
    {"00 ce f7 85 3c", ""},
    {"0d 34 12 00 00", "34 12 00 00"},
    {"04 05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00",
        "01 00 00 00 00 00 00 00"},
    {"01 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76", ""},
    {"06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b", "00"},
    {"03 02 00 00 00 00 00 00 00 2f 6b", "01 00 00 00 00 00 00 00 76"},
    {"02 02 00 00 00 00 00 00 00 2f 78 00 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 66 69 72 73 "
     "74",
        "05 00 00 00 00 00 00 00 66 69 72 73 74"},
    {"02 02 00 00 00 00 00 00 00 2f 78 05 00 00 00 00 00 00 00 66 69 72 73 74 06 00 00 00 00 00 00 "
     "00 73 65 63 6f 6e 64",
        "06 00 00 00 00 00 00 00 73 65 63 6f 6e 64"},
    {"02 02 00 00 00 00 00 00 00 2f 78 05 00 00 00 00 00 00 00 66 69 72 73 74 05 00 00 00 00 00 00 "
     "00 74 68 69 72 64",
        "06 00 00 00 00 00 00 00 73 65 63 6f 6e 64"},
    {"02 02 00 00 00 00 00 00 00 2f 79 03 00 00 00 00 00 00 00 65 78 70 03 00 00 00 00 00 00 00 64 "
     "65 73",
        "03 00 00 00 00 00 00 00 65 78 70"},
    {"04 02 00 00 00 00 00 00 00 2f 6e 05 00 00 00 00 00 00 00", "05 00 00 00 00 00 00 00"},
    {"04 02 00 00 00 00 00 00 00 2f 6e f9 ff ff ff ff ff ff ff", "fe ff ff ff ff ff ff ff"},
    {"03 02 00 00 00 00 00 00 00 2f 6e", "02 00 00 00 00 00 00 00 2d 32"},
    {"05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 2f 7a 7a",
        "01"},
    {"05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b", "00"},
    {"05 00 00 00 00 00 00 00 00", "00"},
    {"05 01 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00 'cdp/server'", "00"},
    {"06 00 00 00 00 00 00 00 00", "00"},
    {"07", "04 00 00 00 00 00 00 00"},
    {"09 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 61 62", ""},
    {"03 02 00 00 00 00 00 00 00 2f 6b", "03 00 00 00 00 00 00 00 'vab'"},
    {"0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 01 00 00 00 00 00 00 00 31 02 00 00 "
     "00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00 32 32",
        ""},
    {"0a 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 62",
        "01 00 00 00 00 00 00 00 31 02 00 00 00 00 00 00 00 32 32"},
    {"0a 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 7a",
        "01 00 00 00 00 00 00 00 31 00 00 00 00 00 00 00 00"},
    {"03 02 00 00 00 00 00 00 00 2f 7a", "00 00 00 00 00 00 00 00"},
    {"08 02 00 00 00 00 00 00 00 2f 6b", "01 00 00 00 00 00 00 00"},
    {"08 02 00 00 00 00 00 00 00 2f 6b", "00 00 00 00 00 00 00 00"},
    {"0c", "01"},
    {"06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 61 02 00 00 00 00 00 00 00 2f 6d", ""},
    {"0c", "01"},
    {"01 02 00 00 00 00 00 00 00 2f 6d 00 00 00 00 00 00 00 00", ""},
    {"02 02 00 00 00 00 00 00 00 2f 6d 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 31",
        "01 00 00 00 00 00 00 00 31"},
    {"06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 77 02 00 00 00 00 00 00 00 2f 77", ""},
    {"01 02 00 00 00 00 00 00 00 2f 77 01 00 00 00 00 00 00 00 31", "00"},
    {"08 02 00 00 00 00 00 00 00 2f 77", "01 00 00 00 00 00 00 00"},
    {"0b 00 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00 00 0d ff ff ff ff", "ff ff ff ff"},
    {"12 02 00 00 00 00 00 00 00 2f 42 02 00 00 00 00 00 00 00", ""},
    {"12 02 00 00 00 00 00 00 00 2f 42 02 00 00 00 00 00 00 00", "00 00"},
    {"c0 02 00 00 00 00 00 00 00 2f 57 01 00 00 00 00 00 00 00 77 c0 00 00 00 00 00 00 00 00 00 00 "
     "00 00 00 00 00 00",
        ""},
    {"10 02 00 00 00 00 00 00 00 2f 71", "00 00 00 00 00 00 00 00"},
    {"0f 02 00 00 00 00 00 00 00 2f 71", "00 00 00 00 00 00 00 00"},
    {"05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 71", "01"},
    {"0e 02 00 00 00 00 00 00 00 2f 71 01 00 00 00 00 00 00 00 78", ""},
    {"0e 02 00 00 00 00 00 00 00 2f 71 00 00 00 00 00 00 00 00", ""},
    {"10 02 00 00 00 00 00 00 00 2f 71", "02 00 00 00 00 00 00 00"},
    {"05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 71", "00"},
    {"06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 71", "00"},
    {"08 02 00 00 00 00 00 00 00 2f 71", "00 00 00 00 00 00 00 00"},
    {"0f 02 00 00 00 00 00 00 00 2f 71", "02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 78"},
    {"0f 02 00 00 00 00 00 00 00 2f 71", "01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"},
    {"0f 02 00 00 00 00 00 00 00 2f 71", "00 00 00 00 00 00 00 00"},
    {"07", "07 00 00 00 00 00 00 00"},
};
#define SCRIPT_STEPS (sizeof script / sizeof *script)

static uint32_t script_bytes(uint8_t *in, uint8_t *out, uint32_t *out_bytes) {
    uint32_t i, n = 0;
    *out_bytes = 0;
    for (i = 0; i < SCRIPT_STEPS; ++i) {
        n += hex(script[i].send, in + n);
        *out_bytes += hex(script[i].answer, out + *out_bytes);
    }
    return n;
}

/* Polls until so many bytes have come; on a busy machine more often than the bytes need. */
static bool polled_read(cdp_store_server *s, int fd, uint8_t *dst, uint32_t n) {
    const uint64_t end = now_ms() + 5000 * test__scale_now();
    while (n && now_ms() < end) {
        ssize_t r;
        poll_server(s, 1);
        if (!raw_readable(fd, 0)) continue;
        r = recv(fd, dst, n, 0);
        if (r <= 0) return false;
        dst += r;
        n -= (uint32_t)r;
    }
    return !n;
}

/* Each step alone: the answer belongs to the request. */
TEST(script_steps) {
    cdp_store_server *s = server_open();
    const int fd = raw_open(cdp_store_server_port(s));
    uint32_t i;
    for (i = 0; i < SCRIPT_STEPS; ++i) {
        T(raw_send(fd, script[i].send));
        if (!T(raw_expect(fd, script[i].answer))) printf("     step %u\n", i);
    }
    T(!raw_readable(fd, 20));
    close(fd);
    cdp_store_server_destroy(s);
}

/* All steps in one stream, cut into two pieces at every byte, the pieces served one after the
   other. */
TEST(script_splits) {
    static uint8_t in[8192], want[8192], got[8192];
    uint32_t want_bytes, cut;
    const uint32_t n = script_bytes(in, want, &want_bytes);
    for (cut = 1; cut <= n; ++cut) {
        cdp_store_server_desc d = server_desc();
        cdp_store_server *s;
        int fd;
        d.no_thread = true;
        if (!OK(cdp_store_server_create(&d, &s))) return;
        fd = raw_open(cdp_store_server_port(s));
        raw_write(fd, in, cut);
        poll_server(s, 2);
        raw_write(fd, in + cut, n - cut);
        memset(got, 0, sizeof got);
        if (!T(polled_read(s, fd, got, want_bytes) && memcmp(got, want, want_bytes) == 0))
            printf("     cut after byte %u of %u\n", cut, n);
        close(fd);
        cdp_store_server_destroy(s);
    }
}

/* One byte at a time. */
TEST(script_dribble) {
    static uint8_t in[8192], want[8192], got[8192];
    uint32_t want_bytes, i;
    const uint32_t n = script_bytes(in, want, &want_bytes);
    cdp_store_server_desc d = server_desc();
    cdp_store_server *s;
    int fd;
    d.no_thread = true;
    if (!OK(cdp_store_server_create(&d, &s))) return;
    fd = raw_open(cdp_store_server_port(s));
    for (i = 0; i < n; ++i) {
        raw_write(fd, in + i, 1);
        poll_server(s, 1);
    }
    T(polled_read(s, fd, got, want_bytes) && memcmp(got, want, want_bytes) == 0);
    close(fd);
    cdp_store_server_destroy(s);
}

/* What must end that connection, and no other. */
TEST(bad_requests) {
    static const char *const bad[] = {
        /* greeting twice */
        "00 ce f7 85 3c",
        /* queues are not served */
        "13 02 00 00 00 00 00 00 00 2f 71 01 00 00 00 00 00 00 00 78",
        "ff",
        "13",
        "47",
        /* key of 8193 bytes */
        "01 01 20 00 00 00 00 00 00",
        "01 00 00 00 00 00 00 00 80",
        "01 ff ff ff ff ff ff ff ff",
        /* value of 8 MiB + 1 */
        "01 02 00 00 00 00 00 00 00 2f 6b 01 00 80 00 00 00 00 00",
        "06 01 00 02 00 00 00 00 00",
        "05 ff ff ff ff ff ff ff ff",
        "0a 00 00 00 00 00 00 00 80",
        "0b 01 00 02 00 00 00 00 00",
        "06 01 00 00 00 00 00 00 00 01 20 00 00 00 00 00 00",
        /* add to what is no number */
        "04 05 00 00 00 00 00 00 00 '/text' 01 00 00 00 00 00 00 00",
        "12 05 00 00 00 00 00 00 00 '/text' 01 00 00 00 00 00 00 00",
    };
    /* the last one asks for a link with a rank, which this server does not have */
    static const char *const bad_greeting[] = {"00 ce f7 85 3d 00 00 00 00", "09",
        "'GET / HTTP/1.0'", "03 05 00 00 00 01 00 00 00", "ff", "'cdp-link' 04 00 00 00"};
    cdp_store_server *s = server_open();
    const uint16_t port = cdp_store_server_port(s);
    const int good = raw_greeted(port);
    uint32_t i;
    raw_send(good, "01 05 00 00 00 00 00 00 00 '/text' 05 00 00 00 00 00 00 00 'hello'");
    raw_send(good, "0d 01 00 00 00");
    T(raw_expect(good, "01 00 00 00"));
    for (i = 0; i < sizeof bad / sizeof *bad; ++i) {
        const int fd = raw_greeted(port);
        raw_send(fd, "0d 05 00 00 00");
        T(raw_expect(fd, "05 00 00 00"));
        raw_send(fd, bad[i]);
        if (!T(raw_ends(fd))) printf("     %s\n", bad[i]);
        close(fd);
    }
    for (i = 0; i < sizeof bad_greeting / sizeof *bad_greeting; ++i) {
        const int fd = raw_open(port);
        raw_send(fd, bad_greeting[i]);
        if (!T(raw_ends(fd))) printf("     %s\n", bad_greeting[i]);
        close(fd);
    }
    raw_send(good, "0d 02 00 00 00");
    T(raw_expect(good, "02 00 00 00"));
    close(good);
    cdp_store_server_destroy(s);
}

TEST(add_text_rules) {
    static const struct {
        const char *stored;
        int64_t delta;
        const char *then;
    } t[] = {
        {" 7", 1, "8"},
        {"12abc", 1, "13"},
        {"9223372036854775807", 1, "-9223372036854775808"},
        {"-5", 5, "0"},
        {"+1", 1, "2"},
        {"\n3", 0, "3"},
    };
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s)),
              *bystander = client_open(cdp_store_server_port(s));
    uint32_t i;
    int64_t sum;
    for (i = 0; i < sizeof t / sizeof *t; ++i) {
        OK(cdp_store_set(c, "n", t[i].stored, strlen(t[i].stored)));
        OK(cdp_store_add(c, "n", t[i].delta, &sum));
        T(value_is(c, "n", t[i].then));
    }
    OK(cdp_store_set(c, "n", "x1", 2));
    ST(cdp_store_add(c, "n", 1, &sum), CDP_ERR_STORE);
    TEXT("no number to add to");
    ST(cdp_store_add(c, "n", 1, &sum), CDP_ERR_STORE); /* and stays gone, with the same reason */
    TEXT("no number to add to");
    OK(cdp_store_add(bystander, "m", 1, &sum));
    cdp_store_destroy(c);
    cdp_store_destroy(bystander);
    cdp_store_server_destroy(s);
}

/* ---- the dialect of PyTorch 1.13 ------------------------------------------------------------- */

/* As captured from its client and server. */
static const step old_script[] = {
    {"03 05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00",
        "01 00 00 00 00 00 00 00"},
    {"00 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76", ""},
    {"05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b", "00"},
    {"02 02 00 00 00 00 00 00 00 2f 6b", "01 00 00 00 00 00 00 00 76"},
    {"03 02 00 00 00 00 00 00 00 2f 6e 05 00 00 00 00 00 00 00", "05 00 00 00 00 00 00 00"},
    {"03 02 00 00 00 00 00 00 00 2f 6e f9 ff ff ff ff ff ff ff", "fe ff ff ff ff ff ff ff"},
    {"02 02 00 00 00 00 00 00 00 2f 6e", "02 00 00 00 00 00 00 00 2d 32"},
    {"05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 2f 6e",
        "00"},
    {"06", "03 00 00 00 00 00 00 00"},
    {"08 02 00 00 00 00 00 00 00 2f 6b", "01 00 00 00 00 00 00 00"},
    {"08 02 00 00 00 00 00 00 00 2f 6b", "00 00 00 00 00 00 00 00"},
    {"01 02 00 00 00 00 00 00 00 2f 78 00 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 66 69 72 73 "
     "74",
        "05 00 00 00 00 00 00 00 66 69 72 73 74"},
    {"01 02 00 00 00 00 00 00 00 2f 78 05 00 00 00 00 00 00 00 66 69 72 73 74 06 00 00 00 00 00 00 "
     "00 73 65 63 6f 6e 64",
        "06 00 00 00 00 00 00 00 73 65 63 6f 6e 64"},
    {"01 02 00 00 00 00 00 00 00 2f 78 05 00 00 00 00 00 00 00 66 69 72 73 74 05 00 00 00 00 00 00 "
     "00 74 68 69 72 64",
        "06 00 00 00 00 00 00 00 73 65 63 6f 6e 64"},
    {"01 02 00 00 00 00 00 00 00 2f 79 03 00 00 00 00 00 00 00 65 78 70 03 00 00 00 00 00 00 00 64 "
     "65 73",
        "03 00 00 00 00 00 00 00 65 78 70"},
    {"00 02 00 00 00 00 00 00 00 2f 65 00 00 00 00 00 00 00 00", ""},
    {"04 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 65", "00"},
    {"04 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 65 05 00 00 00 00 00 00 00 '/nope'",
        "01"},
    {"04 00 00 00 00 00 00 00 00", "00"},
    {"05 00 00 00 00 00 00 00 00", "00"},
    {"03 02 00 00 00 00 00 00 00 2f 70 03 00 00 00 00 00 00 00 02 02 00 00 00 00 00 00 00 2f 70 06",
        "03 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 33 05 00 00 00 00 00 00 00"},
    /* times out over there: nothing is said */
    {"05 01 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 '/missing'", ""},
    /* and what would come too late is not sent */
    {"00 08 00 00 00 00 00 00 00 '/missing' 01 00 00 00 00 00 00 00 76", ""},
    {"06", "06 00 00 00 00 00 00 00"},
    {"07 03 00 00 00 00 00 00 00 2f 77 32", "03"},
    {"00 03 00 00 00 00 00 00 00 2f 77 32 03 00 00 00 00 00 00 00 'one'",
        "01 03 00 00 00 00 00 00 00 2f 77 32 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 6f 6e "
        "65"},
    {"00 03 00 00 00 00 00 00 00 2f 77 32 03 00 00 00 00 00 00 00 'two'",
        "00 03 00 00 00 00 00 00 00 2f 77 32 03 00 00 00 00 00 00 00 6f 6e 65 03 00 00 00 00 00 00 "
        "00 74 77 6f"},
    {"01 03 00 00 00 00 00 00 00 2f 77 32 03 00 00 00 00 00 00 00 'two' 03 00 00 00 00 00 00 00 "
     "'thr'",
        "03 00 00 00 00 00 00 00 'thr' 00 03 00 00 00 00 00 00 00 2f 77 32 03 00 00 00 00 00 00 00 "
        "74 77 6f 03 00 00 00 00 00 00 00 74 68 72"},
    {"01 03 00 00 00 00 00 00 00 2f 77 32 03 00 00 00 00 00 00 00 'two' 03 00 00 00 00 00 00 00 "
     "'xyz'",
        "03 00 00 00 00 00 00 00 'thr'"},
    {"08 03 00 00 00 00 00 00 00 2f 77 32",
        "01 00 00 00 00 00 00 00 02 03 00 00 00 00 00 00 00 2f 77 32 03 00 00 00 00 00 00 00 74 68 "
        "72 00 00 00 00 00 00 00 00"},
    {"06", "06 00 00 00 00 00 00 00"},
};

TEST(old_dialect_byte_by_byte) {
    static const char *const bad[] = {"02 05 00 00 00 00 00 00 00 '/nope'", "09", "ff", "0c",
        "c0 00", "00 01 20 00 00 00 00 00 00",
        "03 02 00 00 00 00 00 00 00 2f 74 01 00 00 00 00 00 00 00"};
    cdp_store_server *s = server_open();
    int fd = raw_open(cdp_store_server_port(s));
    uint32_t i, n, at;
    uint8_t b[400];
    for (i = 0; i < sizeof old_script / sizeof *old_script; ++i) {
        n = hex(old_script[i].send, b); /* in as many pieces as can be */
        for (at = 0; at < n; ++at)
            raw_write(fd, b + at, 1);
        if (!T(raw_expect(fd, old_script[i].answer))) printf("     step %u\n", i);
    }
    T(!raw_readable(fd, 20));
    raw_send(fd, "00 02 00 00 00 00 00 00 00 2f 74 01 00 00 00 00 00 00 00 78"); /* text */
    for (i = 0; i < sizeof bad / sizeof *bad; ++i) {
        const int other = raw_open(cdp_store_server_port(s));
        raw_send(other, "06");
        T(raw_read(other, b, 8));
        raw_send(other, bad[i]);
        if (!T(raw_ends(other))) printf("     %s\n", bad[i]);
        close(other);
    }
    close(fd);
    cdp_store_server_destroy(s);
}

/* Two dialects, one store: a waiter of the old one is woken by the new one, and the other way
   round. */
TEST(dialects_share_a_store) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s));
    const int old = raw_open(cdp_store_server_port(s)), silent = raw_open(cdp_store_server_port(s));
    raw_send(old, "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b");
    T(!raw_readable(old, 30));
    OK(cdp_store_set(c, "k", "v", 1));
    T(raw_expect(old, "00"));
    raw_send(old, "00 02 00 00 00 00 00 00 00 2f 6d 01 00 00 00 00 00 00 00 77");
    T(value_is(c, "m", "w"));
    raw_send(old, "07 02 00 00 00 00 00 00 00 2f 6f");
    T(raw_expect(old, "03"));
    OK(cdp_store_append(c, "o", "a", 1));
    T(raw_expect(old,
        "01 02 00 00 00 00 00 00 00 2f 6f 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 61"));
    /* the second connection that every client of 1.13 makes and leaves alone */
    T(!raw_readable(silent, 0));
    close(old);
    close(silent);
    OK(cdp_store_append(c, "o", "b", 1));
    T(value_is(c, "o", "ab"));
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* ---- waiting --------------------------------------------------------------------------------- */

TEST(wait_raw) {
    cdp_store_server *s = server_open();
    const uint16_t port = cdp_store_server_port(s);
    const int a = raw_greeted(port), b = raw_greeted(port), dead = raw_greeted(port);
    raw_send(b, "01 02 00 00 00 00 00 00 00 '/a' 01 00 00 00 00 00 00 00 31");
    raw_send(b, "0d 01 00 00 00");
    T(raw_expect(b, "01 00 00 00"));
    raw_send(dead, "06 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 '/m1'");
    raw_send(a,
        "06 03 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 '/m1' 02 00 00 00 00 00 00 00 '/a' 03 "
        "00 00 00 00 00 00 00 '/m2'");
    T(!raw_readable(a, 30));
    close(dead);
    raw_send(b, "01 03 00 00 00 00 00 00 00 '/m1' 00 00 00 00 00 00 00 00");
    /* a key that was there counts, also when it is gone again */
    raw_send(b, "08 03 00 00 00 00 00 00 00 '/m1'");
    T(raw_expect(b, "01 00 00 00 00 00 00 00"));
    T(!raw_readable(a, 30));
    raw_send(b, "04 03 00 00 00 00 00 00 00 '/m2' 01 00 00 00 00 00 00 00"); /* add wakes */
    T(raw_expect(b, "01 00 00 00 00 00 00 00"));
    T(raw_expect(a, "00"));
    raw_send(a, "06 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 '/m3'");
    /* stores nothing, wakes nobody */
    raw_send(b,
        "02 03 00 00 00 00 00 00 00 '/m3' 01 00 00 00 00 00 00 00 'x' 01 00 00 00 00 00 00 00 'y'");
    T(raw_expect(b, "01 00 00 00 00 00 00 00 'x'"));
    T(!raw_readable(a, 30));
    /* this does */
    raw_send(
        b, "02 03 00 00 00 00 00 00 00 '/m3' 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 'y'");
    T(raw_expect(b, "01 00 00 00 00 00 00 00 'y'"));
    T(raw_expect(a, "00"));
    raw_send(a, "06 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 '/m4'");
    raw_send(b, "09 03 00 00 00 00 00 00 00 '/m4' 00 00 00 00 00 00 00 00"); /* append */
    T(raw_expect(a, "00"));
    /* half a request: no answer before its end */
    raw_send(a, "06 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 '/m5'");
    T(!raw_readable(a, 30));
    /* multi_set */
    raw_send(b, "0b 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 '/m5' 00 00 00 00 00 00 00 00");
    T(!raw_readable(a, 30));
    raw_send(a, "02 00 00 00 00 00 00 00 '/a'");
    T(raw_expect(a, "00"));
    close(a);
    close(b);
    cdp_store_server_destroy(s);
}

TEST(timeout_and_resync) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s));
    static const char *const keys[] = {"there", "missing"};
    cdp_bytes values[2];
    void *value;
    uint64_t bytes, i, start;
    int64_t sum;
    OK(cdp_store_set(c, "there", "1", 1));
    for (i = 0; i < 20; ++i) {
        const uint32_t ms = i ? 10 : 300;
        start = now_ms();
        ST(cdp_store_get(c, "missing", &value, &bytes, ms), CDP_ERR_TIMEOUT);
        T(now_ms() - start >= ms - 1 && now_ms() - start <= ms + 30 * TEST_LATE + TEST_STILL_MS);
        TEXT("\"missing\"");
        TEXT("127.0.0.1:");
        ST(cdp_store_wait(c, keys, 2, 5), CDP_ERR_TIMEOUT);
        ST(cdp_store_multi_get(c, keys, 2, values, &value, 5), CDP_ERR_TIMEOUT);
        T(value == NULL);
        OK(cdp_store_add(c, "n", 1, &sum));
        T(sum == (int64_t)i + 1);
        T(value_is(c, "there", "1"));
    }
    OK(cdp_store_set(c, "missing", "2", 1)); /* the registrations are gone: no stray byte follows */
    T(value_is(c, "missing", "2"));
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* The key arrives just when the wait is given up. */
TEST(cancel_race) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s)),
              *d = client_open(cdp_store_server_port(s));
    uint32_t i, got = 0;
    for (i = 0; i < 300; ++i) {
        cdp_store_request rq;
        cdp_bytes key;
        char name[16];
        cdp_status status;
        cdp__format(name, sizeof name, "k%u", i);
        key = bytes_of(name);
        memset(&rq, 0, sizeof rq);
        rq.op = CDP_STORE_GET;
        rq.keys = &key;
        rq.key_count = 1;
        status = c->start(c->self, &rq);
        T(status == CDP_PENDING);
        OK(cdp_store_set(d, name, name, strlen(name)));
        status = c->wait(c->self, &rq, 0);
        if (i % 3) status = c->wait(c->self, &rq, cdp_os_default()->now_ns(NULL) + (i % 7) * 20000);
        if (status == CDP_PENDING) c->cancel(c->self, &rq);
        got += rq.status == CDP_OK;
        if (rq.status == CDP_OK) {
            T(rq.results[0].bytes == strlen(name)
                && memcmp(rq.results[0].data, name, strlen(name)) == 0);
            cdp_store_request_free(c, &rq);
        }
        T(value_is(c, name, name));
    }
    (void)got;
    cdp_store_destroy(c);
    cdp_store_destroy(d);
    cdp_store_server_destroy(s);
}

/* Several requests at once on one client: in order, each with its own end. */
TEST(queue) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s));
    cdp_store_request rq[5];
    const cdp_bytes key = bytes_of("k"), missing = bytes_of("missing");
    const cdp_bytes value = bytes_of("v");
    uint32_t i;
    memset(rq, 0, sizeof rq);
    for (i = 0; i < 5; ++i) {
        rq[i].keys = &key;
        rq[i].key_count = 1;
        rq[i].values = &value;
        rq[i].op = CDP_STORE_GET;
    }
    rq[0].keys = &missing;
    rq[1].op = CDP_STORE_SET;
    rq[3].op = CDP_STORE_DELETE;
    for (i = 0; i < 5; ++i)
        T(c->start(c->self, &rq[i]) == CDP_PENDING);
    T(c->wait(c->self, &rq[2], cdp_os_default()->now_ns(NULL) + 20 * CDP__MS) == CDP_PENDING);
    c->cancel(c->self, &rq[4]); /* the last, from the end of the queue */
    T(rq[4].status == CDP_ERR_TIMEOUT);
    c->cancel(c->self, &rq[0]); /* the one on the wire */
    OK(c->wait(c->self, &rq[2], CDP__NEVER));
    T(rq[2].results[0].bytes == 1 && *(const char *)rq[2].results[0].data == 'v');
    cdp_store_request_free(c, &rq[2]);
    OK(c->wait(c->self, &rq[3], CDP__NEVER));
    T(rq[1].status == CDP_OK && rq[3].number == 1);
    rq[0].op = CDP_STORE_GET;
    T(c->start(c->self, &rq[0]) == CDP_PENDING);
    T(c->start(c->self, &rq[4]) == CDP_PENDING);
    cdp_store_destroy(c); /* whoever still holds requests learns that they are over */
    T(rq[0].status == CDP_ERR_STATE && rq[4].status == CDP_ERR_STATE);
    cdp_store_server_destroy(s);
}

/* A server that is polled by a thread, except while it is to stand still. */
typedef struct still_server {
    cdp_store_server *s;
    void *thread;
    bool still;
} still_server;

static void still_server_main(void *arg) {
    still_server *t = (still_server *)arg;
    while (!__atomic_load_n(&t->still, __ATOMIC_ACQUIRE))
        poll_server(t->s, 1);
}

static void still_server_go(still_server *t) {
    t->still = false;
    t->thread = cdp_os_default()->threads.start(cdp_os_default(), still_server_main, t);
}

static void still_server_stop(still_server *t) {
    __atomic_store_n(&t->still, true, __ATOMIC_RELEASE);
    cdp_os_default()->threads.join(cdp_os_default(), t->thread);
}

static bool still_server_open(still_server *t) {
    cdp_store_server_desc d = server_desc();
    memset(t, 0, sizeof *t);
    d.no_thread = true;
    if (!OK(cdp_store_server_create(&d, &t->s))) return false;
    still_server_go(t);
    return true;
}

/* Requests that need one answer are sent without waiting for earlier ones, which may be cancelled;
   a wait may be the last of them, and end before it is answered. */
TEST(requests_are_sent_before_earlier_ones_are_answered) {
    enum {
        N = 40
    };
    still_server s; /* it answers nothing before the client is seen to have sent more */
    cdp_store *c;
    cdp__client *client;
    cdp_store_request rq[N], wait, last;
    const cdp_bytes key = bytes_of("n"), missing = bytes_of("missing");
    uint32_t i;
    if (!still_server_open(&s)) return;
    c = client_open(cdp_store_server_port(s.s));
    client = (cdp__client *)c->self;
    still_server_stop(&s);
    memset(rq, 0, sizeof rq);
    memset(&wait, 0, sizeof wait);
    for (i = 0; i < N; ++i) {
        rq[i].keys = &key;
        rq[i].key_count = 1;
        rq[i].op = CDP_STORE_ADD;
        rq[i].delta = 1;
        if (i == 3) rq[i].op = CDP_STORE_CHECK;
    }
    last = rq[0];
    wait = rq[0];
    wait.op = CDP_STORE_WAIT;
    wait.keys = &missing;
    for (i = 0; i < 6; ++i)
        T(c->start(c->self, &rq[i]) == CDP_PENDING);
    T(c->start(c->self, &wait) == CDP_PENDING);
    T(c->start(c->self, &last) == CDP_PENDING);
    T(client->sent_count == 6 && client->first == &last && !cdp__fifo_left(&client->out));
    c->cancel(c->self, &rq[1]);
    T(rq[1].status == CDP_ERR_TIMEOUT && rq[1].number == CDP__STORE_NO_ANSWER);
    c->cancel(c->self, &wait); /* before any answer */
    still_server_go(&s);
    OK(c->wait(c->self, &last, CDP__NEVER));
    T(rq[0].number == 1 && rq[2].number == 3 && rq[3].number == 1 && rq[5].number == 5);
    T(last.number == 6);
    still_server_stop(&s);
    for (i = 0; i < N; ++i) /* more than are sent at once */
        T(c->start(c->self, &rq[i]) == CDP_PENDING);
    T(client->sent_count == CDP__CLIENT_AHEAD);
    still_server_go(&s);
    OK(c->wait(c->self, &rq[N - 1], CDP__NEVER));
    T(rq[N - 1].number == 6 + N - 1);
    wait.keys = &key; /* it is there */
    still_server_stop(&s);
    T(c->start(c->self, &wait) == CDP_PENDING);
    still_server_go(&s);
    OK(c->wait(c->self, &wait, CDP__NEVER));
    still_server_stop(&s);
    for (i = 0; i < 3; ++i)
        T(c->start(c->self, &rq[i]) == CDP_PENDING);
    cdp_store_destroy(c);
    T(rq[0].status == CDP_ERR_STATE && rq[2].status == CDP_ERR_STATE);
    cdp_store_server_destroy(s.s);
}

/* ---- every store ----------------------------------------------------------------------------- */

static void compare_set_table(cdp_store *s) {
    static const struct {
        const char *stored, *expected, *desired, *answer, *then;
    } t[] = {
        {NULL, "", "d", "d", "d"},
        {NULL, "e", "d", "e", NULL},
        {"v", "v", "d", "d", "d"},
        {"v", "e", "d", "v", "v"},
        {"v", "", "d", "v", "v"},
        {"", "", "d", "d", "d"},
        {"", "e", "d", "", ""},
        {"v", "v", "", "", ""},
    };
    uint32_t i;
    for (i = 0; i < sizeof t / sizeof *t; ++i) {
        static const char *const key[] = {"cas"};
        void *value;
        uint64_t bytes;
        bool there;
        OK(cdp_store_delete(s, "cas", NULL));
        if (t[i].stored) OK(cdp_store_set(s, "cas", t[i].stored, strlen(t[i].stored)));
        OK(cdp_store_compare_set(s, "cas", t[i].expected, strlen(t[i].expected), t[i].desired,
            strlen(t[i].desired), &value, &bytes));
        if (!T(value && bytes == strlen(t[i].answer)
                && strcmp((const char *)value, t[i].answer) == 0))
            printf("     row %u: %s\n", i, (const char *)value);
        cdp_store_free(s, value);
        OK(cdp_store_check(s, key, 1, &there));
        T(there == (t[i].then != NULL));
        if (t[i].then) T(value_is(s, "cas", t[i].then));
    }
    OK(cdp_store_delete(s, "cas", NULL));
}

static void large_values(cdp_store *s) {
    static const uint64_t sizes[] = {
        0, 1, 255, 256, 257, 4095, 4096, 4097, 65535, 65536, 65537, 1000000, 8388608};
    uint8_t *big = (uint8_t *)malloc(8388608);
    uint32_t i, k;
    for (i = 0; i < 8388608; ++i)
        big[i] = (uint8_t)(i * 2654435761u >> 13);
    for (i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        void *value;
        uint64_t bytes;
        OK(cdp_store_set(s, "big", big, sizes[i]));
        OK(cdp_store_get(s, "big", &value, &bytes, 0));
        if (value) T(bytes == sizes[i] && (!bytes || memcmp(value, big, (size_t)bytes) == 0));
        cdp_store_free(s, value);
    }
    OK(cdp_store_delete(s, "log", NULL));
    for (k = 0; k < 1000; ++k)
        OK(cdp_store_append(s, "log", big + k * 100, 100));
    {
        void *value;
        uint64_t bytes;
        OK(cdp_store_get(s, "log", &value, &bytes, 0));
        T(bytes == 100000 && memcmp(value, big, 100000) == 0);
        cdp_store_free(s, value);
    }
    OK(cdp_store_delete(s, "log", NULL));
    OK(cdp_store_delete(s, "big", NULL));
    free(big);
}

static void many_keys(cdp_store *s) {
    enum {
        N = 1000
    };
    static char names[N][16];
    const char *keys[N];
    cdp_bytes values[N];
    void *memory;
    uint32_t i;
    int64_t before, after;
    bool there;
    OK(cdp_store_num_keys(s, &before));
    for (i = 0; i < N; ++i) {
        cdp__format(names[i], sizeof names[i], "many/%u", i);
        keys[i] = names[i];
        values[i].data = names[i];
        values[i].bytes = i % 10 ? strlen(names[i]) : 0;
    }
    OK(cdp_store_multi_set(s, keys, values, N));
    OK(cdp_store_wait(s, keys, N, 0));
    OK(cdp_store_check(s, keys, N, &there));
    T(there);
    memset(values, 0, sizeof values);
    OK(cdp_store_multi_get(s, keys, N, values, &memory, 0));
    for (i = 0; i < N; ++i)
        T(values[i].bytes == (i % 10 ? strlen(names[i]) : 0)
            && strcmp((const char *)values[i].data, i % 10 ? names[i] : "") == 0);
    cdp_store_free(s, memory);
    OK(cdp_store_num_keys(s, &after));
    T(after == before + N);
    for (i = 0; i < N; ++i)
        OK(cdp_store_delete(s, keys[i], &there));
    OK(cdp_store_check(s, keys, N, &there));
    T(!there);
    OK(cdp_store_num_keys(s, &after));
    T(after == before);
    OK(cdp_store_multi_set(s, NULL, NULL, 0));
    OK(cdp_store_multi_get(s, NULL, 0, NULL, &memory, 0));
    OK(cdp_store_wait(s, NULL, 0, 0));
    OK(cdp_store_check(s, NULL, 0, &there));
    T(there);
}

static void all_calls(cdp_store *s) {
    int64_t n = 0;
    bool there = true;
    void *value;
    uint64_t bytes, start, late = UINT64_MAX;
    uint32_t tries;
    OK(cdp_store_set(s, "k", "one", 3));
    T(value_is(s, "k", "one"));
    OK(cdp_store_set(s, "k", "", 0));
    T(value_is(s, "k", ""));
    OK(cdp_store_append(s, "k", "ab", 2));
    OK(cdp_store_append(s, "k", "cd", 2));
    T(value_is(s, "k", "abcd"));
    OK(cdp_store_add(s, "count", 5, &n));
    T(n == 5);
    OK(cdp_store_add(s, "count", -7, NULL));
    T(value_is(s, "count", "-2"));
    OK(cdp_store_delete(s, "count", &there));
    T(there);
    OK(cdp_store_delete(s, "count", &there));
    T(!there);
    compare_set_table(s);
    /* the machine may be busy with something else */
    for (tries = 0; tries < 5 && late > 110 + 30 * (test__scale_now() - 1); ++tries) {
        start = now_ms();
        ST(cdp_store_get(s, "never", &value, &bytes, 100), CDP_ERR_TIMEOUT);
        late = now_ms() - start;
        T(value == NULL && late >= 99);
    }
    T(late <= 110 + 30 * (test__scale_now() - 1));
    TEXT("never");
    ST(cdp_store_set(s, NULL, "x", 1), CDP_ERR_INVALID);
    ST(cdp_store_set(s, "k", NULL, 1), CDP_ERR_INVALID);
    ST(cdp_store_wait(s, NULL, 1, 0), CDP_ERR_INVALID);
    OK(cdp_store_delete(s, "k", NULL));
    many_keys(s);
    large_values(s);
}

TEST(hash) {
    cdp_store *s;
    cdp_store_request rq;
    OK(cdp_hash_store_create(NULL, &s));
    all_calls(s);
    OK(cdp_store_set(s, "t", "text", 4));
    ST(cdp_store_add(s, "t", 1, NULL), CDP_ERR_INVALID);
    TEXT("no number");
    memset(&rq, 0, sizeof rq);
    ST(cdp_store_run(s, &rq, 0), CDP_ERR_INVALID);
    rq.op = CDP_STORE_GET;
    rq.key_count = 2;
    ST(cdp_store_run(s, &rq, 0), CDP_ERR_INVALID);
    rq.key_count = 1;
    ST(cdp_store_run(s, &rq, 0), CDP_ERR_INVALID);
    cdp_store_destroy(s);
    cdp_store_destroy(NULL);
    ST(cdp_store_set(NULL, "k", "x", 1), CDP_ERR_INVALID);
}

TEST(tcp) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s));
    static char long_key[8300];
    all_calls(c);
    T(((cdp__client *)c->self)->is_cdp);
    memset(long_key, 'k', sizeof long_key - 1);
    ST(cdp_store_set(c, long_key, "x", 1), CDP_ERR_INVALID);
    long_key[8191] = 0; /* with the slash: 8192 */
    OK(cdp_store_set(c, long_key, "x", 1));
    T(value_is(c, long_key, "x"));
    ST(cdp_store_set(c, "k", long_key, CDP_STORE_MAX_VALUE_BYTES + 1), CDP_ERR_INVALID);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

TEST(prefix) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s)), *b, *a;
    OK(cdp_prefix_store_create(c, "b", &b));
    OK(cdp_prefix_store_create(b, "a", &a));
    all_calls(a);
    OK(cdp_store_set(a, "key", "v", 1));
    T(value_is(c, "b/a/key", "v"));
    T(value_is(b, "a/key", "v"));
    cdp_store_destroy(a);
    ST(cdp_prefix_store_create(NULL, "x", &a), CDP_ERR_INVALID);
    ST(cdp_prefix_store_create(b, NULL, &a), CDP_ERR_INVALID);
    OK(cdp_prefix_store_create(b, "", &a));
    OK(cdp_store_set(a, "k", "w", 1));
    T(value_is(c, "b//k", "w"));
    cdp_store_destroy(a);
    cdp_store_destroy(b);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* One thread, one loop, server and client on it; then also an os without threads and wake-up
   descriptors. */
static void on_one_loop(const cdp_os *os) {
    cdp__loop loop;
    cdp_store_server_desc sd = server_desc();
    cdp_tcp_store_desc cd;
    cdp_store_server *server;
    cdp_store *c, *d;
    if (!OK(cdp__loop_open(&loop, os))) return;
    sd.os = os;
    sd.loop = &loop;
    OK(cdp_store_server_create(&sd, &server));
    cd = client_desc(cdp_store_server_port(server));
    cd.os = os;
    cd.loop = &loop;
    OK(cdp_tcp_store_create(&cd, &c));
    OK(cdp_tcp_store_create(&cd, &d));
    all_calls(c);
    OK(cdp_store_set(d, "x", "y", 1));
    T(value_is(c, "x", "y"));
    OK(cdp_store_server_poll(server, 0));
    cdp_store_destroy(d);
    cdp_store_server_destroy(server);
    ST(cdp_store_set(c, "x", "y", 1), CDP_ERR_STATE);
    cdp_store_destroy(c);
    T(loop.io_count == 0 && loop.timers.next == &loop.timers);
    cdp__loop_close(&loop);
}

static cdp_os os_without_threads(void) {
    cdp_os os = *cdp_os_default();
    os.net.wake_open = NULL;
    os.threads.start = NULL;
    os.threads.join = NULL;
    os.threads.mutex_create = NULL;
    os.threads.mutex_destroy = NULL;
    os.threads.mutex_lock = NULL;
    os.threads.mutex_unlock = NULL;
    os.threads.cond_create = NULL;
    os.threads.cond_destroy = NULL;
    os.threads.cond_wait = NULL;
    os.threads.cond_broadcast = NULL;
    return os;
}

TEST(shared_loop) {
    const cdp_os bare = os_without_threads();
    cdp_hash_store_desc hd;
    cdp_store *h;
    void *value;
    on_one_loop(cdp_os_default());
    on_one_loop(&bare);
    memset(&hd, 0, sizeof hd);
    hd.os = &bare;
    OK(cdp_hash_store_create(&hd, &h));
    /* at once: nobody else could set it */
    ST(cdp_store_get(h, "k", &value, NULL, 5000), CDP_ERR_TIMEOUT);
    cdp_store_destroy(h);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct adder {
    cdp_store *store;
    uint32_t index, rounds;
} adder;

static void adder_main(void *arg) {
    adder *a = (adder *)arg;
    uint32_t i;
    for (i = 0; i < a->rounds; ++i) {
        char key[24], done[24];
        void *value;
        OK(cdp_store_add(a->store, "total", 1, NULL));
        cdp__format(key, sizeof key, "t%u/%u", a->index, i);
        cdp__format(done, sizeof done, "%u", i);
        OK(cdp_store_set(a->store, key, done, strlen(done)));
        cdp__format(key, sizeof key, "t%u/%u", a->index ^ 1, i); /* the neighbour's */
        if (a->store->start == cdp__hash_start || !(i % 4)) {
            const cdp_status status = cdp_store_get(a->store, key, &value, NULL, 20);
            /* a get may hold up the neighbour's set on the same client */
            T(status == CDP_OK || status == CDP_ERR_TIMEOUT);
            if (status == CDP_OK) T(strcmp((const char *)value, done) == 0);
            cdp_store_free(a->store, status == CDP_OK ? value : NULL);
        }
    }
}

static void many_threads(cdp_store *const *stores, uint32_t count, uint32_t rounds) {
    adder a[8];
    void *threads[8];
    uint32_t i;
    int64_t total;
    for (i = 0; i < count; ++i) {
        a[i].store = stores[i];
        a[i].index = i;
        a[i].rounds = rounds;
        threads[i] = cdp_os_default()->threads.start(cdp_os_default(), adder_main, &a[i]);
    }
    for (i = 0; i < count; ++i)
        cdp_os_default()->threads.join(cdp_os_default(), threads[i]);
    OK(cdp_store_add(stores[0], "total", 0, &total));
    T_EQ(count * rounds, total);
}

TEST(threads_on_a_hash_store) {
    cdp_store *s, *all[8];
    getter g;
    void *thread;
    uint32_t i;
    OK(cdp_hash_store_create(NULL, &s));
    for (i = 0; i < 8; ++i)
        all[i] = s;
    many_threads(all, 8, 100);
    memset(&g, 0, sizeof g);
    g.store = s;
    g.key = "late";
    thread = run_getter(&g);
    test_sleep_ms(30);
    OK(cdp_store_set(s, "late", "now", 3));
    cdp_os_default()->threads.join(cdp_os_default(), thread);
    T_EQ(CDP_OK, g.status);
    T(strcmp(g.text, "now") == 0);
    cdp_store_destroy(s);
}

TEST(threads_on_tcp_clients) {
    cdp_store_server *s = server_open();
    cdp_store *one = client_open(cdp_store_server_port(s)), *prefix, *all[8];
    uint32_t i;
    OK(cdp_prefix_store_create(one, "p", &prefix));
    for (i = 0; i < 8; ++i)
        all[i] = one;
    many_threads(all, 8, 40);
    for (i = 0; i < 8; ++i)
        all[i] = prefix;
    many_threads(all, 8, 40);
    OK(cdp_store_delete(one, "total", NULL));
    for (i = 0; i < 8; ++i)
        all[i] = client_open(cdp_store_server_port(s));
    many_threads(all, 8, 100);
    for (i = 0; i < 8; ++i)
        cdp_store_destroy(all[i]);
    cdp_store_destroy(prefix);
    cdp_store_destroy(one);
    cdp_store_server_destroy(s);
}

/* A get that waits holds up the others on the same client until its deadline, and no longer than
   theirs. */
TEST(threads_keep_their_deadlines) {
    cdp_store_server *s = server_open();
    cdp_store *c = client_open(cdp_store_server_port(s));
    getter long_one, short_one;
    void *threads[2];
    memset(&long_one, 0, sizeof long_one);
    long_one.store = c;
    long_one.key = "never";
    long_one.timeout_ms = 1000;
    short_one = long_one;
    short_one.timeout_ms = 100;
    threads[0] = run_getter(&long_one);
    test_sleep_ms(50);
    threads[1] = run_getter(&short_one);
    cdp_os_default()->threads.join(cdp_os_default(), threads[1]);
    T(short_one.status == CDP_ERR_TIMEOUT && short_one.ms >= 99
        && short_one.ms <= 110 + 10 * TEST_LATE + TEST_STILL_MS);
    OK(cdp_store_set(c, "k", "v", 1));
    cdp_os_default()->threads.join(cdp_os_default(), threads[0]);
    T(long_one.status == CDP_ERR_TIMEOUT && long_one.ms >= 999 && long_one.ms <= 1030 * TEST_LATE);
    T(value_is(c, "k", "v"));
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* A key that somebody has set is known to be there, even if its value never comes. */
TEST(a_leaving_server_hides_no_key) {
    for (int set = 0; set < 2; ++set) {
        still_server t;
        cdp_store *reader, *writer;
        cdp_store_request rq;
        const cdp_bytes key = {(void *)(uintptr_t) "cause", 5};
        if (!still_server_open(&t)) return;
        reader = client_open(cdp_store_server_port(t.s));
        writer = client_open(cdp_store_server_port(t.s));
        memset(&rq, 0, sizeof rq);
        rq.op = CDP_STORE_GET;
        rq.key_count = 1;
        rq.keys = &key;
        rq.status = CDP_PENDING;
        ST(reader->start(reader->self, &rq), CDP_PENDING);
        /* it is told to wait */
        ST(reader->wait(reader->self, &rq, test_now_ns() + 200000000u), CDP_PENDING);
        still_server_stop(&t);
        if (set) OK(cdp_store_set(writer, "cause", "x", 1));
        poll_server(t.s, 3);
        ST(reader->wait(reader->self, &rq, test_now_ns() + 50000000u), CDP_PENDING);
        T_EQ(set, rq.number);
        cdp_store_server_destroy(t.s);
        T(reader->wait(reader->self, &rq, test_now_ns() + 5000000000u) < CDP_OK);
        T_EQ(set, rq.number);
        cdp_store_destroy(reader);
        cdp_store_destroy(writer);
    }
}

TEST(inherited_listener) {
    cdp_store_server_desc d = server_desc();
    struct sockaddr_in a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    cdp_store_server *s;
    cdp_store *c;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    T(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 16) == 0);
    d.has_listen_fd = true;
    d.listen_fd = fd;
    OK(cdp_store_server_create(&d, &s));
    c = client_open(cdp_store_server_port(s));
    all_calls(c);
    cdp_store_destroy(c);
    cdp_store_server_destroy(s);
}

/* ---- a server of another make ---------------------------------------------------------------- */

/* Plays the server's part of a conversation, and checks the client's byte by byte. */
typedef struct actor {
    int listener;
    uint16_t port;
    const step *steps;
    uint32_t count;
    bool ours; /* it says that it is a server of this library */
    void *thread;
} actor;

static void actor_main(void *arg) {
    actor *a = (actor *)arg;
    const int fd =
        raw_readable(a->listener, 5000 * (int)TEST_SLACK) ? accept(a->listener, NULL, NULL) : -1;
    uint8_t hello[37], nonce[4];
    uint32_t i;
    T(raw_read(fd, hello, sizeof hello));
    T(memcmp(hello, "\x00\xce\xf7\x85\x3c\x0d", 6) == 0);
    T(memcmp(hello + 10, "\x05\x01\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0cdp/server", 27) == 0);
    memcpy(nonce, hello + 6, 4);
    T(raw_write(fd, nonce, 4));
    T(raw_send(fd, a->ours ? "00" : "01"));
    for (i = 0; i < a->count; ++i) {
        if (!T(raw_expect(fd, a->steps[i].send))) break;
        T(raw_send(fd, a->steps[i].answer));
    }
    T(raw_ends(fd));
    close(fd);
}

static cdp_store *actor_open(actor *a, const step *steps, uint32_t count) {
    cdp_tcp_store_desc d;
    cdp_addr at, bound;
    cdp_store *c = NULL;
    cdp__addr_parse("127.0.0.1", &at);
    a->listener = cdp_os_default()->net.listen_at(NULL, &at, &bound);
    a->steps = steps;
    a->count = count;
    a->thread = cdp_os_default()->threads.start(cdp_os_default(), actor_main, a);
    d = client_desc(bound.port);
    d.will_key = "will";
    d.will_value = bytes_of("never to be sent");
    OK(cdp_tcp_store_create(&d, &c));
    T(c && ((cdp__client *)c->self)->is_cdp == a->ours);
    return c;
}

static void actor_close(actor *a, cdp_store *c) {
    cdp_store_destroy(c);
    cdp_os_default()->threads.join(cdp_os_default(), a->thread);
    close(a->listener);
}

#define WAIT_K "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k'"
#define CHECK_K "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k'"
#define GET_K "03 02 00 00 00 00 00 00 00 '/k'"

/* The server answers nothing before all of it is there: the next request waits for no answer
   to the CHECK of a wait that was called off. */
TEST(a_wait_that_was_called_off_delays_no_request) {
    static const step steps[] = {
        {"c0 05 00 00 00 00 00 00 00 '/will' 10 00 00 00 00 00 00 00 'never to be sent'", ""},
        {CHECK_K " " WAIT_K " 0c " CHECK_K, "01 01 00"},
        {"c0 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0d 'bye!'", "'bye!'"}};
    static const char *const k[] = {"k"};
    actor a = {.ours = true};
    cdp_store *c = actor_open(&a, steps, sizeof steps / sizeof *steps);
    cdp__store_call wait;
    bool there = false;
    OK(cdp__store_call_make(&wait, CDP_STORE_WAIT, "k", NULL, 0));
    T(cdp__store_begin(c, &wait.rq) == CDP_PENDING);
    c->cancel(c->self, &wait.rq);
    OK(cdp_store_check(c, k, 1, &there));
    T(there);
    actor_close(&a, c);
}

TEST(client_bytes) {
    static const step steps[] = {
        {"01 02 00 00 00 00 00 00 00 '/k' 01 00 00 00 00 00 00 00 'v'", ""},
        {CHECK_K, "00"}, /* it is there, and the store answers: no WAIT is needed */
        {GET_K, "01 00 00 00 00 00 00 00 'v'"},
        {"04 02 00 00 00 00 00 00 00 '/n' f9 ff ff ff ff ff ff ff", "fe ff ff ff ff ff ff ff"},
        {"02 02 00 00 00 00 00 00 00 '/x' 00 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 'first'",
            "05 00 00 00 00 00 00 00 'first'"},
        {"05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k' 03 00 00 00 00 00 00 00 '/zz'",
            "01"},
        {"07", "03 00 00 00 00 00 00 00"},
        /* only 1 means that it was there */
        {"08 02 00 00 00 00 00 00 00 '/k'", "02 00 00 00 00 00 00 00"},
        {"09 02 00 00 00 00 00 00 00 '/k' 02 00 00 00 00 00 00 00 'ab'", ""},
        {"0b 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k' 01 00 00 00 00 00 00 00 '1' 03 "
         "00 00 00 00 00 00 00 '/zz' 02 00 00 00 00 00 00 00 '22'",
            ""},
        {"05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k' 03 00 00 00 00 00 00 00 '/zz'",
            "01"},
        {"06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k' 03 00 00 00 00 00 00 00 '/zz'",
            "00"},
        {"0a 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k' 03 00 00 00 00 00 00 00 '/zz'",
            "01 00 00 00 00 00 00 00 31 02 00 00 00 00 00 00 00 32 32"},
        {CHECK_K, "01"},
        {WAIT_K, ""},
        {"0c", "01"}, /* a wait that times out */
        {CHECK_K, "01"},
        {WAIT_K, ""},
        {"0c", "00 01"}, /* and one whose key came at the last moment */
        {CHECK_K, "01"},
        {WAIT_K, "00"},
        {GET_K, "00 00 00 00 00 00 00 00"},
        {"0e 02 00 00 00 00 00 00 00 '/k' 01 00 00 00 00 00 00 00 'q'", ""},
        {"10 02 00 00 00 00 00 00 00 '/k'", "05 00 00 00 00 00 00 00"},
        {"0f 02 00 00 00 00 00 00 00 '/k'", "00 00 00 00 00 00 00 00"},
        {CHECK_K, "00"},
        {"0f 02 00 00 00 00 00 00 00 '/k'", "00 00 00 00 00 00 00 00"}, /* another was faster */
        {CHECK_K, "01"},
        {WAIT_K, "00"},
        {"0f 02 00 00 00 00 00 00 00 '/k'", "02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 'q'"},
        {"11",
            "03 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 'init/' 02 00 00 00 00 00 00 00 '/k' "
            "00 00 00 00 00 00 00 00"},
        {CHECK_K, "01"},
        {"12 02 00 00 00 00 00 00 00 '/k' 02 00 00 00 00 00 00 00", "00"},
    };
    static const char *const keys[] = {"k", "zz"};
    const cdp_bytes set[] = {{"1", 1}, {"22", 2}};
    cdp_bytes values[2], *list;
    actor a = {.ours = false};
    cdp_store *c = actor_open(&a, steps, sizeof steps / sizeof *steps);
    uint64_t count;
    int64_t n;
    bool flag;
    void *memory;
    OK(cdp_store_set(c, "k", "v", 1));
    T(value_is(c, "k", "v"));
    OK(cdp_store_add(c, "n", -7, &n));
    T_EQ(-2, n);
    OK(cdp_store_compare_set(c, "x", "", 0, "first", 5, &memory, NULL));
    T(memory && strcmp((const char *)memory, "first") == 0);
    cdp_store_free(c, memory);
    OK(cdp_store_check(c, keys, 2, &flag));
    T(!flag);
    OK(cdp_store_num_keys(c, &n));
    T_EQ(3, n);
    OK(cdp_store_delete(c, "k", &flag));
    T(!flag);
    OK(cdp_store_append(c, "k", "ab", 2));
    OK(cdp_store_multi_set(c, keys, set, 2));
    OK(cdp_store_multi_get(c, keys, 2, values, &memory, 0));
    T(values[0].bytes == 1 && strcmp((const char *)values[1].data, "22") == 0);
    cdp_store_free(c, memory);
    ST(cdp_store_get(c, "k", &memory, NULL, 30), CDP_ERR_TIMEOUT);
    TEXT(": nobody has set it (the store at 127.0.0.1:");
    ST(cdp_store_wait(c, keys, 1, 30), CDP_ERR_TIMEOUT);
    T(value_is(c, "k", ""));
    OK(cdp_store_queue_push(c, "k", "q", 1));
    OK(cdp_store_queue_len(c, "k", &n));
    T_EQ(5, n);
    OK(cdp_store_queue_try_pop(c, "k", &memory, NULL));
    T(memory == NULL);
    OK(cdp_store_queue_pop(c, "k", &memory, &count, 1000));
    T(count == 1 && memory && strcmp((const char *)memory, "q") == 0);
    cdp_store_free(c, memory);
    OK(cdp_store_list_keys(c, &list, &count));
    T(count == 1 && list[0].bytes == 1 && strcmp((const char *)list[0].data, "k") == 0);
    cdp_store_free(c, list);
    OK(cdp_store_barrier(c, "k", 2, 1000));
    actor_close(&a, c);
}

/* Answers that no server gives: one clear error, and the client is of no more use. */
TEST(client_bad_answers) {
    static const step bad_check[] = {
        {"05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 '/k'", "02"}};
    static const step bad[][2] = {{{CHECK_K, "01"}, {WAIT_K, "03"}},
        {{CHECK_K, "01"}, {WAIT_K, "01"}}, {{CHECK_K, "01"}, {WAIT_K, "00 00"}},
        {{CHECK_K, "01"}, {WAIT_K, "02"}}};
    static const cdp_status want[] = {CDP_ERR_STORE, CDP_ERR_STORE, CDP_ERR_STORE, CDP_ERR_STATE};
    static const step long_value[] = {{CHECK_K, "00"}, {GET_K, "01 00 80 00 00 00 00 00"}},
                      huge[] = {{CHECK_K, "00"}, {GET_K, "ff ff ff ff ff ff ff ff"}};
    static const step cut[] = {{CHECK_K, "00"}, {GET_K, "05 00 00 00 00 00 00 00 'ab'"}};
    static const char *const keys[] = {"k"};
    void *value;
    actor a = {.ours = false};
    cdp_store *c;
    uint32_t i;
    for (i = 0; i < 4; ++i) {
        c = actor_open(&a, bad[i], 2);
        if (i != 2) {
            ST(cdp_store_wait(c, keys, 1, 1000), want[i]);
        } else { /* the second byte is noticed with the next request */
            OK(cdp_store_wait(c, keys, 1, 1000));
            ST(cdp_store_wait(c, keys, 1, 1000), want[i]);
        }
        TEXT("127.0.0.1:");
        actor_close(&a, c);
    }
    {
        bool flag;
        c = actor_open(&a, bad_check, 1);
        ST(cdp_store_check(c, keys, 1, &flag), CDP_ERR_STORE);
        actor_close(&a, c);
    }
    c = actor_open(&a, long_value, 2);
    ST(cdp_store_get(c, "k", &value, NULL, 1000), CDP_ERR_STORE);
    TEXT("max_value_bytes");
    actor_close(&a, c);
    c = actor_open(&a, huge, 2);
    ST(cdp_store_get(c, "k", &value, NULL, 1000), CDP_ERR_STORE);
    actor_close(&a, c);
    c = actor_open(&a, cut, 2); /* half a value, then silence: TIMEOUT, and nothing leaks */
    ST(cdp_store_get(c, "k", &value, NULL, 100), CDP_ERR_TIMEOUT);
    actor_close(&a, c);
}

/* ---- out of memory --------------------------------------------------------------------------- */

/* Its own loop was never opened, so there is nothing of it to close. */
TEST(given_loop) {
    cdp_store_server_desc d = {0};
    cdp_store_server *server;
    cdp__loop loop;
    if (fcntl(0, F_GETFD) < 0) T_EQ(0, open("/dev/null", O_RDONLY));
    T_EQ(CDP_OK, cdp__loop_open(&loop, cdp_os_default()));
    d.loop = &loop;
    T_EQ(CDP_OK, cdp_store_server_create(&d, &server));
    cdp_store_server_destroy(server);
    T(fcntl(0, F_GETFD) >= 0);
    cdp__loop_close(&loop);
}

int main(int argc, char **argv) {
#define CASE(name, seconds) \
    { #name, name, seconds }
    static const test_case cases[] = {
        CASE(given_loop, 10),
        CASE(addr, 10),
        CASE(number, 10),
        CASE(wire_splits, 10),
        CASE(wire_limits, 10),
        CASE(script_steps, 10),
        CASE(script_splits, 60),
        CASE(script_dribble, 30),
        CASE(bad_requests, 20),
        CASE(add_text_rules, 10),
        CASE(old_dialect_byte_by_byte, 20),
        CASE(dialects_share_a_store, 20),
        CASE(wait_raw, 20),
        CASE(timeout_and_resync, 20),
        CASE(cancel_race, 30),
        CASE(queue, 10),
        CASE(requests_are_sent_before_earlier_ones_are_answered, 10),
        CASE(hash, 30),
        CASE(tcp, 30),
        CASE(prefix, 30),
        CASE(shared_loop, 60),
        CASE(threads_on_a_hash_store, 30),
        CASE(threads_on_tcp_clients, 60),
        CASE(threads_keep_their_deadlines, 10),
        CASE(a_leaving_server_hides_no_key, 20),
        CASE(inherited_listener, 20),
        CASE(a_wait_that_was_called_off_delays_no_request, 20),
        CASE(client_bytes, 10),
        CASE(client_bad_answers, 20),
    };
    return store_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

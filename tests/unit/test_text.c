/* Text: one formatter, one rule for strings of JSON, one reader of JSON, UTF-8. */
#define CDP_IMPLEMENTATION
#include "cdp_mem.h"
#include "test.h"

#include <math.h>

/* ---- the formatter */

TEST(a_text_counts_what_does_not_fit) {
    char out[8];
    for (uint64_t room = 0; room <= sizeof out; ++room) {
        memset(out, '#', sizeof out);
        T_EQ(11, cdp__format(out, room, "%s-%d-%llx", "abcde", -7, 0xabull));
        if (room) T_EQ(0, memcmp(out, "abcde-7", cdp__min(room - 1, 6)));
        if (room) T_EQ(0, out[room - 1]);
        for (uint64_t i = room; i < sizeof out; ++i)
            T_EQ('#', out[i]);
    }
    T_EQ(3, cdp__format(NULL, 0, "%c%%%u", 'x', 5u));
    T_EQ(3, cdp__format(NULL, 100, "abc")); /* no memory: counted */
}

static char taken[100];
static void take(cdp__text *t) {
    strncat(taken, t->at, t->used);
    t->used = 0;
}

TEST(a_text_with_a_flush_loses_nothing) {
    for (uint64_t room = 2; room < 40; ++room) {
        char memory[40];
        cdp__text t = cdp__text_of(memory, room);
        t.flush = take;
        taken[0] = 0;
        cdp__text_add(&t, "%s %u %s", "something long", 1234567u, "");
        cdp__json_string(&t, "\"\xc3\xa4");
        cdp__text_bytes(&t, "end", 3);
        take(&t);
        T_EQ(0, strcmp(taken, "something long 1234567 \"\\\"\\u00e4\"end"));
    }
}

/* ---- JSON */

static const char *inside(const char *text) {
    static char out[200];
    cdp__text t = cdp__text_of(out, sizeof out);
    cdp__json_inside(&t, text);
    T_EQ(strlen(out), cdp__text_end(&t));
    return out;
}

TEST(strings_of_json_are_ascii) {
    T_TEXT("plain/'text'", inside("plain/'text'"));
    T_EQ(0, strcmp(inside("\"\\\n\t\x01\x1f\x7f"), "\\\"\\\\\\u000a\\u0009\\u0001\\u001f\\u007f"));
    T_EQ(0, strcmp(inside("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), "\\u00e4\\u20ac\\ud83d\\ude00"));
    T_EQ(0,
        strcmp(inside("\xff\xc0\x80?\xed\xa0\x80"),
            "??"
            "??"
            "???"));
}

/* The pieces of a text, one letter each; values behind them. */
static const char *pieces(const char *json, uint64_t bytes) {
    static char out[400];
    cdp__text t = cdp__text_of(out, sizeof out);
    char *const copy = (char *)malloc(bytes + 1), decoded[100]; /* reading on is noticed */
    cdp__json_reader r = cdp__json_open(memcpy(copy, json, bytes), bytes);
    cdp__json_kind kind;
    out[0] = 0;
    do {
        kind = cdp__json_next(&r);
        cdp__text_char(&t, "!.{[^ktwrTFN"[kind]);
        if (kind == CDP__JSON_WHOLE) cdp__text_add(&t, "%lld", (long long)r.whole);
        if (kind == CDP__JSON_KEY || kind == CDP__JSON_TEXT) {
            decoded[cdp__json_decode(&r, decoded)] = 0;
            cdp__text_add(&t, "%s", decoded);
        }
        if (kind == CDP__JSON_BAD) cdp__text_add(&t, "%llu %s", (unsigned long long)r.at, r.why);
    } while (kind > CDP__JSON_END);
    (void)cdp__text_end(&t);
    free(copy);
    return out;
}

TEST(json_is_read_piece_by_piece) {
    static const char *const rows[][2] = {{"{}", "{^."}, {" [ ] ", "[^."}, {"7", "w7."},
        {"{\"a\": [1, -2, true, false, null], \"b\": {\"c\": \"d\"}}", "{ka[w1w-2TFN^kb{kctd^^."},
        {"\"\\u00e4\\ud83d\\ude00\\n\\\"\\\\\\/\"", "t\xc3\xa4\xf0\x9f\x98\x80\n\"\\/."},
        {"\"\\ud83d\\u0041\\ud83d\\udead \\udc00 \\u0000\"", "t?A\xf0\x9f\x9a\xad ? ?."},
        {"9223372036854775807", "w9223372036854775807."}, {"9223372036854775808", "r."},
        {"-9223372036854775807", "w-9223372036854775807."}, {"1e5", "r."}, {"-0", "w0."},
        {"[NaN,-Infinity,Infinity]", "[rrr^."},
        /* what is no JSON */
        {"", "!0 a value is expected here"}, {"[1,]", "[w1!3 a value is expected here"},
        {"[1 2]", "[w1!3 a comma or the end of a list is expected here"},
        {"{1:2}", "{!1 a key is expected here"}, {"{\"a\" 2}", "{!5 a colon is expected here"},
        {"{\"a\":}", "{ka!5 a value is expected here"},
        {"{\"a\":1,}", "{kaw1!7 a key is expected here"}, {"[1}", "[w1!2 a comma"},
        {"1 2", "w1!2 its end is expected here"}, {"01", "!2 a number begins with a zero"},
        {"1.", "!2 a digit is expected here"}, {"1e+", "!3 a digit is expected here"},
        {"-", "!1 a value is expected here"}, {"+1", "!0 a value is expected here"},
        {"\"abc", "!4 a text does not end"}, {"\"\\", "!2 a text does not end"},
        {"\"\\x\"", "!2 there is no such escape"}, {"\"\\u12g4\"", "!2 four hexadecimal"},
        {"\"\\u123", "!2 four hexadecimal"}, {"\"a\nb\"", "!2 a text has a control character"},
        {"tru", "!0 a value is expected here"}};
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        const char *const got = pieces(rows[i][0], strlen(rows[i][0]));
        test_check(strncmp(got, rows[i][1], strlen(rows[i][1])) == 0, __FILE__, __LINE__,
            "%s is read as %s, not as %s", rows[i][0], got, rows[i][1]);
    }
    T_EQ(0, strcmp("t.", pieces("\"\"\0", 2)));
    T_EQ(0, strncmp("[w1!2 a comma", pieces("[1\0]", 4), 13));
}

TEST(json_has_a_deepest_level) {
    char text[200], want[40];
    memset(text, '[', 32);
    memset(text + 32, ']', 32);
    memset(want, '[', 32);
    T_EQ(0, strncmp(pieces(text, 64), want, 32));
    T(!strchr(pieces(text, 64), '!'));
    memset(text, '[', 33);
    T_TEXT("nested too deep", pieces(text, 100));
}

static double number(const char *text) {
    cdp__json_reader r = cdp__json_open(text, strlen(text));
    const cdp__json_kind kind = cdp__json_next(&r);
    T(kind == CDP__JSON_REAL || kind == CDP__JSON_WHOLE);
    T_EQ(CDP__JSON_END, cdp__json_next(&r));
    return kind == CDP__JSON_REAL ? r.real : (double)r.whole;
}

/* The same value as the C library's, which reads the point of this locale. */
TEST(numbers_of_json_are_exact) {
    static const char *const rows[] = {"0.0", "-0.5", "1e5", "1E+5", "1e-5", "123.456e3", "0.1",
        "1e308", "2.2250738585072014e-308", "5e-324", "4.9e-324", "1e400", "1e-400",
        "1e99999999999999", "-1e-99999999999999", "0e99999999999999", "18446744073709551616",
        "0.00000000000000000000000000000000000000000000000000012345",
        "123456789012345678901234567890123456789012345", "9007199254740993.0"};
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        const double want = strtod(rows[i], NULL), got = number(rows[i]);
        test_check(memcmp(&want, &got, sizeof got) == 0, __FILE__, __LINE__, "%s is read as %.17g",
            rows[i], got);
    }
    T(isnan(number("NaN")));
    T(isinf(number("Infinity")) && number("-Infinity") < 0);
    srand(7);
    for (int i = 0; i < 100000; ++i) {
        uint64_t bits = 0;
        double v;
        char text[40];
        for (int k = 0; k < 5; ++k)
            bits = bits << 15 ^ (uint64_t)rand();
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        snprintf(text, sizeof text, "%.*g", 1 + rand() % 17, v);
        const double want = strtod(text, NULL), got = number(text);
        if (!T(memcmp(&want, &got, sizeof got) == 0)) printf("%s\n", text);
    }
}

static const char *real(double v) {
    static char out[40];
    cdp__text t = cdp__text_of(out, sizeof out);
    cdp__json_real(&t, v, false);
    (void)cdp__text_end(&t);
    return out;
}

TEST(real_numbers_are_written_short_and_exact) {
    static const struct {
        double v;
        const char *text;
    } rows[] = {{0, "0.0"}, {1, "1.0"}, {-2.5, "-2.5"}, {0.1, "0.1"}, {0.8, "0.8"},
        {1e300, "1.0e300"}, {123456789.125, "123456789.125"}, {1e16, "10000000000000000.0"},
        {1.5e-7, "1.5e-7"}, {0.00012, "0.00012"}, {5e-324, "5.0e-324"},
        {1.7976931348623157e308, "1.7976931348623157e308"}, {0.1 + 0.2, "0.30000000000000004"},
        {INFINITY, "null"}, {NAN, "null"}};
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        test_check(strcmp(real(rows[i].v), rows[i].text) == 0, __FILE__, __LINE__,
            "%s is written as %s", rows[i].text, real(rows[i].v));
    srand(8);
    for (int i = 0; i < 30000; ++i) {
        uint64_t bits = 0;
        double v;
        for (int k = 0; k < 5; ++k)
            bits = bits << 15 ^ (uint64_t)rand();
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        const double got = number(real(v));
        if (!T(memcmp(&v, &got, sizeof got) == 0)) printf("%.17g is %s\n", v, real(v));
    }
}

/* ---- UTF-8 */

TEST(every_character_comes_back) {
    for (uint32_t c = 1; c < 0x110000; ++c) {
        char out[4];
        const uint32_t n = cdp__utf8_put(c, out);
        const uint8_t *at = (const uint8_t *)out;
        const uint32_t got = cdp__utf8_next(&at, at + n);
        const bool pair = c >= 0xd800 && c < 0xe000;
        if (got != (pair ? '?' : c) || at != (const uint8_t *)out + n) T_EQ(c, got);
        const uint32_t want = 1u + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
        if (n != (pair ? 1 : want)) T_EQ(c, n);
    }
}

int main(int argc, char **argv) {
    const test_case cases[] = {
        {"a_text_counts_what_does_not_fit", a_text_counts_what_does_not_fit, 60},
        {"a_text_with_a_flush_loses_nothing", a_text_with_a_flush_loses_nothing, 60},
        {"strings_of_json_are_ascii", strings_of_json_are_ascii, 60},
        {"json_is_read_piece_by_piece", json_is_read_piece_by_piece, 60},
        {"json_has_a_deepest_level", json_has_a_deepest_level, 60},
        {"numbers_of_json_are_exact", numbers_of_json_are_exact, 60},
        {"real_numbers_are_written_short_and_exact", real_numbers_are_written_short_and_exact, 60},
        {"every_character_comes_back", every_character_comes_back, 60},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/* mem/unjson.h - JSON as a tree

   Knows: JSON, at most 32 levels deep. Promises: no recursion; texts with escapes are copied. */
#ifndef CDP_SRC_MEM_UNJSON_H
#define CDP_SRC_MEM_UNJSON_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "texts.h"
#include "value.h"
#include "unpickle.h"

#define CDP__MEM_JSON_DEEP 32u

CDP__PRIVATE uint8_t cdp__mem_json_look(cdp__mem_reader *r) {
    for (; r->at < r->bytes; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
    }
    return 0;
}

CDP__PRIVATE bool cdp__mem_json_eat(cdp__mem_reader *r, uint8_t c) {
    if (cdp__mem_json_look(r) != c) return false;
    ++r->at;
    return true;
}

CDP__PRIVATE int cdp__mem_hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes an escape, which ends at *at; '?' for characters above 0x7f. */
CDP__PRIVATE char cdp__mem_json_escape(const uint8_t *s, uint64_t *at) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    const char c = (char)s[*at];
    const char *const known = c ? strchr(from, c) : NULL;
    uint32_t code = 0, i;
    if (known) return to[known - from];
    if (c != 'u') return c;
    for (i = 0; i < 4; ++i) {
        const int digit = cdp__mem_hex_digit(s[*at + 1]);
        if (digit < 0) return '?';
        code = code * 16 + (uint32_t)digit;
        ++*at;
    }
    return code && code < 0x80 ? (char)code : '?';
}

CDP__PRIVATE bool cdp__mem_json_string(cdp__mem_reader *r, cdp__mem_value *out) {
    const uint64_t from = ++r->at; /* behind the quote */
    bool escapes = false;
    uint64_t i;
    char *copy;
    while (r->at < r->bytes && r->data[r->at] != '"') {
        if (r->data[r->at] == '\\') {
            escapes = true;
            ++r->at;
        }
        ++r->at;
    }
    if (r->at >= r->bytes) return cdp__mem_bad(r, "a text does not end");
    *out = cdp__mem_whole(CDP__MEM_TEXT, 0);
    out->as.text = (const char *)r->data + from;
    out->length = (uint32_t)cdp__min(r->at - from, UINT32_MAX);
    ++r->at;
    if (!escapes) return true;
    copy = (char *)cdp__mem_texts_room(&r->memory, out->length + 1ull);
    if (!copy) return cdp__mem_dry(r);
    out->as.text = copy;
    for (i = from; i < r->at - 1; ++i) {
        if (r->data[i] != '\\')
            *copy++ = (char)r->data[i];
        else {
            ++i;
            *copy++ = cdp__mem_json_escape(r->data, &i);
        }
    }
    out->length = (uint32_t)(copy - out->as.text);
    return true;
}

/* Parses digits with a point. Integers that fit stay exact. */
CDP__PRIVATE bool cdp__mem_json_number(cdp__mem_reader *r, cdp__mem_value *out) {
    const bool minus = cdp__mem_json_eat(r, '-');
    double real = 0, scale = 1;
    int64_t whole = 0;
    bool exact = true, digits = false;
    for (; r->at < r->bytes; ++r->at) {
        const uint8_t c = r->data[r->at];
        if (c == '.' && exact) {
            exact = false;
            continue;
        }
        if (c < '0' || c > '9') break;
        digits = true;
        real = real * 10 + (c - '0');
        if (!exact) scale *= 10;
        whole = whole < INT64_MAX / 10 - 9 ? whole * 10 + (c - '0') : INT64_MAX;
    }
    if (!digits) return cdp__mem_bad(r, "a value is expected here");
    if (r->at < r->bytes && (r->data[r->at] | 32) == 'e')
        return cdp__mem_bad(r, "numbers with exponents are in no snapshot");
    *out = cdp__mem_whole(exact ? CDP__MEM_INT : CDP__MEM_REAL, minus ? -whole : whole);
    if (!exact) out->as.real = minus ? -real / scale : real / scale;
    return true;
}

CDP__PRIVATE bool cdp__mem_json_word(cdp__mem_reader *r, const char *word) {
    const uint64_t n = strlen(word);
    if (r->bytes - r->at < n || memcmp(r->data + r->at, word, (size_t)n) != 0) return false;
    r->at += n;
    return true;
}

/* Parses values and containers with a stack of open containers, without recursion. */
CDP__PRIVATE bool cdp__mem_json_plain(cdp__mem_reader *r, cdp__mem_value *out) {
    const uint8_t c = cdp__mem_json_look(r);
    if (c == '"') return cdp__mem_json_string(r, out);
    if (cdp__mem_json_word(r, "true"))
        *out = cdp__mem_whole(CDP__MEM_BOOL, 1);
    else if (cdp__mem_json_word(r, "false"))
        *out = cdp__mem_whole(CDP__MEM_BOOL, 0);
    else if (cdp__mem_json_word(r, "null"))
        *out = cdp__mem_whole(CDP__MEM_NONE, 0);
    else
        return cdp__mem_json_number(r, out);
    return true;
}

/* Parses the key before a value in a dict. */
CDP__PRIVATE bool cdp__mem_json_key(cdp__mem_reader *r, cdp__mem_value *box) {
    cdp__mem_value key;
    if (cdp__mem_json_look(r) != '"') return cdp__mem_bad(r, "a key is expected here");
    if (!cdp__mem_json_string(r, &key)) return false;
    if (!cdp__mem_json_eat(r, ':')) return cdp__mem_bad(r, "a colon is expected here");
    return cdp__mem_box_add(r, box->as.box, &key, 1);
}

/* Parses one value. A container is opened: it is pushed on the stack, and *opened is true. */
CDP__PRIVATE bool cdp__mem_json_value(cdp__mem_reader *r, cdp__mem_value *v, bool *opened) {
    const uint8_t c = cdp__mem_json_look(r);
    *opened = c == '{' || c == '[';
    if (!*opened) return cdp__mem_json_plain(r, v);
    ++r->at;
    if (r->depth == CDP__MEM_JSON_DEEP) return cdp__mem_bad(r, "it is nested too deep");
    if (!cdp__mem_push_box(r, c == '{' ? CDP__MEM_DICT : CDP__MEM_LIST)) return false;
    *v = r->stack[r->depth - 1];
    return true;
}

/* After a value: closes containers that end here, until another value follows or none is open. */
CDP__PRIVATE bool cdp__mem_json_close(cdp__mem_reader *r, bool opened) {
    while (r->depth) {
        const bool dict = r->stack[r->depth - 1].kind == CDP__MEM_DICT;
        if (cdp__mem_json_eat(r, dict ? '}' : ']'))
            --r->depth;
        else if (opened)
            return true;
        else if (cdp__mem_json_eat(r, ','))
            return true;
        else
            return cdp__mem_bad(r, "a comma or the end of a list is expected here");
        opened = false;
    }
    return true;
}

CDP__PRIVATE bool cdp__mem_unjson(cdp__mem_reader *r, cdp__mem_value *out) {
    bool first = true;
    do {
        cdp__mem_value *const box = r->depth ? &r->stack[r->depth - 1] : NULL;
        cdp__mem_box *const in = box ? box->as.box : NULL;
        cdp__mem_value v;
        bool opened;
        if (box && box->kind == CDP__MEM_DICT && !cdp__mem_json_key(r, box)) return false;
        if (!cdp__mem_json_value(r, &v, &opened)) return false;
        if (in && !cdp__mem_box_add(r, in, &v, 1)) return false;
        if (first) *out = v;
        first = false;
        if (!cdp__mem_json_close(r, opened)) return false;
    } while (r->depth);
    return true;
}

#endif /* CDP_SRC_MEM_UNJSON_H */

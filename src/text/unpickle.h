/* text/unpickle.h - a pickle as a tree

   Knows: the opcodes of values in protocols 0 to 5; and, if the reader takes records, those that
   make objects, as values that say of which class and from what. Promises: reading a file never
   looks up, calls or creates anything; any bytes yield a value or a reason. */
#ifndef CDP_SRC_TEXT_UNPICKLE_H
#define CDP_SRC_TEXT_UNPICKLE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "utf8.h"
#include "json_read.h"
#include "tree.h"

CDP__PRIVATE bool cdp__pk_push(cdp__tree_reader *r, cdp__tree v) {
    if (!cdp__more_room(
            r->memory.os, (void **)&r->stack, &r->stack_room, r->depth + 1, sizeof *r->stack))
        return cdp__tree_nomem(r);
    r->stack[r->depth++] = v;
    return true;
}

CDP__PRIVATE cdp__tree cdp__pk_whole(cdp__tree_kind kind, int64_t n) {
    cdp__tree v;
    memset(&v, 0, sizeof v);
    v.kind = kind;
    v.as.whole = n;
    return v;
}

/* Takes the next `count` bytes; NULL: the file is too short. */
CDP__PRIVATE const uint8_t *cdp__pk_next(cdp__tree_reader *r, uint64_t count) {
    const uint8_t *const at = r->data + r->at;
    if (r->bytes - r->at < count) {
        cdp__tree_bad(r, "the file ends in the middle");
        return NULL;
    }
    r->at += count;
    return at;
}

/* A number of `count` bytes, the lowest first. */
CDP__PRIVATE bool cdp__pk_next_number(cdp__tree_reader *r, uint32_t count, uint64_t *out) {
    const uint8_t *const at = cdp__pk_next(r, count);
    uint32_t i;
    *out = 0;
    for (i = 0; at && i < count; ++i)
        *out |= (uint64_t)at[i] << 8 * i;
    return at != NULL;
}

/* The same with a sign bit in the last byte. */
CDP__PRIVATE bool cdp__pk_push_number(cdp__tree_reader *r, uint32_t count, bool has_sign) {
    uint64_t n;
    if (count > 8) return cdp__tree_bad(r, "a number has more than 8 bytes");
    if (!cdp__pk_next_number(r, count, &n)) return false;
    if (has_sign && count && count < 8 && n >> (8 * count - 1)) n |= ~0ull << 8 * count;
    return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_INT, (int64_t)n));
}

CDP__PRIVATE bool cdp__pk_push_long(cdp__tree_reader *r) {
    uint64_t count;
    return cdp__pk_next_number(r, 1, &count) && cdp__pk_push_number(r, (uint32_t)count, true);
}

CDP__PRIVATE bool cdp__pk_push_real(cdp__tree_reader *r) {
    const uint8_t *const at = cdp__pk_next(r, 8);
    cdp__tree v = cdp__pk_whole(CDP__TREE_REAL, 0);
    uint64_t bits = 0;
    uint32_t i;
    if (!at) return false;
    for (i = 0; i < 8; ++i)
        bits = bits << 8 | at[i];
    memcpy(&v.as.real, &bits, sizeof bits);
    return cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_push_text(cdp__tree_reader *r, uint32_t length_bytes) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
    uint64_t length;
    if (!cdp__pk_next_number(r, length_bytes, &length)) return false;
    if (length > UINT32_MAX) return cdp__tree_bad(r, "a text is too long");
    v.as.text = (const char *)cdp__pk_next(r, length);
    v.length = (uint32_t)length;
    return v.as.text && cdp__pk_push(r, v);
}

/* ---- protocol 0: values as lines of text */

/* Takes a line without its end. */
CDP__PRIVATE bool cdp__pk_line_next(cdp__tree_reader *r, const uint8_t **line, uint64_t *bytes) {
    const uint8_t *const from = r->data + r->at;
    const uint8_t *const end =
        r->at < r->bytes ? (const uint8_t *)memchr(from, '\n', (size_t)(r->bytes - r->at)) : NULL;
    if (!end) return cdp__tree_bad(r, "a line does not end");
    *line = from;
    *bytes = (uint64_t)(end - from);
    r->at += *bytes + 1;
    return true;
}

CDP__PRIVATE bool cdp__pk_line_is(const uint8_t *line, uint64_t bytes, const char *word) {
    return bytes == strlen(word) && memcmp(line, word, (size_t)bytes) == 0;
}

/* A whole number or a real one, as Python prints it; 00 and 01 are False and True. */
CDP__PRIVATE bool cdp__pk_push_line(cdp__tree_reader *r) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_REAL, 0);
    const uint8_t *line;
    uint64_t n;
    cdp__json_reader j;
    cdp__json_kind kind;
    if (!cdp__pk_line_next(r, &line, &n)) return false;
    if (n == 2 && line[0] == '0' && (line[1] | 1) == '1')
        return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, line[1] - '0'));
    if (n && line[n - 1] == 'L') --n;
    if (cdp__pk_line_is(line, n, "inf"))
        j = cdp__json_open("Infinity", 8);
    else if (cdp__pk_line_is(line, n, "-inf"))
        j = cdp__json_open("-Infinity", 9);
    else if (cdp__pk_line_is(line, n, "nan"))
        j = cdp__json_open("NaN", 3);
    else
        j = cdp__json_open(line, n);
    kind = cdp__json_next(&j);
    if ((kind != CDP__JSON_WHOLE && kind != CDP__JSON_REAL) || cdp__json_next(&j) != CDP__JSON_END)
        return cdp__tree_bad(r, "a line holds no number");
    v.as.real = j.real;
    return cdp__pk_push(r, kind == CDP__JSON_WHOLE ? cdp__pk_whole(CDP__TREE_INT, j.whole) : v);
}

/* The number after \x, \u or \U, of `digits` digits; UINT32_MAX: it is not there. */
CDP__PRIVATE uint32_t cdp__pk_escaped(const uint8_t *at, const uint8_t *end, uint32_t digits) {
    uint32_t code = 0, i;
    for (i = 0; i < digits; ++i) {
        const int digit = at + i < end ? cdp__hex_digit(at[i]) : -1;
        if (digit < 0) return UINT32_MAX;
        code = code << 4 | (uint32_t)digit;
    }
    return code;
}

/* A text in quotes, as Python 2 prints it. */
CDP__PRIVATE uint32_t cdp__pk_unquote(const uint8_t *at, const uint8_t *end, char *out) {
    static const char from[] = "nrtabfv", to[] = "\n\r\t\a\b\f\v";
    char *const start = out;
    while (at < end) {
        const char *known;
        uint32_t code;
        if (*at != '\\' || at + 1 == end) {
            *out++ = (char)*at++;
            continue;
        }
        known = at[1] ? strchr(from, at[1]) : NULL;
        code = at[1] == 'x' ? cdp__pk_escaped(at + 2, end, 2) : UINT32_MAX;
        if (code != UINT32_MAX)
            *out++ = (char)code;
        else
            *out++ = known ? to[known - from] : (char)at[1];
        at += code != UINT32_MAX ? 4 : 2;
    }
    return (uint32_t)(out - start);
}

/* A text of Latin-1 in which other characters are \u and \U. */
CDP__PRIVATE uint32_t cdp__pk_unescape(const uint8_t *at, const uint8_t *end, char *out) {
    char *const start = out;
    while (at < end) {
        const bool escaped = at[0] == '\\' && at + 1 < end && (at[1] | 32) == 'u';
        const uint32_t digits = escaped ? 4u << (at[1] == 'U') : 0;
        const uint32_t code = digits ? cdp__pk_escaped(at + 2, end, digits) : UINT32_MAX;
        out += cdp__utf8_put(code != UINT32_MAX ? code : *at, out);
        at += code != UINT32_MAX ? digits + 2 : 1;
    }
    return (uint32_t)(out - start);
}

CDP__PRIVATE bool cdp__pk_push_line_text(cdp__tree_reader *r, bool quoted) {
    cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
    const uint8_t *line;
    uint64_t n;
    char *copy;
    if (!cdp__pk_line_next(r, &line, &n)) return false;
    if (quoted && (n < 2 || line[0] != line[n - 1] || (line[0] != '"' && line[0] != '\'')))
        return cdp__tree_bad(r, "a text has no quotes");
    if (n > UINT32_MAX / 2) return cdp__tree_bad(r, "a line is too long");
    copy = (char *)cdp__chunks_room(&r->memory, 2 * n + 4);
    if (!copy) return cdp__tree_nomem(r);
    v.length = quoted ? cdp__pk_unquote(line + 1, line + n - 1, copy)
                      : cdp__pk_unescape(line, line + n, copy);
    v.as.text = copy;
    return cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_push_box(cdp__tree_reader *r, cdp__tree_kind kind) {
    cdp__tree v = cdp__pk_whole(kind, 0);
    v.as.box = cdp__tree_box_new(r);
    return v.as.box && cdp__pk_push(r, v);
}

/* Moves the last `count` values into the container below them, which must be of this kind. */
CDP__PRIVATE bool cdp__pk_fill(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    cdp__tree *box;
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth < floor + count + 1) return cdp__tree_bad(r, "values are missing on the stack");
    box = &r->stack[r->depth - count - 1];
    if (box->kind != kind) return cdp__tree_bad(r, "items are added to what is no list or dict");
    if (kind == CDP__TREE_DICT && count % 2) return cdp__tree_bad(r, "a key has no value");
    r->depth -= count;
    return cdp__tree_box_add(r, box->as.box, r->stack + r->depth, count);
}

CDP__PRIVATE bool cdp__pk_mark(cdp__tree_reader *r) {
    if (!cdp__more_room(
            r->memory.os, (void **)&r->marks, &r->mark_room, r->mark_count + 1, sizeof *r->marks))
        return cdp__tree_nomem(r);
    r->marks[r->mark_count++] = r->depth;
    return true;
}

/* Removes the last mark, and returns the number of values above it. */
CDP__PRIVATE bool cdp__pk_marked(cdp__tree_reader *r, uint64_t *count) {
    if (!r->mark_count) return cdp__tree_bad(r, "there is no mark");
    *count = r->depth - r->marks[--r->mark_count];
    return true;
}

CDP__PRIVATE bool cdp__pk_fill_marked(cdp__tree_reader *r, cdp__tree_kind kind) {
    uint64_t count;
    return cdp__pk_marked(r, &count) && cdp__pk_fill(r, count, kind);
}

/* Makes a list or a dict of the last `count` values. */
CDP__PRIVATE bool cdp__pk_gather(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    cdp__tree v = cdp__pk_whole(kind, 0);
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth < floor + count) return cdp__tree_bad(r, "values are missing on the stack");
    if (kind == CDP__TREE_DICT && count % 2) return cdp__tree_bad(r, "a key has no value");
    v.as.box = cdp__tree_box_new(r);
    if (!v.as.box) return false;
    r->depth -= count;
    return (!count || cdp__tree_box_add(r, v.as.box, r->stack + r->depth, count))
        && cdp__pk_push(r, v);
}

CDP__PRIVATE bool cdp__pk_gather_marked(cdp__tree_reader *r, cdp__tree_kind kind) {
    uint64_t count;
    return cdp__pk_marked(r, &count) && cdp__pk_gather(r, count, kind);
}

/* Memoizes the last value under a number. Writers count from 0, so no number exceeds the length
   of the file. */
CDP__PRIVATE bool cdp__pk_keep(cdp__tree_reader *r, uint64_t n) {
    if (!r->depth) return cdp__tree_bad(r, "there is no value to remember");
    if (n > r->bytes) return cdp__tree_bad(r, "a value is remembered under too large a number");
    if (!cdp__more_room(r->memory.os, (void **)&r->memo, &r->memo_room, n + 1, sizeof *r->memo))
        return cdp__tree_nomem(r);
    while (r->memo_count <= n)
        r->memo[r->memo_count++] = cdp__pk_whole(CDP__TREE_NONE, 1);
    r->memo[n] = r->stack[r->depth - 1];
    return true;
}

CDP__PRIVATE bool cdp__pk_keep_number(cdp__tree_reader *r, uint32_t bytes) {
    uint64_t n;
    return cdp__pk_next_number(r, bytes, &n) && cdp__pk_keep(r, n);
}

CDP__PRIVATE bool cdp__pk_again(cdp__tree_reader *r, uint64_t n) {
    if (n >= r->memo_count || (r->memo[n].kind == CDP__TREE_NONE && r->memo[n].as.whole))
        return cdp__tree_bad(r, "a value is used that was never remembered");
    return cdp__pk_push(r, r->memo[n]);
}

CDP__PRIVATE bool cdp__pk_again_number(cdp__tree_reader *r, uint32_t bytes) {
    uint64_t n;
    return cdp__pk_next_number(r, bytes, &n) && cdp__pk_again(r, n);
}

/* The same with the number as a line. */
CDP__PRIVATE bool cdp__pk_memo_line(cdp__tree_reader *r, bool keep) {
    if (!cdp__pk_push_line(r)) return false;
    const cdp__tree v = r->stack[--r->depth];
    if ((v.kind != CDP__TREE_INT && v.kind != CDP__TREE_BOOL) || v.as.whole < 0)
        return cdp__tree_bad(r, "a line holds no number");
    return keep ? cdp__pk_keep(r, (uint64_t)v.as.whole) : cdp__pk_again(r, (uint64_t)v.as.whole);
}

/* Drops the last value. */
CDP__PRIVATE bool cdp__pk_pop(cdp__tree_reader *r) {
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    if (r->depth <= floor) return cdp__tree_bad(r, "values are missing on the stack");
    --r->depth;
    return true;
}

CDP__PRIVATE bool cdp__pk_pop_marked(cdp__tree_reader *r) {
    uint64_t count;
    if (!cdp__pk_marked(r, &count)) return false;
    r->depth -= count;
    return true;
}

CDP__PRIVATE bool cdp__pk_protocol(cdp__tree_reader *r) {
    uint64_t n;
    if (!cdp__pk_next_number(r, 1, &n)) return false;
    return (n >= 2 && n <= 5) || cdp__tree_bad(r, "this protocol is none of 2 to 5");
}

/* ---- records */

/* Makes a value of this kind of the last `count` ones. */
CDP__PRIVATE bool cdp__pk_record(cdp__tree_reader *r, uint64_t count, cdp__tree_kind kind) {
    if (!cdp__pk_gather(r, count, CDP__TREE_LIST)) return false;
    r->stack[r->depth - 1].kind = kind;
    return true;
}

CDP__PRIVATE bool cdp__pk_global(cdp__tree_reader *r) {
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        cdp__tree v = cdp__pk_whole(CDP__TREE_TEXT, 0);
        const uint8_t *line;
        uint64_t n;
        if (!cdp__pk_line_next(r, &line, &n)) return false;
        v.as.text = (const char *)line;
        v.length = (uint32_t)cdp__min(n, UINT32_MAX);
        if (!cdp__pk_push(r, v)) return false;
    }
    return cdp__pk_record(r, 2, CDP__TREE_GLOBAL);
}

/* Whether a value is this global. */
CDP__PRIVATE bool cdp__pk_is(const cdp__tree *v, const char *module, const char *name) {
    return v->kind == CDP__TREE_GLOBAL && cdp__tree_is(&v->as.box->items[0], module)
        && cdp__tree_is(&v->as.box->items[1], name);
}

/* A global and its arguments, which are a record; but an OrderedDict is a dict. */
CDP__PRIVATE bool cdp__pk_made(cdp__tree_reader *r) {
    const cdp__tree *v;
    if (!cdp__pk_record(r, 2, CDP__TREE_RECORD)) return false;
    v = r->stack[r->depth - 1].as.box->items;
    if (v[0].kind != CDP__TREE_GLOBAL || v[1].kind != CDP__TREE_LIST)
        return cdp__tree_bad(r, "an object is made of what is no class");
    if (!cdp__pk_is(v, "collections", "OrderedDict") || v[1].as.box->count) return true;
    --r->depth;
    return cdp__pk_push_box(r, CDP__TREE_DICT);
}

/* The last value becomes the state of the record below it. */
CDP__PRIVATE bool cdp__pk_state(cdp__tree_reader *r) {
    const uint64_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    const cdp__tree *v;
    if (r->depth < floor + 2) return cdp__tree_bad(r, "values are missing on the stack");
    v = &r->stack[--r->depth - 1];
    if (v->kind == CDP__TREE_DICT) return true; /* attributes of an OrderedDict */
    if (v->kind != CDP__TREE_RECORD || v->as.box->count != 2)
        return cdp__tree_bad(r, "a state is of no object");
    return cdp__tree_box_add(r, v->as.box, &r->stack[r->depth], 1);
}

/* Opcodes of records. */
CDP__PRIVATE bool cdp__pk_opcode_record(cdp__tree_reader *r, uint8_t code) {
    switch (r->records ? code : 0) {
    case 'c': return cdp__pk_global(r);
    case 0x93: return cdp__pk_record(r, 2, CDP__TREE_GLOBAL);
    case 'R':
    case 0x81: return cdp__pk_made(r);
    case 'b': return cdp__pk_state(r);
    case 'Q': return cdp__pk_record(r, 1, CDP__TREE_OUTSIDE);
    case 'C': return cdp__pk_push_text(r, 1);
    case 'B': return cdp__pk_push_text(r, 4);
    case 0x8d:
    case 0x8e: return cdp__pk_push_text(r, 8);
    default: r->unknown = true; return cdp__tree_bad(r, "this opcode is not known here");
    }
}

/* Opcodes that push a value. */
CDP__PRIVATE bool cdp__pk_opcode_value(cdp__tree_reader *r, uint8_t code) {
    switch (code) {
    case 'N': return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_NONE, 0));
    case 0x88: return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, 1));
    case 0x89: return cdp__pk_push(r, cdp__pk_whole(CDP__TREE_BOOL, 0));
    case 'K': return cdp__pk_push_number(r, 1, false);
    case 'M': return cdp__pk_push_number(r, 2, false);
    case 'J': return cdp__pk_push_number(r, 4, true);
    case 0x8a: return cdp__pk_push_long(r);
    case 'G': return cdp__pk_push_real(r);
    case 'I':
    case 'L':
    case 'F': return cdp__pk_push_line(r);
    case 'S': return cdp__pk_push_line_text(r, true);
    case 'V': return cdp__pk_push_line_text(r, false);
    case 'T':
    case 'X': return cdp__pk_push_text(r, 4);
    case 'U':
    case 0x8c: return cdp__pk_push_text(r, 1);
    case ']': return cdp__pk_push_box(r, CDP__TREE_LIST);
    case ')': return cdp__pk_push_box(r, CDP__TREE_LIST);
    case '}': return cdp__pk_push_box(r, CDP__TREE_DICT);
    default: return cdp__pk_opcode_record(r, code);
    }
}

CDP__PRIVATE bool cdp__pk_opcode(cdp__tree_reader *r, uint8_t code) {
    switch (code) {
    case 0x80: return cdp__pk_protocol(r);
    case 0x95: return cdp__pk_next(r, 8) != NULL; /* the length of a frame */
    case '(': return cdp__pk_mark(r);
    case 'e': return cdp__pk_fill_marked(r, CDP__TREE_LIST);
    case 'a': return cdp__pk_fill(r, 1, CDP__TREE_LIST);
    case 'u': return cdp__pk_fill_marked(r, CDP__TREE_DICT);
    case 's': return cdp__pk_fill(r, 2, CDP__TREE_DICT);
    case 'l':
    case 't': return cdp__pk_gather_marked(r, CDP__TREE_LIST);
    case 'd': return cdp__pk_gather_marked(r, CDP__TREE_DICT);
    case 0x85:
    case 0x86:
    case 0x87: return cdp__pk_gather(r, code - 0x84u, CDP__TREE_LIST);
    case 'q': return cdp__pk_keep_number(r, 1);
    case 'r': return cdp__pk_keep_number(r, 4);
    case 'p': return cdp__pk_memo_line(r, true);
    case 'h': return cdp__pk_again_number(r, 1);
    case 'j': return cdp__pk_again_number(r, 4);
    case 'g': return cdp__pk_memo_line(r, false);
    case '0': return cdp__pk_pop(r);
    case '1': return cdp__pk_pop_marked(r);
    case '2': return r->depth ? cdp__pk_push(r, r->stack[r->depth - 1]) : cdp__pk_pop(r);
    case 0x94: return cdp__pk_keep(r, r->memo_count);
    default: return cdp__pk_opcode_value(r, code);
    }
}

/* Reads the value of a pickle. Bytes after its end are ignored. */
CDP__PRIVATE bool cdp__unpickle(cdp__tree_reader *r, cdp__tree *out) {
    const uint8_t *code;
    while ((code = cdp__pk_next(r, 1)) != NULL && *code != '.')
        if (!cdp__pk_opcode(r, *code)) return false;
    if (!code) return false;
    if (r->depth != 1 || r->mark_count) return cdp__tree_bad(r, "it does not end with one value");
    *out = r->stack[0];
    return true;
}

#endif /* CDP_SRC_TEXT_UNPICKLE_H */

/* store/wire.h - requests as bytes (pure)

   Knows: both dialects of PyTorch's protocol. Promises: no message makes its reader access memory
   beyond the received bytes. */
#ifndef CDP_SRC_STORE_WIRE_H
#define CDP_SRC_STORE_WIRE_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/bytes.h"

/* PyTorch's TCPStore protocol: an opcode, then fields. Integers are little-endian; a string or a
   value is a 64-bit length and that many bytes. Answers have no opcode, because they arrive in
   the order of the requests. There are two dialects: that of 2.x, and the older one of 1.13,
   which has no greeting, other opcodes, and fewer of them. */
typedef enum cdp__cmd {
    CDP__CMD_NONE,
    CDP__CMD_VALIDATE,
    CDP__CMD_SET,
    CDP__CMD_COMPARE_SET,
    CDP__CMD_GET,
    CDP__CMD_ADD,
    CDP__CMD_CHECK,
    CDP__CMD_WAIT,
    CDP__CMD_NUM_KEYS,
    CDP__CMD_DELETE,
    CDP__CMD_APPEND,
    CDP__CMD_MULTI_GET,
    CDP__CMD_MULTI_SET,
    CDP__CMD_CANCEL_WAIT,
    CDP__CMD_PING,
    CDP__CMD_QUEUE_PUSH,
    CDP__CMD_QUEUE_POP,
    CDP__CMD_QUEUE_LEN,
    CDP__CMD_LIST_KEYS,
    CDP__CMD_BARRIER,
    CDP__CMD_LAST_WILL,
    CDP__CMD_TRY_GET,
    CDP__CMD_WATCH,
    CDP__CMD_KEY,
    CDP__CMD_COUNT
} cdp__cmd;

#define CDP__OP_VALIDATE 0
#define CDP__OP_SET 1
#define CDP__OP_COMPARE_SET 2
#define CDP__OP_GET 3
#define CDP__OP_ADD 4
#define CDP__OP_CHECK 5
#define CDP__OP_WAIT 6
#define CDP__OP_NUM_KEYS 7
#define CDP__OP_DELETE 8
#define CDP__OP_APPEND 9
#define CDP__OP_MULTI_GET 10
#define CDP__OP_MULTI_SET 11
#define CDP__OP_CANCEL_WAIT 12
#define CDP__OP_PING 13
#define CDP__OP_QUEUE_PUSH 14
#define CDP__OP_QUEUE_POP 15
#define CDP__OP_QUEUE_LEN 16
#define CDP__OP_LIST_KEYS 17
#define CDP__OP_BARRIER 18
#define CDP__OP_LAST_WILL 0xC0 /* an extension of this library */
/* An extension of this library: a CHECK of one key and, if it exists, a GET, so that reading an
   existing key takes one round trip. */
#define CDP__OP_TRY_GET 0xC1
#define CDP__OP_OLD_GET 2 /* 1.13: its first eight opcodes are smaller by one */
#define CDP__OP_OLD_CHECK 4
#define CDP__OP_OLD_NUM_KEYS 6

#define CDP__WIRE_MAGIC 0x3C85F7CEu
#define CDP__WIRE_READY 0
#define CDP__WIRE_NOT_READY 1
#define CDP__WIRE_STOP_WAITING 0
#define CDP__WIRE_CANCELED 1
/* An extension of this library: answers a wait when the server is being closed with
   cdp_store_server_destroy(). */
#define CDP__WIRE_CLOSING 2
#define CDP__WIRE_WATCH_UPDATED 0
#define CDP__WIRE_WATCH_CREATED 1
#define CDP__WIRE_WATCH_DELETED 2
#define CDP__WIRE_WATCH_BEGINS 3

/* If this key exists, the server is one of this library. Keys of programs begin with a slash. */
#define CDP__WIRE_CDP_SERVER "cdp/server"

/* A row of a dialect's table. Fields: k key, v value, i 64-bit integer, u 32-bit integer; a
   leading * means a 64-bit count and that many repetitions of the rest. */
typedef struct cdp__wire_row {
    uint8_t op, cmd;
    const char *fields;
} cdp__wire_row;

/* The first command of a connection, when its dialect is not known yet. */
static const cdp__wire_row cdp__wire_greeting[] = {
    {CDP__OP_VALIDATE, CDP__CMD_VALIDATE, "u"},
    {'c', CDP__CMD_KEY, ""}, /* start of an authentication exchange */
    {0, CDP__CMD_NONE, NULL},
};

/* True if a connection speaks the dialect of PyTorch 1.13. A constant in builds without that
   dialect. */
#ifdef CDP_NO_STORE_CALLS
#define CDP__OLD(x) false
#else
#define CDP__OLD(x) ((x)->old)
static const cdp__wire_row cdp__wire_old[] = {
    {0, CDP__CMD_SET, "kv"},
    {1, CDP__CMD_COMPARE_SET, "kvv"},
    {CDP__OP_OLD_GET, CDP__CMD_GET, "k"},
    {3, CDP__CMD_ADD, "ki"},
    {CDP__OP_OLD_CHECK, CDP__CMD_CHECK, "*k"},
    {5, CDP__CMD_WAIT, "*k"},
    {CDP__OP_OLD_NUM_KEYS, CDP__CMD_NUM_KEYS, ""},
    {7, CDP__CMD_WATCH, "k"},
    {8, CDP__CMD_DELETE, "k"},
    {0, CDP__CMD_NONE, NULL},
};
#endif

/* True if the first bytes of a connection are in the old dialect, which has no greeting. A VALIDATE
   read as old would be a SET with a key of about a gigabyte, so the two cannot be confused. */
CDP__PRIVATE bool cdp__wire_is_old(const uint8_t *p, uint64_t n) {
    static const uint8_t validate[5] = {CDP__OP_VALIDATE, CDP__WIRE_MAGIC & 255,
        CDP__WIRE_MAGIC >> 8 & 255, CDP__WIRE_MAGIC >> 16 & 255, CDP__WIRE_MAGIC >> 24};
    return n && p[0] != 'c' && memcmp(p, validate, (size_t)cdp__min(n, sizeof validate)) != 0;
}

static const cdp__wire_row cdp__wire_v2[] = {
    {CDP__OP_SET, CDP__CMD_SET, "kv"},
    {CDP__OP_COMPARE_SET, CDP__CMD_COMPARE_SET, "kvv"},
    {CDP__OP_GET, CDP__CMD_GET, "k"},
    {CDP__OP_ADD, CDP__CMD_ADD, "ki"},
    {CDP__OP_CHECK, CDP__CMD_CHECK, "*k"},
    {CDP__OP_WAIT, CDP__CMD_WAIT, "*k"},
    {CDP__OP_DELETE, CDP__CMD_DELETE, "k"},
    {CDP__OP_MULTI_GET, CDP__CMD_MULTI_GET, "*k"},
    {CDP__OP_CANCEL_WAIT, CDP__CMD_CANCEL_WAIT, ""},
    {CDP__OP_PING, CDP__CMD_PING, "u"},
    {CDP__OP_LAST_WILL, CDP__CMD_LAST_WILL, "kv"},
    {CDP__OP_TRY_GET, CDP__CMD_TRY_GET, "k"},
#ifndef CDP_NO_STORE_CALLS
    {CDP__OP_NUM_KEYS, CDP__CMD_NUM_KEYS, ""},
    {CDP__OP_APPEND, CDP__CMD_APPEND, "kv"},
    {CDP__OP_MULTI_SET, CDP__CMD_MULTI_SET, "*kv"},
    {CDP__OP_QUEUE_PUSH, CDP__CMD_QUEUE_PUSH, "kv"},
    {CDP__OP_QUEUE_POP, CDP__CMD_QUEUE_POP, "k"},
    {CDP__OP_QUEUE_LEN, CDP__CMD_QUEUE_LEN, "k"},
    {CDP__OP_LIST_KEYS, CDP__CMD_LIST_KEYS, ""},
    {CDP__OP_BARRIER, CDP__CMD_BARRIER, "ki"},
#endif
    {0, CDP__CMD_NONE, NULL},
};

typedef struct cdp__wire_limits {
    uint64_t key_bytes, value_bytes, list;
} cdp__wire_limits;

/* The state of a parser between two calls: its position in a list. The caller keeps the bytes of an
   incomplete field. */
typedef struct cdp__wire {
    const cdp__wire_row *table;
    const cdp__wire_row *row; /* the list command being parsed, or NULL */
    uint64_t left;            /* its items that have not been parsed */
} cdp__wire;

/* A command without a list is one item, first and last at once. A list command is a first item
   without a key, which contains the count, then one item per entry. So no command needs memory
   for more than one entry. */
typedef struct cdp__wire_item {
    cdp__cmd cmd;
    bool first, last;
    uint64_t count;          /* in the first item of a list */
    cdp_bytes key, value[2]; /* point into the parsed bytes; key.data NULL: no key */
    uint64_t number;
} cdp__wire_item;

typedef enum cdp__wire_result {
    CDP__WIRE_ITEM,
    CDP__WIRE_MORE,
    CDP__WIRE_BAD
} cdp__wire_result;

/* A read position in the input. `need`: length of the item, as far as known. */
typedef struct cdp__wire_in {
    const uint8_t *p;
    uint64_t n, at, need;
} cdp__wire_in;

CDP__PRIVATE const uint8_t *cdp__wire_take(cdp__wire_in *in, uint64_t bytes) {
    in->need = in->at + bytes; /* cannot overflow: bytes was checked against a limit */
    if (in->n < in->need) return NULL;
    in->at += bytes;
    return in->p + in->at - bytes;
}

CDP__PRIVATE cdp__wire_result cdp__wire_string(cdp__wire_in *in, uint64_t max, cdp_bytes *out) {
    const uint8_t *p = cdp__wire_take(in, 8);
    if (!p) return CDP__WIRE_MORE;
    out->bytes = cdp__get_u64(p);
    if (out->bytes > max) return CDP__WIRE_BAD; /* refused before memory is allocated for it */
    out->data = cdp__wire_take(in, out->bytes);
    return out->data ? CDP__WIRE_ITEM : CDP__WIRE_MORE;
}

CDP__PRIVATE cdp__wire_result cdp__wire_fields(
    cdp__wire_in *in, const char *fields, const cdp__wire_limits *max, cdp__wire_item *out) {
    uint32_t values = 0;
    for (; *fields; ++fields) {
        cdp__wire_result r = CDP__WIRE_ITEM;
        if (*fields == 'k') {
            r = cdp__wire_string(in, max->key_bytes, &out->key);
        } else if (*fields == 'v') {
            r = cdp__wire_string(in, max->value_bytes, &out->value[values++]);
        } else {
            const uint8_t *p = cdp__wire_take(in, *fields == 'u' ? 4 : 8);
            if (!p) return CDP__WIRE_MORE;
            out->number = *fields == 'u' ? cdp__get_u32(p) : cdp__get_u64(p);
        }
        if (r != CDP__WIRE_ITEM) return r;
    }
    return CDP__WIRE_ITEM;
}

CDP__PRIVATE const cdp__wire_row *cdp__wire_find(const cdp__wire_row *table, uint8_t op) {
    for (; table->fields; ++table)
        if (table->op == op) return table;
    return NULL;
}

/* Parses the beginning of a command: the whole command or, for a list, its count. */
CDP__PRIVATE cdp__wire_result cdp__wire_command(
    cdp__wire *w, cdp__wire_in *in, const cdp__wire_limits *max, cdp__wire_item *out) {
    const uint8_t *p = cdp__wire_take(in, 1);
    const cdp__wire_row *row = p ? cdp__wire_find(w->table, *p) : NULL;
    if (!p) return CDP__WIRE_MORE;
    if (!row) return CDP__WIRE_BAD;
    out->cmd = (cdp__cmd)row->cmd;
    out->first = out->last = true;
    if (row->fields[0] != '*') return cdp__wire_fields(in, row->fields, max, out);
    p = cdp__wire_take(in, 8);
    if (!p) return CDP__WIRE_MORE;
    out->count = cdp__get_u64(p);
    if (out->count > max->list) return CDP__WIRE_BAD;
    out->last = out->count == 0;
    w->row = out->last ? NULL : row;
    w->left = out->count;
    return CDP__WIRE_ITEM;
}

/* Parses the n unused bytes that have arrived. ITEM: *out is the next item, and *bytes bytes are
   consumed. MORE: the item is incomplete; *bytes bytes are needed to parse on. BAD: the input is
   invalid; the connection cannot continue. */
CDP__PRIVATE cdp__wire_result cdp__wire_next(cdp__wire *w, const cdp__wire_limits *max,
    const uint8_t *p, uint64_t n, cdp__wire_item *out, uint64_t *bytes) {
    cdp__wire_in in;
    cdp__wire_result r;
    in.p = p;
    in.n = n;
    in.at = in.need = 0;
    memset(out, 0, sizeof *out);
    if (w->row) {
        out->cmd = (cdp__cmd)w->row->cmd;
        out->last = w->left == 1;
        r = cdp__wire_fields(&in, w->row->fields + 1, max, out);
        if (r == CDP__WIRE_ITEM && --w->left == 0) w->row = NULL;
    } else {
        r = cdp__wire_command(w, &in, max, out);
    }
    *bytes = r == CDP__WIRE_ITEM ? in.at : in.need;
    return r;
}

/* Write to p, which must have room; return the position after the written bytes. */
CDP__PRIVATE uint8_t *cdp__wire_put_number(uint8_t *p, uint64_t v) {
    cdp__put_u64(p, v);
    return p + 8;
}

CDP__PRIVATE uint8_t *cdp__wire_put_string(uint8_t *p, const char *prefix, cdp_bytes s) {
    const size_t prefix_bytes = strlen(prefix);
    p = cdp__wire_put_number(p, prefix_bytes + s.bytes);
    memcpy(p, prefix, prefix_bytes);
    if (s.bytes) memcpy(p + prefix_bytes, s.data, (size_t)s.bytes);
    return p + prefix_bytes + s.bytes;
}

#endif /* CDP_SRC_STORE_WIRE_H */

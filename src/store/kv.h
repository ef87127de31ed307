/* store/kv.h - the map

   Knows: keys, values, queues. Promises: an entry keeps its address while a chain links to it. */
#ifndef CDP_SRC_STORE_KV_H
#define CDP_SRC_STORE_KV_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/hash.h"
#include "number.h"

/* A link of a doubly linked ring. The head of a chain is itself a link, so removing a link does not
   need the head, and all links move to another chain in constant time. */
typedef struct cdp__chain {
    struct cdp__chain *next, *prev;
} cdp__chain;

CDP__PRIVATE void cdp__chain_open(cdp__chain *head) {
    head->next = head->prev = head;
}

CDP__PRIVATE bool cdp__chain_empty(const cdp__chain *head) {
    return head->next == head;
}

CDP__PRIVATE void cdp__chain_add(cdp__chain *head, cdp__chain *link) {
    link->next = head;
    link->prev = head->prev;
    link->prev->next = link->next->prev = link;
}

/* Removes a link from its chain. Returns the head if that leaves the chain empty, else NULL. */
CDP__PRIVATE cdp__chain *cdp__chain_remove(cdp__chain *link) {
    cdp__chain *next = link->next, *prev = link->prev;
    next->prev = prev;
    prev->next = next;
    link->next = link->prev = NULL;
    return next == prev && next->next == next ? next : NULL;
}

/* Appends all links of `from` to the chain `to`, in their order; `from` is empty afterwards. */
CDP__PRIVATE void cdp__chain_move(cdp__chain *from, cdp__chain *to) {
    if (cdp__chain_empty(from)) return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    cdp__chain_open(from);
}

/* One value of a queue; its bytes follow the struct. */
typedef struct cdp__kv_item {
    struct cdp__kv_item *next;
    uint64_t bytes;
} cdp__kv_item;

/* An entry exists while its key has a value, queued values, or connections that wait for it or
   watch it. The bytes of the key follow the struct in memory. */
typedef struct cdp__kv_entry {
    struct cdp__kv_entry *next;
    uint64_t hash, key_bytes;
    uint8_t *value;
    uint64_t value_bytes, value_room;
    uint64_t since;                       /* kv->arrivals when the key got its value */
    cdp__kv_item *first_item, *last_item; /* the queue, which is independent of the value */
    uint64_t item_count;
    cdp__chain waits, watches; /* connections of a store server */
    bool present;              /* the key has a value */
} cdp__kv_entry;

typedef struct cdp__kv {
    const cdp_os *os;
    cdp__kv_entry **buckets;
    uint64_t bucket_count; /* a power of two, or 0 before the first entry */
    uint64_t entry_count, present_count;
    uint64_t arrivals; /* how many times a key without a value was given one */
    uint64_t seed;
    uint64_t bytes, max_bytes; /* memory in use and its limit, see cdp__kv_cost() */
} cdp__kv;

/* An upper bound of the memory that an allocation of `bytes` takes: it is aligned to 64 bytes, and
   the allocator adds a header and a gap. */
CDP__PRIVATE uint64_t cdp__kv_cost(uint64_t bytes) {
    return bytes ? (bytes + 63) / 64 * 64 + 48 : 0;
}

CDP__PRIVATE void cdp__kv_open(cdp__kv *kv, const cdp_os *os, uint64_t seed, uint64_t max_bytes) {
    memset(kv, 0, sizeof *kv);
    kv->os = os;
    kv->seed = cdp__hash(CDP__HASH_START, &seed, sizeof seed);
    kv->max_bytes = max_bytes;
}

CDP__PRIVATE const uint8_t *cdp__kv_key(const cdp__kv_entry *e) {
    return (const uint8_t *)(e + 1);
}

CDP__PRIVATE cdp__kv_item *cdp__kv_pop(cdp__kv *kv, cdp__kv_entry *e) {
    cdp__kv_item *item = e->first_item;
    CDP_ASSERT(e->item_count && item);
    e->first_item = item->next;
    if (!item->next) e->last_item = NULL;
    --e->item_count;
    kv->bytes -= cdp__kv_cost(sizeof *item + item->bytes);
    return item; /* The caller frees it, and then may release the entry. */
}

CDP__PRIVATE void cdp__kv_drop_items(cdp__kv *kv, cdp__kv_entry *e) {
#ifdef CDP_NO_STORE_CALLS
    (void)kv;
    CDP_ASSERT(!e->item_count); /* This build has no calls that fill a queue. */
    (void)e;
#else
    while (e->item_count)
        cdp__free(kv->os, cdp__kv_pop(kv, e));
#endif
}

CDP__PRIVATE void cdp__kv_close(cdp__kv *kv) {
    uint64_t i;
    for (i = 0; i < kv->bucket_count; ++i) {
        cdp__kv_entry *e = kv->buckets[i], *next;
        for (; e; e = next) {
            next = e->next;
            cdp__kv_drop_items(kv, e);
            cdp__free(kv->os, e->value);
            cdp__free(kv->os, e);
        }
    }
    cdp__free(kv->os, kv->buckets);
    kv->buckets = NULL;
    kv->bucket_count = 0;
}

CDP__PRIVATE cdp__kv_entry *cdp__kv_find(const cdp__kv *kv, cdp_bytes key) {
    const uint64_t h = cdp__hash(kv->seed, key.data, key.bytes);
    cdp__kv_entry *e = kv->bucket_count ? kv->buckets[h & (kv->bucket_count - 1)] : NULL;
    for (; e; e = e->next)
        if (e->hash == h && e->key_bytes == key.bytes
            && (!key.bytes || memcmp(cdp__kv_key(e), key.data, (size_t)key.bytes) == 0))
            return e;
    return NULL;
}

/* The entry of a key that has a value; NULL if the key has none. */
CDP__PRIVATE CDP__ONE_COPY cdp__kv_entry *cdp__kv_get(const cdp__kv *kv, cdp_bytes key) {
    cdp__kv_entry *e = cdp__kv_find(kv, key);
    return e && e->present ? e : NULL;
}

CDP__PRIVATE bool cdp__kv_grow(cdp__kv *kv) {
    const uint64_t n = kv->bucket_count ? 2 * kv->bucket_count : 16;
    cdp__kv_entry **buckets;
    uint64_t i;
    if (kv->entry_count < kv->bucket_count) return true;
    buckets = (cdp__kv_entry **)cdp__alloc_zero(kv->os, n * sizeof *buckets);
    if (!buckets) return kv->bucket_count != 0; /* Use the old table: only slower. */
    for (i = 0; i < kv->bucket_count; ++i) {
        cdp__kv_entry *e = kv->buckets[i], *next;
        for (; e; e = next) {
            next = e->next;
            e->next = buckets[e->hash & (n - 1)];
            buckets[e->hash & (n - 1)] = e;
        }
    }
    cdp__free(kv->os, kv->buckets);
    kv->buckets = buckets;
    kv->bucket_count = n;
    return true;
}

CDP__PRIVATE bool cdp__kv_has_room(const cdp__kv *kv, uint64_t bytes) {
    return cdp__kv_cost(bytes) <= kv->max_bytes - cdp__min(kv->bytes, kv->max_bytes);
}

CDP__PRIVATE cdp_status cdp__kv_full(const cdp__kv *kv) {
    return cdp__fail(CDP_ERR_NOMEM, "the store is full: it may hold %llu bytes (max_total_bytes)",
        (unsigned long long)kv->max_bytes);
}

/* Returns the entry of a key and creates it, without a value, if there is none. NULL: no room; the
   last error is set. */
CDP__PRIVATE cdp__kv_entry *cdp__kv_obtain(cdp__kv *kv, cdp_bytes key) {
    const uint64_t bytes = sizeof(cdp__kv_entry) + key.bytes;
    cdp__kv_entry *e = cdp__kv_find(kv, key), **bucket;
    if (e) return e;
    if (!cdp__kv_has_room(kv, bytes)) {
        cdp__kv_full(kv);
        return NULL;
    }
    e = cdp__kv_grow(kv) ? (cdp__kv_entry *)cdp__alloc_zero(kv->os, bytes) : NULL;
    if (!e) {
        cdp__fail_nomem("a key of the store", bytes);
        return NULL;
    }
    if (key.bytes) memcpy(e + 1, key.data, (size_t)key.bytes);
    cdp__chain_open(&e->waits);
    cdp__chain_open(&e->watches);
    e->key_bytes = key.bytes;
    e->hash = cdp__hash(kv->seed, key.data, key.bytes);
    bucket = &kv->buckets[e->hash & (kv->bucket_count - 1)];
    e->next = *bucket;
    *bucket = e;
    ++kv->entry_count;
    kv->bytes += cdp__kv_cost(bytes);
    return e;
}

/* Frees an entry whose key has no value and no queue, and which no connection waits for or watches;
   leaves any other entry alone. NULL is allowed. */
CDP__PRIVATE void cdp__kv_release(cdp__kv *kv, cdp__kv_entry *e) {
    cdp__kv_entry **at;
    if (!e || e->present || e->item_count) return;
    if (!cdp__chain_empty(&e->waits) || !cdp__chain_empty(&e->watches)) return;
    for (at = &kv->buckets[e->hash & (kv->bucket_count - 1)]; *at != e;)
        at = &(*at)->next;
    *at = e->next;
    --kv->entry_count;
    kv->bytes -= cdp__kv_cost(sizeof(cdp__kv_entry) + e->key_bytes);
    CDP_ASSERT(!e->value);
    cdp__free(kv->os, e);
}

/* Makes room for a value of `bytes` and keeps the first `keep` bytes of the old value. A failure
   changes nothing. */
CDP__PRIVATE cdp_status cdp__kv_reserve(
    cdp__kv *kv, cdp__kv_entry *e, uint64_t bytes, uint64_t keep) {
    /* Half as much again, so that many small appends take linear time. */
    const uint64_t room = keep ? cdp__max(bytes, keep + keep / 2) : bytes;
    uint8_t *value;
    if (e->value && bytes <= e->value_room && e->value_room / 4 <= bytes + 64) return CDP_OK;
    if (cdp__kv_cost(room)
        > kv->max_bytes - cdp__min(kv->bytes - cdp__kv_cost(e->value_room), kv->max_bytes))
        return cdp__kv_full(kv);
    value = (uint8_t *)cdp__alloc(kv->os, room);
    if (!value) return cdp__fail_nomem("a value of the store", room);
    if (keep) memcpy(value, e->value, (size_t)keep);
    cdp__free(kv->os, e->value);
    kv->bytes += cdp__kv_cost(room) - cdp__kv_cost(e->value_room);
    e->value = value;
    e->value_room = room;
    return CDP_OK;
}

/* Replaces everything from byte `at` of the value on by `value`, which must not be memory of this
   entry. */
CDP__PRIVATE cdp_status cdp__kv_write(cdp__kv *kv, cdp__kv_entry *e, uint64_t at, cdp_bytes value) {
    const cdp_status status = cdp__kv_reserve(kv, e, at + value.bytes, at);
    if (status != CDP_OK) {
        cdp__kv_release(kv, e); /* It may have been created for this value. */
        return status;
    }
    if (value.bytes) memcpy(e->value + at, value.data, (size_t)value.bytes);
    e->value_bytes = at + value.bytes;
    if (!e->present) {
        ++kv->present_count;
        e->since = ++kv->arrivals;
    }
    e->present = true;
    return CDP_OK;
}

/* The operations on a value: set, append, add, compare_set. They set *out to the entry, so that the
   caller can wake its waiters, or to NULL if they stored nothing. */
CDP__PRIVATE cdp_status cdp__kv_set(
    cdp__kv *kv, cdp_bytes key, cdp_bytes value, cdp__kv_entry **out) {
    *out = cdp__kv_obtain(kv, key);
    return *out ? cdp__kv_write(kv, *out, 0, value) : CDP_ERR_NOMEM;
}

CDP__PRIVATE cdp_status cdp__kv_append(
    cdp__kv *kv, cdp_bytes key, cdp_bytes value, cdp__kv_entry **out) {
    *out = cdp__kv_obtain(kv, key);
    return *out ? cdp__kv_write(kv, *out, (*out)->value_bytes, value) : CDP_ERR_NOMEM;
}

CDP__PRIVATE cdp_status cdp__kv_add(
    cdp__kv *kv, cdp_bytes key, int64_t delta, int64_t *sum, cdp__kv_entry **out) {
    char text[24];
    cdp_bytes value;
    cdp__kv_entry *e = cdp__kv_get(kv, key);
    *sum = 0;
    *out = NULL;
    if (e && !cdp__number_parse(e->value, e->value_bytes, sum)) return cdp__store_no_number(key);
    *sum = (int64_t)((uint64_t)*sum + (uint64_t)delta);
    value.data = text;
    value.bytes = cdp__number_text(*sum, text);
    return cdp__kv_set(kv, key, value, out);
}

/* *answer: the value afterwards, in memory of the map, which is valid until the next change; or
   `expected` if the key is absent. */
CDP__PRIVATE cdp_status cdp__kv_compare_set(cdp__kv *kv, cdp_bytes key, cdp_bytes expected,
    cdp_bytes desired, cdp_bytes *answer, cdp__kv_entry **out) {
    cdp__kv_entry *e = cdp__kv_get(kv, key);
    cdp_status status = CDP_OK;
    bool equal;
    *out = NULL;
    *answer = expected;
    if (!e && expected.bytes) return CDP_OK;
    equal = !e
        || (e->value_bytes == expected.bytes
            && (!expected.bytes || memcmp(e->value, expected.data, (size_t)expected.bytes) == 0));
    if (equal) status = cdp__kv_set(kv, key, desired, &e);
    if (status != CDP_OK) return status;
    *out = equal ? e : NULL;
    answer->data = e->value;
    answer->bytes = e->value_bytes;
    return CDP_OK;
}

CDP__PRIVATE bool cdp__kv_delete(cdp__kv *kv, cdp_bytes key) {
    cdp__kv_entry *e = cdp__kv_get(kv, key);
    if (!e) return false;
    cdp__free(kv->os, e->value);
    kv->bytes -= cdp__kv_cost(e->value_room);
    e->value = NULL;
    e->value_bytes = e->value_room = 0;
    e->present = false;
    --kv->present_count;
    cdp__kv_release(kv, e);
    return true;
}

/* Appends a value to the queue of a key. *out: its entry, or NULL if nothing was stored. */
CDP__PRIVATE cdp_status cdp__kv_push(
    cdp__kv *kv, cdp_bytes key, cdp_bytes value, cdp__kv_entry **out) {
    cdp__kv_entry *e = cdp__kv_obtain(kv, key);
    cdp__kv_item *item = NULL;
    *out = NULL;
    if (!e) return CDP_ERR_NOMEM;
    if (cdp__kv_has_room(kv, sizeof *item + value.bytes))
        item = (cdp__kv_item *)cdp__alloc(kv->os, sizeof *item + value.bytes);
    if (!item) {
        cdp__kv_release(kv, e);
        return cdp__kv_full(kv);
    }
    item->next = NULL;
    item->bytes = value.bytes;
    if (value.bytes) memcpy(item + 1, value.data, (size_t)value.bytes);
    if (e->last_item)
        e->last_item->next = item;
    else
        e->first_item = item;
    e->last_item = item;
    ++e->item_count;
    kv->bytes += cdp__kv_cost(sizeof *item + value.bytes);
    *out = e;
    return CDP_OK;
}

/* True if the key has a value or a queued value, which ends a wait for the key. */
CDP__PRIVATE bool cdp__kv_available(const cdp__kv *kv, cdp_bytes key) {
    const cdp__kv_entry *e = cdp__kv_find(kv, key);
    return e && (e->present || e->item_count);
}

CDP__PRIVATE uint64_t cdp__kv_reverse(uint64_t v) {
    uint64_t out = 0, i;
    for (i = 0; i < 64; ++i)
        out |= (v >> i & 1) << (63 - i);
    return out;
}

/* The bucket that follows `cursor` in a listing, which begins with bucket 0; returns 0 after the
   last one. It increments the bucket number from its highest bit down. So if the table doubles
   during a listing, the buckets that were listed in the old table correspond exactly to those that
   the new order has passed. */
CDP__PRIVATE uint64_t cdp__kv_next_bucket(const cdp__kv *kv, uint64_t cursor) {
    CDP_ASSERT(kv->bucket_count);
    return cdp__kv_reverse(cdp__kv_reverse(cursor | ~(kv->bucket_count - 1)) + 1);
}

#endif /* CDP_SRC_STORE_KV_H */

/* elastic/quorum_servers.h - one operation on several servers

   Knows: a client for each server, and the operation of quorum.h that is under way. A key K of the
   store is the record "q/K" on each server. Promises: no operation takes longer than answer_ms, nor
   waits for servers beyond a majority; a server is lost only if its connection is. */
#ifndef CDP_SRC_ELASTIC_QUORUM_SERVERS_H
#define CDP_SRC_ELASTIC_QUORUM_SERVERS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../os/os_api.h"
#include "../store/interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../store/desc_api.h"
#include "../store/store_api.h"
#include "../store/addr.h"
#include "../store/calls.h"
#include "../store/server_create.h"
#include "quorum_api.h"
#include "quorum.h"

#ifndef CDP_NO_CUSTOM_STORE

#define CDP__QUORUM_ID 16u
#define CDP__QUORUM_HEAD_BYTES (48u + 8u * CDP__QUORUM_WRITERS)
#define CDP__QUORUM_MOST_KEY (CDP_STORE_MAX_KEY_BYTES - 3u) /* "q/" precedes it */
#define CDP__QUORUM_MOST_VALUE (CDP_STORE_MAX_VALUE_BYTES - CDP__QUORUM_HEAD_BYTES)
#define CDP__QUORUM_MARK 0x31726f71u /* "qor1" */
#define CDP__QUORUM_ANSWER_MS 10000u
#define CDP__QUORUM_SLICE_NS CDP__MS           /* of a wait for one of several servers */
#define CDP__QUORUM_PATIENCE_NS (20 * CDP__MS) /* for the servers beyond a majority */
#define CDP__QUORUM_READS 4u /* how many times as long as one a look for a will may take */
#define CDP__QUORUM_REST_NS (10 * CDP__MS) /* between two searches for the servers */
#define CDP__QUORUM_LINGER_MS 5000u

typedef struct cdp__quorum_peer { /* one server */
    cdp_store *store;             /* NULL: lost */
    cdp__store_call call;
    uint8_t *record; /* the last one that it answered; NULL: none */
    uint64_t bytes;
    uint8_t *wanted; /* the one that it is asked to keep */
    bool slow;       /* gave no answer in time when it was asked last */
} cdp__quorum_peer;

typedef struct cdp__quorum_store {
    const cdp_os *os;
    cdp_logger logger;
    cdp_store_server *own;
    char *will_folder; /* NULL: no wills are looked for */
    uint64_t tags, dice;
    uint32_t answer_ms;
    cdp__quorum q;
    char *key;     /* "q/" and the key of q, of `records` and so on; NULL: none */
    uint8_t *kept; /* a value that is not in a record any more */
    cdp_bytes value;
    cdp__quorum_peer peer[CDP__QUORUM_SERVERS];
    char name[CDP__QUORUM_SERVERS][80];
} cdp__quorum_store;

CDP__PRIVATE uint64_t cdp__quorum_now(const cdp__quorum_store *s) {
    return s->os->now_ns(s->os->user);
}

CDP__PRIVATE void cdp__quorum_put_ballot(uint8_t *out, const cdp__ballot *b) {
    cdp__put_u64(out, b->round);
    cdp__put_u64(out + 8, b->proposer);
}

CDP__PRIVATE cdp__ballot cdp__quorum_get_ballot(const uint8_t *in) {
    cdp__ballot b;
    b.round = cdp__get_u64(in);
    b.proposer = cdp__get_u64(in + 8);
    return b;
}

/* mark, present; promised, accepted; version, writers; then the value */
CDP__PRIVATE void cdp__quorum_put_head(uint8_t *out, const cdp__quorum_head *h) {
    uint32_t i;
    cdp__put_u32(out, CDP__QUORUM_MARK);
    cdp__put_u32(out + 4, h->present);
    cdp__quorum_put_ballot(out + 8, &h->promised);
    cdp__quorum_put_ballot(out + 24, &h->accepted);
    cdp__put_u64(out + 40, h->version);
    for (i = 0; i < CDP__QUORUM_WRITERS; ++i)
        cdp__put_u64(out + 48 + 8 * i, h->writers[i]);
}

CDP__PRIVATE bool cdp__quorum_get_head(const uint8_t *in, uint64_t bytes, cdp__quorum_head *h) {
    uint32_t i;
    memset(h, 0, sizeof *h);
    if (!bytes) return true;
    if (bytes < CDP__QUORUM_HEAD_BYTES || cdp__get_u32(in) != CDP__QUORUM_MARK) return false;
    h->present = cdp__get_u32(in + 4) != 0;
    h->promised = cdp__quorum_get_ballot(in + 8);
    h->accepted = cdp__quorum_get_ballot(in + 24);
    h->version = cdp__get_u64(in + 40);
    for (i = 0; i < CDP__QUORUM_WRITERS; ++i)
        h->writers[i] = cdp__get_u64(in + 48 + 8 * i);
    return true;
}

/* ---- one server ---- */

CDP__PRIVATE void cdp__quorum_lose(cdp__quorum_store *s, uint32_t i) {
    cdp__quorum_peer *p = &s->peer[i];
    if (p->store)
        cdp__log(&s->logger, CDP_LOG_WARN, -1, "quorum store: server %s is lost: %s", s->name[i],
            cdp_last_error()->text);
    cdp_store_destroy(p->store);
    p->store = NULL;
    s->q.at[i].lost = true;
}

/* A request to server i failed: this says whether no other one can succeed. */
CDP__PRIVATE cdp_status cdp__quorum_failed(cdp__quorum_store *s, uint32_t i, cdp_status st) {
    s->q.at[i].state = CDP__QUORUM_IDLE;
    if (st != CDP_ERR_STORE && st != CDP_ERR_STATE && st != CDP_ERR_IO) return st;
    cdp__quorum_lose(s, i);
    return CDP_OK;
}

/* Begins compare_set(key, expected -> desired) on server i. */
CDP__PRIVATE cdp_status cdp__quorum_start(
    cdp__quorum_store *s, uint32_t i, const char *key, cdp_bytes expected, cdp_bytes desired) {
    cdp__quorum_peer *p = &s->peer[i];
    cdp_status st =
        cdp__store_call_make(&p->call, CDP_STORE_COMPARE_SET, key, expected.data, expected.bytes);
    p->call.value[1] = desired;
    if (st == CDP_OK) st = cdp__store_begin(p->store, &p->call.rq);
    s->q.at[i].state = CDP__QUORUM_ASKED;
    return st < 0 ? cdp__quorum_failed(s, i, st) : CDP_OK;
}

/* The same to read a key without changing it: an absent key answers what was expected. */
CDP__PRIVATE cdp_status cdp__quorum_probe(cdp__quorum_store *s, uint32_t i, const char *key) {
    cdp_bytes nothing;
    nothing.data = "?";
    nothing.bytes = 1;
    return cdp__quorum_start(s, i, key, nothing, nothing);
}

/* Waits for the answer of server i. OK: *data, of *bytes, is the caller's; NULL: the server is
   lost. */
CDP__PRIVATE cdp_status cdp__quorum_collect(
    cdp__quorum_store *s, uint32_t i, uint64_t until_ns, uint8_t **data, uint64_t *bytes) {
    cdp__quorum_peer *p = &s->peer[i];
    cdp_store_request *rq = &p->call.rq;
    const cdp_status st = p->store->wait(p->store->self, rq, until_ns);
    *data = NULL;
    *bytes = 0;
    if (st == CDP_PENDING) return st;
    if (st != CDP_OK) return cdp__quorum_failed(s, i, st);
    s->q.at[i].state = CDP__QUORUM_IDLE;
    memcpy(data, &rq->results[0].data, sizeof *data);
    *bytes = rq->results[0].bytes;
    rq->results[0].data = NULL;
    cdp_store_request_free(p->store, rq);
    if (*bytes == 1 && **data == '?') *bytes = 0; /* absent */
    p->slow = false;
    return CDP_OK;
}

/* Of the servers that have not answered, nobody waits for the answer any more. */
CDP__PRIVATE void cdp__quorum_drop(cdp__quorum_store *s) {
    uint32_t i;
    for (i = 0; i < s->q.count; ++i) {
        cdp__quorum_peer *p = &s->peer[i];
        if (s->q.at[i].state != CDP__QUORUM_ASKED) continue;
        s->q.at[i].state = CDP__QUORUM_IDLE;
        if (!p->store) continue;
        p->slow = true;
        p->store->cancel(p->store->self, &p->call.rq);
        if (p->call.rq.status == CDP_OK) cdp_store_request_free(p->store, &p->call.rq);
    }
}

/* How long to wait for server i: quick ones first, and the slow ones while no other is left. */
CDP__PRIVATE uint64_t cdp__quorum_until(const cdp__quorum_store *s, uint32_t i, uint64_t end_ns) {
    const uint64_t now = cdp__quorum_now(s);
    uint32_t k;
    for (k = 0; s->peer[i].slow && k < s->q.count; ++k)
        if (s->q.at[k].state == CDP__QUORUM_ASKED && s->peer[k].store && !s->peer[k].slow)
            return now;
    return cdp__min(end_ns, now + CDP__QUORUM_SLICE_NS);
}

/* ---- an operation ---- */

CDP__PRIVATE void cdp__quorum_forget(cdp__quorum_store *s) {
    uint32_t i;
    for (i = 0; i < s->q.count; ++i) {
        cdp__free(s->os, s->peer[i].record);
        s->peer[i].record = NULL;
        s->peer[i].bytes = 0;
        memset(&s->q.at[i].head, 0, sizeof s->q.at[i].head);
        s->q.at[i].known = false;
    }
}

/* The records that were read last are those of the key from now on. */
CDP__PRIVATE cdp_status cdp__quorum_open(cdp__quorum_store *s, cdp_bytes key) {
    if (key.bytes > CDP__QUORUM_MOST_KEY)
        return cdp__fail(CDP_ERR_INVALID, "quorum store: a key has at most %u bytes, not %llu",
            CDP__QUORUM_MOST_KEY, (unsigned long long)key.bytes);
    if (key.bytes && memchr(key.data, 0, (size_t)key.bytes))
        return cdp__fail(CDP_ERR_INVALID, "quorum store: a key contains no zero bytes");
    if (s->key && strlen(s->key + 2) == key.bytes
        && memcmp(s->key + 2, key.data, (size_t)key.bytes) == 0)
        return CDP_OK;
    cdp__quorum_forget(s);
    cdp__free(s->os, s->key);
    s->key = (char *)cdp__alloc_zero(s->os, key.bytes + 3);
    if (!s->key) return cdp__fail_nomem("a key", key.bytes + 3);
    memcpy(s->key, "q/", 2);
    memcpy(s->key + 2, key.data, (size_t)key.bytes);
    return CDP_OK;
}

CDP__PRIVATE cdp_bytes cdp__quorum_value_of(const cdp__quorum_store *s, uint32_t i) {
    cdp_bytes v;
    v.data = "";
    v.bytes = 0;
    if (s->peer[i].bytes <= CDP__QUORUM_HEAD_BYTES) return v;
    v.data = s->peer[i].record + CDP__QUORUM_HEAD_BYTES;
    v.bytes = s->peer[i].bytes - CDP__QUORUM_HEAD_BYTES;
    return v;
}

/* Asks server i what this phase asks. */
CDP__PRIVATE cdp_status cdp__quorum_ask(cdp__quorum_store *s, uint32_t i) {
    cdp__quorum_peer *p = &s->peer[i];
    const bool accepts = s->q.phase == CDP__QUORUM_ACCEPT;
    const cdp_bytes value = accepts ? s->value : cdp__quorum_value_of(s, i);
    const cdp__quorum_head head = cdp__quorum_wanted(&s->q, i);
    cdp_bytes expected, desired;
    if (s->q.phase == CDP__QUORUM_READ || !s->q.at[i].known) return cdp__quorum_probe(s, i, s->key);
    cdp__free(s->os, p->wanted);
    p->wanted = (uint8_t *)cdp__alloc(s->os, CDP__QUORUM_HEAD_BYTES + value.bytes);
    if (!p->wanted) return cdp__fail_nomem("a value", CDP__QUORUM_HEAD_BYTES + value.bytes);
    cdp__quorum_put_head(p->wanted, &head);
    if (value.bytes) memcpy(p->wanted + CDP__QUORUM_HEAD_BYTES, value.data, (size_t)value.bytes);
    expected.data = p->record;
    expected.bytes = p->bytes;
    desired.data = p->wanted;
    desired.bytes = CDP__QUORUM_HEAD_BYTES + value.bytes;
    return cdp__quorum_start(s, i, s->key, expected, desired);
}

/* Asks whoever is to be asked, and takes the answers that are there within a millisecond. */
CDP__PRIVATE cdp_status cdp__quorum_turn(cdp__quorum_store *s, uint64_t end_ns) {
    cdp_status st = CDP_OK;
    uint32_t i;
    for (i = 0; st == CDP_OK && i < s->q.count; ++i)
        if (s->q.at[i].state == CDP__QUORUM_IDLE && s->peer[i].store) st = cdp__quorum_ask(s, i);
    for (i = 0; st == CDP_OK && i < s->q.count; ++i) {
        cdp__quorum_peer *p = &s->peer[i];
        cdp__quorum_head head;
        uint8_t *data;
        uint64_t bytes;
        if (s->q.at[i].state != CDP__QUORUM_ASKED || !p->store) continue;
        st = cdp__quorum_collect(s, i, cdp__quorum_until(s, i, end_ns), &data, &bytes);
        if (st < 0) return st;
        st = CDP_OK; /* CDP_PENDING: another one may have answered */
        if (!data) continue;
        cdp__free(s->os, p->record);
        p->record = data;
        p->bytes = bytes;
        s->q.at[i].known = cdp__quorum_get_head(data, bytes, &head);
        if (!s->q.at[i].known)
            return cdp__fail(CDP_ERR_STORE,
                "quorum store: \"%s\" on server %s is no record: another program writes to it",
                s->key, s->name[i]);
        cdp__quorum_answer(&s->q, i, &head);
    }
    return st;
}

/* A majority has promised. `expected` and `desired` are those of a change; NULL: absent. */
CDP__PRIVATE cdp_status cdp__quorum_choose(
    cdp__quorum_store *s, const cdp_bytes *expected, const cdp_bytes *desired) {
    const cdp_bytes value = cdp__quorum_value_of(s, s->q.from);
    const bool present = s->q.at[s->q.from].head.present;
    bool equal = !present && !expected;
    if (present && expected)
        equal = value.bytes == expected->bytes
            && (!value.bytes || memcmp(value.data, expected->data, (size_t)value.bytes) == 0);
    cdp__quorum_decide(&s->q, equal, desired != NULL);
    memset(&s->value, 0, sizeof s->value);
    if (s->q.fresh) {
        if (desired) s->value = *desired;
        return CDP_OK;
    }
    /* the record of `from` changes meanwhile */
    cdp__free(s->os, s->kept);
    s->kept = (uint8_t *)cdp__alloc(s->os, value.bytes + 1);
    if (!s->kept) return cdp__fail_nomem("a value", value.bytes);
    if (value.bytes) memcpy(s->kept, value.data, (size_t)value.bytes);
    s->value.data = s->kept;
    s->value.bytes = value.bytes;
    return CDP_OK;
}

/* Another client asked for a higher ballot: lets it finish, differently long each time. */
CDP__PRIVATE void cdp__quorum_pause(cdp__quorum_store *s, uint32_t times) {
    const uint64_t most = CDP__MS / 4 << cdp__min(times, 7);
    s->dice = s->dice * 6364136223846793005u + 1442695040888963407u;
    if (times) cdp__sleep_until(s->os, cdp__quorum_now(s) + (s->dice >> 33) % most);
}

CDP__PRIVATE cdp_status cdp__quorum_no_majority(const cdp__quorum_store *s, bool late) {
    char text[200];
    cdp__text t = cdp__text_of(text, sizeof text);
    uint32_t i, lost = 0;
    for (i = 0; i < s->q.count; ++i) {
        if (s->peer[i].store && !(late && s->peer[i].slow)) continue;
        cdp__text_add(&t, "%s%s", lost++ ? ", " : "", s->name[i]);
    }
    (void)cdp__text_end(&t);
    if (s->q.count - lost >= cdp__quorum_majority(s->q.count))
        return cdp__fail(CDP_ERR_STORE,
            "quorum store: the servers answer, but others used \"%s\" so often that this process "
            "had no turn within answer_ms",
            s->key + 2);
    return cdp__fail(CDP_ERR_STORE,
        "quorum store: %s majority of the %u servers%s (%s): this process is cut off, or too many "
        "of them have ended",
        late ? "no answer from a" : "there is no", s->q.count, late ? " within answer_ms" : "",
        text);
}

/* Runs the operation that cdp__quorum_begin() began. */
CDP__PRIVATE cdp_status cdp__quorum_run(
    cdp__quorum_store *s, const cdp_bytes *expected, const cdp_bytes *desired) {
    const uint64_t begun = cdp__quorum_now(s), end = begun + s->answer_ms * CDP__MS;
    uint32_t beaten = 0;
    cdp_status st = CDP_OK;
    while (st == CDP_OK) {
        const cdp__quorum_verdict verdict = cdp__quorum_verdict_of(&s->q);
        const uint64_t now = cdp__quorum_now(s);
        s->q.impatient = now - begun >= CDP__QUORUM_PATIENCE_NS;
        if (verdict == CDP__QUORUM_WAITS && now < end) {
            st = cdp__quorum_turn(s, end);
            continue;
        }
        cdp__quorum_drop(s);
        if (verdict == CDP__QUORUM_DONE) break;
        if (verdict == CDP__QUORUM_LOST || now >= end)
            st = cdp__quorum_no_majority(s, verdict != CDP__QUORUM_LOST);
        else if (verdict == CDP__QUORUM_PROMISED)
            st = cdp__quorum_choose(s, expected, desired);
        else if (verdict == CDP__QUORUM_BEATEN) {
            cdp__quorum_pause(s, beaten++);
            cdp__quorum_again(&s->q);
        }
    }
    if (st == CDP_OK && s->q.phase == CDP__QUORUM_READ)
        s->value = cdp__quorum_value_of(s, s->q.from);
    if (st != CDP_OK) cdp__quorum_drop(s);
    return st;
}

CDP__PRIVATE cdp_status cdp__quorum_swap(
    void *user, cdp_bytes key, const cdp_bytes *expected, const cdp_bytes *desired) {
    cdp__quorum_store *s = (cdp__quorum_store *)user;
    uint8_t *copy = NULL;
    cdp_bytes want;
    cdp_status st = cdp__quorum_open(s, key);
    memset(&want, 0, sizeof want);
    if (st == CDP_OK && desired && desired->bytes > CDP__QUORUM_MOST_VALUE)
        st = cdp__fail(CDP_ERR_INVALID,
            "quorum store: the value of \"%s\" has at most %u bytes, not %llu", s->key + 2,
            CDP__QUORUM_MOST_VALUE, (unsigned long long)desired->bytes);
    if (st == CDP_OK && expected) { /* it may be what the last read returned */
        copy = (uint8_t *)cdp__alloc(s->os, expected->bytes + 1);
        if (!copy) return cdp__fail_nomem("a value", expected->bytes);
        if (expected->bytes) memcpy(copy, expected->data, (size_t)expected->bytes);
        want.data = copy;
        want.bytes = expected->bytes;
    }
    if (st == CDP_OK) {
        cdp__quorum_begin(&s->q, ++s->tags);
        st = cdp__quorum_run(s, expected ? &want : NULL, desired);
    }
    cdp__free(s->os, copy);
    if (st != CDP_OK) return st;
    if (s->q.outcome == CDP__QUORUM_UNKNOWN)
        return cdp__fail(CDP_ERR_STORE,
            "quorum store: others changed \"%s\" so often meanwhile that nobody knows whether the "
            "change of this process counted",
            s->key + 2);
    return s->q.outcome == CDP__QUORUM_SWAPPED ? CDP_OK : CDP_PENDING;
}

/* Whether a majority of the servers has seen the process end whose last will is under this key. A
   read of it took so long just now. */
CDP__PRIVATE bool cdp__quorum_has_last_will(cdp__quorum_store *s, cdp_bytes key, uint64_t took_ns) {
    const uint32_t need = cdp__quorum_majority(s->q.count);
    const uint64_t limit_ns = CDP__QUORUM_PATIENCE_NS + CDP__QUORUM_READS * took_ns;
    const uint64_t end = cdp__quorum_now(s) + cdp__min(limit_ns, s->answer_ms * CDP__MS);
    uint32_t i, there = 0, open = 0;
    char name[300];
    if (key.bytes > 290) return false;
    memcpy(name, "w/", 2);
    memcpy(name + 2, key.data, (size_t)key.bytes);
    name[2 + key.bytes] = 0;
    for (i = 0; i < s->q.count; ++i) {
        s->q.at[i].state = CDP__QUORUM_NO;
        if (s->peer[i].store) (void)cdp__quorum_probe(s, i, name);
        open += s->q.at[i].state == CDP__QUORUM_ASKED;
    }
    while (there < need && there + open >= need && cdp__quorum_now(s) < end)
        for (i = 0; i < s->q.count; ++i) {
            uint8_t *data;
            uint64_t bytes;
            cdp_status st;
            if (s->q.at[i].state != CDP__QUORUM_ASKED || !s->peer[i].store) continue;
            st = cdp__quorum_collect(s, i, cdp__quorum_until(s, i, end), &data, &bytes);
            if (st == CDP_PENDING) continue;
            s->q.at[i].state = CDP__QUORUM_NO;
            --open;
            there += bytes != 0;
            cdp__free(s->os, data);
        }
    cdp__quorum_drop(s);
    return there >= need;
}

CDP__PRIVATE cdp_status cdp__quorum_get(void *user, cdp_bytes key, cdp_bytes *value) {
    cdp__quorum_store *s = (cdp__quorum_store *)user;
    const uint64_t folder = s->will_folder ? strlen(s->will_folder) : UINT64_MAX;
    const uint64_t begun = cdp__quorum_now(s);
    cdp_bytes ended;
    cdp_status st = cdp__quorum_open(s, key);
    if (st != CDP_OK) return st;
    cdp__quorum_begin(&s->q, 0);
    st = cdp__quorum_run(s, NULL, NULL);
    if (st != CDP_OK) return st;
    *value = s->value;
    if (s->q.next.present) return CDP_OK;
    if (key.bytes <= folder || memcmp(key.data, s->will_folder, (size_t)folder) != 0
        || !cdp__quorum_has_last_will(s, key, cdp__quorum_now(s) - begun))
        return CDP_PENDING;
    ended.data = "its process ended";
    ended.bytes = strlen("its process ended");
    st = cdp__quorum_swap(s, key, NULL, &ended);
    return st < 0 ? st : cdp__quorum_get(s, key, value);
}

#endif /* CDP_NO_CUSTOM_STORE */

#endif /* CDP_SRC_ELASTIC_QUORUM_SERVERS_H */

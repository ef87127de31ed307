/* elastic/transfer.h - state, from several sources to all who lack it

   Knows: entries, blobs, who is a source. Promises: what was received is used only after the hashes
   of all members were equal; no member waits longer than the epoch lasts. */
#ifndef CDP_SRC_ELASTIC_TRANSFER_H
#define CDP_SRC_ELASTIC_TRANSFER_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../group/group_api.h"
#include "../group/collectives_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../group/state.h"
#include "../group/work_calls.h"
#include "elastic_api.h"
#include "epoch.h"
#include "turn.h"
#include "store.h"
#include "attend.h"

/* From this size on a round takes longer to copy than its source sleeps. */
#define CDP__ELASTIC_LONG (8u << 20)

typedef struct cdp__elastic_transfer {
    cdp_elastic *e;
    cdp_group *group;
    const cdp__elastic_decision *d;
    uint32_t rank, count; /* count: of sources that are used */
    uint32_t source[CDP__ELASTIC_SOURCES];
    cdp_group *from[CDP__ELASTIC_SOURCES]; /* that source, and all receivers; NULL: not with it */
    uint32_t turn;                         /* pieces that have begun */
    uint8_t *apart;   /* the entries come here; NULL: they are overwritten as they come */
    uint64_t hash[2]; /* of the entries; of the blob */
    uint8_t *blob;    /* as saved, or received */
    uint64_t blob_bytes;
    bool has_blob; /* it was received */
} cdp__elastic_transfer;

/* What a function of the program returned. Its error is final, also one that would be a loss in an
   operation: each epoch would call it again. But if the group has failed, that is why. */
CDP__PRIVATE cdp_status cdp__elastic_returned(
    cdp_elastic *e, cdp_group *group, const char *name, cdp_status st) {
    const cdp_error why = *cdp_last_error();
    cdp__elastic_after_callback(e);
    if (st == CDP_OK) return st;
    if (cdp__elastic_is_loss(cdp_group_status(group))) return cdp_last_error()->status;
    e->refused = true;
    *cdp__error_slot() = why;
    if (st < 0 && why.status == st) return st;
    return cdp__fail(st < 0 ? st : CDP_ERR_INVALID, "%s() of cdp_elastic_desc returned %s", name,
        cdp_status_name(st));
}

/* A member that is behind by a step keeps what it holds until all of the newer state is there: if
   the sources die before, the job goes on without that step. Where there is no memory for both, its
   entries are overwritten, and it has no state meanwhile. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_begin(cdp__elastic_transfer *t) {
    cdp_elastic *e = t->e;
    uint64_t bytes = 0;
    uint32_t i;
    bool in;
    for (i = 0; i < e->desc.entry_count; ++i)
        bytes += e->desc.entries[i].count * cdp_dtype_size(e->desc.entries[i].dtype);
    cdp__elastic_lock(e);
    in = e->place.epoch == t->d->epoch && e->place.phase == CDP__ELASTIC_JOINED;
    if (in && !t->d->members[t->rank].source) {
        if (e->place.has_state) t->apart = (uint8_t *)cdp__alloc(e->os, bytes + 1);
        cdp__elastic_receive(&e->place, t->apart != NULL);
    }
    cdp__elastic_unlock(e);
    return in ? CDP_OK : cdp__fail(CDP_ERR_ABORTED, "the epoch ended before its state was there");
}

/* The groups of each source with all receivers. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_groups(cdp__elastic_transfer *t) {
    const cdp__elastic_decision *d = t->d;
    uint32_t *ranks = (uint32_t *)cdp__alloc(t->e->os, d->size * sizeof *ranks);
    uint32_t i, r, n;
    cdp_status st = CDP_OK;
    if (!ranks) return cdp__fail_nomem("a list of ranks", d->size * sizeof *ranks);
    for (r = 0; r < d->size && t->count < CDP__ELASTIC_SOURCES; ++r)
        if (d->members[r].source) t->source[t->count++] = r;
    for (i = 0; st == CDP_OK && i < t->count; ++i) {
        if (d->members[t->rank].source && t->source[i] != t->rank) continue;
        n = 0;
        ranks[n++] = t->source[i];
        for (r = 0; r < d->size; ++r)
            if (!d->members[r].source) ranks[n++] = r;
        if (n == d->size && !t->source[i])
            t->from[i] = t->group; /* the same ranks in the same order */
        else
            st = cdp_group_new(t->group, ranks, n, &t->from[i]);
    }
    cdp__free(t->e->os, ranks);
    return st;
}

/* One step of a lane takes two words and one multiplication, which is what limits it. It tells
   every change of one word, and the rotation carries bits at the top to where the next product
   spreads them. It comes last: a word that is added after it would meet the first word of the next
   step at the same bits, and equal changes of both would cancel. */
CDP__PRIVATE uint64_t cdp__elastic_lane(uint64_t lane, const uint8_t *p) {
    uint64_t word[2];
    memcpy(word, p, sizeof word);
    lane = (lane ^ word[0]) * 0x9e3779b97f4a7c15ull + word[1];
    return lane << 29 | lane >> 35;
}

/* Continues a hash over gigabytes: cdp__hash() reads single bytes, which takes longer than to move
   them. The lanes are variables, which stay in registers. 64 MiB take 1.1 ms where they are in the
   cache and 1.9 where they are not (gcc 12, -O2); four lanes of a word each take 2.7 and 2.8, and
   in an array 6.7. */
CDP__PRIVATE uint64_t cdp__elastic_hash(uint64_t start, const void *data, uint64_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    uint64_t a = start, b = start + 1, c = start + 2, d = start + 3;
    uint64_t e = start + 4, f = start + 5, g = start + 6, h = start + 7, i;
    for (i = 0; i + 128 <= bytes; i += 128) {
        a = cdp__elastic_lane(a, p + i);
        b = cdp__elastic_lane(b, p + i + 16);
        c = cdp__elastic_lane(c, p + i + 32);
        d = cdp__elastic_lane(d, p + i + 48);
        e = cdp__elastic_lane(e, p + i + 64);
        f = cdp__elastic_lane(f, p + i + 80);
        g = cdp__elastic_lane(g, p + i + 96);
        h = cdp__elastic_lane(h, p + i + 112);
    }
    const uint64_t lanes[8] = {a, b, c, d, e, f, g, h};
    return cdp__hash(cdp__hash(start, lanes, sizeof lanes), p + i, bytes - i);
}

/* An entry that is hashed in blocks, as far as it is there. */
typedef struct cdp__elastic_reading {
    uint64_t *hash;
    uint8_t *data;
    uint64_t bytes, done;
    uint64_t begin, piece; /* where the piece begins that is coming, and its length */
} cdp__elastic_reading;

CDP__PRIVATE void cdp__elastic_hash_to(cdp__elastic_reading *r, uint64_t there) {
    uint64_t n;
    for (; r->done < there; r->done += n) {
        n = cdp__min(r->bytes - r->done, CDP__ELASTIC_BLOCK);
        if (n > there - r->done) break;
        *r->hash = cdp__elastic_hash(*r->hash, r->data + r->done, n);
    }
}

CDP__PRIVATE void cdp__elastic_arrived(void *user, uint64_t bytes) {
    cdp__elastic_reading *r = (cdp__elastic_reading *)user;
    cdp__elastic_hash_to(r, r->begin + cdp__min(bytes, r->piece));
}

/* Pieces that move at the same time: one of each source. */
typedef struct cdp__elastic_round {
    cdp_work works[CDP__ELASTIC_SOURCES];
    uint32_t count;
    uint64_t bytes;
} cdp__elastic_round;

/* The length of a piece of an entry, equal on all ranks: large, but each source has two of them. */
CDP__PRIVATE uint64_t cdp__elastic_piece(const cdp__elastic_transfer *t, uint64_t bytes) {
    const uint64_t share = cdp__max(bytes / (2u * t->count), CDP__ELASTIC_LEAST_PIECE);
    return cdp__min(share, CDP__ELASTIC_PIECE);
}

/* Pieces go round the sources; each group has its own order. */
CDP__PRIVATE cdp_status cdp__elastic_round_begin(cdp__elastic_transfer *t,
    const cdp__elastic_reading *r, uint64_t at, cdp__elastic_round *round) {
    const uint64_t bytes = r->bytes - at, most = cdp__elastic_piece(t, r->bytes);
    cdp_status st = CDP_OK;
    uint32_t i;
    memset(round, 0, sizeof *round);
    for (i = 0; st == CDP_OK && i < t->count && round->bytes < bytes; ++i) {
        const uint64_t piece = cdp__min(bytes - round->bytes, most);
        cdp_group *g = t->from[t->turn++ % t->count];
        if (g)
            st = cdp_broadcast_async(g, r->data + at + round->bytes, piece, CDP_DTYPE_U8, 0,
                &round->works[round->count]);
        if (g && st == CDP_OK) ++round->count;
        round->bytes += piece;
    }
    return st;
}

/* The groups of sources fail alone, and a source that has met the end of the epoch before it came
   here sends nothing in them: the end of the group of the epoch ends them. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_wait(
    cdp__elastic_transfer *t, cdp_work work, cdp__elastic_reading *reading) {
    uint32_t i;
    while (cdp__work_wait_arriving(work, CDP__ELASTIC_LOOK_MS, cdp__elastic_arrived, reading)
        == CDP_PENDING) {
        cdp__elastic_attend(t->e, 0);
        if (cdp_poll(t->group, 0) == CDP_OK) continue;
        for (i = 0; i < t->count; ++i)
            if (t->from[i])
                cdp__elastic_break(t->from[i], "the epoch ended before its state moved");
        break;
    }
    return cdp_work_wait(work);
}

/* The round begins at `begin` of the entry. Receivers hash each piece as it comes. */
CDP__PRIVATE cdp_status cdp__elastic_round_end(cdp__elastic_transfer *t, cdp__elastic_round *round,
    cdp__elastic_reading *reading, uint64_t begin) {
    const uint64_t most = cdp__elastic_piece(t, reading->bytes);
    cdp_status st = CDP_OK, one;
    uint32_t i;
    for (i = 0; i < round->count; ++i) {
        reading->begin = begin + i * most;
        reading->piece = cdp__min(begin + round->bytes - reading->begin, most);
        one = cdp__elastic_transfer_wait(t, round->works[i], reading);
        if (st == CDP_OK) st = one;
        if (st == CDP_OK) cdp__elastic_arrived(reading, reading->piece);
    }
    round->count = 0;
    return st;
}

/* A source hashes what it has begun to send while receivers copy it. First it sleeps: a receiver
   that this thread has just woken may be on its core, and would wait there until the hash is
   complete although another core is idle. On a machine of two cores 64 MiB take 10.3 ms with this
   and 11.3 without. Small pieces would be there before the sleep ends. */
CDP__PRIVATE void cdp__elastic_hash_begun(
    cdp__elastic_reading *reading, const cdp__elastic_round *round, uint64_t begun) {
    if (round->count && round->bytes >= CDP__ELASTIC_LONG)
        (void)!cdp_work_wait_for(round->works[0], 1);
    cdp__elastic_hash_to(reading, begun);
}

/* While one round is in flight, the next one has begun. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_entry(
    cdp__elastic_transfer *t, uint8_t *data, uint64_t bytes) {
    cdp__elastic_round rounds[2];
    cdp__elastic_reading reading = {&t->hash[0], data, bytes, 0, 0, 0};
    const bool source = t->d->members[t->rank].source;
    uint64_t begun = 0, ended = 0;
    uint32_t next = 0, k = 0;
    cdp_status st = CDP_OK, one;
    memset(rounds, 0, sizeof rounds);
    while (st == CDP_OK && ended < bytes) {
        while (st == CDP_OK && begun < bytes && next < k + 2) {
            cdp__elastic_round *round = &rounds[next++ % 2];
            st = cdp__elastic_round_begin(t, &reading, begun, round);
            begun += round->bytes;
            if (source) cdp__elastic_hash_begun(&reading, round, begun);
        }
        one = cdp__elastic_round_end(t, &rounds[k % 2], &reading, ended);
        if (st == CDP_OK) st = one;
        ended += rounds[k++ % 2].bytes;
    }
    for (k = 0; k < 2; ++k) {
        one = cdp__elastic_round_end(t, &rounds[k], &reading, ended);
        if (st == CDP_OK) st = one;
    }
    return st;
}

/* Transfers all entries or, if `place` is set, copies them from the separate memory to the
   program's. */
CDP__PRIVATE cdp_status cdp__elastic_each_entry(cdp__elastic_transfer *t, bool place) {
    const cdp_elastic_desc *d = &t->e->desc;
    uint8_t *apart = t->apart;
    uint32_t i;
    cdp_status st = CDP_OK;
    for (i = 0; st == CDP_OK && i < d->entry_count; ++i) {
        const uint64_t bytes = d->entries[i].count * cdp_dtype_size(d->entries[i].dtype);
        uint8_t *data = apart ? apart : (uint8_t *)d->entries[i].data;
        if (!place) st = cdp__elastic_transfer_entry(t, data, bytes);
        if (place && apart && bytes) memcpy(d->entries[i].data, data, (size_t)bytes);
        if (apart) apart += bytes;
    }
    return st;
}

/* Broadcasts bytes from the first source to all receivers. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_bytes(
    cdp__elastic_transfer *t, void *data, uint64_t bytes) {
    cdp__elastic_reading nothing = {NULL, NULL, 0, 0, 0, 0};
    cdp_work work;
    cdp_status st;
    if (!bytes) return CDP_OK;
    st = cdp_broadcast_async(t->from[0], data, bytes, CDP_DTYPE_U8, 0, &work);
    return st == CDP_OK ? cdp__elastic_transfer_wait(t, work, &nothing) : st;
}

CDP__PRIVATE uint64_t cdp__elastic_save(cdp_elastic *e, void *data, uint64_t room) {
    uint64_t bytes;
    cdp__elastic_before_callback(e);
    bytes = e->desc.save(e->desc.user, data, room);
    cdp__elastic_after_callback(e);
    return bytes;
}

/* The small blob comes from the first source: its size, then its bytes. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_blob(cdp__elastic_transfer *t) {
    const cdp_elastic_desc *d = &t->e->desc;
    const bool first = t->rank == t->source[0];
    uint8_t size[8] = {0};
    cdp_status st;
    if (!d->save || !t->from[0]) return CDP_OK;
    if (first) cdp__put_u64(size, cdp__elastic_save(t->e, NULL, 0));
    st = cdp__elastic_transfer_bytes(t, size, sizeof size);
    if (st != CDP_OK) return st;
    t->blob_bytes = cdp__get_u64(size);
    t->blob = (uint8_t *)cdp__alloc(t->e->os, t->blob_bytes + 1);
    if (!t->blob) return cdp__fail_nomem("the blob of save()", t->blob_bytes);
    if (first && cdp__elastic_save(t->e, t->blob, t->blob_bytes) != t->blob_bytes)
        return cdp__fail(
            CDP_ERR_INVALID, "save() of cdp_elastic_desc returned another size in its second call");
    st = cdp__elastic_transfer_bytes(t, t->blob, t->blob_bytes);
    if (st == CDP_OK) t->hash[1] = cdp__hash(CDP__HASH_START, t->blob, t->blob_bytes);
    t->has_blob = st == CDP_OK && !first;
    return st;
}

/* The same bits everywhere, or nothing that came is used. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_compare(cdp__elastic_transfer *t) {
    const uint32_t size = t->d->size, first = t->source[0];
    /* of all ranks, then this rank's own: in a block, which is aligned on every system */
    const uint64_t bytes = (size + 1ull) * sizeof t->hash;
    uint64_t *all = (uint64_t *)cdp__alloc(t->e->os, bytes), *mine;
    uint32_t r;
    cdp_status st;
    if (!all) return cdp__fail_nomem("hashes of all ranks", bytes);
    mine = all + (size_t)2 * size;
    memcpy(mine, t->hash, sizeof t->hash);
    st = cdp_allgather(t->group, mine, all, 2, CDP_DTYPE_U64);
    for (r = 0; st == CDP_OK && r < size; ++r) {
        const bool blob = r == first || !t->d->members[r].source;
        if (all[(size_t)2 * r] == all[(size_t)2 * first]
            && (!blob || all[(size_t)2 * r + 1] == all[(size_t)2 * first + 1]))
            continue;
        st = cdp__fail(CDP_ERR_MISMATCH,
            "epoch %llu: the state of rank %u is not that of rank %u after step %llu, so the "
            "optimizer does not give the same bits on all ranks, or an entry is missing",
            (unsigned long long)t->d->epoch, r, first, (unsigned long long)t->d->step);
    }
    cdp__free(t->e->os, all);
    if (st == CDP_ERR_MISMATCH) { /* all ranks find this; none may leave before the last one has */
        const cdp_error why = *cdp_last_error();
        if (cdp_barrier(t->group) != CDP_OK) *cdp__error_slot() = why;
    }
    return st;
}

/* Under the lock, this rank is recorded as holding the decision's state: if an alarm comes later,
   its arrival says so, and this thread enters the next epoch only after all entries are in place.
   After the barrier all ranks hold the state, so a rank that then leaves takes nothing with it. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_end(cdp__elastic_transfer *t) {
    cdp_elastic *e = t->e;
    const cdp_elastic_desc *d = &e->desc;
    cdp_status st = CDP_OK;
    bool in;
    cdp__elastic_lock(e);
    in = cdp__elastic_hold(&e->place, t->d);
    e->received = e->received || (in && !t->d->members[t->rank].source);
    cdp__elastic_unlock(e);
    if (!in) return cdp__fail(CDP_ERR_ABORTED, "the epoch ended before its state was there");
    (void)cdp__elastic_each_entry(t, true);
    if (t->has_blob) cdp__elastic_before_callback(e);
    if (t->has_blob)
        st = cdp__elastic_returned(e, t->group, "load", d->load(d->user, t->blob, t->blob_bytes));
    return st == CDP_OK ? cdp_barrier(t->group) : st;
}

/* Collective over the group of the epoch. CDP_OK: this rank holds the state of the decision. */
CDP__PRIVATE cdp_status cdp__elastic_transfer_all(
    cdp_elastic *e, cdp_group *group, const cdp__elastic_decision *d, uint32_t rank) {
    cdp__elastic_transfer t;
    uint32_t i;
    cdp_status st;
    if (d->sources == d->size || (!e->desc.entry_count && !e->desc.save)) return CDP_OK;
    memset(&t, 0, sizeof t);
    t.e = e;
    t.group = group;
    t.d = d;
    t.rank = rank;
    t.hash[0] = CDP__HASH_START;
    st = cdp__elastic_transfer_begin(&t);
    if (st == CDP_OK) st = cdp__elastic_transfer_groups(&t);
    if (st == CDP_OK) st = cdp__elastic_each_entry(&t, false);
    if (st == CDP_OK) st = cdp__elastic_transfer_blob(&t);
    if (st == CDP_OK) st = cdp__elastic_transfer_compare(&t);
    if (st == CDP_OK) st = cdp__elastic_transfer_end(&t);
    const cdp_error why = *cdp_last_error();
    cdp__free(e->os, t.blob);
    for (i = 0; i < t.count; ++i)
        if (t.from[i] != group) cdp_group_destroy(t.from[i]);
    cdp__free(e->os, t.apart);
    *cdp__error_slot() = why;
    return st;
}

#endif /* CDP_SRC_ELASTIC_TRANSFER_H */

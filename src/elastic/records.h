/* elastic/records.h - tickets, arrivals and decisions as bytes (pure)

   Knows: what is in the store. Promises: bytes that nobody wrote as a record are refused, and never
   read beyond their end. */
#ifndef CDP_SRC_ELASTIC_RECORDS_H
#define CDP_SRC_ELASTIC_RECORDS_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/utf8.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "epoch.h"

#define CDP__ELASTIC_RECORD_BYTES 48u /* of a ticket or an arrival */
#define CDP__ELASTIC_HEAD_BYTES 224u  /* of a decision, before its members */
#define CDP__ELASTIC_MEMBER_BYTES 24u
#define CDP__ELASTIC_RECORD_MARK 0x31726c65u   /* "elr1" */
#define CDP__ELASTIC_DECISION_MARK 0x31646c65u /* "eld1" */

/* mark, rank, flags and whom it blames (of a ticket: its round trip), sum over the rest; step,
   samples; id */
CDP__PRIVATE void cdp__elastic_put_record(uint8_t *out, const cdp__elastic_arrival *a) {
    cdp__put_u32(out, CDP__ELASTIC_RECORD_MARK);
    cdp__put_u32(out + 4, a->rank);
    cdp__put_u32(out + 8,
        (a->has_state ? 1u : 0u) | (a->ending ? 2u : 0u) | (a->fresh ? 4u : 0u)
            | (a->absent ? 8u : 0u) | (a->asks ? 16u : 0u) | (a->tried ? 32u : 0u)
            | (a->rank == CDP__ELASTIC_NEW ? a->round_trip_ms : a->blamed) << 16);
    cdp__put_u64(out + 16, a->step);
    cdp__put_u64(out + 24, a->samples);
    memcpy(out + 32, a->id, CDP__ELASTIC_ID_BYTES);
    cdp__put_u32(out + 12, 0);
    cdp__put_u32(out + 12, (uint32_t)cdp__hash(CDP__HASH_START, out, CDP__ELASTIC_RECORD_BYTES));
}

CDP__PRIVATE bool cdp__elastic_get_record(const uint8_t *in, cdp__elastic_arrival *a) {
    uint8_t copy[CDP__ELASTIC_RECORD_BYTES];
    memcpy(copy, in, sizeof copy);
    memset(copy + 12, 0, 4);
    memset(a, 0, sizeof *a);
    if (cdp__get_u32(in) != CDP__ELASTIC_RECORD_MARK) return false;
    if (cdp__get_u32(in + 12) != (uint32_t)cdp__hash(CDP__HASH_START, copy, sizeof copy))
        return false;
    a->rank = cdp__get_u32(in + 4);
    a->has_state = (in[8] & 1) != 0;
    a->ending = (in[8] & 2) != 0;
    a->fresh = (in[8] & 4) != 0;
    a->absent = (in[8] & 8) != 0;
    a->asks = (in[8] & 16) != 0;
    a->tried = (in[8] & 32) != 0;
    if (a->rank == CDP__ELASTIC_NEW)
        a->round_trip_ms = cdp__get_u32(in + 8) >> 16;
    else
        a->blamed = cdp__get_u32(in + 8) >> 16;
    a->step = cdp__get_u64(in + 16);
    a->samples = cdp__get_u64(in + 24);
    memcpy(a->id, in + 32, sizeof a->id);
    return true;
}

CDP__PRIVATE uint64_t cdp__elastic_decision_bytes(uint32_t size) {
    return CDP__ELASTIC_HEAD_BYTES + (uint64_t)size * CDP__ELASTIC_MEMBER_BYTES;
}

/* mark, size, tickets, lost, joined, 0; epoch, step, samples; sum; cause; evicted, cool; then
   members */
CDP__PRIVATE void cdp__elastic_put_decision(uint8_t *out, const cdp__elastic_decision *d) {
    const uint64_t bytes = cdp__elastic_decision_bytes(d->size);
    uint32_t r;
    memset(out, 0, (size_t)bytes);
    cdp__put_u32(out, CDP__ELASTIC_DECISION_MARK);
    cdp__put_u32(out + 4, d->size);
    cdp__put_u32(out + 8, d->tickets);
    cdp__put_u32(out + 12, d->lost);
    cdp__put_u32(out + 16, d->joined);
    cdp__put_u64(out + 24, d->epoch);
    cdp__put_u64(out + 32, d->step);
    cdp__put_u64(out + 40, d->samples);
    memcpy(out + 56, d->cause, sizeof d->cause);
    cdp__put_u32(out + 216, d->evicted);
    cdp__put_u32(out + 220, d->cool);
    for (r = 0; r < d->size; ++r) {
        uint8_t *at = out + cdp__elastic_decision_bytes(r);
        memcpy(at, d->members[r].id, CDP__ELASTIC_ID_BYTES);
        cdp__put_u32(at + 16, d->members[r].old_rank);
        at[20] = (uint8_t)((d->members[r].source ? 1 : 0) | (d->members[r].on_trial ? 2 : 0));
        at[21] = d->members[r].strikes;
        at[22] = (uint8_t)d->members[r].round_trip_ms;
        at[23] = (uint8_t)(d->members[r].round_trip_ms >> 8);
    }
    cdp__put_u64(out + 48, cdp__hash(CDP__HASH_START, out, bytes));
}

/* How many members the bytes hold; 0: they are no decision. */
CDP__PRIVATE uint32_t cdp__elastic_decision_size(const uint8_t *in, uint64_t bytes) {
    uint32_t size;
    if (bytes < CDP__ELASTIC_HEAD_BYTES || cdp__get_u32(in) != CDP__ELASTIC_DECISION_MARK) return 0;
    size = cdp__get_u32(in + 4);
    return bytes == cdp__elastic_decision_bytes(size) ? size : 0;
}

/* d->members has room for as many as cdp__elastic_decision_size() said. Changes `in`. */
CDP__PRIVATE bool cdp__elastic_get_decision(uint8_t *in, uint64_t bytes, cdp__elastic_decision *d) {
    const uint32_t size = cdp__elastic_decision_size(in, bytes);
    const uint64_t sum = size ? cdp__get_u64(in + 48) : 0;
    cdp__elastic_member *const members = d->members;
    uint32_t r;
    if (!size) return false;
    cdp__put_u64(in + 48, 0);
    if (cdp__hash(CDP__HASH_START, in, bytes) != sum) return false;
    memset(d, 0, sizeof *d);
    d->members = members;
    d->tickets = cdp__get_u32(in + 8);
    d->lost = cdp__get_u32(in + 12);
    d->joined = cdp__get_u32(in + 16);
    d->epoch = cdp__get_u64(in + 24);
    d->step = cdp__get_u64(in + 32);
    d->samples = cdp__get_u64(in + 40);
    d->evicted = cdp__get_u32(in + 216);
    d->cool = (uint32_t)cdp__min(cdp__get_u32(in + 220), CDP__ELASTIC_COOL);
    cdp__text_foreign_in(d->cause, sizeof d->cause, (const char *)in + 56, sizeof d->cause - 1);
    for (r = 0; r < size; ++r) {
        const uint8_t *at = in + cdp__elastic_decision_bytes(r);
        cdp__elastic_add(d, at, cdp__get_u32(at + 16), (at[20] & 1) != 0);
        d->members[r].on_trial = (at[20] & 2) != 0;
        d->members[r].strikes = at[21];
        d->members[r].round_trip_ms = (uint16_t)(at[22] | at[23] << 8);
    }
    return d->epoch && d->sources;
}

#endif /* CDP_SRC_ELASTIC_RECORDS_H */

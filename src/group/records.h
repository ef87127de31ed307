/* group/records.h - recorded calls of a group, as records and as JSON

   Knows: all members of a group. Promises: a consistent snapshot in bounded memory, even while the
   group fails. */
#ifndef CDP_SRC_GROUP_RECORDS_H
#define CDP_SRC_GROUP_RECORDS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../text/json_write.h"
#include "../base/text.h"
#include "../os/file_text.h"
#include "../base/bytes.h"
#include "../base/hash.h"
#include "../collective/kinds.h"
#include "../dtype/dtype.h"
#include "../collective/kinds.h"
#include "../collective/select.h"
#include "../message/stream.h"
#include "../message/transfer.h"
#include "../collective/executor.h"
#include "state.h"

#ifndef CDP_NO_MESSAGES
/* Records a message, in a list separate from that of operations. */
CDP__PRIVATE void cdp__post_remember(cdp_group *g, const cdp__post *post, uint64_t end_ns) {
    const uint32_t me = g->w->rank, peer = post->x.s->peer;
    cdp__past *past;
    if (!g->records.messages || post->call.root == CDP__TAG_BARRIER) return;
    past = &g->records.messages[g->records.message_count++ % g->desc.records];
    memset(past, 0, sizeof *past);
    past->call = post->call;
    past->start_ns = post->start_ns;
    past->end_ns = end_ns;
    past->round = past->rounds = 1;
    past->from = (int32_t)(post->x.receive ? peer : me);
    past->to = (int32_t)(post->x.receive ? me : peer);
}
#endif

#ifndef CDP_NO_RECORDER

/* Converts the internal record of a call to a cdp_record. */
CDP__PRIVATE void cdp__record_fill(const cdp__past *past, cdp_record *r) {
    memset(r, 0, sizeof *r);
    r->seq = past->call.seq;
    r->kind = (cdp_coll_kind)past->call.kind;
    r->dtype = (cdp_dtype)past->call.dtype;
    r->op = (cdp_reduce_op)past->call.op;
    r->root = past->call.root;
    if (cdp__kind_has_root(r->kind)) r->root &= CDP__ROOT_RANK;
    r->count = past->call.count;
    r->waits_for = -1;
    r->rounds = past->rounds;
    r->round = past->round;
    r->start_ns = past->start_ns;
    r->end_ns = past->end_ns;
    r->state = CDP_RECORD_DONE;
}

/* Stores operation `seq` of g as a record. False: it is no longer kept, or does not exist. Lock
   held. */
CDP__PRIVATE bool cdp__record_of(const cdp_group *g, uint64_t seq, cdp_record *r) {
    const cdp__past *past = cdp__past_at(g, seq);
    const bool begun = past->call.seq == seq,
               queued = seq > g->queue.completed && seq <= g->queue.issued;
    const cdp__transfer *late = cdp__exec_late(&g->exec);
    cdp__past next;
    if (!begun && !queued) return false;
    if (!begun) {
        const uint64_t at = g->queue.at + (seq - g->queue.completed - 1);
        memset(&next, 0, sizeof next);
        next.call = cdp__op_call(&g->queue.ops[at % g->queue.room]);
        past = &next;
    }
    cdp__record_fill(past, r);
    if (!begun) {
        r->state = CDP_RECORD_QUEUED;
        return true;
    }
    r->algorithm = cdp__algo_at(past->call.algo)->name;
    if (!queued) return true;
    r->state = g->health == CDP__HEALTHY ? CDP_RECORD_RUNNING : CDP_RECORD_FAILED;
    r->round = g->exec.round;
    if (late) r->waits_for = (int32_t)late->s->peer;
    return true;
}

/* Writes JSON to a file; closing the file reports errors. */
CDP__PRIVATE void cdp__dump_record(cdp__text *f, const cdp_record *r, uint64_t now) {
    static const char *const states[] = {"queued", "running", "done", "failed"};
    cdp__text_add(f,
        "\n      {\"seq\": %llu, \"state\": \"%s\", \"kind\": \"%s\", \"dtype\": \"%s\", "
        "\"count\": %llu",
        (unsigned long long)r->seq, states[r->state], cdp_coll_name(r->kind),
        cdp_dtype_name(r->dtype), (unsigned long long)r->count);
    if (cdp__kind_reduces(r->kind)) cdp__text_add(f, ", \"op\": \"%s\"", cdp_reduce_name(r->op));
    cdp__text_add(f, r->kind == CDP_COLL_SEND ? ", \"tag\": %u" : ", \"root\": %u", r->root);
    if (r->algorithm)
        cdp__text_add(f,
            ", \"algorithm\": \"%s\", \"round\": %u, \"rounds\": %u, \"began_us_ago\": %llu",
            r->algorithm, r->round, r->rounds, (unsigned long long)((now - r->start_ns) / 1000));
    if (r->end_ns)
        cdp__text_add(
            f, ", \"took_us\": %llu", (unsigned long long)((r->end_ns - r->start_ns) / 1000));
    if (r->waits_for >= 0) cdp__text_add(f, ", \"waits_for\": %d", (int)r->waits_for);
    cdp__text_add(f, "}");
}

/* Writes the members that groups and message flows have in common. */
CDP__PRIVATE void cdp__dump_state(
    cdp__text *f, const cdp_group *g, uint64_t called, uint64_t completed) {
    static const char *const health[] = {"healthy", "settling", "failed"};
    cdp__text_add(f, "\"health\": \"%s\", \"called\": %llu, \"completed\": %llu", health[g->health],
        (unsigned long long)called, (unsigned long long)completed);
    if (g->health != CDP__HEALTHY) {
        cdp__text_add(f,
            ", \"error\": {\"status\": \"%s\", \"peer\": %d, \"origin\": %d, \"text\": \"",
            cdp_status_name(g->failure.error.status), (int)g->failure.error.peer,
            (int)g->failure.error.origin);
        cdp__json_inside(f, g->failure.error.text);
        cdp__text_add(f, "\"}");
    }
    cdp__text_add(f, ", \"operations\": [");
}

CDP__PRIVATE void cdp__dump_group(cdp__text *f, const cdp_group *g, uint64_t now) {
    const uint64_t kept = g->desc.records;
    const char *comma = "";
    cdp_record r;
    uint64_t seq = g->queue.issued > kept ? g->queue.issued - kept + 1 : 1;
    uint32_t p;
    cdp__text_add(f, "\n    {\"group\": \"%llx\", \"is\": \"%s\", \"ranks\": [",
        (unsigned long long)g->channel, g->channel == CDP__WORLD_CHANNEL ? "world" : "group");
    for (p = 0; p < g->desc.world_size; ++p)
        cdp__text_add(f, "%s%u", p ? ", " : "", cdp__world_rank(g, p));
    cdp__text_add(f, "], ");
    cdp__dump_state(f, g, g->queue.issued, g->queue.completed);
    for (; seq <= g->queue.issued; ++seq) {
        if (!cdp__record_of(g, seq, &r)) continue;
        cdp__text_add(f, "%s", comma);
        cdp__dump_record(f, &r, now);
        comma = ",";
    }
    cdp__text_add(f, "]}");
}

/* Writes the kept messages of a flow in one direction (1: received here), then those in flight.
   Returns the number of those in flight; `f` NULL: only counts. */
CDP__PRIVATE uint64_t cdp__dump_posts(
    cdp__text *f, const cdp__flow *flow, uint32_t way, uint64_t now) {
    const cdp_group *g = flow->g;
    const int32_t from = (int32_t)(way ? flow->s.peer : g->w->rank);
    const uint64_t kept = g->desc.records, count = g->records.message_count;
    const char *comma = "";
    const cdp__post *post;
    uint64_t i = count > kept ? count - kept : 0, n = 0;
    cdp_record r;
    for (; f && i < count; ++i) {
        const cdp__past *past = &g->records.messages[i % kept];
        if (past->from != from || past->call.root != flow->tag) continue;
        if ((way ? past->to != (int32_t)g->w->rank : past->to != (int32_t)flow->s.peer)) continue;
        cdp__record_fill(past, &r);
        r.algorithm = "message";
        cdp__text_add(f, "%s", comma);
        cdp__dump_record(f, &r, now);
        comma = ",";
    }
    for (post = flow->first[way]; post; post = post->next, ++n) {
        cdp__past past;
        if (!f) continue;
        memset(&past, 0, sizeof past);
        past.call = post->call;
        past.start_ns = post->start_ns;
        cdp__record_fill(&past, &r);
        r.state = CDP_RECORD_QUEUED;
        if (!n) {
            r.state = g->health == CDP__HEALTHY ? CDP_RECORD_RUNNING : CDP_RECORD_FAILED;
            r.algorithm = "message";
            r.rounds = 1;
            r.waits_for = (int32_t)flow->s.peer;
        }
        cdp__text_add(f, "%s", comma);
        cdp__dump_record(f, &r, now);
        comma = ",";
    }
    return n;
}

/* Writes the messages with one tag from one rank to another, as if these two ranks were a group. */
CDP__PRIVATE void cdp__dump_flow(cdp__text *f, const cdp__flow *flow, uint32_t way, uint64_t now) {
    const uint32_t from = way ? flow->s.peer : flow->g->w->rank;
    const uint32_t to = way ? flow->g->w->rank : flow->s.peer;
    uint8_t id[8];
    cdp__put_u32(id, from);
    cdp__put_u32(id + 4, to);
    if (!flow->count[way]) return;
    cdp__text_add(f, ",\n    {\"group\": \"%llx\", \"is\": \"messages\", \"ranks\": [%u, %u], ",
        (unsigned long long)cdp__hash(flow->s.channel, id, sizeof id), from, to);
    cdp__dump_state(
        f, flow->g, flow->count[way], flow->count[way] - cdp__dump_posts(NULL, flow, way, now));
    (void)cdp__dump_posts(f, flow, way, now);
    cdp__text_add(f, "]}");
}

/* Lock held. */
CDP__PRIVATE cdp_status cdp__dump(const cdp__world *m, const char *path) {
    const uint64_t now = cdp__now(m->os);
    const cdp_group *g;
    const cdp__flow *flow;
    cdp__file_text f;
    int32_t why = cdp__file_text_open(&f, m->os, path);
    if (why) return cdp__fail_peer(CDP_ERR_IO, -1, why, "cannot write the dump %s", path);
    cdp__text_add(&f.text,
        "{\"cdp_dump\": 1, \"rank\": %u, \"world_size\": %u, \"clock_us\": %llu, \"groups\": [",
        m->rank, m->size, (unsigned long long)(now / 1000));
    for (g = m->groups; g; g = g->next) {
        cdp__dump_group(&f.text, g, now);
        for (flow = g->messages.flows; flow; flow = flow->next) {
            cdp__dump_flow(&f.text, flow, 0, now);
            cdp__dump_flow(&f.text, flow, 1, now);
        }
        if (g->next) cdp__text_add(&f.text, ",");
    }
    cdp__text_add(&f.text, "\n]}\n");
    why = cdp__file_text_close(&f);
    if (!why) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, why, "cannot write the dump %s", path);
}

/* Writes the dump of a failed group, after telling its peers. Lock held. */
CDP__PRIVATE void cdp__group_dump_failed(cdp_group *g) {
    const cdp_error before = *cdp_last_error();
    char path[1024];
    if (!g->desc.dump_path || g->parent) return;
    cdp__format(path, sizeof path, "%s.%u.json", g->desc.dump_path, g->w->rank);
    if (cdp__dump(g->w, path) != CDP_OK)
        cdp__log(&g->desc.logger, CDP_LOG_WARN, g->desc.rank, "%s", cdp_last_error()->text);
    *cdp__error_slot() = before;
}

#else

CDP__PRIVATE void cdp__group_dump_failed(cdp_group *g) {
    (void)g;
}

#endif /* CDP_NO_RECORDER */

#endif /* CDP_SRC_GROUP_RECORDS_H */

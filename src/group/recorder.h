/* group/recorder.h - records and settings of a group, as text

   Knows: all members of a group. Promises: a consistent snapshot. */
#ifndef CDP_SRC_GROUP_RECORDER_H
#define CDP_SRC_GROUP_RECORDER_H

#include "../base/version.h"
#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../message/transport_api.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../collective/kinds.h"
#include "../base/text.h"
#include "../collective/rounds.h"
#include "../collective/select.h"
#include "state.h"
#include "records.h"
#include "progress.h"
#include "world.h"

#ifndef CDP_NO_RECORDER

CDP_API uint32_t cdp_group_records(cdp_group *g, cdp_record *out, uint32_t max) {
    cdp_record r;
    uint64_t seq;
    uint32_t n = 0, i;
    if (!out || cdp__alive(g, "cdp_group_records") != CDP_OK) return 0;
    cdp__enter(g);
    for (seq = g->queue.issued; seq && n < max && cdp__record_of(g, seq, &r); --seq)
        out[n++] = r;
    cdp__leave(g);
    for (i = 0; i < n / 2; ++i) {
        r = out[i];
        out[i] = out[n - 1 - i];
        out[n - 1 - i] = r;
    }
    return n;
}

CDP_API cdp_status cdp_group_dump(cdp_group *g, const char *path) {
    cdp_status st = cdp__alive(g, "cdp_group_dump");
    if (st != CDP_OK) return st;
    if (!path) return cdp__missing("cdp_group_dump", "path");
    if (!g->w->os->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_group_dump: this cdp_os has no files; set its member `files`, or use "
            "cdp_group_records()");
    cdp__enter(g);
    st = cdp__dump(g->w, path);
    cdp__leave(g);
    return st;
}

CDP_API const char *cdp_group_backend_name(const cdp_group *g) {
    if (cdp__alive(g, "cdp_group_backend_name") != CDP_OK) return "";
    if (cdp__backend_of(g)) return g->backend->name;
    if (g->w->transport.name) return g->w->transport.name;
    return g->w->size == 1 ? "alone" : "custom";
}

CDP__PRIVATE void cdp__describe_choices(const cdp_group *g, cdp__text *t) {
    const cdp__choosing *c = cdp__choosing_of(g);
    uint32_t kind, i;
    if (g->topology.hosts.ranks)
        cdp__text_add(t, "%u hosts, of %u to %u ranks; ", g->topology.hosts.count,
            g->topology.hosts.fewest, g->topology.hosts.most);
    cdp__text_add(t, "algorithms (the first row that fits):\n");
    for (kind = CDP_COLL_NONE + 1; kind < CDP_COLL_COUNT; ++kind)
        for (i = 0;; ++i) {
            const cdp__row *row = i < c->row_count ? &c->rows[i] : cdp__row_at(i - c->row_count);
            const cdp__algo *a = row ? cdp__algo_at(row->algo) : NULL;
            if (!row) break;
            if (a->kind != (cdp_coll_kind)kind
                || (i >= c->row_count
                    && row->only & ~g->topology.flags & (CDP__HOSTS | CDP__UNIFORM)))
                continue;
            cdp__text_add(t, "  %s: %s", cdp_coll_name(a->kind), a->name);
            if (row->max_bytes)
                cdp__text_add(t, ", up to %llu bytes", (unsigned long long)cdp__row_bytes(c, row));
            if (row->max_ranks) cdp__text_add(t, ", up to %u ranks", row->max_ranks);
            if (row->only & CDP__POWERS) cdp__text_add(t, ", for 2, 4, 8, ... ranks");
            if (row->only & (CDP__SAME_HOST | CDP__SHARED)) cdp__text_add(t, ", in shared memory");
            if (row->only & (CDP__HOSTS | CDP__UNIFORM))
                cdp__text_add(t,
                    row->only & CDP__UNIFORM ? ", for hosts of as many ranks each"
                                             : ", for hosts of several ranks");
            if (row->only & CDP__WIDER) cdp__text_add(t, ", where partial results are wider");
            if (row->only & ~(g->topology.flags | CDP__POWERS | CDP__WIDER))
                cdp__text_add(t, " (never in this group)");
            cdp__text_add(t, "%s%s\n", i < c->row_count ? " (choices)" : "",
                c->reproducible && !a->fixed ? " (not while reproducible)" : "");
        }
}

CDP__PRIVATE void cdp__describe_setting(
    cdp__text *t, const char *name, uint64_t value, const char *unit, bool set) {
    cdp__text_add(
        t, "  %s = %llu%s (%s)\n", name, (unsigned long long)value, unit, set ? "set" : "default");
}

CDP_API uint64_t cdp_describe(cdp_group *g, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const cdp_group_desc *d, *given;
    cdp_group_desc usual;
    uint32_t p;
    if (cdp__alive(g, "cdp_describe") != CDP_OK) return cdp__text_end(&t);
    cdp__enter(g);
    d = &g->desc;
    given = &g->w->given;
    usual = *d; /* a group may have settings of its own, see cdp_group_new_with() */
    if (g->members) usual = *given;
    cdp__group_desc_defaults(&usual);
    if (!given->expose_bytes) usual.expose_bytes = d->expose_bytes;
#define CDP__SAY(name, unit) \
    cdp__describe_setting(&t, #name, d->name, unit, given->name != 0 || d->name != usual.name)
    cdp__text_add(&t, "cdp %d.%d.%d, wire %d; rank %u of %u", CDP_VERSION_MAJOR, CDP_VERSION_MINOR,
        CDP_VERSION_PATCH, CDP_WIRE_VERSION, d->rank, d->world_size);
    if (g->members) cdp__text_add(&t, ", rank %u of %u in the world", g->w->rank, g->w->size);
    cdp__text_add(&t, "; %llu operations called, %llu completed\n",
        (unsigned long long)g->queue.issued, (unsigned long long)g->queue.completed);
    if (cdp__backend_of(g)) cdp__text_add(&t, "device memory: %s\n", g->backend->name);
    cdp__text_add(&t, "settings:\n");
    CDP__SAY(timeout_ms, " ms");
    CDP__SAY(small_bytes, "");
    CDP__SAY(piece_bytes, "");
    CDP__SAY(expose_bytes, "");
    CDP__SAY(spin_us, " us");
    CDP__SAY(no_spin, "");
    CDP__SAY(no_thread, "");
    CDP__SAY(reproducible, "");
    CDP__SAY(records, "");
    CDP__SAY(max_pending, "");
    CDP__SAY(stage_bytes, "");
    CDP__SAY(window_bytes, "");
    CDP__SAY(operations, "");
    CDP__SAY(waits, "");
#undef CDP__SAY
    cdp__text_add(&t, "  dump_path = %s\n", d->dump_path ? d->dump_path : "none (default)");
    cdp__text_add(&t, "arithmetic: %s\n", CDP__ARITHMETIC);
    cdp__describe_choices(g, &t);
    cdp__text_add(&t, "links:\n");
    for (p = 0; p < d->world_size; ++p) {
        const cdp_transport *link = &g->w->transport;
        const uint32_t peer = cdp__world_rank(g, p);
        char words[1600] = "";
        if (p == d->rank) continue;
        if (link->describe)
            link->describe(link->self, peer, words, sizeof words);
        else if (!link->failure.linked)
            cdp__format(words, sizeof words, "a transport that does not describe itself");
        else
            cdp__format(
                words, sizeof words, cdp__group_linked(g, p) ? "connected" : "not used yet");
        cdp__text_add(&t, "  rank %u: %s\n", peer, words);
    }
    cdp__leave(g);
    return cdp__text_end(&t);
}

#endif /* CDP_NO_RECORDER */

#endif /* CDP_SRC_GROUP_RECORDER_H */

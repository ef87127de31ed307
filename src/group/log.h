/* group/log.h - lines about a group and its operations

   Knows: the logger of a group, its queue, the clock. Promises: a line that nobody wants costs one
   comparison; lines beyond the limit of the logger are counted, and a later line says how many. */
#ifndef CDP_SRC_GROUP_LOG_H
#define CDP_SRC_GROUP_LOG_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "group_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "../collective/rounds.h"
#include "../collective/select.h"
#include "../message/header.h"
#include "../message/stream.h"
#include "state.h"

#ifdef CDP_NO_LOG_STRINGS
#define cdp__group_log(group, level, ...) ((void)(group))

CDP__PRIVATE void cdp__log_begins(cdp_group *g) {
    (void)g;
}
CDP__PRIVATE void cdp__log_ends(cdp_group *g, const cdp__head *call, uint64_t took_ns) {
    (void)g;
    (void)call;
    (void)took_ns;
}
CDP__PRIVATE void cdp__log_made(cdp_group *g) {
    (void)g;
}
#else

/* True if one more line may be made in the second of `now_ns`. */
CDP__PRIVATE bool cdp__log_takes(cdp__world *m, uint32_t most, uint64_t now_ns) {
    const uint64_t second = now_ns / (1000 * CDP__MS) + 1;
    if (m->log_second != second) m->log_lines = 0;
    m->log_second = second;
    if (most && m->log_lines >= most) {
        ++m->log_left_out;
        return false;
    }
    ++m->log_lines;
    return true;
}

/* Makes a line, with the rank in the world. Lock held, or no other thread knows the group. */
CDP__PRIVATE CDP__COLD CDP__PRINTF(3, 4) void cdp__group_say(
    cdp_group *g, cdp_log_level level, const char *f, ...) {
    const cdp_logger *const l = &g->desc.logger;
    const uint32_t lost = g->w->log_left_out;
    char text[CDP_ERROR_TEXT + 88];
    cdp__text t = cdp__text_of(text, sizeof text);
    va_list ap;
    if (!cdp__log_takes(g->w, l->lines_per_second, cdp__now(g->os))) return;
    if (lost) {
        g->w->log_left_out = 0;
        cdp__log(l, level, g->w->rank,
            "%u lines were left out before the next one: lines_per_second of the logger is %u",
            lost, l->lines_per_second);
    }
    if (g->channel != CDP__WORLD_CHANNEL)
        cdp__text_add(&t, "group %llx: ", (unsigned long long)g->channel);
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
    cdp__log_text(l, level, (int32_t)g->w->rank, text);
}
#define cdp__group_log(group, level, ...)                   \
    (cdp__log_wants(&(group)->desc.logger, (level))         \
            ? cdp__group_say((group), (level), __VA_ARGS__) \
            : (void)0)

CDP__PRIVATE CDP__COLD void cdp__log_op(
    cdp_group *g, const cdp__head *call, const char *what, uint64_t n, const char *unit) {
    char text[160];
    cdp__group_say(g, CDP_LOG_DEBUG, "%s %s%llu %s", cdp__call_text(call, text, sizeof text), what,
        (unsigned long long)n, unit);
}

/* The first operation of the queue has begun. Lock held. */
CDP__PRIVATE void cdp__log_begins(cdp_group *g) {
    if (!cdp__log_wants(&g->desc.logger, CDP_LOG_DEBUG)) return;
    cdp__log_op(g, &g->exec.task.call, "begins, in ", g->exec.rounds, "rounds");
}

/* An operation has ended well. Lock held. */
CDP__PRIVATE void cdp__log_ends(cdp_group *g, const cdp__head *call, uint64_t took_ns) {
    if (!cdp__log_wants(&g->desc.logger, CDP_LOG_DEBUG)) return;
    cdp__log_op(g, call, "has ended after ", took_ns / 1000, "us");
}

/* Which ranks a group has, and where they are. */
CDP__PRIVATE void cdp__log_ranks(const cdp_group *g, cdp__text *t) {
    const cdp__hosts *h = &g->topology.hosts;
    uint32_t p;
    cdp__text_add(t, "%u ranks", g->desc.world_size);
    for (p = 0; g->members && p < g->desc.world_size && p < 8; ++p)
        cdp__text_add(t, p ? ", %u" : ": %u", g->members[p]);
    if (g->members && p < g->desc.world_size) cdp__text_add(t, ", ...");
    if (h->count > 1)
        cdp__text_add(t, "; %u hosts, of %u to %u ranks", h->count, h->fewest, h->most);
    if (h->count == 1) cdp__text_add(t, "; 1 host");
    if (g->topology.flags & CDP__SHARED) cdp__text_add(t, " with shared memory");
}

/* A group was made. Lock held, or no other thread knows the group. */
CDP__PRIVATE CDP__COLD void cdp__log_made(cdp_group *g) {
    const cdp_group_desc *const d = &g->desc;
    char ranks[160];
    cdp__text t = cdp__text_of(ranks, sizeof ranks);
    if (!cdp__log_wants(&d->logger, CDP_LOG_INFO)) return;
    cdp__log_ranks(g, &t);
    cdp__group_say(g, CDP_LOG_INFO,
        "this is rank %u of %s; timeout %u ms; small_bytes %llu, piece_bytes %llu, expose_bytes "
        "%llu; %s; algorithms: %u rows of choices, then the built-in table%s",
        d->rank, ranks, d->timeout_ms, (unsigned long long)d->small_bytes,
        (unsigned long long)d->piece_bytes, (unsigned long long)d->expose_bytes,
        d->no_thread ? "no progress thread" : "a progress thread", cdp__choosing_of(g)->row_count,
        cdp__choosing_of(g)->reproducible ? ", reproducible" : "");
}

#endif /* CDP_NO_LOG_STRINGS */

#endif /* CDP_SRC_GROUP_LOG_H */

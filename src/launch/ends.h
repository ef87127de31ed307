/* launch/ends.h - how workers ended, and which failure was the first

   Knows: ends, error files, result. Promises: a crash counts before the exit codes by which others
   report that they have lost a peer; of those, the earliest time in an error file counts. */
#ifndef CDP_SRC_LAUNCH_ENDS_H
#define CDP_SRC_LAUNCH_ENDS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../os/file_text.h"
#include "../text/json_write.h"
#include "facts.h"
#include "stream.h"
#include "timer.h"
#include "state.h"
#include "output.h"

#include <string.h>

CDP_API const char *cdp_agent_state_name(cdp_agent_state state) {
    static const char *const names[] = {
        "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED", "UNKNOWN"};
    const uint32_t i = (uint32_t)state;
    return i < sizeof names / sizeof *names ? names[i] : "none";
}

/* Of workers that ended by an exit code, the one with the earliest error file. */
CDP__PRIVATE void cdp__agent_first_by_time(cdp_agent *a) {
    uint64_t earliest = 0;
    uint32_t i;
    if (a->first < 0 || cdp__launch_blame(&a->workers[a->first].p) != 1) return;
    earliest = cdp__launch_error_time(a->os, a->workers[a->first].error_file);
    for (i = 0; earliest && i < a->desc.workers; ++i) {
        const cdp__agent_worker *const w = &a->workers[i];
        const uint64_t at = cdp__launch_blame(&w->p) && !w->p.by_us
            ? cdp__launch_error_time(a->os, w->error_file)
            : 0;
        if (!at || at >= earliest) continue;
        earliest = at;
        a->first = i;
    }
}

/* Why a worker was killed, and what it wrote to its error file. */
CDP__PRIVATE const char *cdp__agent_message(const cdp_agent *a, cdp__agent_worker *w) {
    cdp__launch_member(a->os, w->error_file, "message", w->message, sizeof w->message);
    cdp__timer_before(w->message, sizeof w->message, w->expired);
    return w->message;
}

CDP__PRIVATE void cdp__agent_end_of(cdp_agent *a, uint32_t i, cdp_worker_end *out) {
    cdp__agent_worker *const w = &a->workers[i];
    const uint64_t until = w->p.ended ? w->p.end_ns : cdp__agent_now(a);
    const int which = w->out[1]->total ? 1 : 0;
    (void)cdp__agent_message(a, w);
    cdp__launch_tail_copy(w->out[which], w->last);
    memset(out, 0, sizeof *out);
    out->rank = cdp__agent_rank(a, i);
    out->local_rank = i;
    out->role = cdp__agent_role(a, i);
    out->pid = w->p.pid;
    out->ended = w->p.ended;
    out->by_agent = w->p.by_us;
    out->exit_code = w->p.ended ? w->p.end.exit_code : -1;
    out->signal = w->p.ended ? w->p.end.sig : 0;
    out->time_us = w->p.ended ? w->end_us : 0;
    out->seconds = w->p.pid ? (double)(until - w->p.begun_ns) / 1e9 : 0;
    out->error_file = w->error_file;
    out->message = w->message;
    out->last_lines = w->last;
}

CDP_API const cdp_launch_result *cdp_agent_result(cdp_agent *a) {
    uint32_t i, n = 0;
    if (!cdp__agent_lives(a)) return NULL;
    a->result.state = a->state;
    a->result.restarts = a->attempt;
    a->result.host = a->host;
    a->result.has_cause = a->first >= 0;
    a->result.count = a->desc.workers;
    a->result.ends = a->ends;
    if (a->first >= 0) cdp__agent_end_of(a, (uint32_t)a->first, &a->ends[n++]);
    for (i = 0; i < a->desc.workers; ++i)
        if ((int64_t)i != a->first) cdp__agent_end_of(a, i, &a->ends[n++]);
    return &a->result;
}

CDP__PRIVATE void cdp__agent_json_text(cdp__text *t, const char *name, const char *value) {
    cdp__text_add(t, ", \"%s\": \"", name);
    cdp__json_inside(t, value);
    cdp__text_char(t, '"');
}

/* Seconds with three decimals. */
CDP__PRIVATE void cdp__agent_json_ms(cdp__text *t, const char *name, uint64_t ms) {
    const uint32_t part = (uint32_t)(ms % 1000);
    cdp__text_add(t, ", \"%s\": %llu.%u%u%u", name, (unsigned long long)(ms / 1000), part / 100,
        part / 10 % 10, part % 10);
}

/* The members of a worker that has ended, after its rank; `at`: what its time is called. */
CDP__PRIVATE void cdp__agent_json_end(
    cdp__text *t, const cdp_worker_end *e, const char *host, const char *at) {
    cdp__text_add(t, "\"rank\": %u, \"local_rank\": %u", e->rank, e->local_rank);
    cdp__agent_json_text(t, "role", e->role);
    if (host) cdp__agent_json_text(t, "host", host);
    cdp__text_add(t, ", \"pid\": %d, \"exit_code\": %d, \"signal\": %d", (int)e->pid,
        (int)e->exit_code, (int)e->signal);
    cdp__agent_json_ms(t, at, e->time_us / 1000);
    cdp__agent_json_ms(t, "seconds", (uint64_t)(e->seconds * 1000));
    cdp__agent_json_text(t, "error_file", e->error_file);
    cdp__agent_json_text(t, "message", e->message);
    cdp__agent_json_text(t, "last_lines", e->last_lines);
}

CDP_API uint64_t cdp_agent_event_text(const cdp_agent_event *event, char *text, uint64_t room) {
    static const char *const names[] = {"start", "worker_end", "end"};
    const uint32_t kind = event ? (uint32_t)event->kind : 0;
    cdp__text t = cdp__text_of(text, room);
    if (!event || kind >= sizeof names / sizeof *names) return 0;
    cdp__text_add(&t, "{\"event\": \"%s\"", names[kind]);
    cdp__agent_json_ms(&t, "time", event->time_us / 1000);
    cdp__text_add(&t, ", \"attempt\": %u, \"state\": \"%s\"", event->attempt,
        cdp_agent_state_name(event->state));
    if (event->end) {
        cdp__text_add(&t, ", ");
        cdp__agent_json_end(&t, event->end, NULL, "ended_at");
    }
    cdp__text_char(&t, '}');
    return cdp__text_end(&t);
}

/* Hands an event to the program; `i`: the worker that has ended, or -1. */
CDP__PRIVATE void cdp__agent_tell(cdp_agent *a, cdp_agent_event_kind kind, int64_t i) {
    cdp_worker_end end;
    cdp_agent_event e;
    if (!a->desc.event) return;
    memset(&e, 0, sizeof e);
    e.kind = kind;
    e.state = a->state;
    e.attempt = a->attempt;
    e.time_us = cdp__os_date_us();
    if (i >= 0) {
        cdp__agent_tail_read(a, (uint32_t)i, 0);
        cdp__agent_tail_read(a, (uint32_t)i, 1);
        cdp__agent_end_of(a, (uint32_t)i, &end);
        e.end = &end;
        e.time_us = end.time_us;
    }
    a->desc.event(a->desc.event_user, &e);
}

CDP__PRIVATE void cdp__agent_json(cdp__text *t, const cdp_launch_result *r) {
    uint32_t i;
    cdp__text_add(t, "{\"state\": \"%s\"", cdp_agent_state_name(r->state));
    cdp__agent_json_text(t, "host", r->host);
    cdp__text_add(t, ", \"restarts\": %u, \"cause\": ", r->restarts);
    if (r->has_cause)
        cdp__text_add(t, "%u", r->ends[0].rank);
    else
        cdp__text_add(t, "null");
    cdp__text_add(t, ", \"workers\": [");
    for (i = 0; i < r->count; ++i) {
        const cdp_worker_end *const e = &r->ends[i];
        cdp__text_add(t, "%s\n  {", i ? "," : "");
        cdp__agent_json_end(t, e, r->host, "time");
        cdp__text_char(t, '}');
    }
    cdp__text_add(t, "]}\n");
}

CDP_API cdp_status cdp_agent_save(cdp_agent *a, const char *path) {
    cdp__file_text f;
    const cdp_status st = cdp__agent_alive(a, "cdp_agent_save");
    int32_t err;
    if (st != CDP_OK) return st;
    if (!path || !*path) return cdp__missing("cdp_agent_save", "path");
    err = cdp__file_text_open(&f, a->os, path);
    if (!err) {
        cdp__agent_json(&f.text, cdp_agent_result(a));
        err = cdp__file_text_close(&f);
    }
    if (!err) return CDP_OK;
    return cdp__fail_peer(CDP_ERR_IO, -1, err, "cdp_agent_save: cannot write %s", path);
}

#endif /* CDP_SRC_LAUNCH_ENDS_H */

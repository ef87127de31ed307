/* launch/output.h - the streams of an agent's workers

   Knows: redirects and tee of a desc, logs. Promises: workers wait for the reader of the console,
   the agent does not. */
#ifndef CDP_SRC_LAUNCH_OUTPUT_H
#define CDP_SRC_LAUNCH_OUTPUT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/processes.h"
#include "console.h"
#include "stream.h"
#include "state.h"

/* Writes what the console takes. */
CDP__PRIVATE void cdp__agent_flush(cdp_agent *a) {
    cdp__launch_flush(&a->console.sinks[0]);
    cdp__launch_flush(&a->console.sinks[1]);
}

/* The same, and whether output waits for its reader: without a limit, as that of
   any program does, until somebody wants the workers to end. */
CDP__PRIVATE bool cdp__agent_unread(cdp_agent *a) {
    const uint64_t now = cdp__agent_now(a);
    bool waits = false;
    uint32_t i;
    cdp__agent_flush(a);
    for (i = 0; i < 2; ++i)
        waits = waits || cdp__launch_pending(&a->console.sinks[i]) > 0;
    for (i = 0; i < a->desc.workers; ++i)
        waits = waits || a->workers[i].stuck[0] || a->workers[i].stuck[1];
    if (!waits || (!a->stopping && now < a->timeout_ns)) return waits;
    if (!a->reader_ns) a->reader_ns = now + CDP__AGENT_READER_MS * CDP__MS;
    return now < a->reader_ns;
}

/* A log that cannot be written is given up, with one sentence; its worker goes on. */
CDP__PRIVATE void cdp__agent_tell_log(cdp_agent *a, uint32_t i, int which) {
    cdp__launch_stream *const s = a->workers[i].out[which];
    cdp__launch_sink *const to = a->console.to[1];
    char text[160];
    if (!s->log_err) return;
    cdp__launch_source(to, NULL);
    cdp__launch_put(to, text,
        cdp__format(text, sizeof text,
            "cdp_agent: the log %s of rank %u cannot be written (errno %d), and ends here; the job "
            "goes on\n",
            which ? "stderr.log" : "stdout.log", cdp__agent_rank(a, i), (int)-s->log_err));
    s->log_err = 0;
}

/* All that is there now; a worker's children may write for ever, so at most `reads` pieces. Where
   the console is behind, the worker waits for it, too, when its pipe is full. */
CDP__PRIVATE void cdp__agent_carry(cdp_agent *a, uint32_t i, uint32_t reads) {
    cdp__agent_worker *const w = &a->workers[i];
    int which;
    for (which = 0; which < 2; ++which) {
        cdp__launch_stream *const s = w->out[which];
        uint32_t n = 0;
        while (n < reads && !cdp__launch_sink_full(s->to) && cdp__launch_pump(s))
            ++n;
        cdp__agent_tell_log(a, i, which);
        w->stuck[which] = s->fd >= 0 && cdp__launch_sink_full(s->to);
        cdp__launch_show_progress(s, cdp__agent_now(a));
    }
}

/* Opens one stream of a worker. *give: the descriptor that the worker gets. */
CDP__PRIVATE cdp_status cdp__agent_open_stream(
    const cdp_agent *a, uint32_t i, int which, int32_t *give) {
    cdp__agent_worker *const w = &a->workers[i];
    const uint32_t bit = which == 0 ? CDP_AGENT_STDOUT : CDP_AGENT_STDERR;
    const bool tee = (a->desc.tee & bit) != 0, file = tee || (a->desc.redirects & bit) != 0;
    char path[CDP__AGENT_PATH];
    int32_t ends[2], err, log = -1;
    w->filed[which] = file && !tee;
    w->stuck[which] = false;
    if (file) {
        if (!cdp__agent_path(a, i, which == 0 ? "stdout.log" : "stderr.log", path))
            return cdp__agent_io("the path of a log is too long: ", path, ENAMETOOLONG);
        log = cdp__process_log(path);
        if (log < 0) return cdp__agent_io("cannot write the log ", path, log);
    }
    *give = log;
    if (w->filed[which]) return CDP_OK;
    err = cdp__process_pipe(ends);
    if (err) {
        cdp__process_close(log);
        *give = -1;
        return cdp__agent_io("cannot make a pipe", "", err);
    }
    cdp__launch_stream_begin(w->out[which], ends[0], log, false);
    if (!a->desc.no_prefix)
        cdp__launch_stream_prefix(
            w->out[which], cdp__agent_rank(a, i), a->desc.workers * a->desc.nodes);
    *give = ends[1];
    return CDP_OK;
}

/* A stream that went to its file alone: the last bytes of that. */
CDP__PRIVATE void cdp__agent_tail_read(const cdp_agent *a, uint32_t i, int which) {
    cdp__launch_stream *const s = a->workers[i].out[which];
    const cdp_os_files *const f = &a->os->files;
    char path[CDP__AGENT_PATH];
    cdp_file_info info;
    int32_t fd = -1;
    if (!a->workers[i].filed[which] || !f->open_file) return;
    if (cdp__agent_path(a, i, which == 0 ? "stdout.log" : "stderr.log", path))
        fd = f->open_file(a->os->user, path, 0);
    if (fd < 0) return;
    if (f->file_info(a->os->user, fd, &info) == 0) {
        const uint64_t from = info.bytes > CDP__LAUNCH_TAIL ? info.bytes - CDP__LAUNCH_TAIL : 0;
        const int64_t n = f->read_at(a->os->user, fd, from, s->line, CDP__LAUNCH_TAIL);
        /* less than the file had: it was cut meanwhile, and what is read is all that there is */
        s->total = n >= 0 && (uint64_t)n == info.bytes - from ? from : 0;
        if (n > 0) cdp__launch_tail_add(s, s->line, (uint64_t)n);
    }
    (void)f->close_file(a->os->user, fd);
}

#endif /* CDP_SRC_LAUNCH_OUTPUT_H */

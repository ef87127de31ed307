/* launch/output.h - what workers write

   Knows: pipes of workers, the console, logs. Promises: whole lines, each behind its rank, up to a
   length; the last bytes of every stream are kept; a full disk ends no worker. */
#ifndef CDP_SRC_LAUNCH_OUTPUT_H
#define CDP_SRC_LAUNCH_OUTPUT_H

#include "../base/config.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../os/processes.h"
#include "state.h"

#include <string.h>

CDP__PRIVATE void cdp__agent_tail_add(cdp__agent_stream *s, const char *from, uint64_t bytes) {
    uint64_t i;
    for (i = 0; i < bytes; ++i)
        s->tail[s->total++ % CDP__AGENT_TAIL] = from[i];
}

/* Copies the last bytes, without the piece of a line that they begin with. */
CDP__PRIVATE void cdp__agent_tail_copy(const cdp__agent_stream *s, char *out) {
    const uint64_t kept = s->total < CDP__AGENT_TAIL ? s->total : CDP__AGENT_TAIL;
    uint64_t i;
    const char *begin;
    for (i = 0; i < kept; ++i)
        out[i] = s->tail[(s->total - kept + i) % CDP__AGENT_TAIL];
    out[kept] = 0;
    begin = kept < s->total ? strchr(out, '\n') : NULL;
    if (begin && begin[1]) memmove(out, begin + 1, strlen(begin + 1) + 1);
}

/* Writes what the console takes now. False: something is left. */
CDP__PRIVATE bool cdp__agent_console_write(cdp_agent *a, int which) {
    cdp__agent_console *const c = &a->console[which];
    while (c->at < c->length) {
        const int64_t n = cdp__process_put(which + 1, c->line + c->at, c->length - c->at);
        if (n == 0) return false;
        c->at = n > 0 ? c->at + (uint32_t)n : c->length; /* it is closed: nobody misses the line */
    }
    c->at = c->length = 0;
    return true;
}

/* To this process's own stdout (0) or stderr (1): a line, or a piece of one. False: it still has
   an earlier one. */
CDP__PRIVATE bool cdp__agent_show(
    cdp_agent *a, uint32_t i, int which, const char *text, uint64_t bytes, bool cut) {
    cdp__agent_console *const c = &a->console[which];
    const bool whole = bytes && text[bytes - 1] == '\n';
    uint64_t n = 0;
    if (!cdp__agent_console_write(a, which)) return false;
    if (!a->desc.no_prefix)
        n = cdp__format(c->line, sizeof c->line, "[%u]%s", cdp__agent_rank(a, i), cut ? "+" : " ");
    memcpy(c->line + n, text, (size_t)bytes);
    n += bytes;
    if (!whole && !a->desc.no_prefix) c->line[n++] = '\n'; /* the next may be another worker's */
    c->length = (uint32_t)n;
    (void)cdp__agent_console_write(a, which);
    return true;
}

/* Whether output waits for its reader: without a limit, as that of any program does, until somebody
   wants the workers to end. */
CDP__PRIVATE bool cdp__agent_unread(cdp_agent *a) {
    const uint64_t now = cdp__agent_now(a);
    bool waits = !cdp__agent_console_write(a, 0);
    uint32_t i;
    waits = !cdp__agent_console_write(a, 1) || waits;
    for (i = 0; i < a->desc.workers; ++i)
        waits = waits || a->workers[i].out[0].stuck || a->workers[i].out[1].stuck;
    if (!waits || (!a->stopping && now < a->timeout_ns)) return waits;
    if (!a->reader_ns) a->reader_ns = now + CDP__AGENT_READER_MS * CDP__MS;
    return now < a->reader_ns;
}

/* Shows whole lines; `all`: what is left, too. */
CDP__PRIVATE void cdp__agent_lines(cdp_agent *a, uint32_t i, int which, bool all) {
    cdp__agent_stream *const s = &a->workers[i].out[which];
    uint32_t at = 0;
    s->stuck = false;
    while (at < s->length) {
        const char *const end = (const char *)memchr(s->line + at, '\n', s->length - at);
        uint32_t n = end ? (uint32_t)(end + 1 - (s->line + at)) : s->length - at;
        if (!end && !all && n < CDP__AGENT_LINE) break;
        s->stuck = !cdp__agent_show(a, i, which, s->line + at, n, s->cut);
        if (s->stuck) break;
        s->cut = !end;
        at += n;
    }
    memmove(s->line, s->line + at, s->length - at);
    s->length -= at;
}

CDP__PRIVATE void cdp__agent_close_stream(cdp_agent *a, uint32_t i, int which) {
    cdp__agent_stream *const s = &a->workers[i].out[which];
    if (s->fd < 0) return;
    cdp__agent_lines(a, i, which, true);
    cdp__process_close(s->fd);
    cdp__process_close(s->log);
    s->fd = s->log = -1;
    s->stuck = false;
}

/* One read. False: nothing is there now, or ever, or the console is behind: then the worker waits
   for it, too, when its pipe is full. */
CDP__PRIVATE bool cdp__agent_pump(cdp_agent *a, uint32_t i, int which) {
    cdp__agent_stream *const s = &a->workers[i].out[which];
    int64_t n;
    if (s->fd < 0) return false;
    if (s->stuck) cdp__agent_lines(a, i, which, false);
    if (s->stuck) return false;
    n = cdp__process_read(s->fd, s->line + s->length, CDP__AGENT_LINE - s->length);
    if (n == -EAGAIN) return false;
    if (n <= 0) {
        cdp__agent_lines(a, i, which, true);
        if (!s->stuck) cdp__agent_close_stream(a, i, which);
        return false;
    }
    cdp__agent_tail_add(s, s->line + s->length, (uint64_t)n);
    if (s->log >= 0 && cdp__process_write(s->log, s->line + s->length, (uint64_t)n) != 0) {
        cdp__process_close(s->log); /* given up */
        s->log = -1;
    }
    s->length += (uint32_t)n;
    cdp__agent_lines(a, i, which, false);
    return true;
}

/* All that is there now; a worker's children may write for ever, so at most `reads` pieces. */
CDP__PRIVATE void cdp__agent_carry(cdp_agent *a, uint32_t i, uint32_t reads) {
    int which;
    for (which = 0; which < 2; ++which) {
        uint32_t n = 0;
        while (n < reads && cdp__agent_pump(a, i, which))
            ++n;
    }
}

/* Opens one stream of a worker. *give: the descriptor that the worker gets. */
CDP__PRIVATE cdp_status cdp__agent_open_stream(
    const cdp_agent *a, uint32_t i, int which, int32_t *give) {
    cdp__agent_stream *const s = &a->workers[i].out[which];
    const uint32_t bit = which == 0 ? CDP_AGENT_STDOUT : CDP_AGENT_STDERR;
    const bool tee = (a->desc.tee & bit) != 0, file = tee || (a->desc.redirects & bit) != 0;
    char path[CDP__AGENT_PATH];
    int32_t ends[2], err, log = -1;
    s->fd = s->log = -1;
    s->cut = s->stuck = false;
    s->filed = file && !tee;
    s->length = 0;
    s->total = 0;
    if (file) {
        if (!cdp__agent_path(a, i, which == 0 ? "stdout.log" : "stderr.log", path))
            return cdp__agent_io("the path of a log is too long: ", path, ENAMETOOLONG);
        log = cdp__process_log(path);
        if (log < 0) return cdp__agent_io("cannot write the log ", path, log);
    }
    *give = log;
    if (s->filed) return CDP_OK;
    err = cdp__process_pipe(ends);
    if (err) {
        cdp__process_close(log);
        *give = -1;
        return cdp__agent_io("cannot make a pipe", "", err);
    }
    s->fd = ends[0];
    s->log = log;
    *give = ends[1];
    return CDP_OK;
}

/* A stream that went to its file alone: the last bytes of that. */
CDP__PRIVATE void cdp__agent_tail_read(const cdp_agent *a, uint32_t i, int which) {
    cdp__agent_stream *const s = &a->workers[i].out[which];
    const cdp_os_files *const f = &a->os->files;
    char path[CDP__AGENT_PATH];
    cdp_file_info info;
    int32_t fd = -1;
    if (!s->filed || !f->open_file) return;
    if (cdp__agent_path(a, i, which == 0 ? "stdout.log" : "stderr.log", path))
        fd = f->open_file(a->os->user, path, 0);
    if (fd < 0) return;
    if (f->file_info(a->os->user, fd, &info) == 0) {
        const uint64_t from = info.bytes > CDP__AGENT_TAIL ? info.bytes - CDP__AGENT_TAIL : 0;
        const int64_t n = f->read_at(a->os->user, fd, from, s->line, CDP__AGENT_TAIL);
        s->total = from;
        if (n > 0) cdp__agent_tail_add(s, s->line, (uint64_t)n);
    }
    (void)f->close_file(a->os->user, fd);
}

#endif /* CDP_SRC_LAUNCH_OUTPUT_H */

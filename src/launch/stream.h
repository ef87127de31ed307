/* launch/stream.h - what one rank writes to stdout or stderr: bytes in, lines out

   Knows: a pipe, a log, a console. Promises: whole lines behind the rank, up to a length; progress
   text appears as lines, at most one a second; the last bytes are kept; a full disk ends nobody. */
#ifndef CDP_SRC_LAUNCH_STREAM_H
#define CDP_SRC_LAUNCH_STREAM_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../os/processes.h"
#include "console.h"

#include <stddef.h>
#include <string.h>

#define CDP__LAUNCH_LINE 65536u   /* longest line that is kept whole */
#define CDP__LAUNCH_TAIL 4096u    /* last output that a report repeats */
#define CDP__LAUNCH_SHOW_MS 1000u /* between two lines of progress text */
#define CDP__LAUNCH_HOLD_MS 20u   /* for the '\n' after a '\r' to arrive */

typedef struct cdp__launch_stream {
    const cdp_os *os;
    cdp__launch_sink *to;
    int32_t fd;                  /* -1: ended, or it goes to its file alone */
    int32_t log;                 /* a file that gets every byte; -1: none */
    int32_t log_err;             /* why the log was given up; 0: it was not */
    bool quiet;                  /* nothing goes to the console */
    bool cut;                    /* what comes next continues a line that was too long */
    bool eat_newline;            /* the held text was shown, only its '\n' may follow */
    char prefix[48];             /* before each line; empty: bytes go on as they are */
    uint64_t shown_ns, due_ns;   /* progress text: last shown; when to show the held one */
    uint64_t total;              /* bytes put into tail so far */
    uint64_t length;             /* bytes in line */
    char tail[CDP__LAUNCH_TAIL]; /* ring of the last lines */
    char line[CDP__LAUNCH_LINE]; /* text whose end has not come yet; pages that stay unused cost
                                    nothing */
} cdp__launch_stream;

CDP__PRIVATE uint64_t cdp__launch_now(const cdp_os *os) {
    return os->now_ns(os->user);
}

/* A stream that has ended. NULL: no memory. */
CDP__PRIVATE cdp__launch_stream *cdp__launch_stream_new(const cdp_os *os, cdp__launch_sink *to) {
    cdp__launch_stream *const s = (cdp__launch_stream *)cdp__alloc(os, sizeof *s);
    if (!s) return NULL;
    memset(s, 0, offsetof(cdp__launch_stream, tail));
    s->os = os;
    s->to = to;
    s->fd = s->log = -1;
    s->due_ns = CDP__NEVER;
    return s;
}

/* "[ 3]", as wide as the number of the last rank, in a colour of its own where the console has
   colours. */
CDP__PRIVATE void cdp__launch_stream_prefix(cdp__launch_stream *s, uint32_t rank, uint32_t world) {
    static const uint32_t colors[] = {36, 33, 32, 35, 34, 31};
    const uint64_t width = cdp__format(NULL, 0, "%u", world - 1);
    uint64_t n = cdp__format(NULL, 0, "%u", rank);
    cdp__text t = cdp__text_of(s->prefix, sizeof s->prefix);
    if (s->to->color)
        cdp__text_add(&t, "\033[%um", colors[rank % (sizeof colors / sizeof *colors)]);
    cdp__text_char(&t, '[');
    for (; n < width; ++n)
        cdp__text_char(&t, ' ');
    cdp__text_add(&t, "%u]%s", rank, s->to->color ? "\033[0m" : "");
}

CDP__PRIVATE void cdp__launch_tail_add(cdp__launch_stream *s, const char *from, uint64_t bytes) {
    uint64_t i;
    for (i = 0; i < bytes; ++i)
        s->tail[s->total++ % CDP__LAUNCH_TAIL] = from[i];
}

/* Copies the last bytes, without the piece of a line that they begin with. */
CDP__PRIVATE void cdp__launch_tail_copy(
    const cdp__launch_stream *s, char out[CDP__LAUNCH_TAIL + 1]) {
    const uint64_t kept = cdp__min(s->total, (uint64_t)CDP__LAUNCH_TAIL);
    uint64_t i;
    const char *begin;
    for (i = 0; i < kept; ++i)
        out[i] = s->tail[(s->total - kept + i) % CDP__LAUNCH_TAIL];
    out[kept] = 0;
    begin = kept < s->total ? strchr(out, '\n') : NULL;
    if (begin && begin[1]) memmove(out, begin + 1, strlen(begin + 1) + 1);
}

/* One line or a piece of one, without its end; without a prefix: bytes as they are. */
CDP__PRIVATE void cdp__launch_emit(cdp__launch_stream *s, const char *text, uint64_t n) {
    const bool lines = s->prefix[0] != 0;
    if (lines && n > 0 && text[n - 1] == '\r') --n;
    cdp__launch_tail_add(s, text, n);
    if (lines) cdp__launch_tail_add(s, "\n", 1);
    if (s->quiet || (!lines && n == 0)) return;
    cdp__launch_source(s->to, s);
    if (lines) cdp__launch_put(s->to, s->prefix, strlen(s->prefix));
    if (lines) cdp__launch_put(s->to, s->cut ? "+" : " ", 1);
    cdp__launch_put(s->to, text, n);
    if (lines) cdp__launch_put(s->to, "\n", 1);
}

/* Length of the first complete line, its end included; 0: not complete. A '\r' alone ends
   progress text; whether one at the very end is alone will only be known with the next byte. */
CDP__PRIVATE uint64_t cdp__launch_line_length(const char *text, uint64_t n, bool *progress) {
    uint64_t i = 0;
    *progress = false;
    while (i < n && text[i] != '\n' && text[i] != '\r')
        ++i;
    if (i == n) return 0;
    if (text[i] == '\n') return i + 1;
    if (i + 1 == n) return 0;
    if (text[i + 1] == '\n') return i + 2;
    *progress = true;
    return i + 1;
}

/* Shows the complete lines; returns how many bytes they have. */
CDP__PRIVATE uint64_t cdp__launch_lines(cdp__launch_stream *s) {
    uint64_t at = 0, used;
    bool progress;
    if (!s->prefix[0]) {
        at = s->length;
        while (at > 0 && s->line[at - 1] != '\n' && s->line[at - 1] != '\r')
            --at;
        cdp__launch_emit(s, s->line, at);
        return at;
    }
    if (s->eat_newline && s->length > 0) {
        at = s->line[0] == '\n';
        s->eat_newline = false;
    }
    for (; (used = cdp__launch_line_length(s->line + at, s->length - at, &progress)) > 0;
         at += used) {
        const uint64_t now = progress ? cdp__launch_now(s->os) : 0;
        const bool show =
            !progress || (used > 1 && now - s->shown_ns >= CDP__LAUNCH_SHOW_MS * CDP__MS);
        if (show) cdp__launch_emit(s, s->line + at, used - 1);
        if (show && progress) s->shown_ns = now;
        s->cut = false;
    }
    return at;
}

/* Passes on what the buffer holds: whole lines, or everything at the end and when a line is too
   long. */
CDP__PRIVATE void cdp__launch_split(cdp__launch_stream *s, bool all) {
    const uint64_t done = cdp__launch_lines(s), rest = s->length - done;
    memmove(s->line, s->line + done, (size_t)rest);
    s->length = rest;
    s->due_ns = CDP__NEVER;
    if (rest > 0 && (all || rest == CDP__LAUNCH_LINE)) {
        cdp__launch_emit(s, s->line, rest);
        s->cut = !all;
        s->length = 0;
    } else if (s->prefix[0] && rest > 1 && s->line[rest - 1] == '\r') {
        const uint64_t soon = cdp__launch_now(s->os) + CDP__LAUNCH_HOLD_MS * CDP__MS;
        s->due_ns = s->shown_ns + CDP__LAUNCH_SHOW_MS * CDP__MS;
        if (s->due_ns < soon) s->due_ns = soon;
    }
}

/* Progress text that has waited long enough for its '\n'. */
CDP__PRIVATE void cdp__launch_show_progress(cdp__launch_stream *s, uint64_t now) {
    if (now < s->due_ns) return;
    cdp__launch_emit(s, s->line, s->length);
    s->due_ns = CDP__NEVER;
    s->shown_ns = now;
    s->length = 0;
    s->eat_newline = true;
}

/* Passes on the rest and closes what the stream has. */
CDP__PRIVATE void cdp__launch_stream_end(cdp__launch_stream *s) {
    if (s->fd >= 0) cdp__launch_split(s, true);
    cdp__process_close(s->fd);
    cdp__process_close(s->log);
    s->fd = s->log = -1;
}

/* Begins anew, with another pipe and another log, which it closes. */
CDP__PRIVATE void cdp__launch_stream_begin(
    cdp__launch_stream *s, int32_t fd, int32_t log, bool quiet) {
    cdp__launch_stream_end(s);
    s->fd = fd;
    s->log = log;
    s->log_err = 0;
    s->quiet = quiet;
    s->cut = s->eat_newline = false;
    s->shown_ns = cdp__launch_now(s->os) - CDP__LAUNCH_SHOW_MS * CDP__MS;
    s->due_ns = CDP__NEVER;
    s->total = s->length = 0;
}

/* One read. False: nothing more to be had now. */
CDP__PRIVATE bool cdp__launch_pump(cdp__launch_stream *s) {
    char *const at = s->line + s->length;
    int64_t n;
    if (s->fd < 0) return false;
    n = cdp__process_read(s->fd, at, CDP__LAUNCH_LINE - s->length);
    if (n == -EAGAIN) return false;
    if (n <= 0) {
        cdp__launch_stream_end(s);
        return false;
    }
    if (s->log >= 0) s->log_err = cdp__process_write(s->log, at, (uint64_t)n);
    if (s->log >= 0 && s->log_err) { /* a full disk: it is given up */
        cdp__process_close(s->log);
        s->log = -1;
    }
    s->length += (uint64_t)n;
    cdp__launch_split(s, false);
    return true;
}

#endif /* CDP_SRC_LAUNCH_STREAM_H */

/* launch/console.h - stdout and stderr of a launcher: text that waits for its reader

   Knows: descriptors, memory for what is not written yet. Promises: never waits for a reader;
   texts of several sources do not mix within a line; one file has one queue. */
#ifndef CDP_SRC_LAUNCH_CONSOLE_H
#define CDP_SRC_LAUNCH_CONSOLE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../os/processes.h"

#include <string.h>

#define CDP__LAUNCH_UNREAD 262144u /* unwritten bytes above which ranks are no longer read */

typedef struct cdp__launch_sink {
    const cdp_os *os;
    int32_t fd;
    char *data; /* [start, end) is not written yet */
    uint64_t start, end, room;
    bool color;
    bool closed, told; /* closed: a write has failed, all is discarded; told: the caller knows */
    bool mid_line;     /* the last byte did not end a line ... */
    const void *last;  /* ... and came from this source; NULL: the launcher itself */
    int32_t err;       /* why it is closed: EPIPE if its reader has gone */
} cdp__launch_sink;

typedef struct cdp__launch_console {
    cdp__launch_sink sinks[2], *to[2]; /* stdout, stderr */
} cdp__launch_console;

CDP__PRIVATE void cdp__launch_console_open(cdp__launch_console *c, const cdp_os *os) {
    memset(c, 0, sizeof *c);
    c->sinks[0].os = c->sinks[1].os = os;
    c->sinks[0].fd = 1;
    c->sinks[1].fd = 2;
    c->to[0] = c->to[1] = &c->sinks[0]; /* one queue for one file, or lines could mix */
    if (!cdp__process_same_file(1, 2)) c->to[1] = &c->sinks[1];
}

CDP__PRIVATE void cdp__launch_console_close(cdp__launch_console *c) {
    int i;
    for (i = 0; i < 2; ++i)
        if (c->sinks[i].os) cdp__free(c->sinks[i].os, c->sinks[i].data);
    memset(c, 0, sizeof *c);
}

CDP__PRIVATE uint64_t cdp__launch_pending(const cdp__launch_sink *k) {
    return k->end - k->start;
}

CDP__PRIVATE bool cdp__launch_sink_full(const cdp__launch_sink *k) {
    return cdp__launch_pending(k) > CDP__LAUNCH_UNREAD;
}

CDP__PRIVATE void cdp__launch_sink_fail(cdp__launch_sink *k, int32_t err) {
    k->err = err;
    k->closed = true;
    k->start = k->end = 0;
}

/* Room for n bytes more. False: no memory, the sink is closed. */
CDP__PRIVATE bool cdp__launch_sink_room(cdp__launch_sink *k, uint64_t n) {
    const uint64_t kept = cdp__launch_pending(k);
    uint64_t room = k->room ? k->room : 4096;
    char *data = k->data;
    if (k->end + n <= k->room) return true;
    while (kept + n > room)
        room *= 2;
    if (room != k->room) data = (char *)cdp__alloc(k->os, room);
    if (!data) {
        cdp__launch_sink_fail(k, ENOMEM);
        return false;
    }
    if (kept) memmove(data, k->data + k->start, (size_t)kept);
    if (data != k->data) cdp__free(k->os, k->data);
    k->data = data;
    k->room = room;
    k->start = 0;
    k->end = kept;
    return true;
}

CDP__PRIVATE void cdp__launch_put(cdp__launch_sink *k, const char *text, uint64_t n) {
    if (k->closed || n == 0 || !cdp__launch_sink_room(k, n)) return;
    memcpy(k->data + k->end, text, (size_t)n);
    k->end += n;
    k->mid_line = text[n - 1] != '\n' && text[n - 1] != '\r';
}

/* Before text from another source, an open line is ended. */
CDP__PRIVATE void cdp__launch_source(cdp__launch_sink *k, const void *source) {
    if (k->mid_line && k->last != source) cdp__launch_put(k, "\n", 1);
    k->last = source;
}

/* Writes what the reader takes now. */
CDP__PRIVATE void cdp__launch_flush(cdp__launch_sink *k) {
    while (cdp__launch_pending(k)) {
        const int64_t n = cdp__process_put(k->fd, k->data + k->start, cdp__launch_pending(k));
        if (n == 0) return;
        if (n < 0) {
            cdp__launch_sink_fail(k, (int32_t)-n);
            return;
        }
        k->start += (uint64_t)n;
    }
    k->start = k->end = 0;
}

#endif /* CDP_SRC_LAUNCH_CONSOLE_H */

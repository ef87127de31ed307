/* os/file_text.h - text written to a file

   Knows: files of a cdp_os. Promises: after the first failure nothing more is written, and closing
   the file reports that failure. */
#ifndef CDP_SRC_OS_FILE_TEXT_H
#define CDP_SRC_OS_FILE_TEXT_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/error_api.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "words.h"
#include "../text/format.h"
#include "../text/json_write.h"

/* Text on its way to a file; `room` collects short pieces. */
typedef struct cdp__file_text {
    cdp__text text; /* the first member: the flush of a text gets its address */
    const cdp_os *os;
    uint64_t at;       /* file offset of the next write */
    uint64_t until_ns; /* how long to wait for the reader of a full pipe; 0: it was never full */
    int32_t fd;
    int32_t err; /* errno of the first failure */
    char room[1024];
} cdp__file_text;

#define CDP__PIPE_MS 1000u /* longest wait for the reader of a full pipe, per text */

/* The file is a full pipe: sleeps 1 ms, so that its reader can make room. False: the reader has had
   CDP__PIPE_MS. */
CDP__PRIVATE bool cdp__file_text_wait(cdp__file_text *f) {
    const uint64_t now = f->os->now_ns(f->os->user);
    if (!f->until_ns) f->until_ns = now + CDP__PIPE_MS * CDP__MS;
    if (now >= f->until_ns) return false;
    cdp__sleep_until(f->os, now + CDP__MS);
    return true;
}

CDP__PRIVATE void cdp__file_text_flush(cdp__text *t) {
    cdp__file_text *const f = (cdp__file_text *)(void *)t;
    uint64_t done = 0;
    while (!f->err && done < t->used) {
        const int64_t n =
            f->os->files.write_at(f->os->user, f->fd, f->at, f->room + done, t->used - done);
        if (n == -EAGAIN && cdp__file_text_wait(f)) continue;
        if (n <= 0) {
            f->err = n ? (int32_t)-n : EIO;
            break;
        }
        done += (uint64_t)n;
        f->at += (uint64_t)n;
    }
    t->used = 0;
}

/* Returns 0 or a positive errno. */
CDP__PRIVATE int32_t cdp__file_text_open(cdp__file_text *f, const cdp_os *os, const char *path) {
    f->text = cdp__text_of(f->room, sizeof f->room);
    f->text.flush = cdp__file_text_flush;
    f->os = os;
    f->at = f->until_ns = 0;
    f->fd = -ENOSYS;
    if (os->files.open_file)
        f->fd =
            os->files.open_file(os->user, path, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY);
    f->err = f->fd < 0 ? -f->fd : 0;
    return f->err;
}

/* Returns 0 or the errno of the first failure since the file was opened. */
CDP__PRIVATE int32_t cdp__file_text_close(cdp__file_text *f) {
    int32_t closed;
    cdp__file_text_flush(&f->text);
    closed = f->os->files.close_file(f->os->user, f->fd);
    if (!f->err) f->err = -closed;
    return f->err;
}

CDP_API cdp_status cdp_error_record(const char *path, const char *message) {
#ifndef CDP_NO_FILES
    const cdp_error *e = cdp_last_error();
    char own[sizeof e->text + 32];
    const uint64_t now_us = cdp__os_date_us();
    cdp__file_text f;
    if (!path || !*path) return CDP_ERR_INVALID;
    cdp__format(own, sizeof own, "%s: %s", cdp_status_name(e->status), e->text);
    errno = cdp__file_text_open(&f, cdp_os_default(), path);
    if (f.err) return CDP_ERR_IO;
    cdp__text_add(&f.text, "{\"message\": {\"message\": \"");
    cdp__json_inside(&f.text, message ? message : own);
    /* torchrun prints this member */
    cdp__text_add(&f.text, "\", \"extraInfo\": {\"py_callstack\": \"");
    cdp__json_inside(&f.text, message ? message : own);
    if (!message && e->line) {
        cdp__text_add(&f.text, "\\n  at ");
        cdp__json_inside(&f.text, e->file);
        cdp__text_add(&f.text, ":%u", e->line);
    }
    /* torchrun accepts whole seconds only; cdprun reads the microseconds */
    cdp__text_add(&f.text, "\", \"timestamp\": \"%llu\", \"timestamp_us\": \"%llu\"}}}\n",
        (unsigned long long)(now_us / 1000000), (unsigned long long)now_us);
    errno = cdp__file_text_close(&f);
    return f.err ? CDP_ERR_IO : CDP_OK;
#else
    (void)path;
    (void)message;
    return CDP_ERR_UNSUPPORTED;
#endif
}

CDP_API cdp_status cdp_error_record_from_env(const char *message) {
#ifdef CDP_NO_OS /* no environment, either */
    (void)message;
    return CDP_OK;
#else
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    return path && *path ? cdp_error_record(path, message) : CDP_OK;
#endif
}

#endif /* CDP_SRC_OS_FILE_TEXT_H */

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
#include "../base/text.h"

/* Text on its way to a file; `room` collects short pieces. */
typedef struct cdp__file_text {
    const cdp_os *os;
    uint64_t at;       /* file offset of the next write */
    uint64_t until_ns; /* how long to wait for the reader of a full pipe; 0: it was never full */
    int32_t fd;
    int32_t err; /* errno of the first failure */
    cdp__text text;
    char room[1024];
} cdp__file_text;

#define CDP__FILE_TEXT_PIECE 512u /* the longest text of one cdp__file_add() */

/* Returns 0 or a positive errno. */
CDP__PRIVATE int32_t cdp__file_text_open(cdp__file_text *f, const cdp_os *os, const char *path) {
    f->os = os;
    f->at = f->until_ns = 0;
    f->text.at = f->room;
    f->text.size = sizeof f->room;
    f->text.used = 0;
    f->fd = -ENOSYS;
    if (os->files.open_file)
        f->fd =
            os->files.open_file(os->user, path, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY);
    f->err = f->fd < 0 ? -f->fd : 0;
    return f->err;
}

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

CDP__PRIVATE void cdp__file_text_flush(cdp__file_text *f) {
    uint64_t done = 0;
    while (!f->err && done < f->text.used) {
        const int64_t n =
            f->os->files.write_at(f->os->user, f->fd, f->at, f->room + done, f->text.used - done);
        if (n == -EAGAIN && cdp__file_text_wait(f)) continue;
        if (n <= 0) {
            f->err = n ? (int32_t)-n : EIO;
            break;
        }
        done += (uint64_t)n;
        f->at += (uint64_t)n;
    }
    f->text.used = 0;
}

/* Returns 0 or the errno of the first failure since the file was opened. */
CDP__PRIVATE int32_t cdp__file_text_close(cdp__file_text *f) {
    int32_t closed;
    cdp__file_text_flush(f);
    closed = f->os->files.close_file(f->os->user, f->fd);
    if (!f->err) f->err = -closed;
    return f->err;
}

CDP__PRIVATE CDP__PRINTF(2, 3) void cdp__file_add(cdp__file_text *f, const char *format, ...) {
    va_list ap;
    if (f->text.used > sizeof f->room - CDP__FILE_TEXT_PIECE) cdp__file_text_flush(f);
    va_start(ap, format);
    cdp__text_add_v(&f->text, format, ap);
    va_end(ap);
    CDP_ASSERT(f->text.used + 1 < f->text.size);
}

/* Writes text as the inside of a JSON string, in pure ASCII, which readers of any locale accept. */
CDP__PRIVATE void cdp__file_add_json(cdp__file_text *f, const char *text) {
    static const char hex[] = "0123456789abcdef";
    const uint8_t *p = (const uint8_t *)text, *const end = p + strlen(text);
    while (p < end) {
        const uint32_t c = cdp__utf8_next(&p, end);
        uint32_t unit[2] = {c, 0}, i, shift;
        if (c >= 0x20 && c < 0x7f) {
            cdp__file_add(f, c == '"' || c == '\\' ? "\\%c" : "%c", (int)c);
            continue;
        }
        if (c >= 0x10000) {
            unit[0] = 0xd7c0 + (c >> 10);
            unit[1] = 0xdc00 + (c & 0x3ff);
        }
        for (i = 0; i < 2 && (i == 0 || unit[i]); ++i) {
            cdp__file_add(f, "\\u");
            for (shift = 16; shift; shift -= 4)
                cdp__file_add(f, "%c", hex[unit[i] >> (shift - 4) & 15]);
        }
    }
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
    cdp__file_add(&f, "{\"message\": {\"message\": \"");
    cdp__file_add_json(&f, message ? message : own);
    /* torchrun prints this member */
    cdp__file_add(&f, "\", \"extraInfo\": {\"py_callstack\": \"");
    cdp__file_add_json(&f, message ? message : own);
    if (!message && e->line) {
        cdp__file_add(&f, "\\n  at ");
        cdp__file_add_json(&f, e->file);
        cdp__file_add(&f, ":%u", e->line);
    }
    /* torchrun accepts whole seconds only; cdprun reads the microseconds */
    cdp__file_add(&f, "\", \"timestamp\": \"%llu\", \"timestamp_us\": \"%llu\"}}}\n",
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
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    return path && *path ? cdp_error_record(path, message) : CDP_OK;
}

#endif /* CDP_SRC_OS_FILE_TEXT_H */

/* base/text.h - errors, log

   Knows: this thread's last error, loggers. Promises: a text that is too long is cut, and always
   ends with a zero. */
#ifndef CDP_SRC_BASE_TEXT_H
#define CDP_SRC_BASE_TEXT_H

#include "config.h"
#include "status_api.h"
#include "error_api.h"
#include "log_api.h"
#include "../message/transport_api.h"
#include "compiler.h"
#include "../text/format.h"
#include "status.h"
#include "basics.h"
#include "../os/words.h"

CDP_API const char *cdp_status_name(cdp_status status) {
    return cdp__status_row_of((int32_t)status)->name;
}

CDP_API const char *cdp_status_text(cdp_status status) {
#ifdef CDP_NO_LOG_STRINGS
    return cdp_status_name(status);
#else
    return cdp__status_row_of((int32_t)status)->meaning;
#endif
}

CDP__PRIVATE CDP__ONE_COPY cdp_error *cdp__error_slot(void) {
    static CDP__THREAD_LOCAL cdp_error slot;
    return &slot;
}

CDP_API const cdp_error *cdp_last_error(void) {
    return cdp__error_slot();
}

CDP__PRIVATE void cdp__error_clear(cdp_error *e, cdp_status status) {
    memset(e, 0, sizeof *e);
    e->status = status;
    e->rank = e->peer = e->origin = -1;
    e->file = "";
}

CDP__PRIVATE const char *cdp__file_name(uint32_t at) {
    static const char names[10][15] = {"", "cdp.h", "cdp_store.h", "cdp_tcp.h", "cdp_nccl.h",
        "cdp_dtensor.h", "cdp_rpc.h", "cdp_mem.h", "cdp_elastic.h", "cdp_launch.h"};
    return names[cdp__min(at >> 8 & 15, 9)];
}

/* Packs status, file and line of a call into one number: hundreds of calls report errors, and
   each compiles to less code with one small constant than with three. */
#define CDP__AT(status) ((uint32_t)__LINE__ << 12 | CDP__HERE << 8 | (uint8_t)(status))

CDP__PRIVATE cdp_status cdp__status_at(uint32_t at) {
    return (cdp_status)(int8_t)(at & 255);
}

CDP__PRIVATE void cdp__error_make_v(
    cdp_error *e, uint32_t at, int32_t peer, int32_t sys_errno, const char *f, va_list ap) {
    cdp__text t = cdp__text_of(e->text, sizeof e->text);
    cdp__error_clear(e, cdp__status_at(at));
    e->file = cdp__file_name(at);
    e->line = at >> 12;
    e->peer = peer;
    e->sys_errno = sys_errno;
    cdp__text_add_v(&t, f, ap);
    if (sys_errno) cdp__text_add(&t, ": %s (errno %d)", cdp__os_error_text(sys_errno), sys_errno);
}

CDP__PRIVATE void cdp__error_set_v(
    uint32_t at, int32_t peer, int32_t sys_errno, const char *f, va_list ap) {
    cdp_error e; /* built in a copy: an argument may be the text of the last error */
    cdp__error_make_v(&e, at, peer, sys_errno, f, ap);
    *cdp__error_slot() = e;
}

/* An error as a value; the thread's last error stays as it is. */
CDP__PRIVATE CDP__COLD CDP__PRINTF(5, 6) void cdp__error_make(
    cdp_error *e, uint32_t at, int32_t peer, int32_t sys_errno, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    cdp__error_make_v(e, at, peer, sys_errno, format, ap);
    va_end(ap);
}

CDP_API cdp_status cdp_error_set(
    cdp_status status, int32_t peer, int32_t sys_errno, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    cdp__error_set_v((uint8_t)status, peer, sys_errno, format, ap);
    va_end(ap);
    return status;
}

CDP__PRIVATE CDP__COLD CDP__PRINTF(4, 5) cdp_status
    cdp__error_of(uint32_t at, int32_t peer, int32_t sys_errno, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    cdp__error_set_v(at, peer, sys_errno, format, ap);
    va_end(ap);
    return cdp__status_at(at);
}

CDP__PRIVATE CDP__COLD CDP__PRINTF(2, 3) cdp_status
    cdp__error_at(uint32_t at, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    cdp__error_set_v(at, -1, 0, format, ap);
    va_end(ap);
    return cdp__status_at(at);
}

CDP__PRIVATE cdp_status cdp__nomem_at(uint32_t at, const char *what, uint64_t bytes) {
    return cdp__error_at(at, "out of memory: %s needs %llu bytes", what, (unsigned long long)bytes);
}

/* In builds without texts, an error holds only the file and line that reported it. */
CDP__PRIVATE cdp_status cdp__bare_of(uint32_t at, int32_t peer, int32_t sys_errno) {
    return cdp__error_of(at, peer, sys_errno, "%s:%u", cdp__file_name(at), (unsigned)(at >> 12));
}

CDP__PRIVATE cdp_status cdp__bare_at(uint32_t at) {
    return cdp__bare_of(at, -1, 0);
}

CDP__PRIVATE void cdp__bare_make(cdp_error *e, uint32_t at, int32_t peer) {
    cdp__error_make(e, at, peer, 0, "%s:%u", cdp__file_name(at), (unsigned)(at >> 12));
}

/* cdp__fail: records an error that has no peer and no errno, mostly a mistake of the caller.
   cdp__error: makes an error (peer -1: none) without recording it; failures are passed like this
   until a public function returns. */
#ifdef CDP_NO_LOG_STRINGS
#define cdp__error(error, status, peer, ...)            \
    (0 ? cdp__error_make((error), 0, 0, 0, __VA_ARGS__) \
       : cdp__bare_make((error), CDP__AT(status), (int32_t)(peer)))
#define cdp__fail(status, ...) (0 ? cdp__error_at(0, __VA_ARGS__) : cdp__bare_at(CDP__AT(status)))
#define cdp__fail_peer(status, peer, err, ...) \
    (0 ? cdp__error_at(0, __VA_ARGS__) : cdp__bare_of(CDP__AT(status), (int32_t)(peer), (err)))
#define cdp__fail_nomem(what, bytes) \
    (0 ? cdp__nomem_at(0, (what), (bytes)) : cdp__bare_at(CDP__AT(CDP_ERR_NOMEM)))
#else
#define cdp__error(error, status, peer, ...) \
    cdp__error_make((error), CDP__AT(status), (int32_t)(peer), 0, __VA_ARGS__)
#define cdp__fail(status, ...) cdp__error_at(CDP__AT(status), __VA_ARGS__)
#define cdp__fail_peer(status, peer, err, ...) \
    cdp__error_of(CDP__AT(status), (int32_t)(peer), (err), __VA_ARGS__)
#define cdp__fail_nomem(what, bytes) cdp__nomem_at(CDP__AT(CDP_ERR_NOMEM), (what), (bytes))
#endif
/* Makes a failure that was passed as a value the last error of this thread. */
CDP__PRIVATE cdp_status cdp__error_record(const cdp_error *e) {
    *cdp__error_slot() = *e;
    return e->status;
}

/* An argument of a public function, or a member of its desc, must not be NULL and is. */
#define cdp__missing(call, argument) cdp__fail(CDP_ERR_INVALID, CDP__MISSING, (call), (argument))

#ifndef CDP_NO_LOG_STRINGS
CDP_API cdp_status cdp_error_at(const char *file, uint32_t line, cdp_status status) {
    static const char says[] = " (called at ";
    const uint64_t says_bytes = sizeof says - 1;
    cdp_error *const e = cdp__error_slot();
    const char *name = file, *p;
    uint64_t used;
    if (status >= 0 || status != e->status || !file) return status;
    used = strlen(e->text);
    for (p = e->text; p + says_bytes <= e->text + used; ++p)
        if (memcmp(p, says, (size_t)says_bytes) == 0) return status;
    for (p = file; *p; ++p)
        if (*p == '/' || *p == '\\') name = p + 1;
    cdp__format(e->text + used, sizeof e->text - used, "%s%s:%u)", says, name, (unsigned)line);
    return status;
}
#endif

CDP_API int cdp_print_error(void *file) {
#ifndef CDP_NO_STDIO
    const cdp_error *e = cdp_last_error();
    FILE *to = file ? (FILE *)file : stderr;
    fprintf(to, "cdp: %s: %s\n", cdp_status_name(e->status),
        e->text[0] ? e->text : cdp_status_text(e->status));
    fflush(to);
#else
    (void)file;
#endif
    return 1;
}

CDP__PRIVATE void cdp__log_text(
    const cdp_logger *l, cdp_log_level level, int32_t rank, const char *text) {
    if (l->func) {
        l->func(level, text, rank, l->user);
        return;
    }
#ifndef CDP_NO_STDIO
    if (rank >= 0)
        fprintf(stderr, "cdp: rank %d: %s\n", (int)rank, text);
    else
        fprintf(stderr, "cdp: %s\n", text);
#endif
}

/* The place of a level that another thread may change; NULL: enums have another size here, as on
   boards, and their reads and writes are plain. */
CDP__PRIVATE volatile uint32_t *cdp__log_level_at(const cdp_log_level *level) {
    return sizeof *level == sizeof(uint32_t) ? (volatile uint32_t *)(uintptr_t)level : NULL;
}

/* True if a message of this level is to be made. Any thread, without the lock, too. */
CDP__PRIVATE bool cdp__log_wants(const cdp_logger *l, cdp_log_level level) {
    const volatile uint32_t *const at = l->level_at ? l->level_at : cdp__log_level_at(&l->level);
    const uint32_t most = at ? cdp__atomic_load_u32(at, CDP__RELAXED) : (uint32_t)l->level;
    return most != CDP_LOG_SILENT && (uint32_t)level <= cdp__def(most, (uint32_t)CDP_LOG_WARN);
}

CDP__PRIVATE CDP__PRINTF(4, 5) void cdp__log_at(
    const cdp_logger *l, cdp_log_level level, int32_t rank, const char *f, ...) {
    char text[CDP_ERROR_TEXT + 88];
    cdp__text t = cdp__text_of(text, sizeof text);
    va_list ap;
    if (!cdp__log_wants(l, level)) return;
    va_start(ap, f);
    cdp__text_add_v(&t, f, ap);
    va_end(ap);
    cdp__log_text(l, level, rank, text);
}
#ifdef CDP_NO_LOG_STRINGS
#define cdp__log(logger, level, rank, ...) ((void)(logger), (void)(rank))
#else
#define cdp__log(logger, level, rank, ...) \
    cdp__log_at((logger), (level), (int32_t)(rank), __VA_ARGS__)
#endif

#endif /* CDP_SRC_BASE_TEXT_H */

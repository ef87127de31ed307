/* mem/os_stacks.h - addresses of callers and of modules

   Knows: how this system finds return addresses and the modules they are in. Promises: a chain of
   frame pointers is followed only upwards and inside the stack of this thread. */
#ifndef CDP_SRC_MEM_OS_STACKS_H
#define CDP_SRC_MEM_OS_STACKS_H

#include "../base/config.h"
#include "../os/os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "sizes.h"
#include "depot.h"

#if !defined(CDP_NO_OS) && (defined(__GLIBC__) || defined(__APPLE__) || defined(__FreeBSD__))
#include <execinfo.h>
#define CDP__MEM_BACKTRACE 1
#ifdef __FreeBSD__
typedef size_t cdp__mem_depth; /* what backtrace() counts in */
#else
typedef int cdp__mem_depth;
#endif
#else
#define CDP__MEM_BACKTRACE 0
#endif

typedef struct cdp__mem_module {
    uint64_t low, high, base; /* code is at low..high; base: the address of the file's first byte */
    uint32_t path; /* number of its text                                                */
} cdp__mem_module;

/* Parses a line of /proc/self/maps: "low-high rwxp offset device inode path". */
typedef struct cdp__mem_map_line {
    uint64_t low, high, offset;
    bool readable, code;
    char path[512];
} cdp__mem_map_line;

CDP__PRIVATE uint64_t cdp__mem_hex(const char **at) {
    uint64_t v = 0;
    for (;; ++*at) {
        const char c = **at;
        if (c >= '0' && c <= '9')
            v = v * 16 + (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v * 16 + (uint64_t)(c - 'a') + 10;
        else
            return v;
    }
}

CDP__PRIVATE bool cdp__mem_map_parse(const char *text, cdp__mem_map_line *out) {
    uint32_t i;
    out->low = cdp__mem_hex(&text);
    if (*text++ != '-') return false;
    out->high = cdp__mem_hex(&text);
    if (*text++ != ' ' || strlen(text) < 5) return false;
    out->readable = text[0] == 'r';
    out->code = text[2] == 'x';
    text += 5;
    out->offset = cdp__mem_hex(&text);
    for (i = 0; i < 3; ++i) { /* the rest of offset; device; inode */
        while (*text == ' ')
            ++text;
        while (i < 2 && *text && *text != ' ')
            ++text;
    }
    cdp__mem_text_copy(out->path, text, sizeof out->path);
    return true;
}

/* Calls `func` for each line, until it returns false. Does nothing without such a file. */
CDP__PRIVATE void cdp__mem_maps(
    bool (*func)(void *user, const cdp__mem_map_line *line), void *user) {
    char text[8192];
    uint64_t have = 0;
    bool more = true;
    const cdp_os *os = cdp_os_default();
    uint64_t at = 0;
    int32_t fd = -1;
    if (os->files.open_file) fd = os->files.open_file(os->user, "/proc/self/maps", 0);
    while (fd >= 0 && more) {
        const int64_t got =
            os->files.read_at(os->user, fd, at, text + have, sizeof text - have - 1);
        char *line = text, *end;
        if (got <= 0) break;
        at += (uint64_t)got;
        have += (uint64_t)got;
        text[have] = 0;
        for (; more && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            cdp__mem_map_line l;
            *end = 0;
            more = !cdp__mem_map_parse(line, &l) || func(user, &l);
        }
        have -= (uint64_t)(line - text);
        if (have + 1 == sizeof text) have = 0; /* too long for such a line */
        memmove(text, line, (size_t)have);
    }
    if (fd >= 0) (void)os->files.close_file(os->user, fd);
}

typedef struct cdp__mem_stack_range {
    uint64_t inside, low, high;
} cdp__mem_stack_range;

CDP__PRIVATE bool cdp__mem_stack_line(void *user, const cdp__mem_map_line *line) {
    cdp__mem_stack_range *const r = (cdp__mem_stack_range *)user;
    if (r->inside < line->low || r->inside >= line->high) return true;
    r->low = line->low;
    r->high = line->high;
    return false;
}

/* The end of the stack that contains `frame`, looked up once per thread; 0: unknown. */
CDP__PRIVATE uint64_t cdp__mem_stack_end(uint64_t frame) {
    static CDP__THREAD_LOCAL cdp__mem_stack_range r;
    if (frame >= r.low && frame < r.high) return r.high;
    if (frame < r.low && r.low - frame < 64 * CDP__MEM_MIB && r.high) { /* the stack grew */
        r.low = frame;
        return r.high;
    }
    r.inside = frame;
    r.low = r.high = 0;
    cdp__mem_maps(cdp__mem_stack_line, &r);
    return r.high;
}

/* Collects return addresses along the chain of frame pointers from `frame` on. Each frame must
   be above the previous one, aligned and inside the stack. Otherwise the chain ends, because a
   caller was compiled without frame pointers. */
CDP__NO_ASAN CDP__PRIVATE void cdp__mem_walk(const void *frame, uint32_t most, cdp__mem_trace *t) {
    uint64_t at = (uint64_t)(uintptr_t)frame;
    const uint64_t end = cdp__mem_stack_end(at);
    while (t->count < most) {
        const uintptr_t *const f = (const uintptr_t *)(uintptr_t)at;
        if (at % sizeof *f || at + 2 * sizeof *f > end || f[1] < 4096) return;
        t->words[++t->count] = (uint64_t)f[1] - 1;
        if (f[0] <= at) return;
        at = (uint64_t)f[0];
    }
}

/* Collects return addresses by unwinding, beginning with `caller`: leaves out this library's own
   frames. */
CDP__PRIVATE void cdp__mem_unwind(const void *caller, uint32_t most, cdp__mem_trace *t) {
#if CDP__MEM_BACKTRACE
    void *at[CDP__MEM_FRAMES + 8];
    const int got = (int)backtrace(at, (cdp__mem_depth)(most + 8));
    int i, own = 0;
    for (i = 0; i < got && i < 8; ++i)
        if (at[i] == caller) own = i;
    for (i = own; i < got && t->count < most; ++i)
        t->words[++t->count] = (uint64_t)(uintptr_t)at[i] - 1;
#else
    (void)caller;
    (void)most;
    (void)t;
#endif
}

#endif /* CDP_SRC_MEM_OS_STACKS_H */

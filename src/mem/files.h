/* mem/files.h - snapshots, writing and reading files

   Knows: the public calls around snapshots. Promises: a file is complete or absent: it is written
   under another name and renamed. */
#ifndef CDP_SRC_MEM_FILES_H
#define CDP_SRC_MEM_FILES_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../os/os_api.h"
#include "../os/whole.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "../base/text.h"
#include "allocator_api.h"
#include "shots_api.h"
#include "os_stacks.h"
#include "blocks.h"
#include "out_of_memory.h"
#include "shot.h"
#include "build.h"
#include "writer.h"
#include "json.h"
#include "value.h"
#include "../text/unpickle.h"
#include "unjson.h"
#include "import.h"
#include "holders.h"
#include "svg.h"
#include "reports.h"

CDP__PRIVATE cdp_status cdp__mem_snapshot_one(cdp_mem_shot *s, cdp_mem *m, bool no_events) {
    cdp__mem_raw r;
    cdp_status st = cdp__mem_raw_take(m, no_events, &r);
    if (st == CDP_OK && !cdp__mem_build(s, m, &r)) st = cdp__fail_nomem("a snapshot", r.room);
    cdp__free(m->os, r.memory);
    return st;
}

CDP_API cdp_status cdp_mem_snapshot(
    cdp_mem *const *mems, uint32_t count, bool no_events, cdp_mem_shot **out) {
    cdp_mem_shot *s;
    cdp_status st = CDP_OK;
    uint32_t i;
    if (!out) return cdp__missing("cdp_mem_snapshot", "out");
    *out = NULL;
    if (!mems) return cdp__missing("cdp_mem_snapshot", "mems");
    if (!count) return cdp__missing("cdp_mem_snapshot", "count");
    for (i = 0; i < count; ++i)
        if (!mems[i]) return cdp__fail(CDP_ERR_INVALID, "cdp_mem_snapshot: mems[%u] is NULL", i);
    for (i = 0; i < count && st == CDP_OK; ++i)
        st = cdp__mem_here(mems[i], "cdp_mem_snapshot");
    if (st != CDP_OK) return st;
    s = cdp__mem_shot_new(mems[0]->os);
    if (!s) return cdp__fail_nomem("a snapshot", sizeof *s);
    for (i = 0; i < count && st == CDP_OK; ++i)
        st = cdp__mem_snapshot_one(s, mems[i], no_events);
    cdp__mem_shot_link(s);
    cdp__mem_build_times(s);
    if (st == CDP_OK)
        *out = s;
    else
        cdp__mem_shot_close(s);
    return st;
}

CDP_API void cdp_mem_shot_free(cdp_mem_shot *shot) {
    if (shot && cdp__mem_shot_here(shot, "cdp_mem_shot_free") == CDP_OK) cdp__mem_shot_close(shot);
}

/* Parses "module(function+0x1a) [address]", the form of backtrace_symbols(). */
CDP__PRIVATE void cdp__mem_symbol(cdp_mem_shot *s, cdp_mem_frame *f, const char *symbol) {
    const char *const open = strrchr(symbol, '(');
    const char *const close = open ? strchr(open, ')') : NULL;
    char text[256];
    uint64_t n;
    if (!close || open[1] == '+' || open[1] == ')') return; /* no name */
    n = cdp__min((uint64_t)(close - open - 1), sizeof text - 1);
    memcpy(text, open + 1, (size_t)n);
    text[n] = 0;
    f->name = cdp__mem_shot_text(s, text);
}

CDP_API void cdp_mem_shot_names(cdp_mem_shot *shot) {
#if CDP__MEM_BACKTRACE
    uint64_t i;
    for (i = 0; cdp__mem_shot_known(shot) && i < shot->frame_count; ++i) {
        void *at = (void *)(uintptr_t)shot->addresses[i];
        char **symbols;
        if (!at) continue;
        symbols = backtrace_symbols(&at, 1);
        if (!symbols) return;
        cdp__mem_symbol(shot, &shot->frames[i], symbols[0]);
        free(symbols);
    }
#else
    (void)shot;
#endif
}

/* Writes a file. Needs memory for the numbers of texts and stacks that are written already. */
CDP__PRIVATE bool cdp__mem_write_data(cdp__mem_output *w, const cdp_mem_shot *s) {
    w->text_memo = (uint32_t *)cdp__alloc_zero(s->os, s->texts.count * sizeof(uint32_t));
    w->stack_memo = (uint32_t *)cdp__alloc_zero(s->os, s->stack_count * sizeof(uint32_t));
    if (w->text_memo && w->stack_memo) cdp__mem_w_shot(w, s, &s->keys);
    cdp__free(s->os, w->text_memo);
    cdp__free(s->os, w->stack_memo);
    return w->text_memo && w->stack_memo;
}

CDP__PRIVATE bool cdp__mem_write_any(
    cdp__mem_output *w, const cdp_mem_shot *s, cdp_mem_format format) {
    switch (format) {
    case CDP_MEM_PICKLE: return cdp__mem_write_data(w, s);
    case CDP_MEM_JSON: w->json = true; return cdp__mem_write_data(w, s);
    case CDP_MEM_SVG: return cdp__mem_svg_timeline(w, s);
    case CDP_MEM_SVG_SEGMENTS: return cdp__mem_svg_segments(w, s);
    case CDP_MEM_FLAME: return cdp__mem_flame(w, s, true);
    case CDP_MEM_FLAME_MEMORY: return cdp__mem_flame(w, s, false);
    case CDP_MEM_TRACE: return cdp__mem_trace_text(w, s);
    case CDP_MEM_PEAK: return cdp__mem_peak_text(w, s);
    }
    return false;
}

CDP_API cdp_status cdp_mem_write(
    const cdp_mem_shot *shot, cdp_mem_format format, cdp_mem_sink sink, void *user) {
    cdp__mem_output *w;
    bool done, broken;
    if (cdp__mem_shot_here(shot, "cdp_mem_write") != CDP_OK) return cdp_last_error()->status;
    if (!sink) return cdp__missing("cdp_mem_write", "sink");
    if ((uint32_t)format > CDP_MEM_PEAK)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_write: there is no format %u", (unsigned)format);
    w = (cdp__mem_output *)cdp__alloc_zero(shot->os, sizeof *w);
    if (!w) return cdp__fail_nomem("cdp_mem_write", sizeof *w);
    cdp__mem_output_open(w, sink, user);
    done = cdp__mem_write_any(w, shot, format);
    broken = w->broken;
    cdp__free(shot->os, w);
    if (broken) return cdp__fail(CDP_ERR_IO, "cdp_mem_write: the sink stopped it");
    return done ? CDP_OK : cdp__fail_nomem("cdp_mem_write", sizeof *w);
}

typedef struct cdp__mem_file {
    const cdp_os *os;
    uint64_t at;
    int32_t fd, err;
} cdp__mem_file;

CDP__PRIVATE bool cdp__mem_file_sink(void *user, const void *data, uint64_t bytes) {
    cdp__mem_file *const f = (cdp__mem_file *)user;
    const char *from = (const char *)data;
    while (bytes) {
        const int64_t n = f->os->files.write_at(f->os->user, f->fd, f->at, from, bytes);
        if (n <= 0) {
            f->err = n ? (int32_t)-n : EIO;
            return false;
        }
        from += n;
        f->at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return true;
}

CDP_API cdp_status cdp_mem_write_file(
    const cdp_mem_shot *shot, cdp_mem_format format, const char *path) {
    cdp__mem_file f = {NULL, 0, -1, 0};
    char beside[1100];
    int32_t err;
    cdp_status st;
    if (cdp__mem_shot_here(shot, "cdp_mem_write_file") != CDP_OK) return cdp_last_error()->status;
    if (!path) return cdp__missing("cdp_mem_write_file", "path");
    if (strlen(path) + 5 > sizeof beside)
        return cdp__fail(CDP_ERR_INVALID, "cdp_mem_write_file: the path has more than 1 KiB");
    f.os = shot->os;
    if (!f.os->files.open_file)
        return cdp__fail(CDP_ERR_UNSUPPORTED,
            "cdp_mem_write_file: this cdp_os has no files; set its member `files`, or use "
            "cdp_mem_write()");
    cdp__format(beside, sizeof beside, "%s.tmp", path);
    f.fd = f.os->files.open_file(
        f.os->user, beside, CDP_FILE_WRITE | CDP_FILE_CREATE | CDP_FILE_EMPTY);
    if (f.fd < 0)
        return cdp__fail_peer(CDP_ERR_IO, -1, -f.fd, "cdp_mem_write_file: cannot write %s", beside);
    st = cdp_mem_write(shot, format, cdp__mem_file_sink, &f);
    err = -f.os->files.close_file(f.os->user, f.fd);
    if (st == CDP_OK) f.err = err;
    if (st == CDP_OK && !err) f.err = -f.os->files.rename_file(f.os->user, beside, path);
    if (st == CDP_OK && !f.err) return CDP_OK;
    (void)f.os->files.remove_file(f.os->user, beside);
    if (!f.err) return st;
    return cdp__fail_peer(CDP_ERR_IO, -1, f.err, "cdp_mem_write_file: cannot write %s", path);
}

CDP_API cdp_status cdp_mem_dump(cdp_mem *mem, const char *path) {
    cdp_mem_shot *s;
    cdp_status st = cdp_mem_snapshot(&mem, 1, false, &s);
    if (st != CDP_OK) return st;
    st = cdp_mem_write_file(s, CDP_MEM_PICKLE, path);
    cdp_mem_shot_free(s);
    return st;
}

/* Reads a pickle or JSON; the first byte tells which. */
CDP__PRIVATE bool cdp__mem_read_tree(cdp__tree_reader *r, cdp__tree *out) {
    /* protocols 0 and 1 say no number: they begin with the dict, "(d" or "}" */
    if (r->bytes && (r->data[0] == 0x80 || r->data[0] == '(' || r->data[0] == '}'))
        return cdp__unpickle(r, out);
    while (r->at < r->bytes && r->data[r->at] <= ' ')
        ++r->at;
    if (r->at < r->bytes && r->data[r->at] == '{') return cdp__mem_unjson(r, out);
    return cdp__tree_bad(r, "it is neither a pickle nor JSON");
}

CDP_API cdp_status cdp_mem_read(
    const void *data, uint64_t bytes, const cdp_os *os, cdp_mem_shot **out) {
    cdp__tree_reader r;
    cdp__tree tree;
    cdp_mem_shot *s = NULL;
    cdp_status st = CDP_OK;
    if (!out) return cdp__missing("cdp_mem_read", "out");
    *out = NULL;
    if (!data) return cdp__missing("cdp_mem_read", "data");
    memset(&r, 0, sizeof r);
    r.data = (const uint8_t *)data;
    r.bytes = bytes;
    if (cdp__os_whole(os, "cdp_mem_read") != CDP_OK) return CDP_ERR_INVALID;
    r.memory.os = cdp__def(os, cdp_os_default());
    if (cdp__mem_read_tree(&r, &tree)) {
        s = cdp__mem_shot_new(r.memory.os);
        if (!s)
            cdp__tree_nomem(&r);
        else if (cdp__mem_import(&r, s, &tree))
            *out = s;
    }
    if (!*out) {
        if (s) cdp__mem_shot_close(s);
        if (r.no_memory)
            st = cdp__fail_nomem("cdp_mem_read", bytes);
        else
            st = cdp__fail(r.unknown ? CDP_ERR_UNSUPPORTED : CDP_ERR_INVALID,
                "cdp_mem_read: byte %llu of %llu: %s", (unsigned long long)r.at,
                (unsigned long long)bytes, r.why);
    }
    cdp__tree_close(&r);
    return st;
}

CDP__PRIVATE void cdp__mem_compare_text(cdp__text *t, const cdp__mem_sum *sums, uint64_t n) {
    uint64_t i;
    for (i = 0; i < n; ++i) {
        const double b = sums[i].bytes;
        char size[32];
        if (b >= 0 && b <= 0) continue;
        cdp__text_add(t, "%s%s in %lld blocks: ", b < 0 ? "-" : "+",
            cdp__mem_size_text(size, (uint64_t)(b < 0 ? -b : b)), (long long)sums[i].blocks);
        cdp__mem_holder_name(t, &sums[i]);
        cdp__text_add(t, "\n");
    }
}

CDP_API uint64_t cdp_mem_compare(const cdp_mem_shot *before, const cdp_mem_shot *after,
    int64_t *more, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    cdp__mem_sum *sums;
    double sum = 0;
    uint64_t i, n;
    (void)cdp__text_end(&t);
    if (more) *more = 0;
    if (!cdp__mem_shot_known(before) || !cdp__mem_shot_known(after)) return 0;
    n = before->block_count + after->block_count + 1;
    sums = (cdp__mem_sum *)cdp__alloc(after->os, n * sizeof *sums);
    if (!sums) return 0;
    n = cdp__mem_sums_of(before, after, -1, sums);
    n += cdp__mem_sums_of(after, after, 1, sums + n);
    for (i = 0; i < n; ++i)
        sum += sums[i].bytes;
    cdp__mem_compare_text(&t, sums, cdp__mem_sums(sums, n));
    cdp__free(after->os, sums);
    if (more && sum > -9e18) *more = sum < 9e18 ? (int64_t)sum : INT64_MAX;
    if (more && sum <= -9e18) *more = INT64_MIN;
    return t.used;
}

CDP_API uint32_t cdp_mem_segments(const cdp_mem_shot *shot, const cdp_mem_segment **out) {
    const bool there = cdp__mem_shot_known(shot);
    if (out) *out = there ? shot->segments : NULL;
    return there ? (uint32_t)shot->segment_count : 0;
}

CDP_API uint32_t cdp_mem_devices(const cdp_mem_shot *shot) {
    return cdp__mem_shot_known(shot) ? (uint32_t)shot->device_count : 0;
}

CDP_API uint64_t cdp_mem_events(
    const cdp_mem_shot *shot, uint32_t device, const cdp_mem_event **out) {
    const bool there = cdp__mem_shot_known(shot) && device < shot->device_count;
    if (out) *out = there ? shot->devices[device].events : NULL;
    return there ? shot->devices[device].count : 0;
}

CDP_API uint32_t cdp_mem_frames(
    const cdp_mem_shot *shot, uint32_t stack, const cdp_mem_frame **out) {
    const bool there =
        cdp__mem_shot_known(shot) && stack < shot->stack_count && shot->stacks[stack].count;
    if (out) *out = there ? shot->frames + shot->stacks[stack].first : NULL;
    return there ? shot->stacks[stack].count : 0;
}

CDP_API bool cdp_mem_module(
    const cdp_mem_shot *shot, uint32_t i, const char **path, uint64_t *base) {
    if (!cdp__mem_shot_known(shot) || i >= shot->module_count) return false;
    if (path) *path = shot->module_paths[shot->modules[i].path];
    if (base) *base = shot->modules[i].base;
    return true;
}

CDP_API cdp_status cdp_mem_frame_set(cdp_mem_shot *shot, uint32_t stack, uint32_t frame,
    const char *filename, const char *name, uint32_t line) {
    cdp_mem_frame f;
    if (shot && cdp__mem_shot_here(shot, "cdp_mem_frame_set") != CDP_OK) return CDP_ERR_STATE;
    if (!shot || stack >= shot->stack_count || frame >= shot->stacks[stack].count)
        return cdp__fail(
            CDP_ERR_INVALID, "cdp_mem_frame_set: there is no frame %u of stack %u", frame, stack);
    f.filename = cdp__mem_shot_text(shot, filename);
    f.name = cdp__mem_shot_text(shot, name);
    f.line = line;
    if (shot->failed) return cdp__fail_nomem("cdp_mem_frame_set", sizeof f);
    f.others = shot->frames[shot->stacks[stack].first + frame].others;
    shot->frames[shot->stacks[stack].first + frame] = f;
    return CDP_OK;
}

#endif /* CDP_SRC_MEM_FILES_H */

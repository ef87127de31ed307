/* fsdp/picture.h - one step as a picture

   Knows: events of the last step. Promises: at most `room` bytes are written, and the length of the
   whole text is returned. */
#ifndef CDP_SRC_FSDP_PICTURE_H
#define CDP_SRC_FSDP_PICTURE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../group/group_api.h"
#include "../ddp/ddp_api.h"
#include "../base/compiler.h"
#include "../base/ended.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "../text/svg.h"
#include "../text/timeline.h"
#include "fsdp_api.h"
#include "state.h"

#if !defined(CDP_NO_TRACE) && !defined(CDP_NO_DDP)

CDP__PRIVATE const char *cdp__fsdp_row(uint32_t row) {
    static const char *const names[CDP__FSDP_ROWS] = {"wait", "gather", "reduction"};
    return names[row];
}

/* When an event ended, from the beginning of the step. */
CDP__PRIVATE uint64_t cdp__fsdp_until(const cdp__fsdp_spans *spans, const cdp__fsdp_event *e) {
    return (e->to_ns ? e->to_ns : spans->end_ns) - spans->begin_ns;
}

CDP__PRIVATE void cdp__fsdp_title(const cdp_fsdp *f, const cdp__fsdp_event *e, char out[96]) {
    cdp__text t = cdp__text_of(out, 96);
    char name[64];
    cdp__trace_name(f->units[e->unit].name, name);
    cdp__text_add(&t, "%s %s", cdp__fsdp_row(e->row), name);
}

CDP__PRIVATE void cdp__fsdp_json(const cdp_fsdp *f, const cdp__fsdp_spans *spans, cdp__text *t) {
    char title[96];
    uint32_t i;
    cdp__text_add(
        t, "{\"displayTimeUnit\":\"ns\",\"lost_events\":%u,\"traceEvents\":[\n", spans->lost);
    for (i = 0; i < spans->count; ++i) {
        const cdp__fsdp_event *e = &spans->events[i];
        cdp__fsdp_title(f, e, title);
        cdp__trace_slice(t, title, f->rank, 1 + e->row, e->from_ns - spans->begin_ns,
            cdp__fsdp_until(spans, e), e->bytes);
        cdp__text_add(t, "{\"name\":\"memory\",\"ph\":\"C\",\"pid\":%u,\"ts\":", f->rank);
        cdp__trace_us(t, e->from_ns - spans->begin_ns);
        cdp__text_add(t, ",\"args\":{\"bytes\":%llu}},\n", (unsigned long long)e->held);
    }
    for (i = 0; i < CDP__FSDP_ROWS; ++i)
        cdp__text_add(t,
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":"
            "\"%ss\"}},\n",
            f->rank, 1 + i, cdp__fsdp_row(i));
    cdp__text_add(t,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u\"}}]}\n",
        f->rank, f->rank);
}

/* Memory in use from each event to the next one, as columns from the bottom. */
CDP__PRIVATE void cdp__fsdp_svg_memory(
    const cdp__fsdp_spans *spans, uint64_t whole, uint64_t most, cdp__text *t) {
    uint32_t i;
    for (i = 0; i < spans->count; ++i) {
        const cdp__fsdp_event *e = &spans->events[i];
        const uint64_t to = i + 1 < spans->count ? e[1].from_ns : spans->end_ns;
        const uint64_t x = 80 + (e->from_ns - spans->begin_ns) * 900 / whole;
        const uint64_t w = cdp__max(1, (to - e->from_ns) * 900 / whole), h = e->held * 40 / most;
        cdp__text_add(t,
            "<rect x=\"%llu\" y=\"%llu\" width=\"%llu\" height=\"%llu\" "
            "fill=\"#9ab58a\"><title>%llu "
            "bytes</title></rect>\n",
            (unsigned long long)x, (unsigned long long)(190 - h), (unsigned long long)w,
            (unsigned long long)h, (unsigned long long)e->held);
    }
}

CDP__PRIVATE void cdp__fsdp_svg(const cdp_fsdp *f, const cdp__fsdp_spans *spans, cdp__text *t) {
    static const char *const colours[CDP__FSDP_ROWS][2] = {
        {"#d9d9d9", "#b8b8b8"}, {"#7aa6c2", "#5b88a5"}, {"#e0b07f", "#c98f5a"}};
    const uint64_t whole = cdp__max(1, spans->end_ns - spans->begin_ns);
    uint64_t most = 1;
    char title[96];
    uint32_t i;
    cdp__svg_begin(t, 1000, 230);
    cdp__text_add(t, "<text x=\"5\" y=\"187\">memory</text>\n");
    for (i = 0; i < CDP__FSDP_ROWS; ++i)
        cdp__text_add(t, "<text x=\"5\" y=\"%u\">%ss</text>\n", 37 + 40 * i, cdp__fsdp_row(i));
    for (i = 0; i < spans->count; ++i) {
        const cdp__fsdp_event *e = &spans->events[i];
        cdp__fsdp_title(f, e, title);
        cdp__trace_bar(t, e->from_ns - spans->begin_ns, cdp__fsdp_until(spans, e), whole,
            20 + 40 * e->row, colours[e->row][e->unit % 2], title);
        most = cdp__max(most, e->held);
    }
    cdp__fsdp_svg_memory(spans, whole, most, t);
    cdp__text_add(t,
        "<text x=\"80\" y=\"215\">rank %u: %llu us, of which %llu us were waited for; most %llu "
        "bytes; %u events are not shown</text>\n</svg>\n",
        f->rank, (unsigned long long)(whole / 1000),
        (unsigned long long)(f->stats.exposed_ns / 1000), (unsigned long long)most, spans->lost);
}

CDP_API uint64_t cdp_fsdp_trace(
    const cdp_fsdp *f, cdp_trace_format format, char *text, uint64_t room) {
    cdp__text t = cdp__text_of(text, room);
    const bool known = f && !cdp__ended(f) && f->spans[0].end_ns;
    if (known && format == CDP_TRACE_SVG)
        cdp__fsdp_svg(f, &f->spans[0], &t);
    else if (known)
        cdp__fsdp_json(f, &f->spans[0], &t);
    return cdp__text_end(&t);
}

#endif /* CDP_NO_TRACE, CDP_NO_DDP */

#endif /* CDP_SRC_FSDP_PICTURE_H */

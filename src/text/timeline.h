/* text/timeline.h - bars of a timeline (pure)

   Knows: names and times. Promises: events as chrome://tracing reads them, and bars of an SVG. */
#ifndef CDP_SRC_TEXT_TIMELINE_H
#define CDP_SRC_TEXT_TIMELINE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "format.h"

#ifndef CDP_NO_TRACE

/* Copies a name without characters that JSON or XML would have to escape. */
CDP__PRIVATE void cdp__trace_name(const char *name, char out[64]) {
    uint32_t i;
    for (i = 0; i < 63 && name[i]; ++i)
        out[i] = name[i] < 32 || strchr("\"\\<>&'", name[i]) ? '_' : name[i];
    out[i] = 0;
}

CDP__PRIVATE void cdp__trace_us(cdp__text *t, uint64_t ns) {
    cdp__text_add(t, "%llu.%u%u%u", (unsigned long long)(ns / 1000), (unsigned)(ns / 100 % 10),
        (unsigned)(ns / 10 % 10), (unsigned)(ns % 10));
}

/* One bar of a timeline; its times count from the beginning of the pass. */
CDP__PRIVATE void cdp__trace_slice(cdp__text *t, const char *name, uint32_t rank, uint32_t row,
    uint64_t from_ns, uint64_t to_ns, uint64_t bytes) {
    cdp__text_add(
        t, "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":", name, rank, row);
    cdp__trace_us(t, from_ns);
    cdp__text_add(t, ",\"dur\":");
    cdp__trace_us(t, to_ns - from_ns);
    cdp__text_add(t, ",\"args\":{\"bytes\":%llu}},\n", (unsigned long long)bytes);
}

CDP__PRIVATE void cdp__trace_bar(cdp__text *t, uint64_t from, uint64_t to, uint64_t whole,
    uint32_t y, const char *colour, const char *what) {
    const uint64_t x = 80 + from * 900 / whole, w = cdp__max(1, (to - from) * 900 / whole);
    cdp__text_add(t,
        "<rect x=\"%llu\" y=\"%u\" width=\"%llu\" height=\"22\" fill=\"%s\"><title>%s: %llu "
        "us</title></rect>\n",
        (unsigned long long)x, y, (unsigned long long)w, colour, what,
        (unsigned long long)((to - from) / 1000));
}

#endif /* CDP_NO_TRACE */

#endif /* CDP_SRC_TEXT_TIMELINE_H */

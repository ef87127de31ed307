/* mem/settings.h - PyTorch's texts of settings

   Knows: the names and values of PYTORCH_CUDA_ALLOC_CONF. Promises: an invalid text changes
   nothing. */
#ifndef CDP_SRC_MEM_SETTINGS_H
#define CDP_SRC_MEM_SETTINGS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "desc_api.h"
#include "sizes.h"

typedef struct cdp__mem_word { /* of a text of settings */
    const char *at;
    uint32_t length;
} cdp__mem_word;

CDP__PRIVATE bool cdp__mem_word_is(const cdp__mem_word *w, const char *text) {
    return strlen(text) == w->length && memcmp(w->at, text, w->length) == 0;
}

/* Takes the text up to one of `ends`. */
CDP__PRIVATE cdp__mem_word cdp__mem_word_next(const char **text, const char *ends) {
    cdp__mem_word w;
    while (**text == ' ')
        ++*text;
    w.at = *text;
    while (**text && !strchr(ends, **text))
        ++*text;
    w.length = (uint32_t)(*text - w.at);
    while (w.length && w.at[w.length - 1] == ' ')
        --w.length;
    return w;
}

CDP__PRIVATE bool cdp__mem_word_number(const cdp__mem_word *w, uint64_t most, uint64_t *out) {
    uint32_t i;
    *out = 0;
    for (i = 0; i < w->length; ++i) {
        if (w->at[i] < '0' || w->at[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(w->at[i] - '0');
        if (*out > most) return false;
    }
    return w->length > 0;
}

/* Parses a ratio like "0.8". */
CDP__PRIVATE bool cdp__mem_word_part(const cdp__mem_word *w, double *out) {
    double scale = 1;
    bool point = false;
    uint32_t i;
    *out = 0;
    for (i = 0; i < w->length && i < 15; ++i) {
        if (w->at[i] == '.' && !point)
            point = true;
        else if (w->at[i] < '0' || w->at[i] > '9')
            return false;
        else {
            *out = *out * 10 + (w->at[i] - '0');
            if (point) scale *= 10;
        }
    }
    *out /= scale;
    return *out > 0 && *out < 1;
}

CDP__PRIVATE bool cdp__mem_divisions_valid(uint64_t n) {
    return n <= 64 && (n & (n - 1)) == 0;
}

/* Parses "[256:1,512:2,>:4]": each value applies from its size in MiB up to the next size; >
   applies to all larger ones. */
CDP__PRIVATE bool cdp__mem_read_list(const char **text, uint32_t out[16]) {
    uint32_t at = 0;
    uint64_t n, parts;
    while (**text && **text != ']') {
        cdp__mem_word size, value;
        ++*text; /* [ or , */
        size = cdp__mem_word_next(text, ":]");
        if (**text != ':') return false;
        ++*text;
        value = cdp__mem_word_next(text, ",]");
        if (!cdp__mem_word_number(&value, 64, &parts) || !cdp__mem_divisions_valid(parts))
            return false;
        if (cdp__mem_word_is(&size, ">"))
            n = 1ull << 20;
        else if (!cdp__mem_word_number(&size, 1ull << 20, &n) || !n || (n & (n - 1)))
            return false;
        for (; at < 16 && (1ull << at) <= n; ++at)
            out[at] = (uint32_t)parts;
    }
    if (**text != ']') return false;
    ++*text;
    return true;
}

CDP__PRIVATE bool cdp__mem_read_divisions(const char **text, uint32_t out[16], cdp_mem_desc *d) {
    cdp__mem_word w;
    uint64_t n;
    uint32_t i;
    memset(out, 0, 16 * sizeof *out);
    d->roundup_divisions = out;
    if (**text == '[') return cdp__mem_read_list(text, out);
    w = cdp__mem_word_next(text, ",");
    if (!cdp__mem_word_number(&w, 64, &n) || !cdp__mem_divisions_valid(n)) return false;
    for (i = 0; i < 16; ++i)
        out[i] = (uint32_t)n;
    return true;
}

CDP__PRIVATE bool cdp__mem_read_mib(const char **text, uint64_t least, uint64_t *out) {
    const cdp__mem_word w = cdp__mem_word_next(text, ",");
    uint64_t n;
    if (!cdp__mem_word_number(&w, 1ull << 30, &n) || n < least) return false;
    *out = n * CDP__MEM_MIB;
    return true;
}

CDP__PRIVATE bool cdp__mem_read_setting(
    const cdp__mem_word *name, const char **text, uint32_t divisions[16], cdp_mem_desc *d) {
    if (cdp__mem_word_is(name, "max_split_size_mb"))
        return cdp__mem_read_mib(text, 20, &d->max_split_bytes);
    if (cdp__mem_word_is(name, "max_non_split_rounding_mb"))
        return cdp__mem_read_mib(text, 1, &d->max_non_split_rounding_bytes);
    if (cdp__mem_word_is(name, "large_segment_size_mb"))
        return cdp__mem_read_mib(text, 20, &d->large_segment_bytes);
    if (cdp__mem_word_is(name, "garbage_collection_threshold")) {
        const cdp__mem_word w = cdp__mem_word_next(text, ",");
        return cdp__mem_word_part(&w, &d->gc_threshold);
    }
    if (cdp__mem_word_is(name, "expandable_segments")) {
        const cdp__mem_word w = cdp__mem_word_next(text, ",");
        d->expandable = cdp__mem_word_is(&w, "True");
        return d->expandable || cdp__mem_word_is(&w, "False");
    }
    if (cdp__mem_word_is(name, "roundup_power2_divisions"))
        return cdp__mem_read_divisions(text, divisions, d);
    return false;
}

CDP_API cdp_status cdp_mem_settings_read(
    const char *text, uint32_t divisions[16], cdp_mem_desc *desc) {
    uint32_t parts[16];
    cdp_mem_desc d;
    if (!text) return cdp__missing("cdp_mem_settings_read", "text");
    if (!divisions) return cdp__missing("cdp_mem_settings_read", "divisions");
    if (!desc) return cdp__missing("cdp_mem_settings_read", "desc");
    d = *desc;
    while (*text) {
        const char *const from = text;
        const cdp__mem_word name = cdp__mem_word_next(&text, ":,");
        bool good = *text == ':';
        if (good) ++text;
        good = good && cdp__mem_read_setting(&name, &text, parts, &d);
        good = good && (!*text || *text == ',');
        if (!good)
            return cdp__fail(CDP_ERR_INVALID,
                "cdp_mem_settings_read: cannot take \"%s\": an unknown name, or a value out of "
                "range",
                from);
        if (*text) ++text;
    }
    if (d.roundup_divisions == parts) {
        memcpy(divisions, parts, sizeof parts);
        d.roundup_divisions = divisions;
    }
    *desc = d;
    return CDP_OK;
}

#endif /* CDP_SRC_MEM_SETTINGS_H */

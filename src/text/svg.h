/* text/svg.h - the page of a picture (pure)

   Knows: colours. Promises: text and lines are readable on light and on dark pages. */
#ifndef CDP_SRC_TEXT_SVG_H
#define CDP_SRC_TEXT_SVG_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "format.h"

/* Begins a picture. Colours of text and lines follow the reader's light or dark scheme. */
CDP__PRIVATE void cdp__svg_begin(cdp__text *t, uint32_t width, uint32_t height) {
    cdp__text_add(t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" viewBox=\"0 0 %u "
        "%u\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n",
        width, height, width, height);
    cdp__text_add(t,
        "<style>text{fill:#24292f}.in{fill:#111}.thin{fill:#57606a}"
        ".box{stroke:#57606a}.line{stroke:#0969da;fill:none}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.in{fill:#111}"
        ".thin{fill:#9da7b3}.box{stroke:#9da7b3}.line{stroke:#58a6ff}}</style>\n");
}

/* A light colour, for boxes with text of class "in". */
CDP__PRIVATE const char *cdp__svg_tint(uint32_t k) {
    static const char *const tints[8] = {
        "#8ec5ff", "#ffc680", "#9be29b", "#f5a3b7", "#c9b3f5", "#f0e07a", "#86dcd6", "#d9bfa0"};
    return tints[k % 8];
}

#endif /* CDP_SRC_TEXT_SVG_H */

/*  loss_curve.h - the loss of a training run as an SVG picture, for 03_train_text.c,
    21_elastic.c and 23_slow_network.c */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef LOSS_CURVE_INCLUDED
#define LOSS_CURVE_INCLUDED

#include "text_model.h"

typedef struct curve {
    uint64_t *step;
    double *bits;
    size_t count, room;
} curve;

static void curve_add(curve *c, uint64_t step, double bits) {
    if (c->count == c->room) {
        c->room = c->room * 2 + 64;
        c->step = (uint64_t *)realloc(c->step, c->room * sizeof *c->step);
        c->bits = (double *)realloc(c->bits, c->room * sizeof *c->bits);
        if (!c->step || !c->bits) need(SIZE_MAX, 1);
    }
    c->step[c->count] = step;
    c->bits[c->count++] = bits;
}

static void curve_free(curve *c) {
    free(c->step);
    free(c->bits);
}

/* The round number (1, 2 or 5 times a power of ten) that cuts `range` into at most `parts`
   parts. */
static double tick_of(double range, int parts) {
    static const double steps[] = {1, 2, 5};
    double unit = 1e-6;
    for (;; unit *= 10)
        for (int i = 0; i < 3; ++i)
            if (range / (unit * steps[i]) <= parts) return unit * steps[i];
}

enum {
    PLOT_LEFT = 70,
    PLOT_RIGHT = 690,
    PLOT_TOP = 60,
    PLOT_BOTTOM = 360
};

typedef struct frame {
    double steps, low, high; /* what the axes span */
} frame;

static double frame_x(const frame *f, double step) {
    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * step / f->steps;
}
static double frame_y(const frame *f, double bits) {
    return PLOT_BOTTOM - (PLOT_BOTTOM - PLOT_TOP) * (bits - f->low) / (f->high - f->low);
}

static frame frame_of(const curve *train, const curve *held) {
    frame f = {1, 1e9, -1e9};
    const curve *both[2] = {train, held};
    for (int k = 0; k < 2; ++k)
        for (size_t i = 0; i < both[k]->count; ++i) {
            f.steps = fmax(f.steps, (double)both[k]->step[i]);
            f.low = fmin(f.low, both[k]->bits[i]);
            f.high = fmax(f.high, both[k]->bits[i]);
        }
    /* nothing, one point, or not a number */
    if (!(f.low < f.high) || !isfinite(f.high - f.low)) {
        f.low = 0;
        f.high = 8;
    }
    f.low = floor(f.low * 2) / 2;
    f.high = ceil(f.high * 2) / 2;
    return f;
}

static void draw_axes(page *p, const frame *f) {
    for (double v = f->low, d = tick_of(f->high - f->low, 6); v <= f->high + d / 1e6; v += d) {
        page_add(p, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
            PLOT_LEFT, PLOT_RIGHT, frame_y(f, v), frame_y(f, v));
        page_add(p, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", PLOT_LEFT - 8,
            frame_y(f, v) + 4, v);
    }
    for (double v = 0, d = fmax(1, tick_of(f->steps, 6)); v <= f->steps; v += d)
        page_add(p, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", frame_x(f, v),
            PLOT_BOTTOM + 20, v);
    page_add(p, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", PLOT_LEFT,
        PLOT_RIGHT, PLOT_BOTTOM, PLOT_BOTTOM);
    page_add(p, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n",
        (PLOT_LEFT + PLOT_RIGHT) / 2, PLOT_BOTTOM + 42);
    page_add(p,
        "<text transform=\"translate(24 %d) rotate(-90)\" text-anchor=\"middle\">loss in bits per "
        "byte</text>\n",
        (PLOT_TOP + PLOT_BOTTOM) / 2);
}

static void draw_curve(page *p, const frame *f, const curve *c, const char *style, bool dots) {
    page_add(p, "<polyline class=\"%s\" points=\"", style);
    for (size_t i = 0; i < c->count; ++i)
        if (isfinite(c->bits[i]))
            page_add(p, "%.1f,%.1f ", frame_x(f, (double)c->step[i]), frame_y(f, c->bits[i]));
    page_add(p, "\"/>\n");
    for (size_t i = 0; dots && i < c->count; ++i)
        if (isfinite(c->bits[i]))
            page_add(p, "<circle class=\"%s-dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", style,
                frame_x(f, (double)c->step[i]), frame_y(f, c->bits[i]));
}

static const char STYLE[] =
    "svg { font: 13px system-ui, sans-serif }\n"
    "text { fill: #4a4f57 }\n"
    ".head { font-size: 15px; fill: #16191d }\n"
    ".paper { fill: #ffffff }\n"
    ".grid { stroke: #e3e6ea }\n"
    ".axis { stroke: #6b727b }\n"
    ".train { fill: none; stroke: #1f6fd0; stroke-width: 2; stroke-linejoin: round }\n"
    ".held { fill: none; stroke: #c2540a; stroke-dasharray: 2 5 }\n"
    ".train-name { fill: #1f6fd0 }\n"
    ".held-dot, .held-name { fill: #c2540a }\n";

static const char STYLE_DARK[] = /* for viewers that prefer it */
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #aab1ba }\n"
    ".head { fill: #eceff3 }\n"
    ".paper { fill: #14171b }\n"
    ".grid { stroke: #2b3037 }\n"
    ".axis { stroke: #838b95 }\n"
    ".train { stroke: #6aaeff }\n"
    ".held { stroke: #ff9d57 }\n"
    ".train-name { fill: #6aaeff }\n"
    ".held-dot, .held-name { fill: #ff9d57 }\n"
    "}\n";

/* Two curves and what the page says of each. */
static page draw_two(const curve *train, const char *train_name, const curve *held,
    const char *held_name, const char *title) {
    page p = {0};
    const frame f = frame_of(train, held);
    page_add(&p,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 420\" width=\"720\" "
        "height=\"420\" role=\"img\">\n");
    page_add(&p, "<title>%s</title>\n<style>\n%s%s</style>\n", title, STYLE, STYLE_DARK);
    page_add(&p,
        "<rect class=\"paper\" width=\"720\" height=\"420\"/>\n<text class=\"head\" x=\"%d\" "
        "y=\"28\">%s</text>\n",
        PLOT_LEFT, title);
    draw_axes(&p, &f);
    draw_curve(&p, &f, train, "train", false);
    draw_curve(&p, &f, held, "held", true);
    if (train->count)
        page_add(&p, "<text class=\"train-name\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
            PLOT_RIGHT, PLOT_TOP + 16, train_name);
    if (held->count)
        page_add(&p, "<text class=\"held-name\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
            PLOT_RIGHT, PLOT_TOP + 36, held_name);
    page_add(&p, "</svg>\n");
    return p;
}

static inline page draw_picture(
    const curve *train, const curve *held, const char *title, uint64_t digits) {
    char names[2][80];
    snprintf(names[0], sizeof names[0], "training text: %.*f", (int)digits,
        train->count ? train->bits[train->count - 1] : 0);
    snprintf(names[1], sizeof names[1], "held-out text: %.*f", (int)digits,
        held->count ? held->bits[held->count - 1] : 0);
    return draw_two(train, names[0], held, names[1], title);
}

#endif /* LOSS_CURVE_INCLUDED */

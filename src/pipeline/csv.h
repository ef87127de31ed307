/* pipeline/csv.h - schedules as text, in the form of PyTorch's (pure)

   Knows: the words of actions. Promises: reading what was written gives the same rows; a word that
   it does not know is named with its line and cell. */
#ifndef CDP_SRC_PIPELINE_CSV_H
#define CDP_SRC_PIPELINE_CSV_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/helpers.h"
#include "../text/format.h"
#include "schedule_api.h"
#include "table.h"

#include <string.h>

/* ---- reading ---- */

/* A cell of the text, without blanks around it. */
typedef struct cdp__pipe_cell_text {
    const char *at, *end;
} cdp__pipe_cell_text;

/* Takes the cell that begins at *at, and moves *at to the ',' or the end of the line behind it. */
CDP__PRIVATE cdp__pipe_cell_text cdp__pipe_next_cell(const char **at) {
    cdp__pipe_cell_text c;
    c.at = *at;
    while (**at && **at != ',' && **at != '\n')
        ++*at;
    c.end = *at;
    while (c.at < c.end && (*c.at == ' ' || *c.at == '\t'))
        ++c.at;
    while (c.at < c.end && (c.end[-1] == ' ' || c.end[-1] == '\t' || c.end[-1] == '\r'))
        --c.end;
    return c;
}

CDP__PRIVATE bool cdp__pipe_read_number(cdp__pipe_cell_text *c, uint32_t limit, uint32_t *out) {
    uint64_t value = 0;
    const char *const from = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9' && value <= limit)
        value = value * 10 + (uint64_t)(*c->at++ - '0');
    *out = (uint32_t)value;
    return c->at > from && value <= limit;
}

/* Words of communication; all but the first two have a micro-batch or none. */
CDP__PRIVATE bool cdp__pipe_is_communication(const cdp__pipe_cell_text *c) {
    static const char *const words[] = {"UNSHARD", "RESHARD", "SEND_F", "RECV_F", "SEND_B",
        "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};
    for (uint32_t i = 0; i < sizeof words / sizeof *words; ++i) {
        const size_t n = strlen(words[i]);
        cdp__pipe_cell_text rest = *c;
        uint32_t micro;
        if ((size_t)(c->end - c->at) < n || memcmp(c->at, words[i], n) != 0) continue;
        rest.at += n;
        if (rest.at == rest.end
            || (cdp__pipe_read_number(&rest, UINT32_MAX - 1, &micro) && rest.at == rest.end))
            return true;
    }
    return false;
}

/* Reads "2F0". Returns 1 for an action, 0 for one of communication, -1 for another word. */
CDP__PRIVATE int32_t cdp__pipe_read_act(cdp__pipe_cell_text *c, cdp_act *out) {
    uint32_t stage = 0, micro = 0, kind = CDP_ACT_F;
    if (!cdp__pipe_read_number(c, UINT16_MAX - 1u, &stage)) return -1;
    if (cdp__pipe_is_communication(c)) {
        c->at = c->end;
        return 0;
    }
    while (kind <= CDP_ACT_W && (c->at == c->end || *c->at != cdp__pipe_letter(kind)))
        ++kind;
    if (kind > CDP_ACT_W) return -1;
    ++c->at;
    if (!cdp__pipe_read_number(c, UINT32_MAX - 1, &micro)) return -1;
    out->kind = (uint8_t)kind;
    out->pair = false;
    out->stage = (uint16_t)stage;
    out->micro = micro;
    return 1;
}

/* Reads a cell into at most two rows; returns how many, or -1. */
CDP__PRIVATE int32_t cdp__pipe_read_cell(cdp__pipe_cell_text c, cdp_act *rows) {
    static const char end[] = ")OVERLAP_F_B";
    if (c.at == c.end) return 0;
    if (*c.at != '(') {
        const int32_t got = cdp__pipe_read_act(&c, rows);
        return c.at == c.end ? got : -1;
    }
    ++c.at;
    if (cdp__pipe_read_act(&c, &rows[0]) != 1 || c.at == c.end || *c.at++ != ';') return -1;
    if (cdp__pipe_read_act(&c, &rows[1]) != 1) return -1;
    if ((size_t)(c.end - c.at) != sizeof end - 1 || memcmp(c.at, end, sizeof end - 1) != 0)
        return -1;
    rows[0].pair = true;
    return 2;
}

/* What a text holds. */
typedef struct cdp__pipe_text_size {
    uint32_t ranks, stages, micros;
    uint64_t rows;
} cdp__pipe_text_size;

/* Counts what a text has; with `acts` it also fills them, and first[0 .. ranks]. False: *why names
   the word that is wrong. Lines without an action at the end of the text are no ranks. */
CDP__PRIVATE bool cdp__pipe_read_text(const char *text, cdp__pipe_text_size *size, cdp_act *acts,
    uint64_t *first, uint32_t ranks, cdp__text *why) {
    uint32_t line = 0, cell = 0;
    memset(size, 0, sizeof *size);
    for (const char *at = text;; ++at) {
        const cdp__pipe_cell_text c = cdp__pipe_next_cell(&at);
        cdp_act rows[2];
        const int32_t n = cdp__pipe_read_cell(c, rows);
        ++cell;
        if (n < 0) {
            cdp__text_add(why, "line %u, cell %u: \"", line + 1, cell);
            cdp__text_bytes(why, c.at, cdp__min((uint64_t)(c.end - c.at), 40));
            cdp__text_add(why,
                "\" is no action; actions look like 2F0, 2B0, 2I0, 2W0, or "
                "(2F1;3B0)OVERLAP_F_B");
            return false;
        }
        for (int32_t i = 0; i < n; ++i, ++size->rows) {
            if (acts) acts[size->rows] = rows[i];
            size->stages = (uint32_t)cdp__max(size->stages, rows[i].stage + 1u);
            size->micros = (uint32_t)cdp__max(size->micros, (uint64_t)rows[i].micro + 1);
        }
        if (n) size->ranks = line + 1;
        if (acts && line < ranks) first[line + 1] = size->rows;
        if (!*at) return true;
        if (*at == ',') continue;
        ++line;
        cell = 0;
    }
}

/* ---- writing ---- */

CDP__PRIVATE void cdp__pipe_add_word(cdp__text *t, bool *later, uint32_t stage, const char *word) {
    cdp__text_add(t, *later ? ",%u%s" : "%u%s", stage, word);
    *later = true;
}

/* Is the row the first of its stage that needs weights, or the last one? */
CDP__PRIVATE bool cdp__pipe_edge_row(
    const cdp__pipe_table *t, uint32_t rank, uint64_t row, bool last) {
    const uint64_t from = last ? row + 1 : t->first[rank];
    const uint64_t to = last ? t->first[rank + 1] : row;
    for (uint64_t i = from; i < to; ++i)
        if (t->acts[i].stage == t->acts[row].stage) return false;
    return true;
}

CDP__PRIVATE void cdp__pipe_add_before(
    cdp__text *text, const cdp__pipe_table *t, uint32_t rank, uint64_t row, bool *later) {
    const cdp_act *a = &t->acts[row];
    if (cdp__pipe_edge_row(t, rank, row, false))
        cdp__pipe_add_word(text, later, a->stage, "UNSHARD");
    if (cdp__pipe_needs(t, a) == CDP__PIPE_NONE) return;
    cdp__pipe_add_word(text, later, a->stage, a->kind == CDP_ACT_F ? "RECV_F" : "RECV_B");
    cdp__text_add(text, "%u", a->micro);
}

CDP__PRIVATE void cdp__pipe_add_after(
    cdp__text *text, const cdp__pipe_table *t, uint32_t rank, uint64_t row, bool *later) {
    const cdp_act *a = &t->acts[row];
    if (cdp__pipe_gives(t, a) != CDP__PIPE_NONE) {
        cdp__pipe_add_word(text, later, a->stage, a->kind == CDP_ACT_F ? "SEND_F" : "SEND_B");
        cdp__text_add(text, "%u", a->micro);
    }
    if (!cdp__pipe_edge_row(t, rank, row, true)) return;
    cdp__pipe_add_word(text, later, a->stage, "RESHARD");
    if (!t->forward_only) cdp__pipe_add_word(text, later, a->stage, "REDUCE_GRAD");
}

/* Writes the rows of a rank from `row` on that run as one; returns how many. */
CDP__PRIVATE uint32_t cdp__pipe_add_step(cdp__text *text, const cdp_act *a, bool *later) {
    if (*later) cdp__text_char(text, ',');
    *later = true;
    if (!a->pair) {
        cdp__pipe_add_act(text, a);
        return 1;
    }
    cdp__text_char(text, '(');
    cdp__pipe_add_act(text, a);
    cdp__text_char(text, ';');
    cdp__pipe_add_act(text, a + 1);
    cdp__text_add(text, ")OVERLAP_F_B");
    return 2;
}

CDP__PRIVATE void cdp__pipe_write_text(cdp__text *text, const cdp__pipe_table *t, bool all) {
    for (uint32_t r = 0; r < t->ranks; ++r) {
        bool later = false;
        for (uint64_t row = t->first[r]; row < t->first[r + 1];) {
            const uint32_t width = cdp__pipe_width(&t->acts[row]);
            for (uint32_t i = 0; all && i < width; ++i)
                cdp__pipe_add_before(text, t, r, row + i, &later);
            (void)cdp__pipe_add_step(text, &t->acts[row], &later);
            for (uint32_t i = 0; all && i < width; ++i)
                cdp__pipe_add_after(text, t, r, row + i, &later);
            row += width;
        }
        cdp__text_char(text, '\n');
    }
    (void)cdp__text_end(text);
}

#endif /* CDP_SRC_PIPELINE_CSV_H */

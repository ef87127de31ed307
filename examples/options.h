/*  options.h - options of a program that have a number each, as in --steps 40, or a text */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct option {
    const char *name;
    uint64_t *value; /* where its number goes, from 1 to `most` */
    uint64_t most;
} option;

/* Reads options up to the first word that does not begin with "--". Returns the index of that word,
   or 0: there is no such option, or its number does not fit. */
static inline int read_options(int argc, char **argv, const option *options, size_t count) {
    int i = 1;
    for (; i < argc && !strncmp(argv[i], "--", 2); i += 2) {
        const uint64_t number = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        size_t k = 0;
        while (k < count && strcmp(argv[i], options[k].name))
            ++k;
        if (k == count || !number || number > options[k].most) return 0;
        *options[k].value = number;
    }
    return i;
}

/* Takes an option with its text out of argv. Returns the text, or NULL: it is not there. */
static inline const char *take_text(int *argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < *argc; ++i) {
        if (strcmp(argv[i], name)) continue;
        const char *text = argv[i + 1];
        for (int k = i + 2; k <= *argc; ++k) /* the NULL at the end, too */
            argv[k - 2] = argv[k];
        *argc -= 2;
        return text;
    }
    return NULL;
}

#endif

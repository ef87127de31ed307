/*  options.h - options of a program that have a number each, as in --steps 40 */
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

#endif

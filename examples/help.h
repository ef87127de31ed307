/*  help.h - what a program answers to --help: what it does, and how to start it */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef HELP_H
#define HELP_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Before anything is started or written: did an argument ask for help? Then it was given. */
static inline bool help(int argc, char **argv, const char *text) {
    for (int i = 1; i < argc; ++i)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            puts(text);
            return true;
        }
    return false;
}

#endif

/*  worlds.h - the main program of a simulator that runs one kind of world after the other

    --seeds A..B    which worlds of each kind; --seeds N: 1..N; --seed N: one
    --trace         what the nodes say
    --plant N       with a planted defect
    KIND            only this kind; otherwise the planted defects are looked for at the end

    The program that includes it has declared `planted`, of its type `plant`, and `trace`. */
#ifndef WORLDS_INCLUDED
#define WORLDS_INCLUDED

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct world_plant {
    plant which;
    uint32_t kind; /* of the worlds in which it shows */
    const char *name;
    const char *words; /* the text of what is found has these; NULL: any */
} world_plant;

typedef struct worlds {
    const char *const *names; /* of the kinds */
    uint32_t kinds;
    uint64_t seeds; /* of each kind, from 1 on, unless others are asked for */
    /* Runs one world. False: it went wrong, and `wrong` says what. */
    bool (*run)(uint64_t seed, uint32_t kind);
    const char *wrong;
    /* After the last world of a kind, of which `bad` went wrong: prints a line. True: all is
       well. */
    bool (*end)(uint32_t kind, uint32_t bad, uint64_t seeds);
    const world_plant *plants;
    uint32_t plant_count;
    uint64_t plant_seeds; /* in as many worlds each planted defect must be found */
} worlds;

static bool worlds_find(const worlds *w, const world_plant *p) {
    uint64_t seed = 0;
    bool found = false;
    planted = p->which;
    while (!found && seed < w->plant_seeds)
        found = !w->run(++seed, p->kind);
    planted = PLANT_NOTHING;
    found = found && (!p->words || strstr(w->wrong, p->words));
    printf("%s planted: %s: %s in world %llu\n", found ? "ok" : "not ok", p->name,
        w->wrong[0] ? w->wrong : "not found", (unsigned long long)seed);
    return found;
}

/* "A..B", or "N" for 1..N. Worlds that are not run would all pass. */
static bool worlds_range(const char *text, unsigned long long *from, unsigned long long *to) {
    const int n = sscanf(text, "%llu..%llu", from, to);
    if (n == 1) {
        *to = *from;
        *from = 1;
    }
    if (n >= 1 && *from >= 1 && *from <= *to) return true;
    printf("--seeds must be A..B or N, not '%s'\n0 passed, 1 failed\n", text);
    return false;
}

static int worlds_main(int argc, char **argv, const worlds *w) {
    unsigned long long from = 1, to = w->seeds;
    uint32_t passed = 0, failed = 0;
    const char *only = NULL;
    for (int i = 1; i < argc; ++i) {
        if (!strcmp(argv[i], "--seeds") && i + 1 < argc) {
            if (!worlds_range(argv[++i], &from, &to)) return 2;
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            from = to = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--plant") && i + 1 < argc)
            planted = (plant)atoi(argv[++i]);
        else if (!strcmp(argv[i], "--trace"))
            trace = true;
        else
            only = argv[i];
    }
    for (uint32_t kind = 0; kind < w->kinds; ++kind) {
        uint32_t bad = 0;
        if (only && strcmp(only, w->names[kind]) != 0) continue;
        for (uint64_t seed = from; seed <= to; ++seed)
            bad += !w->run(seed, kind);
        if (w->end(kind, bad, to - from + 1))
            ++passed;
        else
            ++failed;
        fflush(stdout);
    }
    for (uint32_t i = 0; !only && !planted && i < w->plant_count; ++i) {
        const bool found = worlds_find(w, &w->plants[i]);
        passed += found;
        failed += !found;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0 || passed == 0;
}

#endif

/*  16_memory.c - a training loop with a leak and with fragmentation, and the pictures of both

    You learn: to allocate device memory from cdp_mem.h, and to read its snapshots.

        gcc -O2 examples/16_memory.c -o 16_memory -pthread -lm
        ./16_memory [FOLDER]

    Needs no GPU: the "device" is 256 MiB of host memory. Writes to FOLDER (default: .)
        memory.pickle   open it at pytorch.org/memory_viz, or with tools/memory_viz.c
        memory.svg      memory in use over time: the leak is the staircase that never comes down
        blocks.svg      segments and blocks: small blocks that keep whole segments are fragmentation
    With a GPU, take cdp_mem_source_cuda() in place of the host; nothing else changes. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "../cdp_mem.h"
#include "help.h"
#include <stdio.h>

#define MIB (1ull << 20)
#define STEPS 40
#define LAYERS 6

static cdp_mem *mem;

static void check(cdp_status st) {
    if (st == CDP_OK) return;
    cdp_print_error(stderr);
    exit(1);
}

static void *alloc(uint64_t bytes) {
    void *p;
    check(cdp_mem_alloc_at(mem, NULL, bytes, NULL, CDP_MEM_HERE, &p));
    return p;
}

/* The loss of every step is kept "for the log", with a buffer that nobody needs: the leak. */
static void *losses[STEPS];
static void forward(int step, void **activations) {
    cdp_mem_label("forward");
    for (int i = 0; i < LAYERS; ++i) {
        cdp_mem_label("activation");
        activations[i] = alloc(
            (8 + (uint64_t)i) * MIB - 4096 * (uint64_t)(step % 7)); /* batches differ in length */
        cdp_mem_label(NULL);
    }
    cdp_mem_label("loss");
    losses[step] = alloc(3 * MIB / 2);
    cdp_mem_label(NULL);
    cdp_mem_label(NULL);
}

static void backward(void **activations) {
    cdp_mem_label("backward");
    for (int i = LAYERS - 1; i >= 0; --i) {
        void *const gradient = alloc(4 * MIB);
        check(cdp_mem_free(mem, activations[i]));
        check(cdp_mem_free(mem, gradient));
    }
    cdp_mem_label(NULL);
}

static cdp_mem_shot *train(cdp_mem_shot **early) {
    cdp_mem_shot *late;
    char step_name[32];
    void *weights, *activations[LAYERS];
    cdp_mem_label("weights");
    weights = alloc(40 * MIB);
    cdp_mem_label(NULL);
    for (int step = 0; step < STEPS; ++step) {
        snprintf(step_name, sizeof step_name, "step %d", step / 10 * 10);
        cdp_mem_label(step_name);
        forward(step, activations);
        backward(activations);
        cdp_mem_label(NULL);
        if (step == 10) check(cdp_mem_snapshot(&mem, 1, true, early));
    }
    check(cdp_mem_snapshot(&mem, 1, false, &late));
    check(cdp_mem_free(mem, weights));
    return late;
}

static void write_to(
    const cdp_mem_shot *shot, cdp_mem_format format, const char *folder, const char *name) {
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    check(cdp_mem_write_file(shot, format, path));
    printf("wrote %s\n", path);
}

int main(int argc, char **argv) {
    if (help(argc, argv,
            "16_memory: a leak and fragmentation, found; their pictures go to FOLDER or here.\n"
            "usage: ./16_memory [FOLDER]"))
        return 0;
    const char *const folder = argc > 1 ? argv[1] : ".";
    cdp_mem_source device;
    cdp_mem_desc desc = {.source = &device,
        .record = {.history = CDP_MEM_HISTORY_ALL, .stacks = CDP_MEM_STACKS_SITE}};
    cdp_mem_shot *early = NULL, *late;
    cdp_mem_stats stats;
    char text[4000];
    void *p;
    check(cdp_mem_source_host(NULL, 256 * MIB, &device));
    check(cdp_mem_create(&desc, &mem));
    late = train(&early);

    printf("what grew from step 10 to the end:\n");
    int64_t grew;
    (void)cdp_mem_compare(early, late, &grew, text, sizeof text);
    printf("%s", text);
    printf("%s\n",
        grew > 30 * (int64_t)MIB && strstr(text, "loss")
            ? "the leak is found: each step keeps its loss"
            : "no leak was found");

    /* The losses that are left lie in every segment: plenty is free, but not in one piece. */
    stats = cdp_mem_stats_of(mem);
    if (cdp_mem_alloc(mem, 150 * MIB, NULL, &p) != CDP_OK)
        printf("and the fragmentation: %s\n", cdp_last_error()->text);
    printf("free between blocks in use: %llu MiB of %llu MiB\n",
        (unsigned long long)(stats.inactive_split_bytes[0].current / MIB),
        (unsigned long long)(stats.reserved_bytes[0].current / MIB));

    write_to(late, CDP_MEM_PICKLE, folder, "memory.pickle");
    write_to(late, CDP_MEM_SVG, folder, "memory.svg");
    write_to(late, CDP_MEM_SVG_SEGMENTS, folder, "blocks.svg");
    cdp_mem_shot_free(early);
    cdp_mem_shot_free(late);
    for (int i = 0; i < STEPS; ++i)
        check(cdp_mem_free(mem, losses[i]));
    cdp_mem_destroy(mem);
    return 0;
}

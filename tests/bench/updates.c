/* updates.c - clipping and optimizers beside memcpy, one thread

       updates [VALUES [TURNS]]         default: 4000000 values, 15 turns

   In turns: memcpy of an array of f32; the norm of gradients, and their scaling; updates. Bytes are
   those that each reads and writes (memcpy: twice its size). Prints the least time of each, and its
   bytes per second as a part of memcpy's. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    const char *name;
    uint32_t bytes;  /* read and written for each value */
    cdp_optim optim; /* of an update */
    uint64_t least_ns;
} row;

enum {
    MEMCPY,
    NORM,
    SCALE,
    UPDATES
};
static row rows[] = {{.name = "memcpy", .bytes = 8}, {.name = "norm", .bytes = 4},
    {.name = "scale", .bytes = 8}, {.name = "SGD", .bytes = 12, .optim = {.kind = CDP_OPTIM_SGD}},
    {.name = "momentum", .bytes = 20, .optim = {.kind = CDP_OPTIM_SGD, .momentum = 0.9}},
    {.name = "Adam", .bytes = 28, .optim = {.kind = CDP_OPTIM_ADAM}},
    {.name = "AdamW", .bytes = 28, .optim = {.kind = CDP_OPTIM_ADAMW}},
    {.name = "Adagrad", .bytes = 20, .optim = {.kind = CDP_OPTIM_ADAGRAD}},
    {.name = "RMSprop", .bytes = 20, .optim = {.kind = CDP_OPTIM_RMSPROP}}};
enum {
    ROWS = sizeof rows / sizeof *rows
};

static float *array[4]; /* parameters, gradients, two states */

static cdp_status run(row *r, uint64_t values) {
    const cdp_norm_item item = {.grad = array[1], .count = values};
    const cdp_norm_desc norm = {.items = &item, .count = 1};
    cdp_optim_range range = {.param = array[0], .grad = array[1], .count = values};
    cdp_norm out;
    switch (r - rows) {
    case MEMCPY: memcpy(array[2], array[1], values * sizeof(float)); return CDP_OK;
    case NORM: return cdp_grads_norm(&norm, NULL, &out);
    case SCALE: return cdp_grads_scale(&norm, 0.999);
    default: break;
    }
    ++r->optim.step;
    for (int k = 0; k < 2; ++k)
        range.state[k] = array[2 + k];
    return cdp_optim_update(&r->optim, &range);
}

int main(int argc, char **argv) {
    const cdp_os *os = cdp_os_default();
    const uint64_t values = argc > 1 ? strtoull(argv[1], NULL, 10) : 4000000;
    const int turns = argc > 2 ? atoi(argv[2]) : 15;
    double copied;
    if (!values || turns < 1) return 2;
    for (int k = 0; k < 4; ++k)
        if ((array[k] = (float *)malloc(values * sizeof(float))) == NULL) return 1;
    for (int turn = -1; turn < turns; ++turn) /* the first one warms up */
        for (row *r = rows; r < rows + ROWS; ++r) {
            for (uint64_t i = 0; i < values; ++i) {
                array[0][i] = array[1][i] = (float)(i % 1000) / 1000;
                array[2][i] = array[3][i] = 0;
            }
            const uint64_t from = os->now_ns(os->user);
            if (run(r, values) != CDP_OK) return cdp_print_error(stderr);
            const uint64_t took = os->now_ns(os->user) - from;
            if (turn == 0 || (turn > 0 && took < r->least_ns)) r->least_ns = took;
        }
    copied = rows[MEMCPY].bytes / (double)rows[MEMCPY].least_ns;
    printf("%llu values, least of %d turns\n", (unsigned long long)values, turns);
    for (row *r = rows; r < rows + ROWS; ++r)
        printf("%-10s %7.3f ns a value, %5.2f of memcpy's bandwidth\n", r->name,
            (double)r->least_ns / (double)values, r->bytes / (double)r->least_ns / copied);
    for (int k = 0; k < 4; ++k)
        free(array[k]);
    return 0;
}

/*  board.c - firmware: two boards without a system train a model together over a serial line

    You learn: to run cdp without system, threads, heap or stdio: what to leave out, what to supply.

        make firmware                 builds it, runs two boards in an emulator, and says the rest

    The program has one thread, no heap but an arena of fixed size, and no stdio. It prints the loss
    after the last step and how much memory it has used. RANK (0 or 1) is set by the compiler. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define TRAIN_RANKS_ONLY
#include "cdp.h"
#include "line.h"
#include "model.h"
#include "train.h"
#include "board.h"

/* ---- memory: the first free piece that is long enough ---------------------------------------- */
#define ARENA_UNIT 8u

typedef struct piece {
    uint32_t bytes; /* with this header */
    uint32_t used;
} piece;

static struct {
    uint64_t memory[ARENA_BYTES / 8];
    uint32_t most; /* the end of the highest piece that was ever used */
} arena;

static piece *arena_next(piece *p) {
    return (piece *)(void *)((uint8_t *)p + p->bytes);
}

/* Joins free pieces on its way. */
static void *arena_alloc(void *user, uint64_t bytes) {
    const uint32_t need =
        (uint32_t)((bytes + sizeof(piece) + ARENA_UNIT - 1) & ~(uint64_t)(ARENA_UNIT - 1));
    piece *p = (piece *)(void *)arena.memory, *const end = p + ARENA_BYTES / sizeof *p;
    (void)user;
    if (bytes > ARENA_BYTES) return NULL;
    if (!p->bytes) p->bytes = ARENA_BYTES;
    for (; p < end; p = arena_next(p)) {
        while (!p->used && arena_next(p) < end && !arena_next(p)->used)
            p->bytes += arena_next(p)->bytes;
        if (p->used || p->bytes < need) continue;
        if (p->bytes > need) {
            piece *rest = (piece *)(void *)((uint8_t *)p + need);
            rest->bytes = p->bytes - need;
            rest->used = 0;
            p->bytes = need;
        }
        p->used = 1;
        if ((uint32_t)((uint8_t *)arena_next(p) - (uint8_t *)arena.memory) > arena.most)
            arena.most = (uint32_t)((uint8_t *)arena_next(p) - (uint8_t *)arena.memory);
        return p + 1;
    }
    return NULL;
}

static void arena_release(void *user, void *at) {
    (void)user;
    if (at) ((piece *)at - 1)->used = 0;
}

/* ---- chance: a board with a generator in hardware asks that one ------------------------------ */
static cdp_status board_random(void *user, void *to, uint64_t bytes) {
    uint32_t state = (uint32_t)board_now_ns(NULL) * 2654435761u + RANK + 1;
    uint64_t i;
    (void)user;
    for (i = 0; i < bytes; ++i) {
        (void)model_random(&state);
        ((uint8_t *)to)[i] = (uint8_t)(state >> 16);
    }
    return CDP_OK;
}

/* ---- numbers for people ---------------------------------------------------------------------- */
static void print_number(const char *before, uint32_t v, uint32_t base, uint32_t digits) {
    char text[12];
    uint32_t i = sizeof text;
    text[--i] = 0;
    do {
        text[--i] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v || i + digits >= sizeof text);
    board_print(before);
    board_print(text + i);
}

static void print_loss(float loss) {
    uint32_t bits;
    memcpy(&bits, &loss, sizeof bits);
    print_number("rank ", RANK, 10, 1);
    print_number(": loss 0.", (uint32_t)(loss * 1e6f), 10, 6);
    print_number(" (bits ", bits, 16, 8);
    board_print(")\n");
}

static void print_memory(void) {
    const uint32_t statics =
        (uint32_t)((board_data_end - board_data) + (board_bss_end - board_bss)) * 4
        - (uint32_t)sizeof arena.memory;
    print_number("ram: ", statics + arena.most + board_stack_used(), 10, 1);
    print_number(" bytes: static ", statics, 10, 1);
    print_number(", arena ", arena.most, 10, 1);
    print_number(", stack ", board_stack_used(), 10, 1);
    board_print("\n");
}

int main(void) {
    static line wire;
    static const line_port port = {NULL, board_put, board_get, board_pause};
    static cdp_os os;
    model m;
    cdp_transport transport;
    float loss = 0;
    cdp_status st;
    os.alloc = arena_alloc;
    os.release = arena_release;
    os.now_ns = board_now_ns;
    os.random = board_random;
    st = line_open(&wire, &port, &os, RANK, &transport);
    if (st == CDP_OK) st = train(&m, RANK, &transport, &os, &loss);
    if (st == CDP_OK) {
        print_loss(loss);
    } else {
        print_number("rank ", RANK, 10, 1);
        board_print(": failed: ");
        board_print(cdp_last_error()->text);
        board_print("\n");
    }
    print_memory();
    board_print("end\n");
    return 0;
}

/*  board.h - the hardware of an "AN385" of Arm's MPS2 boards, as far as the firmware needs it: a
    Cortex-M3 at 25 MHz without floating point, two serial lines, the SysTick clock. On another
    board only this file and board.ld are different. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#ifndef BOARD_INCLUDED
#define BOARD_INCLUDED

#define BOARD_HZ 25000000u

typedef struct board_uart {
    volatile uint32_t data, state, control, interrupts, divider;
} board_uart;

enum {
    BOARD_TX_FULL = 1, /* state */
    BOARD_RX_FULL = 2,
    BOARD_TX_ON = 1, /* control */
    BOARD_RX_ON = 2,
    BOARD_RX_INTERRUPT = 8,
    BOARD_RX_CAME = 2 /* interrupts */
};

/* The first line is for people, the second one leads to the other board. */
#define board_console ((board_uart *)0x40004000u)
#define board_link ((board_uart *)0x40005000u)
#define BOARD_LINK_INTERRUPT 2u

#define board_systick ((volatile uint32_t *)0xe000e010u) /* control, reload, value */
#define board_enable (*(volatile uint32_t *)0xe000e100u)

/* From board.ld. */
extern uint32_t board_stack[], board_stack_end[], board_data[], board_data_end[], board_data_from[],
    board_bss[], board_bss_end[];

#define BOARD_PAINT 0x5a5a5a5au

static volatile uint32_t board_ms;

/* ---- bytes that have come, until somebody takes them ---- */
enum {
    BOARD_ROOM = 64
}; /* a power of two */
static volatile uint8_t board_bytes[BOARD_ROOM];
static volatile uint32_t board_came, board_taken;

static void board_on_tick(void) {
    ++board_ms;
}

static void board_on_byte(void) {
    board_link->interrupts = BOARD_RX_CAME; /* first: a byte that comes from now on sets it again */
    while (board_link->state & BOARD_RX_FULL) {
        const uint8_t byte = (uint8_t)board_link->data;
        if (board_came - board_taken == BOARD_ROOM) continue; /* lost: its frame comes again */
        board_bytes[board_came % BOARD_ROOM] = byte;
        ++board_came;
    }
}

static void board_on_fault(void) {
    for (;;) {
    }
}

static void board_start(void) {
    board_console->divider = board_link->divider = BOARD_HZ / 115200;
    board_console->control = BOARD_TX_ON;
    board_link->control = BOARD_TX_ON | BOARD_RX_ON | BOARD_RX_INTERRUPT;
    board_enable = 1u << BOARD_LINK_INTERRUPT;
    board_systick[1] = BOARD_HZ / 1000 - 1;
    board_systick[2] = 0;
    board_systick[0] = 7; /* the processor's clock, an interrupt, on */
}

int main(void);

void board_reset(void);
void board_reset(void) {
    const uint32_t *from = board_data_from;
    uint32_t *to, *stack;
    volatile uint32_t *paint;
    for (to = board_data; to < board_data_end;)
        *to++ = *from++;
    for (to = board_bss; to < board_bss_end;)
        *to++ = 0;
    __asm volatile("mov %0, sp" : "=r"(stack));
    for (paint = board_stack; paint < stack; ++paint) /* to see later how much of it was used */
        *paint = BOARD_PAINT;
    board_start();
    (void)main();
    board_on_fault();
}

typedef struct board_vectors {
    uint32_t *stack;
    void (*handler[15 + 16])(void);
} board_vectors;

static const board_vectors board_table __attribute__((section(".vectors"))) __attribute__((used));
static const board_vectors board_table = {
    board_stack_end,
    {board_reset, board_on_fault, board_on_fault, board_on_fault, board_on_fault, board_on_fault, 0,
        0, 0, 0, board_on_fault, board_on_fault, 0, board_on_fault, board_on_tick, board_on_fault,
        board_on_fault, board_on_byte},
};

/* ---- what main() needs ---- */

static uint64_t board_now_ns(void *user) {
    uint32_t ms, left;
    (void)user;
    do {
        ms = board_ms;
        left = board_systick[2];
    } while (ms != board_ms);
    return ms * 1000000ull + (BOARD_HZ / 1000 - 1 - left) * (1000000000u / BOARD_HZ);
}

static uint32_t board_put(void *self, const uint8_t *from, uint32_t bytes) {
    uint32_t i;
    (void)self;
    for (i = 0; i < bytes && !(board_link->state & BOARD_TX_FULL); ++i)
        board_link->data = from[i];
    return i;
}

static uint32_t board_get(void *self, uint8_t *to, uint32_t bytes) {
    uint32_t i;
    (void)self;
    for (i = 0; i < bytes && board_taken != board_came; ++i) {
        to[i] = board_bytes[board_taken % BOARD_ROOM];
        ++board_taken;
    }
    return i;
}

/* Sleeps until an interrupt: a byte, or the next millisecond. */
static void board_pause(void *self, bool sending, uint64_t deadline_ns) {
    (void)self;
    if (sending || board_now_ns(NULL) >= deadline_ns) return;
    __asm volatile("cpsid i");
    if (board_taken == board_came) __asm volatile("wfi"); /* a pending interrupt ends it, too */
    __asm volatile("cpsie i");
}

static void board_print(const char *text) {
    for (; *text; ++text) {
        while (board_console->state & BOARD_TX_FULL) {
        }
        board_console->data = (uint8_t)*text;
    }
}

static uint32_t board_stack_used(void) {
    const uint32_t *at = board_stack;
    while (*at == BOARD_PAINT)
        ++at;
    return (uint32_t)((const uint8_t *)board_stack_end - (const uint8_t *)at);
}

#endif

/*  pc.c - the other end of the line on a PC: trains with a board, or alone for comparison

    You learn: how a program with a system joins a job of boards that leave parts of cdp out.

        gcc -O2 -ffp-contract=off -DCDP_FEW_ALGORITHMS -I. examples/18_firmware/pc.c -o pc \
            -pthread -lm
        ./pc alone
        ./pc 1 SOCKET        rank 1; SOCKET is where the emulator offers the board's serial line

    CDP_FEW_ALGORITHMS must be defined as it is on the board: ranks that know different algorithms
    refuse to work together. Everything else that the board leaves out may be there. */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define CDP_IMPLEMENTATION
#include "cdp.h"
#include "line.h"
#include "model.h"
#include "train.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int link_fd = -1;

/* What cannot be written is as good as lost on the line. */
static uint32_t link_put(void *self, const uint8_t *from, uint32_t bytes) {
    const ssize_t n = send(link_fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)self;
    if (n < 0 && errno != EAGAIN && errno != EINTR) return bytes;
    return n < 0 ? 0 : (uint32_t)n;
}

static uint32_t link_get(void *self, uint8_t *to, uint32_t bytes) {
    const ssize_t n = recv(link_fd, to, bytes, MSG_DONTWAIT);
    (void)self;
    return n < 0 ? 0 : (uint32_t)n;
}

static void link_pause(void *self, bool sending, uint64_t deadline_ns) {
    const cdp_os *os = cdp_os_default();
    const uint64_t now = os->now_ns(os->user);
    struct pollfd p = {link_fd, (short)(sending ? POLLIN | POLLOUT : POLLIN), 0};
    (void)self;
    if (now >= deadline_ns) return;
    (void)poll(&p, 1,
        deadline_ns - now > 1000 * LINE_MS ? 1000 : (int)((deadline_ns - now) / LINE_MS) + 1);
    if (p.revents & POLLHUP)
        (void)poll(NULL, 0, 1); /* the board is gone: do not look all the time */
}

static bool link_connect(const char *path) {
    struct sockaddr_un to;
    memset(&to, 0, sizeof to);
    to.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof to.sun_path) return false;
    strcpy(to.sun_path, path);
    link_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return link_fd >= 0 && connect(link_fd, (const struct sockaddr *)&to, sizeof to) == 0;
}

static void print_loss(const char *who, float loss) {
    uint32_t bits;
    memcpy(&bits, &loss, sizeof bits);
    printf("%s: loss %.6f (bits %08x)\n", who, (double)loss, (unsigned)bits);
}

int main(int argc, char **argv) {
    static const line_port port = {NULL, link_put, link_get, link_pause};
    static line wire;
    cdp_transport transport;
    model m;
    float loss = 0;
    cdp_status st;
    const uint32_t rank = argc == 3 && argv[1][0] == '0' ? 0 : 1;
    if (argc == 2 && strcmp(argv[1], "alone") == 0) {
        print_loss("alone", train_alone(&m));
        return 0;
    }
    if (argc != 3) {
        fprintf(stderr, "usage: pc alone | pc 0|1 SOCKET\n");
        return 2;
    }
    if (!link_connect(argv[2])) {
        perror(argv[2]);
        return 1;
    }
    st = line_open(&wire, &port, cdp_os_default(), rank, &transport);
    if (st == CDP_OK) st = train(&m, rank, &transport, cdp_os_default(), &loss);
    if (st != CDP_OK) return cdp_print_error(stderr);
    print_loss(rank ? "rank 1" : "rank 0", loss);
    printf("line: %u frames with payload, %u of them repeated, %u broken ones received\n",
        (unsigned)wire.counts.frames, (unsigned)wire.counts.again, (unsigned)wire.counts.broken);
    return 0;
}

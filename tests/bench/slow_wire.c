/* slow_wire.c PREFIX RATE_BYTES_PER_S DELAY_MS - two network namespaces, PREFIX0 and PREFIX1 with
   the addresses 10.97.0.1 and 10.97.0.2, joined by a wire in user space that carries RATE bytes a
   second each way and delivers them DELAY_MS later (for kernels without netem). Needs root, ip and
   /dev/net/tun. Prints "up", then carries packets until its standard input ends; prints the
   bytes that went each way, and removes the namespaces. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum {
    PACKET = 1600,
    QUEUE = 4096 /* packets on their way; more are dropped, as a router does */
};

/* One direction. */
typedef struct way {
    uint64_t free_at_ns; /* the wire has sent what was given to it */
    uint64_t due_ns[QUEUE];
    uint32_t length[QUEUE], first, count;
    unsigned char packet[QUEUE][PACKET];
    uint64_t bytes;
} way;

static way ways[2];
static int tun[2];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool command(const char *format, const char *prefix, int i) {
    char text[300];
    snprintf(text, sizeof text, format, prefix, i, i + 1);
    return system(text) == 0;
}

/* A namespace with a tun device, whose packets this process reads. */
static int open_end(const char *prefix, int i) {
    const int home = open("/proc/self/ns/net", O_RDONLY);
    struct ifreq r;
    char path[300];
    int there, fd = -1;
    if (!command("ip netns add %s%d", prefix, i)) return -1;
    snprintf(path, sizeof path, "/run/netns/%s%d", prefix, i);
    there = open(path, O_RDONLY);
    if (there >= 0 && setns(there, CLONE_NEWNET) == 0) {
        fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
        memset(&r, 0, sizeof r);
        snprintf(r.ifr_name, sizeof r.ifr_name, "wire0");
        r.ifr_flags = IFF_TUN | IFF_NO_PI;
        if (fd >= 0 && ioctl(fd, TUNSETIFF, &r) != 0) fd = -1;
        if (setns(home, CLONE_NEWNET) != 0) fd = -1;
    }
    close(there);
    close(home);
    if (fd >= 0
        && !command("ip -n %1$s%2$d link set lo up; ip -n %1$s%2$d addr add 10.97.0.%3$d/24 dev "
                    "wire0; ip -n %1$s%2$d link set wire0 up mtu 1500",
            prefix, i))
        return -1;
    return fd;
}

static void take(way *w, int from, uint64_t rate, uint64_t delay_ns) {
    for (;;) {
        unsigned char p[PACKET];
        const ssize_t n = read(from, p, sizeof p);
        const uint64_t t = now_ns();
        const uint32_t at = (w->first + w->count) % QUEUE;
        if (n <= 0) return;
        if (w->count == QUEUE) continue;
        if (w->free_at_ns < t) w->free_at_ns = t;
        w->free_at_ns += (uint64_t)n * 1000000000u / rate;
        w->due_ns[at] = w->free_at_ns + delay_ns;
        w->length[at] = (uint32_t)n;
        memcpy(w->packet[at], p, (size_t)n);
        w->bytes += (uint64_t)n;
        ++w->count;
    }
}

/* Returns when the next packet is due. */
static uint64_t deliver(way *w, int to) {
    while (w->count && w->due_ns[w->first] <= now_ns()) {
        if (write(to, w->packet[w->first], w->length[w->first]) < 0) { /* lost */
        }
        w->first = (w->first + 1) % QUEUE;
        --w->count;
    }
    return w->count ? w->due_ns[w->first] : UINT64_MAX;
}

static void carry(uint64_t rate, uint64_t delay_ns) {
    struct pollfd p[3] = {{tun[0], POLLIN, 0}, {tun[1], POLLIN, 0}, {0, POLLIN, 0}};
    while (!p[2].revents) {
        const uint64_t a = deliver(&ways[0], tun[1]), b = deliver(&ways[1], tun[0]), t = now_ns();
        uint64_t wait = 1000000000u, due = a < b ? a : b;
        if (due <= t) due = t;
        if (due - t < wait) wait = due - t;
        const struct timespec limit = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        ppoll(p, 3, &limit, NULL);
        take(&ways[0], tun[0], rate, delay_ns);
        take(&ways[1], tun[1], rate, delay_ns);
    }
}

int main(int argc, char **argv) {
    bool ok = argc == 4;
    if (!ok) fprintf(stderr, "slow_wire PREFIX RATE_BYTES_PER_S DELAY_MS\n");
    for (int i = 0; ok && i < 2; ++i)
        ok = (tun[i] = open_end(argv[1], i)) >= 0;
    if (ok) {
        printf("up\n");
        fflush(stdout);
        carry(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10) * 1000000u);
        printf("%llu and %llu bytes\n", (unsigned long long)ways[0].bytes,
            (unsigned long long)ways[1].bytes);
    }
    for (int i = 0; argc == 4 && i < 2; ++i)
        (void)!command("ip netns del %s%d", argv[1], i);
    return ok ? 0 : 1;
}

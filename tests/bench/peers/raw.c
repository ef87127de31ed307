/* What sockets on 127.0.0.1 and the memory of this machine allow, measured as collectives.c measures:
     exchange   log2(ranks) rounds in which two ranks send each other all bytes: the least that a small allreduce can take
     duplex     every rank sends all bytes to the next one and receives as many from the one before, at once
     oneway     rank 0 sends all bytes to rank 1
     pingpong   there and back
     memcpy     each rank copies the bytes; add: adds them to others
     and, with transport "memory", collectives over memory that all ranks see: loops and nothing else, a part for each rank
   Lines with transport "spin" look again and again; "sleep" waits in poll(); "reno" is with that congestion control. */
#include "../measure.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* with the congestion control of this machine, and with reno */
static int both[2][M_RANKS][M_RANKS], (*links)[M_RANKS];

static void make_links(bool reno) {
    uint32_t i, j;
    const int on = 1;
    links = both[reno];
    for (i = 0; i < m_opt.ranks; ++i)
        for (j = i + 1; j < m_opt.ranks; ++j) {
            struct sockaddr_in a;
            socklen_t len = sizeof a;
            const int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
            memset(&a, 0, sizeof a);
            a.sin_family = AF_INET;
            a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 1)
                || getsockname(l, (struct sockaddr *)&a, &len)
                || connect(c, (struct sockaddr *)&a, sizeof a))
                m_die("sockets");
            links[i][j] = accept(l, NULL, NULL);
            links[j][i] = c;
            close(l);
            if (reno) {
                setsockopt(c, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
                setsockopt(links[i][j], IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
            }
            setsockopt(links[i][j], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            fcntl(links[i][j], F_SETFL, fcntl(links[i][j], F_GETFL) | O_NONBLOCK);
            fcntl(c, F_SETFL, fcntl(c, F_GETFL) | O_NONBLOCK);
        }
}

static uint64_t piece(uint64_t left) {
    return left < M_MIB ? left : M_MIB;
}

/* Both at once; what does not move at the moment is looked at again, or slept on. */
static void transfer(
    int out, const void *src, uint64_t out_bytes, int in, void *dst, uint64_t in_bytes, bool spin) {
    uint64_t sent = 0, got = 0;
    while (sent < out_bytes || got < in_bytes) {
        bool any = false;
        if (sent < out_bytes) {
            const ssize_t r =
                send(out, (const char *)src + sent, piece(out_bytes - sent), MSG_NOSIGNAL);
            if (r > 0) {
                sent += (uint64_t)r;
                any = true;
            } else if (r < 0 && errno != EAGAIN)
                m_die("send");
        }
        if (got < in_bytes) {
            const ssize_t r = recv(in, (char *)dst + got, piece(in_bytes - got), 0);
            if (r > 0) {
                got += (uint64_t)r;
                any = true;
            } else if (r == 0 || errno != EAGAIN)
                m_die("recv");
        }
        if (any) continue;
        if (!spin) {
            struct pollfd p[2];
            p[0].fd = got < in_bytes ? in : -1;
            p[0].events = POLLIN;
            p[1].fd = sent < out_bytes ? out : -1;
            p[1].events = POLLOUT;
            if (poll(p, 2, 60000) <= 0) m_die("poll");
        } else if (m_opt.ranks > 2) {
            sched_yield();
        }
    }
}

static void add(float *__restrict acc, const float *__restrict x, uint64_t n) {
    uint64_t i, j;
    for (i = 0; i + 64 <= n; i += 64)
        for (j = 0; j < 64; ++j)
            acc[i + j] += x[i + j];
    for (; i < n; ++i)
        acc[i] += x[i];
}

static void sum(
    float *__restrict to, const float *__restrict x, const float *__restrict y, uint64_t n) {
    uint64_t i, j;
    for (i = 0; i + 64 <= n; i += 64)
        for (j = 0; j < 64; ++j)
            to[i + j] = x[i + j] + y[i + j];
    for (; i < n; ++i)
        to[i] = x[i] + y[i];
}

/* ---- collectives in memory that all ranks see ---- */

static char *arena; /* for each rank its input and its result */
static uint64_t room;

static void *from_arena(uint64_t bytes) {
    static uint32_t count;
    (void)bytes;
    return arena + (2 * m_rank + count++) * room;
}
static float *in_of(uint32_t rank) {
    return (float *)(void *)(arena + 2 * rank * room);
}
static float *out_of(uint32_t rank) {
    return (float *)(void *)(arena + (2 * rank + 1) * room);
}

/* Elements first .. first + n of the sum of all inputs; a strip at a time, which stays in the
   cache. */
static void sum_of_all(float *to, uint64_t first, uint64_t n) {
    uint64_t i, r;
    for (i = 0; i < n; i += 4096) {
        const uint64_t k = n - i < 4096 ? n - i : 4096;
        sum(to + i, in_of(0) + first + i, in_of(1) + first + i, k);
        for (r = 2; r < m_opt.ranks; ++r)
            add(to + i, in_of((uint32_t)r) + first + i, k);
    }
}

static void in_memory(const m_case *c) {
    const uint64_t n = c->op == M_ALLREDUCE ? c->count / c->ranks : c->count,
                   left = c->op == M_ALLREDUCE ? c->count % c->ranks : 0;
    const uint32_t me = c->rank;
    uint32_t k;
    if (c->op == M_ALLREDUCE) {
        sum_of_all(c->out + me * n, me * n, n + (me + 1 == c->ranks ? left : 0));
        m_meet(NULL);
    }
    if (c->op == M_REDUCE_SCATTER) sum_of_all(c->out, me * n, n);
    if (c->op == M_BROADCAST && me) memcpy(c->out, out_of(0), c->bytes);
    for (k = 0; k < c->ranks; ++k) {
        const uint32_t r = (me + k) % c->ranks;
        if (c->op == M_ALLREDUCE && r != me)
            memcpy(c->out + r * n, out_of(r) + r * n, (n + (r + 1 == c->ranks ? left : 0)) * 4);
        if (c->op == M_ALLGATHER) memcpy(c->out + r * n, in_of(r), n * 4);
        if (c->op == M_ALLTOALL) memcpy(c->out + r * n, in_of(r) + me * n, n * 4);
    }
    m_meet(NULL); /* nobody leaves before his memory has been read */
}

static bool call(m_case *c) {
    const uint32_t me = c->rank, n = c->ranks;
    static const char *const names[] = {"spin", "sleep", "spin/reno", "sleep/reno"};
    const bool spin = c->variant % 2 == 0, more = c->variant < 3;
    uint32_t k;
    c->transport = names[c->variant];
    links = both[c->variant / 2];
    switch (c->op) {
    case M_PINGPONG:
        if (me == 0) transfer(links[0][1], c->in, c->bytes, -1, NULL, 0, spin);
        transfer(-1, NULL, 0, links[me][1 - me], c->out, c->bytes, spin);
        if (me == 1) transfer(links[1][0], c->out, c->bytes, -1, NULL, 0, spin);
        return more;
    case M_EXCHANGE:
        for (k = 1; k < n; k *= 2)
            transfer(links[me][me ^ k], c->in, c->bytes, links[me][me ^ k], c->out, c->bytes, spin);
        return more;
    case M_DUPLEX:
        transfer(links[me][(me + 1) % n], c->in, c->bytes, links[me][(me + n - 1) % n], c->out,
            c->bytes, spin);
        return more;
    case M_ONEWAY:
        if (me == 0)
            transfer(links[0][1], c->in, c->bytes, -1, NULL, 0, spin);
        else
            transfer(-1, NULL, 0, links[1][0], c->out, c->bytes, spin);
        return more;
    case M_MEMCPY:
        c->transport = "memory";
        memcpy(c->out, c->in, c->bytes);
        __asm__ volatile("" : : "r"(c->out) : "memory");
        return false;
    case M_ADD:
        c->transport = "memory";
        add(c->out, c->in, c->count);
        return false;
    default:
        c->transport = "memory";
        in_memory(c);
        return false;
    }
}

static int rank_main(uint32_t rank) {
    static const bool has[M_OPS] = {
        true, true, true, true, true, false, true, true, true, true, true, true};
    (void)rank;
    return m_run("raw", "-", has, call) ? 0 : 1;
}

int main(int argc, char **argv) {
    const int status = m_parse(argc, argv);
    if (status >= 0) return status;
    if (m_opt.ranks & (m_opt.ranks - 1)) return m_usage(argv[0], stderr, 2);
    for (uint32_t i = 0; i < m_opt.size_count; ++i)
        room = room > m_opt.sizes[i] ? room : m_opt.sizes[i];
    room = (room + 2 * 4096) / 4096 * 4096;
    arena = (char *)mmap(
        NULL, 2 * m_opt.ranks * room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) m_die("no memory");
    m_alloc = from_arena;
    m_open();
    make_links(false);
    make_links(true);
    return m_fork(rank_main);
}

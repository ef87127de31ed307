/* cdp_tcp.h: processes destroy their group and start again at the same address, each rank late in
   turn. tests/sim/again.c does that with more seeds, and with failures; this is the real system. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "ports.h"
#include "test.h"

#include <signal.h>
#include <sys/wait.h>

enum {
    RANKS = 3,
    ROUNDS = 12,
    LATE_US = 20000
};

static uint16_t port;
static const char *file;
static bool foreign;          /* another process serves the store */
static uint16_t ports[RANKS]; /* where each rank listens; 0: at any port */

static cdp_status start(uint32_t rank, cdp_group **g) {
    cdp_tcp_desc d;
    memset(&d, 0, sizeof d);
    d.group.rank = rank;
    d.group.world_size = RANKS;
    d.group.logger.level = CDP_LOG_SILENT;
    d.group.timeout_ms = 5000 * TEST_LATE;
    d.init_timeout_ms = 5000 * TEST_LATE;
    d.master_port = file ? 0 : port;
    d.file = file;
    d.external_store = foreign;
    d.first_port = ports[rank];
    return cdp_init(&d, g);
}

/* `fails`: the late rank ends each start by an abort. */
static int rounds(uint32_t rank, bool fails) {
    for (uint32_t i = 0; i < ROUNDS; ++i) {
        const bool late = i % (RANKS + 1) == rank;
        uint32_t sum = i;
        cdp_group *g;
        if (start(rank, &g) != CDP_OK) return cdp_print_error(stdout);
        if (cdp_allreduce(g, NULL, &sum, 1, CDP_DTYPE_U32, CDP_REDUCE_SUM) != CDP_OK && !fails)
            return cdp_print_error(stdout);
        if (!fails && sum != RANKS * i) return printf("round %u: the sum is %u\n", i, sum);
        if (fails && late) cdp_group_abort(g, "enough");
        if (late) usleep(LATE_US);
        cdp_group_destroy(g);
        if (late && i % 2) usleep(LATE_US);
    }
    return 0;
}

static void all_rounds(bool fails) {
    pid_t pid[RANKS];
    int state = 0;
    for (uint32_t i = 0; i < RANKS; ++i) {
        fflush(stdout);
        pid[i] = fork();
        if (pid[i]) continue;
        alarm(30 * TEST_LATE);
        state = rounds(i, fails);
        fflush(stdout);
        _exit(state != 0);
    }
    for (uint32_t i = 0; i < RANKS; ++i) {
        waitpid(pid[i], &state, 0);
        test_check(state == 0, __FILE__, __LINE__, "rank %u ended with %d", i, state);
    }
}

TEST(rank_0_serves_the_store) {
    port = free_port();
    all_rounds(false);
    all_rounds(true);
}

/* In a process of its own: a sanitizer of threads permits no fork beside the server's thread. */
static pid_t serve(void) {
    cdp_store_server_desc d;
    cdp_store_server *server;
    const pid_t pid = fork();
    if (pid) return pid;
    alarm(60 * TEST_LATE);
    memset(&d, 0, sizeof d);
    d.port = port;
    if (cdp_store_server_create(&d, &server) != CDP_OK) _exit(cdp_print_error(stdout));
    for (;;)
        pause();
}

TEST(others_serve_the_store) {
    int state;
    pid_t pid;
    port = free_port();
    pid = serve();
    foreign = true;
    all_rounds(false);
    all_rounds(true);
    foreign = false;
    T_EQ(0, waitpid(pid, &state, WNOHANG)); /* it has served all the time */
    kill(pid, SIGKILL);
    waitpid(pid, &state, 0);
}

/* The system may give a rank the port that it had in the start before: its address alone does not
   say which of the two claims the rank. */
TEST(a_rank_listens_at_the_port_of_the_start_before) {
    pid_t pid;
    port = free_port();
    for (uint32_t i = 0; i < RANKS; ++i)
        ports[i] = free_port();
    pid = serve();
    foreign = true;
    all_rounds(false);
    foreign = false;
    memset(ports, 0, sizeof ports);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

TEST(they_meet_in_a_file) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/cdp_again_%d", (int)getpid());
    unlink(path);
    file = path;
    all_rounds(false);
    all_rounds(true);
    file = NULL;
    T(access(path, F_OK) != 0);
}

static uint32_t zeros; /* of this process's random numbers, at their end */

static cdp_status random_with_zeros(void *user, void *out, uint64_t bytes) {
    const cdp_status st = cdp_os_default()->random(user, out, bytes);
    const uint64_t from = bytes > zeros ? bytes - zeros : 0;
    if (zeros && bytes == 8) memset((uint8_t *)out + from, 0, (size_t)(bytes - from));
    return st;
}

static bool is_told(uint32_t rank) {
    cdp_os os = *cdp_os_default();
    cdp_tcp_desc d;
    cdp_group *g;
    memset(&d, 0, sizeof d);
    os.random = random_with_zeros;
    d.group.os = &os;
    d.group.rank = rank;
    d.group.world_size = RANKS;
    d.group.logger.level = CDP_LOG_SILENT;
    d.init_timeout_ms = 3000 * TEST_LATE;
    d.master_port = port;
    return cdp_init(&d, &g) == CDP_ERR_MISMATCH
        && strstr(cdp_last_error()->text, "two processes claim rank 1");
}

/* What a process says of itself has the same length whatever its random number is: else the other
   one does not find its address, takes it for dead, and takes its rank over. */
TEST(two_processes_with_one_rank_find_each_other) {
    for (uint32_t few = 0; few < 4; ++few) {
        pid_t pid[RANKS];
        int state = 0;
        port = free_port();
        for (uint32_t i = 0; i < RANKS; ++i) { /* ranks 0, 1 and 1 */
            fflush(stdout);
            pid[i] = fork();
            if (pid[i]) continue;
            zeros = few & i; /* in process 1, in process 2, in both, in none */
            _exit(!is_told(i > 0));
        }
        for (uint32_t i = 0; i < RANKS; ++i) {
            waitpid(pid[i], &state, 0);
            test_check(state == 0, __FILE__, __LINE__, "process %u was not told, %u", i, few);
        }
    }
}

static int32_t plain_connection(const cdp_addr *to) {
    cdp__sockaddr at;
    socklen_t bytes = cdp__os_to_native(to, &at);
    int32_t fd = socket(at.any.sa_family, SOCK_STREAM, 0);
    T(connect(fd, &at.any, bytes) == 0);
    return fd;
}

/* Makes a connection, and ends it from the side that made it. Returns the port that the system gave
   to that side: its socket is in TIME_WAIT now. */
static uint16_t port_of_a_connection(const char *host, bool plain) {
    const cdp_os *os = cdp_os_default();
    cdp_addr at, bound;
    int32_t listener, from, fd;
    memset(&at, 0, sizeof at);
    T(cdp__addr_parse(host, &at));
    listener = os->net.listen_at(os->user, &at, &bound);
    from = plain ? plain_connection(&bound) : os->net.connect_to(os->user, &bound);
    test_sleep_ms(20);
    fd = accept(listener, NULL, NULL);
    T(fd >= 0 && os->net.local_addr(os->user, from, &at) == 0);
    close(from);
    close(fd);
    close(listener);
    return at.port;
}

/* ::1 where there is one: other programs leave their ports at 127.0.0.1. */
static const char *quiet_host(void) {
    const cdp_os *os = cdp_os_default();
    cdp_addr at, bound;
    int32_t fd;
    memset(&at, 0, sizeof at);
    T(cdp__addr_parse("::1", &at));
    fd = os->net.listen_at(os->user, &at, &bound);
    if (fd < 0) return "127.0.0.1";
    close(fd);
    return "::1";
}

/* The next job may want a port that a connection of the one before had. */
TEST(a_connection_leaves_its_port) {
    cdp_store_server_desc d;
    cdp_store_server *server;
    cdp_status st = CDP_PENDING;
    memset(&d, 0, sizeof d);
    d.host = quiet_host();
    /* Where thousands of connections have just ended, the system gives their ports again, and one
       of another program may still have the port beside ours. */
    for (int i = 0; i < 100 && st != CDP_OK; ++i) {
        d.port = port_of_a_connection(d.host, false);
        st = cdp_store_server_create(&d, &server);
    }
    T_EQ(CDP_OK, st);
    cdp_store_server_destroy(server);
    d.port = port_of_a_connection(d.host, true); /* of another program: nobody listens there */
    T_EQ(CDP_ERR_IO, cdp_store_server_create(&d, &server));
#ifdef __linux__
    T_TEXT("no program listens there", cdp_last_error()->text);
#endif
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"rank_0_serves_the_store", rank_0_serves_the_store, 30},
        {"others_serve_the_store", others_serve_the_store, 30},
        {"a_rank_listens_at_the_port_of_the_start_before",
            a_rank_listens_at_the_port_of_the_start_before, 30},
        {"they_meet_in_a_file", they_meet_in_a_file, 30},
        {"two_processes_with_one_rank_find_each_other", two_processes_with_one_rank_find_each_other,
            60},
        {"a_connection_leaves_its_port", a_connection_leaves_its_port, 30},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

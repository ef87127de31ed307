/* cdp_tcp.h: meeting in a file. Whatever is wrong with the file, cdp_init ends in time. */
#define CDP_IMPLEMENTATION
#include "cdp_tcp.h"
#include "test.h"

#include <sys/stat.h>
#include <sys/wait.h>

static char path[64];

static cdp_status meet(uint32_t ms, uint64_t *took_ms) {
    cdp_tcp_desc d;
    cdp_group *g = NULL;
    const uint64_t start = test_now_ns();
    cdp_status status;
    memset(&d, 0, sizeof d);
    d.group.rank = 1;
    d.group.world_size = 2;
    d.file = path;
    d.init_timeout_ms = ms;
    d.group.logger.level = CDP_LOG_SILENT;
    status = cdp_init(&d, &g);
    *took_ms = (test_now_ns() - start) / CDP__MS;
    if (g) cdp_group_destroy(g);
    return status;
}

/* A process that was stopped while it had the lock keeps it. */
TEST(a_stopped_process_has_the_lock) {
    uint64_t took;
    int to[2];
    char c;
    pid_t pid;
    if (pipe(to) != 0) abort();
    pid = fork();
    if (!pid) {
        const int fd = open(path, O_RDWR | O_CREAT, 0600);
        if (flock(fd, LOCK_EX) != 0 || write(to[1], "x", 1) != 1) _exit(1);
        raise(SIGSTOP);
        for (;;)
            pause();
    }
    T(read(to[0], &c, 1) == 1);
    T_EQ(CDP_ERR_TIMEOUT, meet(500, &took));
    T_TEXT(path, cdp_last_error()->text);
    T_TEXT("locked", cdp_last_error()->text);
    /* an eighth of the time is kept for what follows the meeting */
    test_check(took >= 430 && took <= 550 + 100 * TEST_LATE + TEST_STILL_MS, __FILE__, __LINE__,
        "it took %llu ms", (unsigned long long)took);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(to[0]);
    close(to[1]);
    unlink(path);
}

/* In a folder where everybody may put files, a link leads to somebody else's. */
TEST(a_symbolic_link_is_refused) {
    char target[80];
    struct stat st;
    uint64_t took;
    snprintf(target, sizeof target, "%s.target", path);
    if (symlink(target, path) != 0) abort();
    T_EQ(CDP_ERR_INVALID, meet(500, &took));
    T_TEXT("is a symbolic link", cdp_last_error()->text);
    T(stat(target, &st) != 0);
    unlink(path);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_stopped_process_has_the_lock", a_stopped_process_has_the_lock, 30},
        {"a_symbolic_link_is_refused", a_symbolic_link_is_refused, 20},
    };
    snprintf(path, sizeof path, "/tmp/cdp_test_meeting.%d", (int)getpid());
    unlink(path);
    return test_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

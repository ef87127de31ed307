/* elastic_procs.h - jobs of cdp_elastic.h whose ranks are processes. Include after cdp_elastic.h.

   The parent stays without threads. It forks a process that serves the store, and the ranks; the
   outcome of each rank is in memory that all share, so that it can also be read of a killed one. */
#ifndef ELASTIC_PROCS_INCLUDED
#define ELASTIC_PROCS_INCLUDED

#include "elastic_job.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum {
    MOST = 24
};

static struct {
    job_member *m; /* shared */
    pid_t pid[MOST], server;
    uint32_t count;
} job;

TEST_API pid_t fork_one(void) {
    fflush(stdout);
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(9);
    }
    return pid;
}

static int listen_here(char *port, size_t size) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 || listen(fd, 100) != 0) abort();
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) abort();
    snprintf(port, size, "%u", ntohs(a.sin_port));
    return fd;
}

static void serve(int fd) {
    cdp_store_server_desc d = {0};
    cdp_store_server *s;
    d.has_listen_fd = true;
    d.listen_fd = fd;
    d.no_thread = true;
    if (cdp_store_server_create(&d, &s) != CDP_OK) _exit(cdp_print_error(stderr));
    while (cdp_store_server_poll(s, test_now_ns() + 1000000000u) == CDP_OK) {
    }
    _exit(cdp_print_error(stderr));
}

TEST_API void job_begin(void) {
    char port[12];
    const int fd = listen_here(port, sizeof port);
    memset(&job, 0, sizeof job);
    job.m = (job_member *)mmap(
        NULL, MOST * sizeof *job.m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job.m == MAP_FAILED) abort();
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    unsetenv("CDP_ELASTIC");
    job.server = fork_one();
    if (job.server == 0) serve(fd);
    close(fd);
    for (uint32_t i = 0; i < MOST; ++i) {
        job.m[i].from_env = true;
        job.m[i].status = CDP_PENDING;
        job.m[i].tcp.group.logger.level = CDP_LOG_SILENT;
    }
}

TEST_API void job_end(void) {
    for (uint32_t i = 0; i < job.count; ++i)
        if (job.pid[i]) {
            kill(job.pid[i], SIGKILL);
            waitpid(job.pid[i], NULL, 0);
        }
    kill(job.server, SIGKILL);
    waitpid(job.server, NULL, 0);
    munmap(job.m, MOST * sizeof *job.m);
}

TEST_API uint32_t start(void) {
    const uint32_t i = job.count++;
    job.pid[i] = fork_one();
    if (job.pid[i]) return i;
    job_run(&job.m[i]);
    _exit(0);
}

TEST_API void end_of(uint32_t i) {
    if (job.pid[i]) waitpid(job.pid[i], NULL, 0);
    job.pid[i] = 0;
}

TEST_API void kill_one(uint32_t i) {
    kill(job.pid[i], SIGKILL);
    end_of(i);
}

TEST_API const volatile cdp_elastic_now *last_of(uint32_t i) {
    return (const volatile cdp_elastic_now *)&job.m[i].last;
}

/* Not of one that is killed meanwhile. */
TEST_API bool reaches(uint32_t i, uint64_t step) {
    const uint64_t until = test_until_ns(10000);
    const volatile cdp_status *status = (const volatile cdp_status *)&job.m[i].status;
    while (last_of(i)->step < step && *status == CDP_PENDING && test_now_ns() < until)
        test_sleep_ms(1);
    return test_check(last_of(i)->step >= step, __FILE__, __LINE__,
        "member %u is at step %llu of %llu: %s: %s", i, (unsigned long long)last_of(i)->step,
        (unsigned long long)step, cdp_status_name(*status), job.m[i].error.text);
}

TEST_API bool ended(uint32_t i, cdp_status want) {
    const job_member *m = &job.m[i];
    end_of(i);
    return test_check(m->status == want && !m->wrong, __FILE__, __LINE__,
        "member %u: %s, %u wrong: %s\n%s", i, cdp_status_name(m->status), m->wrong, m->error.text,
        m->history);
}

#endif

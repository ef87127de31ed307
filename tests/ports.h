/* A port for a test's own server: below those that systems give to connections, which may take any
   of theirs between the moment when a test looks and the moment when it listens. */
#ifndef TEST_PORTS_INCLUDED
#define TEST_PORTS_INCLUDED
#include "test.h"
#ifndef _WIN32
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#endif

TEST_API void port_drop(int fd) {
#ifdef _WIN32
    closesocket((SOCKET)fd);
#else
    close(fd);
#endif
}

TEST_API uint16_t free_port(void) {
    static uint64_t dice;
    if (!dice) dice = test_now_ns() ^ (uint64_t)getpid() << 32;
    for (int i = 0; i < 10000; ++i) {
        const uint16_t port = (uint16_t)(10000 + test_random(&dice) % 22000);
        const int fd = (int)socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in at;
        bool is_free;
        memset(&at, 0, sizeof at);
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_ANY);
        at.sin_port = htons(port);
        is_free = bind(fd, (const struct sockaddr *)&at, sizeof at) == 0;
        port_drop(fd);
        if (is_free) return port;
    }
    abort();
}

#endif

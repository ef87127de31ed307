/* os/windows_shared.h - memory that processes share, and handles for another process

   Knows: file mappings, named pipes, handles of other processes. Promises: what cdp_os says of
   shared memory. The system itself says which process is at the other end of a pipe. */
#ifndef CDP_SRC_OS_WINDOWS_SHARED_H
#define CDP_SRC_OS_WINDOWS_SHARED_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "posix.h"
#include "windows.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#if defined(_WIN32) && !defined(CDP_NO_SHARED_MEMORY)
#define CDP__PASS_MAX 4u

/* A message in a pipe. It passes either a socket, as WSADuplicateSocket() describes it to the
   other process, or memory: its handle in the sending process. */
typedef struct cdp__os_passed {
    uint32_t count, is_socket;
    uint64_t handle;
    WSAPROTOCOL_INFOW socket;
} cdp__os_passed;

/* The mapping is backed by the page file and committed as a whole; it has no name. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_memory_create(void *user, uint64_t bytes) {
    HANDLE h;
    (void)user;
    if (bytes > PTRDIFF_MAX / 2) return -ENOMEM;
    h = CreateFileMappingW(INVALID_HANDLE_VALUE, NULL, PAGE_READWRITE | SEC_COMMIT,
        (DWORD)(bytes >> 32), (DWORD)(bytes & 0xffffffff), NULL);
    if (!h) return -ENOMEM;
    if ((uintptr_t)h <= INT32_MAX) return (int32_t)(uintptr_t)h;
    CloseHandle(h);
    return -EMFILE;
}

/* Maps the whole memory. Its size is a multiple of the page size, so both processes see the same
   size. */
CDP__PRIVATE void *cdp__os_memory_map(void *user, int32_t fd, bool writable, uint64_t *bytes) {
    MEMORY_BASIC_INFORMATION info;
    const DWORD access = writable ? FILE_MAP_READ | FILE_MAP_WRITE : FILE_MAP_READ;
    void *at = MapViewOfFile((HANDLE)(uintptr_t)fd, access, 0, 0, 0);
    (void)user;
    if (!at) return NULL;
    *bytes = VirtualQuery(at, &info, sizeof info) ? (uint64_t)info.RegionSize : 0;
    if (*bytes) return at;
    UnmapViewOfFile(at);
    return NULL;
}

CDP__PRIVATE void cdp__os_memory_unmap(void *user, void *at, uint64_t bytes) {
    (void)user;
    (void)bytes;
    UnmapViewOfFile(at);
}

/* A hash of this machine and of the user of this process; 0: not known. */
CDP__PRIVATE uint64_t cdp__os_memory_host(void *user) {
    char text[256];
    union {
        TOKEN_USER head;
        uint8_t room[sizeof(TOKEN_USER) + SECURITY_MAX_SID_SIZE];
    } who;
    DWORD n = sizeof text, i;
    HANDLE token = NULL;
    uint64_t id = 1;
    bool known;
    (void)user;
    known = GetComputerNameA(text, &n) != 0;
    for (i = 0; known && i < n; ++i)
        id = id * 1000003 + (uint8_t)text[i];
    n = sizeof text;
    known = known
        && RegGetValueA(HKEY_LOCAL_MACHINE, "SOFTWARE\\Microsoft\\Cryptography", "MachineGuid",
               RRF_RT_REG_SZ, NULL, text, &n)
            == 0;
    for (i = 0; known && i < n; ++i)
        id = id * 1000003 + (uint8_t)text[i];
    known = known && OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token)
        && GetTokenInformation(token, TokenUser, &who, sizeof who, &n);
    if (token) CloseHandle(token);
    n = known ? GetLengthSid(who.head.User.Sid) : 0;
    for (i = 0; i < n; ++i)
        id = id * 1000003 + ((const uint8_t *)who.head.User.Sid)[i];
    return known ? id | 1 : 0;
}

/* A pipe to one other process on this machine. It never blocks. */
CDP__PRIVATE CDP__COLD int32_t cdp__os_pass_open(void *user, const uint8_t name[12], bool waits) {
    char path[32] = "\\\\.\\pipe\\cdp-";
    DWORD never = PIPE_READMODE_MESSAGE | PIPE_NOWAIT;
    HANDLE h;
    (void)user;
    memcpy(path + 13, name, 12);
    if (waits)
        h = CreateNamedPipeA(path, PIPE_ACCESS_DUPLEX | FILE_FLAG_FIRST_PIPE_INSTANCE,
            PIPE_TYPE_MESSAGE | never | PIPE_REJECT_REMOTE_CLIENTS, 1, 65536, 65536, 0, NULL);
    else
        h = CreateFileA(path, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING,
            SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION, NULL);
    if (h == INVALID_HANDLE_VALUE) return GetLastError() == ERROR_ACCESS_DENIED ? -EACCES : -ENOENT;
    if (waits || SetNamedPipeHandleState(h, &never, NULL, NULL)) return (int32_t)(uintptr_t)h;
    CloseHandle(h);
    return -EIO;
}

/* A new handle for the only connection of a pipe; -EAGAIN: no data has arrived. */
CDP__PRIVATE int32_t cdp__os_pipe_accept(int32_t pipe) {
    DWORD bytes = 0;
    HANDLE made;
    (void)ConnectNamedPipe((HANDLE)(uintptr_t)pipe, NULL);
    if (!PeekNamedPipe((HANDLE)(uintptr_t)pipe, NULL, 0, NULL, &bytes, NULL) || !bytes)
        return -EAGAIN;
    if (!DuplicateHandle(GetCurrentProcess(), (HANDLE)(uintptr_t)pipe, GetCurrentProcess(), &made,
            0, FALSE, DUPLICATE_SAME_ACCESS))
        return -EMFILE;
    return (int32_t)(uintptr_t)made;
}

/* Accepts from a listening socket, or from a pipe of pass_open(), for which accept() fails (under
   wine with WSAEOPNOTSUPP). */
CDP__PRIVATE int32_t cdp__os_accept_any(void *user, int32_t listener, cdp_addr *from) {
    const int32_t made = cdp__os_accept(user, listener, from);
    const int said = made < 0 ? WSAGetLastError() : 0;
    return said == WSAENOTSOCK || said == WSAEOPNOTSUPP ? cdp__os_pipe_accept(listener) : made;
}

/* True if `process` belongs to the same user as the calling process. */
CDP__PRIVATE bool cdp__os_same_user(HANDLE process) {
    union {
        TOKEN_USER head;
        uint8_t room[sizeof(TOKEN_USER) + SECURITY_MAX_SID_SIZE];
    } who[2];
    const HANDLE of[2] = {process, GetCurrentProcess()};
    uint32_t i;
    for (i = 0; i < 2; ++i) {
        HANDLE token;
        DWORD n;
        BOOL known;
        if (!OpenProcessToken(of[i], TOKEN_QUERY, &token)) return false;
        known = GetTokenInformation(token, TokenUser, &who[i], sizeof who[i], &n);
        CloseHandle(token);
        if (!known) return false;
    }
    return EqualSid(who[0].head.User.Sid, who[1].head.User.Sid) != 0;
}

/* The process at the other end of a pipe; NULL if it is not known to belong to the same user. */
CDP__PRIVATE HANDLE cdp__os_pipe_peer(HANDLE pipe, ULONG *pid) {
    DWORD flags = 0;
    HANDLE peer;
    if (!GetNamedPipeInfo(pipe, &flags, NULL, NULL, NULL)) return NULL;
    if (!(flags & PIPE_SERVER_END ? GetNamedPipeClientProcessId(pipe, pid)
                                  : GetNamedPipeServerProcessId(pipe, pid)))
        return NULL;
    peer = OpenProcess(PROCESS_DUP_HANDLE | PROCESS_QUERY_INFORMATION, FALSE, *pid);
    if (peer && cdp__os_same_user(peer)) return peer;
    if (peer) CloseHandle(peer);
    return NULL;
}

CDP__PRIVATE int32_t cdp__os_pass_send(HANDLE pipe, ULONG pid, const int32_t *fds, uint32_t n) {
    cdp__os_passed of[CDP__PASS_MAX];
    DWORD moved = 0, i;
    memset(of, 0, sizeof of);
    for (i = 0; i < n; ++i) {
        of[i].count = n;
        of[i].handle = (uint64_t)fds[i];
        of[i].is_socket = WSADuplicateSocketW((SOCKET)fds[i], pid, &of[i].socket) == 0;
        if (!of[i].is_socket && WSAGetLastError() != WSAENOTSOCK) return -cdp__os_socket_error();
    }
    if (!WriteFile(pipe, of, n * (DWORD)sizeof *of, &moved, NULL)) return -EPIPE;
    return moved ? (int32_t)pid : -EAGAIN;
}

/* Makes a descriptor in this process for one that the other process passed. */
CDP__PRIVATE int32_t cdp__os_pass_take(HANDLE peer, cdp__os_passed *p) {
    HANDLE made;
    if (p->is_socket)
        return cdp__os_descriptor(WSASocketW(FROM_PROTOCOL_INFO, FROM_PROTOCOL_INFO,
            FROM_PROTOCOL_INFO, &p->socket, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT));
    if (!DuplicateHandle(peer, (HANDLE)(uintptr_t)p->handle, GetCurrentProcess(), &made, 0, FALSE,
            DUPLICATE_SAME_ACCESS))
        return -EMFILE;
    return (int32_t)(uintptr_t)made;
}

CDP__PRIVATE int32_t cdp__os_pass_receive(
    HANDLE pipe, HANDLE peer, ULONG pid, int32_t *fds, uint32_t n) {
    cdp__os_passed of[CDP__PASS_MAX];
    DWORD moved = 0, i;
    if (!PeekNamedPipe(pipe, NULL, 0, NULL, &moved, NULL)) return -ECONNRESET;
    if (!moved) return -EAGAIN;
    if (!ReadFile(pipe, of, sizeof of, &moved, NULL)) return -ECONNRESET;
    if (moved != n * sizeof *of || of[0].count != n) return -EPROTO;
    for (i = 0; i < n; ++i) {
        fds[i] = cdp__os_pass_take(peer, &of[i]);
        if (fds[i] >= 0) continue;
        moved = i;
        for (i = 0; i < moved; ++i)
            cdp__os_close(NULL, fds[i]);
        return fds[moved];
    }
    return (int32_t)pid;
}

CDP__PRIVATE CDP__COLD int32_t cdp__os_pass(
    void *user, int32_t fd, int32_t *fds, uint32_t n, bool sending) {
    const HANDLE pipe = (HANDLE)(uintptr_t)fd;
    ULONG pid = 0;
    const HANDLE peer = cdp__os_pipe_peer(pipe, &pid);
    int32_t r;
    (void)user;
    if (!peer) return -EACCES;
    r = sending ? cdp__os_pass_send(pipe, pid, fds, n)
                : cdp__os_pass_receive(pipe, peer, pid, fds, n);
    CloseHandle(peer);
    return r;
}

CDP__PRIVATE int32_t cdp__os_memory_read(
    void *user, int32_t pid, const uint64_t *from, const cdp_iov *to, uint32_t n) {
    const HANDLE peer = OpenProcess(PROCESS_VM_READ, FALSE, (DWORD)pid);
    int32_t err = peer ? 0 : -EPERM;
    uint32_t i;
    (void)user;
    for (i = 0; i < n && !err; ++i) {
        SIZE_T moved = 0;
        if ((uintptr_t)from[i] != from[i] /* of a process with longer addresses */
            || !ReadProcessMemory(
                peer, (const void *)(uintptr_t)from[i], to[i].data, (SIZE_T)to[i].bytes, &moved)
            || moved != to[i].bytes)
            err = -EFAULT;
    }
    if (peer) CloseHandle(peer);
    return err;
}
#endif

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_WINDOWS_SHARED_H */

/* os/files.h - POSIX files

   Knows: system calls for files. Promises: what cdp_os_files says; nothing outside the os sections
   calls the system for a file. */
#ifndef CDP_SRC_OS_FILES_H
#define CDP_SRC_OS_FILES_H

#include "../base/config.h"
#include "os_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"

#ifndef CDP_NO_OS /* what the default cdp_os is made of, to the end of >>os-linux */

#ifndef CDP_NO_FILES
#ifndef _WIN32
CDP__PRIVATE int32_t cdp__os_open_file(void *user, const char *path, uint32_t how) {
    const bool alone = (how & CDP_FILE_PRIVATE) != 0;
    int flags = O_CLOEXEC | O_NONBLOCK; /* O_NONBLOCK: the file may be a pipe */
    int fd;
    (void)user;
    flags |= how & CDP_FILE_WRITE ? O_RDWR : O_RDONLY;
    if (how & CDP_FILE_CREATE) flags |= O_CREAT;
    if (how & CDP_FILE_EMPTY) flags |= O_TRUNC;
    if (alone) flags |= O_NOFOLLOW;
    do
        fd = open(path, flags, alone ? 0600 : 0666); /* less what umask takes away */
    while (fd < 0 && errno == EINTR);
    return fd >= 0 ? fd : -errno;
}

CDP__PRIVATE int32_t cdp__os_close_file(void *user, int32_t fd) {
    (void)user;
    /* EINTR: the descriptor is closed all the same */
    return close(fd) == 0 || errno == EINTR ? 0 : -errno;
}

CDP__PRIVATE int64_t cdp__os_read_at(
    void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    ssize_t n;
    (void)user;
    do
        n = pread(fd, to, (size_t)bytes, (off_t)at);
    while (n < 0 && errno == EINTR);
    return n >= 0 ? n : -errno;
}

CDP__PRIVATE int64_t cdp__os_write_at(
    void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    ssize_t n;
    (void)user;
    do {
        n = pwrite(fd, from, (size_t)bytes, (off_t)at);
        if (n < 0 && errno == ESPIPE) n = write(fd, from, (size_t)bytes);
    } while (n < 0 && errno == EINTR);
    return n >= 0 ? n : -errno;
}

CDP__PRIVATE int32_t cdp__os_cut_file(void *user, int32_t fd, uint64_t bytes) {
    int r;
    (void)user;
    do
        r = ftruncate(fd, (off_t)bytes);
    while (r < 0 && errno == EINTR);
    return r == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_lock_file(void *user, int32_t fd, cdp_file_lock lock) {
    static const int how[] = {LOCK_UN, LOCK_SH | LOCK_NB, LOCK_EX | LOCK_NB};
    int r;
    (void)user;
    do
        r = flock(fd, how[lock]);
    while (r < 0 && errno == EINTR);
    if (r == 0) return 0;
    return errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

CDP__PRIVATE int32_t cdp__os_file_info(void *user, int32_t fd, cdp_file_info *out) {
    struct stat st;
    (void)user;
    if (fstat(fd, &st) != 0) return -errno;
    out->bytes = (uint64_t)st.st_size;
    out->device = (uint64_t)st.st_dev;
    out->number = (uint64_t)st.st_ino;
    out->owner = (uint32_t)st.st_uid;
    out->mode = (uint32_t)st.st_mode & 07777;
    out->regular = S_ISREG(st.st_mode) != 0;
    out->removed = st.st_nlink == 0;
    out->foreign = st.st_uid != geteuid() || (st.st_mode & 022) != 0;
    return 0;
}

CDP__PRIVATE int32_t cdp__os_remove_file(void *user, const char *path) {
    (void)user;
    return unlink(path) == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_rename_file(void *user, const char *from, const char *to) {
    (void)user;
    return rename(from, to) == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_link_file(void *user, const char *from, const char *to) {
    (void)user;
    return link(from, to) == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_sync_file(void *user, int32_t fd) {
    int r;
    (void)user;
#ifdef F_FULLFSYNC /* macOS: fsync() leaves bytes in the cache of the disk */
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
#endif
    do
        r = fsync(fd);
    while (r < 0 && errno == EINTR);
    return r == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_sync_folder(void *user, const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int32_t r;
    if (fd < 0) return -errno;
    r = cdp__os_sync_file(user, fd);
    close(fd);
    return r == -EINVAL ? 0 : r; /* file systems that keep names in order by themselves */
}

CDP__PRIVATE int32_t cdp__os_make_folder(void *user, const char *path) {
    (void)user;
    return mkdir(path, 0777) == 0 ? 0 : -errno; /* less what umask takes away */
}

CDP__PRIVATE int32_t cdp__os_remove_folder(void *user, const char *path) {
    (void)user;
    return rmdir(path) == 0 ? 0 : -errno;
}

CDP__PRIVATE int32_t cdp__os_list_folder(
    void *user, const char *path, void (*each)(void *to, const char *name), void *to) {
    DIR *const folder = opendir(path);
    const struct dirent *entry;
    int err;
    (void)user;
    if (!folder) return -errno;
    for (errno = 0; (entry = readdir(folder)) != NULL; errno = 0)
        each(to, entry->d_name);
    err = errno;
    closedir(folder);
    return -err;
}
#else
CDP__PRIVATE int32_t cdp__os_file_error(void) {
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND: return -ENOENT;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION: return -EACCES;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: return -EEXIST;
    case ERROR_DISK_FULL: return -ENOSPC;
    case ERROR_TOO_MANY_OPEN_FILES: return -EMFILE;
    case ERROR_LOCK_VIOLATION:
    case ERROR_IO_PENDING: return -EAGAIN;
    default: return -EIO;
    }
}

CDP__PRIVATE HANDLE cdp__os_file_handle(int32_t fd) {
    return (HANDLE)(intptr_t)fd;
}

/* Other processes may open, rename and remove the file meanwhile, as on POSIX. A new file
   inherits the permissions of its folder. Links are refused only if `how` asks for that. */
CDP__PRIVATE int32_t cdp__os_open_file(void *user, const char *path, uint32_t how) {
    const bool alone = (how & CDP_FILE_PRIVATE) != 0, create = (how & CDP_FILE_CREATE) != 0;
    const DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    const DWORD access = GENERIC_READ | (how & CDP_FILE_WRITE ? GENERIC_WRITE : 0u);
    const DWORD flags = FILE_ATTRIBUTE_NORMAL | (alone ? FILE_FLAG_OPEN_REPARSE_POINT : 0u);
    const DWORD empty = create ? CREATE_ALWAYS : TRUNCATE_EXISTING;
    const DWORD whole = create ? OPEN_ALWAYS : OPEN_EXISTING;
    const DWORD mode = how & CDP_FILE_EMPTY ? empty : whole;
    const HANDLE h = CreateFileA(path, access, share, NULL, mode, flags, NULL);
    BY_HANDLE_FILE_INFORMATION info;
    (void)user;
    if (h == INVALID_HANDLE_VALUE) return cdp__os_file_error();
    if (alone && GetFileInformationByHandle(h, &info)
        && (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT)) {
        CloseHandle(h);
        return -ELOOP;
    }
    return (int32_t)(intptr_t)h;
}

CDP__PRIVATE int32_t cdp__os_close_file(void *user, int32_t fd) {
    (void)user;
    return CloseHandle(cdp__os_file_handle(fd)) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE OVERLAPPED cdp__os_file_place(uint64_t at) {
    OVERLAPPED o;
    memset(&o, 0, sizeof o);
    o.Offset = (DWORD)at;
    o.OffsetHigh = (DWORD)(at >> 32);
    return o;
}

CDP__PRIVATE int64_t cdp__os_read_at(
    void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    OVERLAPPED o = cdp__os_file_place(at);
    DWORD n = 0;
    (void)user;
    if (ReadFile(cdp__os_file_handle(fd), to, (DWORD)cdp__min(bytes, 1u << 30), &n, &o))
        return (int64_t)n;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int64_t cdp__os_write_at(
    void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    OVERLAPPED o = cdp__os_file_place(at);
    DWORD n = 0;
    (void)user;
    if (WriteFile(cdp__os_file_handle(fd), from, (DWORD)cdp__min(bytes, 1u << 30), &n, &o))
        return (int64_t)n;
    return cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_cut_file(void *user, int32_t fd, uint64_t bytes) {
    const HANDLE h = cdp__os_file_handle(fd);
    LARGE_INTEGER at;
    (void)user;
    at.QuadPart = (LONGLONG)bytes;
    return SetFilePointerEx(h, at, NULL, FILE_BEGIN) && SetEndOfFile(h) ? 0 : cdp__os_file_error();
}

/* Locked bytes of a file cannot be read by other processes on Windows, so the lock is on a byte
   far behind the end of any file. */
CDP__PRIVATE int32_t cdp__os_lock_file(void *user, int32_t fd, cdp_file_lock lock) {
    OVERLAPPED o = cdp__os_file_place(1ull << 62);
    const HANDLE h = cdp__os_file_handle(fd);
    const DWORD how =
        LOCKFILE_FAIL_IMMEDIATELY | (lock == CDP_FILE_LOCK_ALONE ? LOCKFILE_EXCLUSIVE_LOCK : 0u);
    (void)user;
    if (lock == CDP_FILE_UNLOCK)
        return UnlockFileEx(h, 0, 1, 0, &o) || GetLastError() == ERROR_NOT_LOCKED
            ? 0
            : cdp__os_file_error();
    return LockFileEx(h, how, 0, 1, 0, &o) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_file_info(void *user, int32_t fd, cdp_file_info *out) {
    BY_HANDLE_FILE_INFORMATION info;
    (void)user;
    if (!GetFileInformationByHandle(cdp__os_file_handle(fd), &info)) return cdp__os_file_error();
    memset(out, 0, sizeof *out);
    out->bytes = (uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow;
    out->device = info.dwVolumeSerialNumber;
    out->number = (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow;
    out->regular =
        !(info.dwFileAttributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT));
    out->removed = info.nNumberOfLinks == 0;
    return 0;
}

CDP__PRIVATE int32_t cdp__os_remove_file(void *user, const char *path) {
    (void)user;
    return DeleteFileA(path) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_rename_file(void *user, const char *from, const char *to) {
    (void)user;
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_link_file(void *user, const char *from, const char *to) {
    (void)user;
    return CreateHardLinkA(to, from, NULL) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_sync_file(void *user, int32_t fd) {
    (void)user;
    return FlushFileBuffers(cdp__os_file_handle(fd)) ? 0 : cdp__os_file_error();
}

/* NTFS keeps changes of names in order by its journal; there is no call to wait for them. */
CDP__PRIVATE int32_t cdp__os_sync_folder(void *user, const char *path) {
    (void)user;
    (void)path;
    return 0;
}

CDP__PRIVATE int32_t cdp__os_make_folder(void *user, const char *path) {
    (void)user;
    return CreateDirectoryA(path, NULL) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_remove_folder(void *user, const char *path) {
    (void)user;
    return RemoveDirectoryA(path) ? 0 : cdp__os_file_error();
}

CDP__PRIVATE int32_t cdp__os_list_folder(
    void *user, const char *path, void (*each)(void *to, const char *name), void *to) {
    char all[1024];
    WIN32_FIND_DATAA entry;
    HANDLE h;
    (void)user;
    if (strlen(path) + 3 > sizeof all) return -ENAMETOOLONG;
    memcpy(all, path, strlen(path));
    memcpy(all + strlen(path), "/*", 3);
    h = FindFirstFileA(all, &entry);
    if (h == INVALID_HANDLE_VALUE) return cdp__os_file_error();
    do
        each(to, entry.cFileName);
    while (FindNextFileA(h, &entry));
    FindClose(h);
    return 0;
}
#endif
#endif

#endif /* CDP_NO_OS */

#endif /* CDP_SRC_OS_FILES_H */

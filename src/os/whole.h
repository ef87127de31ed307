/* os/whole.h - whether a cdp_os has all functions that it must have

   Knows: which functions of os_api.h may be NULL. Promises: one that is missing is named where the
   os enters, and not called later. Builds without texts do not ask. */
#ifndef CDP_SRC_OS_WHOLE_H
#define CDP_SRC_OS_WHOLE_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../message/transport_api.h"
#include "os_api.h"
#include "../base/compiler.h"

#ifdef CDP_NO_LOG_STRINGS
#define cdp__os_whole(os, call) CDP_OK
#else

#define CDP__NEED(f) \
    if (!os->f) return #f

/* The name of a function that is missing; NULL: none is. A group is absent as a whole. */
CDP__PRIVATE CDP__COLD const char *cdp__os_lacks_threads(const cdp_os *os) {
#ifdef CDP_NO_THREADS /* which calls none of them */
    (void)os;
#else
    if (!os->threads.start) return NULL;
    CDP__NEED(threads.join);
    CDP__NEED(threads.yield);
    CDP__NEED(threads.mutex_create);
    CDP__NEED(threads.mutex_destroy);
    CDP__NEED(threads.mutex_lock);
    CDP__NEED(threads.mutex_unlock);
    CDP__NEED(threads.cond_create);
    CDP__NEED(threads.cond_destroy);
    CDP__NEED(threads.cond_wait);
    CDP__NEED(threads.cond_broadcast);
#endif
    return NULL;
}

CDP__PRIVATE CDP__COLD const char *cdp__os_lacks_net(const cdp_os *os) {
    if (!os->net.watch_open) return NULL;
    CDP__NEED(random);
    CDP__NEED(net.resolve);
    CDP__NEED(net.listen_at);
    CDP__NEED(net.accept_next);
    CDP__NEED(net.connect_to);
    CDP__NEED(net.connect_result);
    CDP__NEED(net.send_iov);
    CDP__NEED(net.recv_iov);
    CDP__NEED(net.close_fd);
    CDP__NEED(net.local_addr);
    CDP__NEED(net.watch_close);
    CDP__NEED(net.watch_add);
    CDP__NEED(net.watch_change);
    CDP__NEED(net.watch_remove);
    CDP__NEED(net.watch_wait);
    if (!os->net.wake_open) return NULL;
    CDP__NEED(net.wake_set);
    CDP__NEED(net.wake_clear);
    return NULL;
}

CDP__PRIVATE CDP__COLD const char *cdp__os_lacks_shared(const cdp_os *os) {
    if (os->shared.create) {
        CDP__NEED(shared.map);
        CDP__NEED(shared.unmap);
        CDP__NEED(shared.pass_open);
        CDP__NEED(shared.pass);
    }
    if (os->shared.process_place) CDP__NEED(shared.process_open);
    return NULL;
}

CDP__PRIVATE CDP__COLD const char *cdp__os_lacks_files(const cdp_os *os) {
    const cdp_os_files *const f = &os->files;
    if (!f->open_file) return NULL;
    CDP__NEED(files.close_file);
    CDP__NEED(files.read_at);
    CDP__NEED(files.write_at);
    CDP__NEED(files.cut_file);
    CDP__NEED(files.lock_file);
    CDP__NEED(files.file_info);
    CDP__NEED(files.remove_file);
    CDP__NEED(files.rename_file);
    if (!f->sync_file && !f->sync_folder && !f->make_folder && !f->remove_folder && !f->list_folder)
        return NULL;
    CDP__NEED(files.sync_file);
    CDP__NEED(files.sync_folder);
    CDP__NEED(files.make_folder);
    CDP__NEED(files.remove_folder);
    CDP__NEED(files.list_folder);
    return NULL;
}

CDP__PRIVATE CDP__COLD const char *cdp__os_lacks(const cdp_os *os) {
    const char *lacks;
    CDP__NEED(alloc);
    CDP__NEED(release);
    CDP__NEED(now_ns);
    lacks = cdp__os_lacks_net(os);
    if (!lacks) lacks = cdp__os_lacks_threads(os);
    if (!lacks) lacks = cdp__os_lacks_shared(os);
    return lacks ? lacks : cdp__os_lacks_files(os);
}
#undef CDP__NEED

/* Refuses an os that lacks a function; NULL is the default one. Not cold: callers would be, too. */
CDP__PRIVATE cdp_status cdp__os_whole(const cdp_os *os, const char *call) {
    const char *const name = os ? cdp__os_lacks(os) : NULL;
    if (!name) return CDP_OK;
    return cdp_error_set(CDP_ERR_INVALID, -1, 0,
        "%s: this cdp_os lacks %s: set it, or copy *cdp_os_default() and replace parts of the copy",
        call, name);
}
#endif

#endif /* CDP_SRC_OS_WHOLE_H */

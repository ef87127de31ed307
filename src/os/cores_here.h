/* os/cores_here.h - the processors of this machine

   Knows: Linux's lists in /sys, and the mask of a process. Promises: elsewhere, and where such a
   list is missing, all processors that may be used are cores of one node, or nothing is known. */
#ifndef CDP_SRC_OS_CORES_HERE_H
#define CDP_SRC_OS_CORES_HERE_H

#include "../base/config.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../text/format.h"
#include "cores.h"

#if defined(__linux__) && !defined(CDP_NO_OS)
#include "linux.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Adds what a file lists to *out. False: there is no such file. */
CDP__PRIVATE bool cdp__cores_file(cdp__cores *out, const char *form, uint32_t number) {
    char path[96], text[4096];
    cdp__format(path, sizeof path, form, number);
    if (!cdp__os_read_text(path, text, sizeof text)) return false;
    cdp__cores_list(out, text);
    return true;
}

/* The cores of those processors of a node that may be used. */
CDP__PRIVATE void cdp__cores_node_here(
    cdp__cores_map *m, const cdp__cores *node, const cdp__cores *allowed) {
    for (uint32_t p = 0; p < CDP__CORES_MAX; ++p) {
        cdp__cores threads;
        if (!cdp__cores_has(node, p) || !cdp__cores_has(allowed, p)) continue;
        memset(&threads, 0, sizeof threads);
        (void)cdp__cores_file(
            &threads, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", p);
        cdp__cores_add(&threads, p);
        cdp__cores_map_add(m, &threads, allowed);
    }
    cdp__cores_map_node(m);
}

/* What this process may use. False: that is not known. */
CDP__PRIVATE bool cdp__cores_map_here(cdp__cores_map *m) {
    cdp__cores allowed, some;
    memset(&allowed, 0, sizeof allowed);
    memset(&some, 0, sizeof some);
    cdp__cores_map_begin(m);
    if (syscall(SYS_sched_getaffinity, 0l, sizeof allowed.bits, allowed.bits) <= 0) return false;
    if (cdp__cores_file(&some, "/sys/devices/system/node/online", 0)) {
        for (uint32_t i = 0; i < CDP__CORES_MAX; ++i) {
            cdp__cores node;
            memset(&node, 0, sizeof node);
            if (cdp__cores_has(&some, i)
                && cdp__cores_file(&node, "/sys/devices/system/node/node%u/cpulist", i))
                cdp__cores_node_here(m, &node, &allowed);
        }
    }
    if (!m->cores) cdp__cores_node_here(m, &allowed, &allowed);
    return m->cores > 0;
}

/* Binds this process, and what it will start. Returns 0, or -errno. Takes no lock, for a child
   before exec. */
CDP__PRIVATE int32_t cdp__cores_bind_here(const cdp__cores *c) {
    return syscall(SYS_sched_setaffinity, 0l, sizeof c->bits, c->bits) == 0 ? 0 : -errno;
}
#else
CDP__PRIVATE bool cdp__cores_map_here(cdp__cores_map *m) {
    cdp__cores_map_begin(m);
    return false;
}
CDP__PRIVATE int32_t cdp__cores_bind_here(const cdp__cores *c) {
    (void)c;
    return -ENOSYS;
}
#endif

#endif /* CDP_SRC_OS_CORES_HERE_H */

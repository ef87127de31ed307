/* launch/facts.h - what every launcher knows: how a process ended, which of two failures was the
   first, what a rank wrote to its error file, where its files lie

   Knows: ends of processes, error files, names of files. Promises: the agent of this header and
   tools/cdprun say the same of the same end. */
#ifndef CDP_SRC_LAUNCH_FACTS_H
#define CDP_SRC_LAUNCH_FACTS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "launch_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../text/format.h"
#include "../store/auth.h"
#include "../text/utf8.h"
#include "../text/json_read.h"
#include "../os/processes.h"

#include <string.h>

#define CDP__LAUNCH_WORKERS 4096u       /* of one machine: a typing error is no fork bomb */
#define CDP__LAUNCH_ERROR_FILE 1048576u /* bytes of an error file that are read */
#define CDP__LAUNCH_OVERTAKE_MS 100u    /* how much later than its victims a crash may be seen */
#define CDP__LAUNCH_KEY 65u             /* bytes of a new secret, with the zero at its end */

/* Whether a name fits into one line of a file: 1 to `most` characters, none of them a control
   character. */
CDP__PRIVATE bool cdp__launch_label_fits(const char *label, size_t most) {
    const size_t length = strlen(label);
    size_t i;
    for (i = 0; i < length; ++i)
        if ((unsigned char)label[i] < ' ') return false;
    return length > 0 && length <= most;
}

/* A process of a job. */
typedef struct cdp__launch_process {
    int32_t pid;       /* 0: not started */
    bool ended, by_us; /* by_us: by a signal that the launcher had sent */
    cdp__process_end end;
    uint64_t begun_ns, end_ns;
} cdp__launch_process;

/* "SIGTERM", "signal 34". */
CDP__PRIVATE void cdp__launch_signal_text(cdp__text *t, int32_t sig) {
    const char *const name = cdp__process_signal_name(sig);
    if (name)
        cdp__text_add(t, "%s", name);
    else
        cdp__text_add(t, "signal %d", (int)sig);
}

/* "exit code 7", "killed by SIGSEGV (Segmentation fault)", "SIGTERM from the agent", "did not end";
   `us`: what this launcher calls itself. */
CDP__PRIVATE void cdp__launch_end_text(cdp__text *t, const cdp__launch_process *p, const char *us) {
    if (!p->ended) {
        cdp__text_add(t, p->pid ? "did not end" : "did not start");
    } else if (!p->end.sig) {
        cdp__text_add(t, "exit code %d", (int)p->end.exit_code);
    } else if (p->by_us) {
        cdp__launch_signal_text(t, p->end.sig);
        cdp__text_add(t, " from %s", us);
    } else {
        cdp__text_add(t, "killed by ");
        cdp__launch_signal_text(t, p->end.sig);
        cdp__text_add(t, " (%s)", cdp__process_signal_words(p->end.sig));
    }
}

/* As a shell has it: 128 and the number of a signal. */
CDP__PRIVATE int32_t cdp__launch_exit_code(const cdp__process_end *end) {
    return end->sig ? 128 + end->sig : end->exit_code;
}

/* 0: well; 1: by an exit code or a signal that asks; 2: a crash, which is more likely the first
   cause than an exit code, by which the survivors of a job report that they have lost a peer. */
CDP__PRIVATE int cdp__launch_blame(const cdp__launch_process *p) {
    if (!p->ended || (p->end.exit_code == 0 && !p->end.sig)) return 0;
    return p->end.sig && cdp__process_crashed(p->end.sig) ? 2 : 1;
}

/* Whether `late`, whose failure was seen after that of `first`, failed before it: a killed process
   loses its connections a moment before its parent can see its end. SIGABRT is how some programs
   end when they have lost a peer. */
CDP__PRIVATE bool cdp__launch_overtaken(
    const cdp__launch_process *first, const cdp__launch_process *late) {
    if (late->by_us || cdp__launch_blame(first) != 1 || cdp__launch_blame(late) != 2) return false;
    return late->end.sig != CDP__PROCESS_ABORT
        && late->end_ns - first->end_ns < CDP__LAUNCH_OVERTAKE_MS * CDP__MS;
}

/* The first text under `key` in `bytes` of JSON, on one line: control characters become blanks or
   '?'. `text` has as many bytes as the JSON. */
CDP__PRIVATE void cdp__launch_member_in(
    const char *data, uint64_t bytes, char *text, const char *key, char *out, uint64_t room) {
    cdp__json_reader r = cdp__json_open(data, bytes);
    bool here = false, found = false;
    cdp__json_kind k;
    uint64_t i;
    while (!found && (k = cdp__json_next(&r)) > CDP__JSON_END) {
        const bool is = k == CDP__JSON_KEY || k == CDP__JSON_TEXT;
        const uint64_t length = is ? cdp__json_decode(&r, text) : 0;
        found = here && k == CDP__JSON_TEXT;
        here =
            k == CDP__JSON_KEY && length == strlen(key) && memcmp(text, key, (size_t)length) == 0;
        for (i = 0; found && i < length; ++i)
            if ((unsigned char)text[i] < ' ') text[i] = ' ';
        if (found) cdp__text_foreign(out, room, text, length);
    }
}

/* The same of the error file of a rank: {"message": {"message": "..."}} or {"message": "..."}.
   Empty: there is none, or no memory; what follows a mistake in the file is not read. */
CDP__PRIVATE void cdp__launch_member(
    const cdp_os *os, const char *path, const char *key, char *out, uint64_t room) {
    const cdp_os_files *const f = &os->files;
    const int32_t fd = f->open_file && *path ? f->open_file(os->user, path, 0) : -1;
    cdp_file_info info;
    char *data = NULL;
    uint64_t bytes = 0;
    int64_t n;
    out[0] = 0;
    if (fd < 0) return;
    if (f->file_info(os->user, fd, &info) == 0) bytes = info.bytes;
    bytes = cdp__min(bytes, CDP__LAUNCH_ERROR_FILE);
    if (bytes) data = (char *)cdp__alloc(os, 2 * bytes);
    n = data ? f->read_at(os->user, fd, 0, data, bytes) : 0;
    if (n > 0) cdp__launch_member_in(data, (uint64_t)n, data + bytes, key, out, room);
    (void)f->close_file(os->user, fd);
    cdp__free(os, data);
}

/* When a rank wrote its error file, in microseconds since 1970, as cdp_error_record() puts it
   there; 0: not known. */
CDP__PRIVATE uint64_t cdp__launch_error_time(const cdp_os *os, const char *path) {
    char text[32];
    const char *p = text;
    uint64_t us = 0;
    cdp__launch_member(os, path, "timestamp_us", text, sizeof text);
    for (; *p >= '0' && *p <= '9'; ++p)
        us = us * 10 + (uint64_t)(*p - '0');
    return us;
}

/* The file `name` of a rank in an attempt: in a folder of its own, as torchrun has them; or, where
   `between` is not NULL, side by side, with that after `folder`. False: it does not fit. */
CDP__PRIVATE bool cdp__launch_path(char *out, uint64_t room, const char *folder,
    const char *between, uint32_t attempt, uint32_t local_rank, const char *name) {
    cdp__text t = cdp__text_of(out, room);
    cdp__text_add(&t, "%s", folder);
    if (between)
        cdp__text_add(&t, "%s%u.%u.%s", between, attempt, local_rank, name);
    else
        cdp__text_add(&t, "/attempt_%u/%u/%s", attempt, local_rank, name);
    return t.used < room;
}

/* Makes the folders of an attempt. Returns 0 or -errno, with the folder in `path`. */
CDP__PRIVATE int32_t cdp__launch_folders(const cdp_os *os, const char *folder, uint32_t attempt,
    uint32_t workers, char *path, uint64_t room) {
    uint32_t i;
    for (i = 0; i <= workers; ++i) { /* the first one holds the others */
        int32_t err = -ENOSYS;
        cdp__format(path, room, "%s/attempt_%u", folder, attempt);
        if (i) cdp__format(path, room, "%s/attempt_%u/%u", folder, attempt, i - 1);
        if (os->files.make_folder) err = os->files.make_folder(os->user, path);
        if (err && err != -EEXIST) return err;
    }
    return 0;
}

/* A new secret for the ranks of a job. Returns false where the system has no random bytes. */
CDP__PRIVATE bool cdp__launch_key(const cdp_os *os, char out[CDP__LAUNCH_KEY]) {
    unsigned char random[(CDP__LAUNCH_KEY - 1) / 2];
    uint32_t i;
    if (os->random(os->user, random, sizeof random) != CDP_OK) return false;
    for (i = 0; i < sizeof random; ++i) {
        out[2 * i] = "0123456789abcdef"[random[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
    }
    out[2 * i] = 0;
    cdp__wipe(random, sizeof random);
    return true;
}

#endif /* CDP_SRC_LAUNCH_FACTS_H */

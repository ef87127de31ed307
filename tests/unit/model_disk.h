/*  model_disk.h - a file system in memory that keeps after a power cut what was synced, and of the
    rest what chance decides: each sector of 512 bytes, each length and each change of a name alone,
    in any combination. model_os() is a cdp_os on it. Include after cdp.h. */
#ifndef MODEL_DISK_INCLUDED
#define MODEL_DISK_INCLUDED

#include <errno.h>
#include <pthread.h>

enum {
    MD_NODES = 512,
    MD_NAMES = 64,
    MD_LOG = 256,
    MD_BYTES = 16384,
    MD_SECTOR = 512
};

typedef struct md_name {
    char name[128];
    int node; /* 0: this place is free */
} md_name;

/* A change of the names in a folder: `from` goes if it leads to the node, `to` leads to it. */
typedef struct md_change {
    char from[128], to[128];
    int node;
} md_change;

typedef struct md_node {
    bool folder;
    uint8_t now[MD_BYTES], safe[MD_BYTES];
    uint64_t bytes, safe_bytes;
    md_name names[MD_NAMES], safe_names[MD_NAMES];
    md_change log[MD_LOG];
    int changes;
} md_node;

static struct {
    pthread_mutex_t lock;
    md_node *nodes[MD_NODES]; /* 1 is the root */
    int count;
    int64_t calls, cut; /* calls that change something; the one that does not return any more */
    bool dead, lies_files, lies_folders, no_links;
} md = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int md_new(bool folder) {
    if (md.count + 1 >= MD_NODES) abort();
    md.nodes[++md.count] = (md_node *)calloc(1, sizeof(md_node));
    md.nodes[md.count]->folder = folder;
    return md.count;
}

static void md_format(void) {
    for (int i = 1; i <= md.count; ++i)
        free(md.nodes[i]);
    md.count = 0;
    md.calls = md.cut = 0;
    md.dead = md.lies_files = md.lies_folders = md.no_links = false;
    (void)md_new(true);
}

/* Counts a call; true: the power is off. */
static bool md_off(bool changes) {
    if (changes && ++md.calls == md.cut) md.dead = true;
    return md.dead;
}

static md_name *md_find(md_name *names, const char *name) {
    for (int i = 0; i < MD_NAMES; ++i)
        if (names[i].node && strcmp(names[i].name, name) == 0) return &names[i];
    return NULL;
}

static void md_set(md_name *names, const char *name, int node) {
    md_name *at = md_find(names, name);
    for (int i = 0; !at && i < MD_NAMES; ++i)
        if (!names[i].node) at = &names[i];
    if (!at) abort();
    snprintf(at->name, sizeof at->name, "%s", name);
    at->node = node;
}

static void md_apply(md_name *names, const md_change *c) {
    md_name *const from = md_find(names, c->from);
    if (c->from[0] && from && from->node == c->node) from->node = 0;
    if (c->to[0]) md_set(names, c->to, c->node);
}

static void md_change_names(md_node *folder, const char *from, const char *to, int node) {
    md_change *c;
    if (folder->changes == MD_LOG) abort();
    c = &folder->log[folder->changes++];
    snprintf(c->from, sizeof c->from, "%s", from);
    snprintf(c->to, sizeof c->to, "%s", to);
    c->node = node;
    md_apply(folder->names, c);
}

/* The folder in which `path` is, and its last name; *node: what it leads to (0: nothing). NULL: a
   folder on the way is missing. */
static md_node *md_walk(const char *path, char last[128], int *node) {
    md_node *in = NULL;
    int at = 1;
    while (*path) {
        const size_t n = strcspn(path, "/");
        md_name *found;
        if (!at || !md.nodes[at]->folder) return NULL;
        in = md.nodes[at];
        snprintf(last, 128, "%.*s", (int)n, path);
        found = strcmp(last, ".") == 0 ? NULL : md_find(in->names, last);
        if (strcmp(last, ".") != 0) at = found ? found->node : 0;
        path += n + (path[n] == '/');
    }
    *node = at;
    return in;
}

static int32_t md_open(void *user, const char *path, uint32_t how) {
    char last[128];
    int node = 0;
    (void)user;
    pthread_mutex_lock(&md.lock);
    const bool off = md_off((how & CDP_FILE_CREATE) != 0);
    md_node *const in = off ? NULL : md_walk(path, last, &node);
    if (in && !node && (how & CDP_FILE_CREATE)) {
        node = md_new(false);
        md_change_names(in, "", last, node);
    }
    if (in && node && (how & CDP_FILE_EMPTY)) md.nodes[node]->bytes = 0;
    pthread_mutex_unlock(&md.lock);
    if (off) return -EIO;
    return in && node ? node : -ENOENT;
}
static int32_t md_close(void *user, int32_t fd) {
    (void)user;
    (void)fd;
    return 0;
}
static int64_t md_read(void *user, int32_t fd, uint64_t at, void *to, uint64_t bytes) {
    (void)user;
    pthread_mutex_lock(&md.lock);
    md_node *const f = md.nodes[fd];
    const uint64_t left = at < f->bytes ? f->bytes - at : 0, n = bytes < left ? bytes : left;
    const bool off = md_off(false);
    if (!off) memcpy(to, f->now + at, n);
    pthread_mutex_unlock(&md.lock);
    return off ? -EIO : (int64_t)n;
}
static int64_t md_write(void *user, int32_t fd, uint64_t at, const void *from, uint64_t bytes) {
    (void)user;
    pthread_mutex_lock(&md.lock);
    md_node *const f = md.nodes[fd];
    const bool off = md_off(true);
    if (at + bytes > MD_BYTES) abort();
    if (!off && at > f->bytes) memset(f->now + f->bytes, 0, at - f->bytes);
    if (!off) memcpy(f->now + at, from, bytes);
    if (!off && at + bytes > f->bytes) f->bytes = at + bytes;
    pthread_mutex_unlock(&md.lock);
    return off ? -EIO : (int64_t)bytes;
}
static int32_t md_cut_file(void *user, int32_t fd, uint64_t bytes) {
    (void)user;
    pthread_mutex_lock(&md.lock);
    md_node *const f = md.nodes[fd];
    const bool off = md_off(true);
    if (bytes > MD_BYTES) abort();
    if (!off && bytes > f->bytes) memset(f->now + f->bytes, 0, bytes - f->bytes);
    if (!off) f->bytes = bytes;
    pthread_mutex_unlock(&md.lock);
    return off ? -EIO : 0;
}
static int32_t md_lock_file(void *user, int32_t fd, cdp_file_lock lock) {
    (void)user;
    (void)fd;
    (void)lock;
    return 0;
}
static int32_t md_info(void *user, int32_t fd, cdp_file_info *out) {
    (void)user;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&md.lock);
    out->bytes = md.nodes[fd]->bytes;
    out->regular = !md.nodes[fd]->folder;
    pthread_mutex_unlock(&md.lock);
    return 0;
}

/* What changes one name. */
static int32_t md_names(const char *path, bool make, bool folder) {
    char last[128];
    int node = 0;
    int32_t r = 0;
    pthread_mutex_lock(&md.lock);
    if (md_off(true))
        r = -EIO;
    else {
        md_node *const in = md_walk(path, last, &node);
        if (!in || (!make && !node))
            r = -ENOENT;
        else if (make && node)
            r = -EEXIST;
        else if (make)
            md_change_names(in, "", last, md_new(true));
        else {
            for (int i = 0; folder && i < MD_NAMES; ++i)
                if (md.nodes[node]->names[i].node) r = -ENOTEMPTY;
            if (!r) md_change_names(in, last, "", node);
        }
    }
    pthread_mutex_unlock(&md.lock);
    return r;
}
static int32_t md_remove(void *user, const char *path) {
    (void)user;
    return md_names(path, false, false);
}
static int32_t md_make_folder(void *user, const char *path) {
    (void)user;
    return md_names(path, true, true);
}
static int32_t md_remove_folder(void *user, const char *path) {
    (void)user;
    return md_names(path, false, true);
}
static int32_t md_rename(void *user, const char *from, const char *to) {
    char a[128], b[128];
    int node = 0, other;
    int32_t r = 0;
    (void)user;
    pthread_mutex_lock(&md.lock);
    if (md_off(true))
        r = -EIO;
    else {
        md_node *const in = md_walk(from, a, &node);
        if (!in || !node)
            r = -ENOENT;
        else if (md_walk(to, b, &other) != in)
            abort(); /* nothing here renames from folder to folder */
        else
            md_change_names(in, a, b, node);
    }
    pthread_mutex_unlock(&md.lock);
    return r;
}

static int32_t md_link(void *user, const char *from, const char *to) {
    char last[128];
    int node = 0, other = 0;
    int32_t r = 0;
    (void)user;
    pthread_mutex_lock(&md.lock);
    if (md_off(true))
        r = -EIO;
    else if (md.no_links)
        r = -EPERM;
    else if (!md_walk(from, last, &node) || !node || md.nodes[node]->folder)
        r = -ENOENT;
    else {
        md_node *const in = md_walk(to, last, &other);
        if (!in || other)
            r = in ? -EEXIST : -ENOENT;
        else
            md_change_names(in, "", last, node);
    }
    pthread_mutex_unlock(&md.lock);
    return r;
}

static void md_synced(md_node *f) {
    memcpy(f->safe, f->now, sizeof f->safe);
    f->safe_bytes = f->bytes;
}
static int32_t md_sync_file(void *user, int32_t fd) {
    (void)user;
    pthread_mutex_lock(&md.lock);
    const bool off = md_off(true);
    if (!off && !md.lies_files) md_synced(md.nodes[fd]);
    pthread_mutex_unlock(&md.lock);
    return off ? -EIO : 0;
}
static int32_t md_sync_folder(void *user, const char *path) {
    char last[128];
    int node = 0;
    (void)user;
    pthread_mutex_lock(&md.lock);
    const bool off = md_off(true);
    const bool there = !off && md_walk(path, last, &node) && node;
    if (there && !md.lies_folders) {
        memcpy(md.nodes[node]->safe_names, md.nodes[node]->names, sizeof md.nodes[node]->names);
        md.nodes[node]->changes = 0;
    }
    pthread_mutex_unlock(&md.lock);
    if (off) return -EIO;
    return there ? 0 : -ENOENT;
}
static int32_t md_list(
    void *user, const char *path, void (*each)(void *to, const char *name), void *to) {
    char last[128];
    int node = 0;
    (void)user;
    pthread_mutex_lock(&md.lock);
    const bool off = md_off(false);
    const bool there = !off && md_walk(path, last, &node) && node;
    for (int i = 0; there && i < MD_NAMES; ++i)
        if (md.nodes[node]->names[i].node) each(to, md.nodes[node]->names[i].name);
    pthread_mutex_unlock(&md.lock);
    if (off) return -EIO;
    return there ? 0 : -ENOENT;
}

/* The power comes back: `seed` decides what of the unsynced is there. */
static void md_crash(uint64_t seed) {
    for (int i = 1; i <= md.count; ++i) {
        md_node *const f = md.nodes[i];
        for (int s = 0; s < MD_BYTES / MD_SECTOR; ++s) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            if (seed >> 63) continue;
            memcpy(f->now + s * MD_SECTOR, f->safe + s * MD_SECTOR, MD_SECTOR);
        }
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (seed >> 63) f->bytes = f->safe_bytes;
        for (int c = 0; c < f->changes; ++c) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            if (seed >> 63) md_apply(f->safe_names, &f->log[c]);
        }
        memcpy(f->names, f->safe_names, sizeof f->names);
        f->changes = 0;
        md_synced(f);
    }
    md.dead = false;
    md.cut = 0;
}

static const cdp_os *model_os(void) {
    static cdp_os os;
    os = *cdp_os_default();
    os.files = (cdp_os_files){md_open, md_close, md_read, md_write, md_cut_file, md_lock_file,
        md_info, md_remove, md_rename, md_sync_file, md_sync_folder, md_make_folder,
        md_remove_folder, md_list, md_link};
    return &os;
}

#endif

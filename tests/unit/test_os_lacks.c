/* test_os_lacks.c - a cdp_os of which a function is missing is refused where it enters, with the
   name of the function, by every call that takes an os */
#define CDP_IMPLEMENTATION
#define CDP_OS_POLL
#include "cdp_tcp.h"
#include "cdp_checkpoint.h"
#include "cdp_elastic.h"
#include "cdp_mem.h"
#include "cdp_pipeline.h"
#include "test.h"
#include "said.h"

#include <stddef.h>

/* ---- every call that takes an os ---- */

static cdp_status makes_group(const cdp_os *os) {
    const cdp_group_desc d = {.world_size = 1, .os = os};
    cdp_group *g;
    const cdp_status st = cdp_group_create(&d, &g);
    T(!g);
    return st;
}

static cdp_status makes_hub(const cdp_os *os) {
    const cdp_hub_desc d = {.world_size = 2, .os = os};
    cdp_hub *hub;
    const cdp_status st = cdp_hub_create(&d, &hub);
    T(!hub);
    return st;
}

static cdp_status makes_hook(const cdp_os *os) {
    const cdp_hook_desc d = {.kind = CDP_HOOK_BF16, .os = os};
    cdp_hook hook;
    return cdp_hook_create(&d, &hook);
}

static cdp_status connects(const cdp_os *os) {
    const cdp_tcp_desc d = {.group = {.world_size = 1, .os = os}};
    cdp_group *g;
    const cdp_status st = cdp_init(&d, &g);
    T(!g);
    return st;
}

static cdp_status makes_hash_store(const cdp_os *os) {
    const cdp_hash_store_desc d = {.os = os};
    cdp_store *s;
    const cdp_status st = cdp_hash_store_create(&d, &s);
    T(!s);
    return st;
}

static cdp_status makes_file_store(const cdp_os *os) {
    const cdp_file_store_desc d = {.path = "/tmp/test_os_lacks", .os = os};
    cdp_store *s;
    const cdp_status st = cdp_file_store_create(&d, &s);
    T(!s);
    return st;
}

static cdp_status no_value(void *user, cdp_bytes key, cdp_bytes *value) {
    (void)user;
    (void)key;
    (void)value;
    return CDP_PENDING;
}
static cdp_status no_swap(
    void *user, cdp_bytes key, const cdp_bytes *expected, const cdp_bytes *desired) {
    (void)user;
    (void)key;
    (void)expected;
    (void)desired;
    return CDP_PENDING;
}

static cdp_status makes_custom_store(const cdp_os *os) {
    const cdp_custom_store_desc d = {.get = no_value, .swap = no_swap, .os = os};
    cdp_store *s;
    const cdp_status st = cdp_custom_store_create(&d, &s);
    T(!s);
    return st;
}

static cdp_status makes_server(const cdp_os *os) {
    const cdp_store_server_desc d = {.host = "127.0.0.1", .os = os};
    cdp_store_server *s;
    const cdp_status st = cdp_store_server_create(&d, &s);
    T(!s);
    return st;
}

static cdp_status makes_client(const cdp_os *os) {
    const cdp_tcp_store_desc d = {.host = "127.0.0.1", .port = 1, .os = os};
    cdp_store *s;
    const cdp_status st = cdp_tcp_store_create(&d, &s);
    T(!s);
    return st;
}

static cdp_status makes_quorum_store(const cdp_os *os) {
    const cdp_quorum_store_desc d = {.servers = "127.0.0.1:1", .os = os};
    cdp_store *s;
    const cdp_status st = cdp_quorum_store_create(&d, &s);
    T(!s);
    return st;
}

static cdp_status makes_elastic(const cdp_os *os) {
    const cdp_tcp_desc tcp = {.group = {.os = os}};
    cdp_elastic_desc d = {.tcp = &tcp};
    cdp_elastic *e;
    T_EQ(CDP_OK, cdp_hash_store_create(NULL, &d.store));
    const cdp_status st = cdp_elastic_create(&d, &e);
    const cdp_error why = *cdp_last_error();
    T(!e);
    cdp_store_destroy(d.store);
    *cdp__error_slot() = why;
    return st;
}

static cdp_status makes_schedule(const cdp_os *os) {
    const cdp_schedule_desc d = {.ranks = 2, .micros = 2, .os = os};
    cdp_schedule *s;
    const cdp_status st = cdp_schedule_create(&d, &s);
    T(!s);
    return st;
}

static cdp_status chooses_schedule(const cdp_os *os) {
    const cdp_pipe_layer layers[2] = {{.f_us = 1}, {.f_us = 1}};
    const cdp_pipe_choice_desc d = {
        .layers = layers, .layer_count = 2, .ranks = 2, .micros = 2, .os = os};
    uint32_t cuts[9];
    cdp_pipe_choice choice;
    return cdp_schedule_choose(&d, cuts, NULL, &choice);
}

static cdp_status samples(const cdp_os *os) {
    const cdp_sampler s = {.size = 2, .ranks = 1, .os = os};
    uint64_t i;
    return cdp_sampler_part(&s, 0, 1, &i);
}

static cdp_status no_sample(void *user, uint64_t index, void *sample) {
    (void)user;
    (void)index;
    (void)sample;
    return CDP_OK;
}

static cdp_status makes_loader(const cdp_os *os) {
    const cdp_loader_desc d = {
        .sampler = {.size = 2, .ranks = 1, .os = os}, .read = no_sample, .sample_bytes = 1};
    cdp_loader *l;
    const cdp_status st = cdp_loader_create(&d, &l);
    T(!l);
    return st;
}

static cdp_status opens_tokens(const cdp_os *os) {
    const char *const path = "/tmp/test_os_lacks";
    const cdp_tokens_desc d = {.paths = &path, .path_count = 1, .length = 1, .os = os};
    cdp_tokens *t;
    const cdp_status st = cdp_tokens_create(&d, &t);
    T(!t);
    return st;
}

static cdp_status makes_mem(const cdp_os *os) {
    const cdp_mem_desc d = {.recorder_only = true, .os = os};
    cdp_mem *m;
    const cdp_status st = cdp_mem_create(&d, &m);
    T(!m);
    return st;
}

static cdp_status makes_source(const cdp_os *os) {
    cdp_mem_source s;
    const cdp_status st = cdp_mem_source_host(os, 0, &s);
    T(!s.user && !s.reserve);
    return st;
}

static void *no_memory(void *user, uint64_t bytes, void *stream, const char *label) {
    (void)user;
    (void)bytes;
    (void)stream;
    (void)label;
    return NULL;
}
static void releases(void *user, void *data) {
    (void)user;
    (void)data;
}

static cdp_status makes_source_of(const cdp_os *os) {
    const cdp_allocator from = {.alloc = no_memory, .release = releases};
    cdp_mem_source s;
    const cdp_status st = cdp_mem_source_of(&from, os, &s);
    T(!s.user && !s.reserve);
    return st;
}

static cdp_status reads_mem(const cdp_os *os) {
    cdp_mem_shot *s;
    const cdp_status st = cdp_mem_read("{}", 2, os, &s);
    T(!s);
    return st;
}

static cdp_status makes_checkpoint(const cdp_os *os) {
    const cdp_group_desc gd = {.world_size = 1};
    cdp_ckpt_desc d = {.path = "/tmp/test_os_lacks", .os = os};
    cdp_ckpt *c;
    T_EQ(CDP_OK, cdp_group_create(&gd, &d.group));
    const cdp_status st = cdp_ckpt_create(&d, &c);
    const cdp_error why = *cdp_last_error();
    T(!c);
    cdp_group_destroy(d.group);
    *cdp__error_slot() = why;
    return st;
}

static cdp_status previews_checkpoint(const cdp_os *os) {
    const cdp_ckpt_desc d = {.os = os};
    cdp_ckpt_info info;
    return cdp_ckpt_preview(&d, &info);
}

static cdp_status opens_checkpoint(const cdp_os *os) {
    cdp_ckpt_reader *r;
    const cdp_status st = cdp_ckpt_open("/tmp/test_os_lacks", os, &r);
    T(!r);
    return st;
}

static cdp_status finds_checkpoint(const cdp_os *os) {
    uint64_t step;
    return cdp_ckpt_newest("/tmp/test_os_lacks", os, &step);
}

typedef cdp_status (*call_with)(const cdp_os *os);
static const call_with calls[] = {makes_group, makes_hub, makes_hook, connects, makes_hash_store,
    makes_file_store, makes_custom_store, makes_server, makes_client, makes_quorum_store,
    makes_elastic, makes_schedule, chooses_schedule, samples, makes_loader, opens_tokens, makes_mem,
    makes_source, makes_source_of, reads_mem, makes_checkpoint, previews_checkpoint,
    opens_checkpoint, finds_checkpoint};

static void all_refuse(const cdp_os *os, const char *name) {
    for (uint32_t i = 0; i < sizeof calls / sizeof *calls; ++i)
        REFUSED(CDP_ERR_INVALID, name, calls[i](os));
}

/* ---- every function ---- */

#define ROW(member) \
    { "this cdp_os lacks " #member ": set it", offsetof(cdp_os, member) }
static const struct row {
    const char *says;
    size_t at;
} rows[] = {ROW(alloc), ROW(release), ROW(now_ns), ROW(random), ROW(net.resolve), ROW(net.recv_iov),
    ROW(net.watch_wait), ROW(net.wake_clear), ROW(threads.join), ROW(threads.cond_broadcast),
    ROW(shared.map), ROW(shared.unmap), ROW(shared.pass_open), ROW(shared.pass),
    ROW(shared.process_open), ROW(files.close_file), ROW(files.read_at), ROW(files.write_at),
    ROW(files.cut_file), ROW(files.lock_file), ROW(files.file_info), ROW(files.remove_file),
    ROW(files.rename_file), ROW(files.sync_file), ROW(files.sync_folder), ROW(files.make_folder),
    ROW(files.remove_folder), ROW(files.list_folder)};

/* The default os without one function; false: it has none. */
static bool os_without(const struct row *row, cdp_os *os) {
    *os = *cdp_os_default();
    for (size_t i = 0; i < sizeof os->alloc; ++i)
        if (((uint8_t *)os)[row->at + i]) {
            memset((uint8_t *)os + row->at, 0, sizeof os->alloc);
            return true;
        }
    return false;
}

TEST(a_missing_function_is_named_by_every_call) {
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        cdp_os os;
        if (os_without(&rows[i], &os)) all_refuse(&os, rows[i].says);
    }
}

/* These may be missing, and so may whole groups. */
TEST(what_may_be_missing_is_not_asked_for) {
    cdp_os os = *cdp_os_default();
    cdp_hub *hub;
    cdp_hub_desc d = {.world_size = 2, .os = &os};
    os.sleep_until = NULL;
    os.net.adopt = NULL;
    os.net.end_sending = NULL;
    os.net.unanswered_ns = NULL;
    os.shared.read_process = NULL;
    os.shared.host_id = NULL;
    os.shared.empty = NULL;
    os.files.link_file = NULL;
    if (T_EQ(CDP_OK, cdp_hub_create(&d, &hub))) cdp_hub_destroy(hub);
    os.shared.process_place = NULL;
    os.shared.process_open = NULL;
    os.files.sync_file = NULL;
    os.files.sync_folder = NULL;
    os.files.make_folder = NULL;
    os.files.remove_folder = NULL;
    os.files.list_folder = NULL;
    if (T_EQ(CDP_OK, cdp_hub_create(&d, &hub))) cdp_hub_destroy(hub);
    memset(&os.files, 0, sizeof os.files);
    memset(&os.shared, 0, sizeof os.shared);
    memset(&os.net, 0, sizeof os.net);
    memset(&os.threads, 0, sizeof os.threads);
    if (T_EQ(CDP_OK, cdp_hub_create(&d, &hub))) cdp_hub_destroy(hub);
}

TEST(watches_without_a_poll_function_are_refused) {
    cdp_os os = *cdp_os_default();
    cdp_os_use_poll(&os, NULL);
    all_refuse(&os, "this cdp_os lacks net.watch_wait: set it");
    cdp_os_use_poll(NULL, NULL);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"a_missing_function_is_named_by_every_call", a_missing_function_is_named_by_every_call,
            60},
        {"what_may_be_missing_is_not_asked_for", what_may_be_missing_is_not_asked_for, 20},
        {"watches_without_a_poll_function_are_refused", watches_without_a_poll_function_are_refused,
            20},
    };
    return test_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}

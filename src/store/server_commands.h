/* store/server_commands.h - runs each command of the protocol

   Knows: the commands of the protocol. There is one function per command, called with an item of
   the wire (cdp__wire_item). Promises: a command that has an answer gets exactly one, at once or
   when its wait ends. */
#ifndef CDP_SRC_STORE_SERVER_COMMANDS_H
#define CDP_SRC_STORE_SERVER_COMMANDS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../base/log_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "desc_api.h"
#include "wire.h"
#include "auth.h"
#include "kv.h"
#include "server.h"
#include "server_waits.h"

#ifndef CDP_NO_STORE_SERVER

CDP__PRIVATE void cdp__conn_stored(cdp__conn *c, cdp_status status, cdp__kv_entry *e) {
    if (status == CDP_OK) {
        cdp__server_key_set(c->server, e);
        return;
    }
    if (status == CDP_ERR_NOMEM)
        cdp__log(
            &c->server->desc.logger, CDP_LOG_WARN, -1, "store server: %s", cdp_last_error()->text);
    cdp__conn_close(c, cdp_last_error()->text);
}

CDP__PRIVATE void cdp__conn_greeted(cdp__conn *c, const cdp__wire_row *table) {
    cdp__conn_unlink(c);
    c->wire.table = table;
    c->greeted = true;
    cdp__conn_link(&c->server->conns, c);
}

/* Logs a refused client. Only the first refusal is a warning, so that strangers cannot fill the
   log. */
CDP__PRIVATE void cdp__conn_refused(cdp__conn *c, uint32_t refusal) {
    cdp_store_server *s = c->server;
    (void)refusal; /* unused without log texts */
    cdp__log(&s->desc.logger, s->refusal_logged ? CDP_LOG_INFO : CDP_LOG_WARN, -1,
        "store server at port %u: refused a connection: %s", s->at.port, cdp__auth_text(refusal));
    s->refusal_logged = true;
    cdp__conn_close(c, NULL);
}

CDP__PRIVATE void cdp__server_on_validate(cdp__conn *c, const cdp__wire_item *it) {
    if (it->number != CDP__WIRE_MAGIC) {
        cdp__conn_close(c, "it did not greet like a store client");
        return;
    }
    cdp__conn_greeted(c, cdp__wire_v2);
}

/* Begins an authentication exchange. A build without job keys closes the connection. */
CDP__PRIVATE void cdp__server_on_key(cdp__conn *c, const cdp__wire_item *it) {
#ifndef CDP_NO_JOB_KEY
    cdp__auth a;
    memset(&a, 0, sizeof a);
    a.listener = true;
    a.in[0] = 'c';
    (void)cdp__auth_refuse(&a, CDP__AUTH_NOT_NEEDED);
    cdp__conn_reply(c, a.out, a.left);
#endif
    (void)it;
    cdp__conn_refused(c, CDP__AUTH_NOT_NEEDED);
}

CDP__PRIVATE void cdp__server_on_set(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    if (it->key.data) {
        const cdp_status status = cdp__kv_set(&c->server->kv, it->key, it->value[0], &e);
        cdp__conn_stored(c, status, e);
    }
}

CDP__PRIVATE void cdp__server_on_append(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv_entry *old = cdp__kv_get(&c->server->kv, it->key);
    cdp__kv_entry *e = NULL;
    if (old && old->value_bytes + it->value[0].bytes > c->server->limits.value_bytes) {
        cdp__conn_close(c, "a value that was appended to became too long (max_value_bytes)");
    } else {
        const cdp_status status = cdp__kv_append(&c->server->kv, it->key, it->value[0], &e);
        cdp__conn_stored(c, status, e);
    }
}

CDP__PRIVATE void cdp__server_on_compare_set(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    cdp_bytes answer;
    const cdp_status status =
        cdp__kv_compare_set(&c->server->kv, it->key, it->value[0], it->value[1], &answer, &e);
    if (status == CDP_OK) cdp__conn_reply_string(c, answer.data, answer.bytes);
    cdp__conn_stored(c, status, e);
}

/* Also for the items of a MULTI_GET. An absent key reads as empty, as in PyTorch's server of
   2.x; that of 1.13 closes the connection. */
CDP__PRIVATE void cdp__server_on_get(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv_entry *e = it->key.data ? cdp__kv_get(&c->server->kv, it->key) : NULL;
    if (it->cmd == CDP__CMD_TRY_GET)
        cdp__conn_reply_byte(c, e ? CDP__WIRE_READY : CDP__WIRE_NOT_READY);
    if (it->cmd == CDP__CMD_TRY_GET && !e) return;
    if (CDP__OLD(c) && !e)
        cdp__conn_close(c, "it read a key that is not there");
    else if (it->key.data)
        cdp__conn_reply_string(c, e ? e->value : NULL, e ? e->value_bytes : 0);
}

CDP__PRIVATE void cdp__server_on_add(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    int64_t sum;
    const cdp_status status = cdp__kv_add(&c->server->kv, it->key, (int64_t)it->number, &sum, &e);
    if (status == CDP_OK) cdp__conn_reply_number(c, (uint64_t)sum);
    cdp__conn_stored(c, status, e);
}

CDP__PRIVATE void cdp__server_on_check(cdp__conn *c, const cdp__wire_item *it) {
    const uint64_t n = sizeof CDP__WIRE_CDP_SERVER - 1;
    const bool asks_for_cdp = it->key.data && it->key.bytes == n
        && memcmp(it->key.data, CDP__WIRE_CDP_SERVER, (size_t)n) == 0;
    if (it->first) c->all_there = true;
    c->is_cdp = c->is_cdp || asks_for_cdp;
    if (it->key.data && !asks_for_cdp)
        c->all_there = c->all_there && cdp__kv_available(&c->server->kv, it->key);
    if (it->last) cdp__conn_reply_byte(c, c->all_there ? CDP__WIRE_READY : CDP__WIRE_NOT_READY);
}

CDP__PRIVATE void cdp__server_on_wait(cdp__conn *c, const cdp__wire_item *it) {
    if (it->first) ++c->awaited; /* the wait must not end before its last key has arrived */
    if (it->key.data && !cdp__kv_available(&c->server->kv, it->key))
        (void)cdp__conn_await(c, it->key, false);
    if (it->last && !c->closing) cdp__conn_key_arrived(c);
}

CDP__PRIVATE void cdp__server_on_cancel_wait(cdp__conn *c, const cdp__wire_item *it) {
    (void)it;
    cdp__conn_forget_waits(c, true);
    cdp__conn_reply_byte(c, CDP__WIRE_CANCELED);
}

CDP__PRIVATE void cdp__server_on_num_keys(cdp__conn *c, const cdp__wire_item *it) {
    (void)it;
    cdp__conn_reply_number(c, c->server->kv.present_count);
}

CDP__PRIVATE void cdp__server_on_delete(cdp__conn *c, const cdp__wire_item *it) {
    cdp__conn_reply_number(c, cdp__kv_delete(&c->server->kv, it->key));
}

CDP__PRIVATE void cdp__server_on_ping(cdp__conn *c, const cdp__wire_item *it) {
    uint8_t b[4];
    cdp__put_u32(b, (uint32_t)it->number);
    cdp__conn_reply(c, b, 4);
}

/* Sends the keys of one bucket of the map. */
CDP__PRIVATE void cdp__conn_list_bucket(cdp__conn *c) {
    const cdp__kv *kv = &c->server->kv;
    cdp__listing *l = &c->listing;
    const cdp__kv_entry *e = kv->buckets[l->cursor & (kv->bucket_count - 1)];
    for (; e && l->left; e = e->next) {
        if (!e->present || e->since > l->since) continue;
        cdp__conn_reply_string(c, cdp__kv_key(e), e->key_bytes);
        --l->left;
    }
    l->cursor = cdp__kv_next_bucket(kv, l->cursor);
    l->all_listed = l->cursor == 0;
}

/* Continues a listing until this run has done its share or the client has too many unread
   answers. Clients ignore keys without a leading slash, so empty keys can replace those removed
   meanwhile. */
CDP__PRIVATE void cdp__conn_list(cdp__conn *c) {
    cdp__listing *l = &c->listing;
    while (l->left && !c->closing && !cdp__conn_is_behind(c)) {
        if (!cdp__server_spend(c->server, 1)) {
            cdp__conn_defer(c);
            return;
        }
        if (!l->all_listed) {
            cdp__conn_list_bucket(c);
        } else {
            cdp__conn_reply_string(c, NULL, 0);
            --l->left;
        }
    }
}

CDP__PRIVATE void cdp__server_on_list_keys(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv *kv = &c->server->kv;
    (void)it;
    cdp__conn_reply_number(c, kv->present_count);
    c->listing.left = kv->present_count;
    c->listing.since = kv->arrivals;
    c->listing.cursor = 0;
    c->listing.all_listed = false;
    cdp__conn_list(c);
}

/* Increments the count in the map. The client with which it reaches the size ends the waits of
   all. */
CDP__PRIVATE void cdp__server_on_barrier(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    int64_t sum;
    const cdp_status status = cdp__kv_add(&c->server->kv, it->key, 1, &sum, &e);
    if (status != CDP_OK || sum >= (int64_t)it->number) {
        if (status == CDP_OK) cdp__conn_reply_byte(c, CDP__WIRE_STOP_WAITING);
        cdp__conn_stored(c, status, e);
    } else {
        (void)cdp__conn_await(c, it->key, false);
    }
}

CDP__PRIVATE void cdp__server_on_queue_push(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv_entry *e = NULL;
    const cdp_status status = cdp__kv_push(&c->server->kv, it->key, it->value[0], &e);
    if (status == CDP_OK)
        cdp__server_item_pushed(c->server, e);
    else
        cdp__conn_stored(c, status, NULL);
}

/* Answers with the length of the queue and, if it is not empty, the first value. */
CDP__PRIVATE void cdp__server_on_queue_pop(cdp__conn *c, const cdp__wire_item *it) {
    cdp__kv *kv = &c->server->kv;
    cdp__kv_entry *e = cdp__kv_find(kv, it->key);
    cdp__kv_item *item;
    cdp__conn_reply_number(c, e ? e->item_count : 0);
    if (!e || !e->item_count) return;
    item = cdp__kv_pop(kv, e);
    cdp__conn_reply_string(c, item + 1, item->bytes);
    cdp__free(kv->os, item);
    cdp__kv_release(kv, e);
}

CDP__PRIVATE void cdp__server_on_queue_len(cdp__conn *c, const cdp__wire_item *it) {
    const cdp__kv_entry *e = cdp__kv_find(&c->server->kv, it->key);
    cdp__conn_reply_number(c, e ? e->item_count : 0);
}

CDP__PRIVATE uint64_t cdp__last_will_cost(const cdp__last_will *w) {
    return w ? cdp__kv_cost(sizeof *w + w->key.bytes + w->value.bytes) : 0;
}

/* Stores the client's last will; an empty key withdraws it. */
CDP__PRIVATE void cdp__server_on_last_will(cdp__conn *c, const cdp__wire_item *it) {
    cdp_store_server *s = c->server;
    const uint64_t bytes = sizeof *c->last_will + it->key.bytes + it->value[0].bytes;
    uint8_t *p;
    s->kv.bytes -= cdp__last_will_cost(c->last_will);
    cdp__free(s->os, c->last_will);
    c->last_will = NULL;
    if (!it->key.bytes) return;
    if (cdp__kv_has_room(&s->kv, bytes)) c->last_will = (cdp__last_will *)cdp__alloc(s->os, bytes);
    if (!c->last_will) {
        cdp__conn_close(c, "no memory for a last will (max_total_bytes)");
        return;
    }
    p = (uint8_t *)(c->last_will + 1);
    memcpy(p, it->key.data, (size_t)it->key.bytes);
    if (it->value[0].bytes)
        memcpy(p + it->key.bytes, it->value[0].data, (size_t)it->value[0].bytes);
    c->last_will->key.data = p;
    c->last_will->key.bytes = it->key.bytes;
    c->last_will->value.data = p + it->key.bytes;
    c->last_will->value.bytes = it->value[0].bytes;
    s->kv.bytes += cdp__last_will_cost(c->last_will);
}

CDP__PRIVATE void cdp__server_on_watch(cdp__conn *c, const cdp__wire_item *it) {
    if (cdp__conn_await(c, it->key, true)) cdp__conn_reply_byte(c, CDP__WIRE_WATCH_BEGINS);
}

/* The functions in the order of cdp__cmd. NULL: no dialect has this command. */
#ifdef CDP_NO_STORE_CALLS
#define CDP__SERVER_CALL(f) NULL
#else
#define CDP__SERVER_CALL(f) f
#endif
typedef void cdp__server_function(cdp__conn *c, const cdp__wire_item *it);
static cdp__server_function *const cdp__server_commands[] = {
    NULL,
    cdp__server_on_validate,
    cdp__server_on_set,
    cdp__server_on_compare_set,
    cdp__server_on_get,
    cdp__server_on_add,
    cdp__server_on_check,
    cdp__server_on_wait,
    CDP__SERVER_CALL(cdp__server_on_num_keys),
    cdp__server_on_delete,
    CDP__SERVER_CALL(cdp__server_on_append),
    cdp__server_on_get,
    cdp__server_on_set,
    cdp__server_on_cancel_wait,
    cdp__server_on_ping,
    CDP__SERVER_CALL(cdp__server_on_queue_push),
    CDP__SERVER_CALL(cdp__server_on_queue_pop),
    CDP__SERVER_CALL(cdp__server_on_queue_len),
    CDP__SERVER_CALL(cdp__server_on_list_keys),
    CDP__SERVER_CALL(cdp__server_on_barrier),
    cdp__server_on_last_will,
    cdp__server_on_get,
    CDP__SERVER_CALL(cdp__server_on_watch),
    cdp__server_on_key,
};

#ifndef CDP_NO_STORE_CALLS
/* True if the command has changed the value of its key; `old` is the previous value. */
CDP__PRIVATE bool cdp__server_changed(
    const cdp__wire_item *it, const cdp__kv_entry *e, bool was_there, cdp_bytes old) {
    switch (it->cmd) {
    case CDP__CMD_SET:
    case CDP__CMD_MULTI_SET:
    case CDP__CMD_ADD:
    case CDP__CMD_APPEND:
    case CDP__CMD_BARRIER: return true;
    case CDP__CMD_DELETE: return was_there;
    case CDP__CMD_COMPARE_SET:
        if (!e->present || !was_there) return e->present;
        return old.bytes == it->value[0].bytes
            && (!old.bytes || memcmp(old.data, it->value[0].data, (size_t)old.bytes) == 0);
    default: return false;
    }
}

/* Runs one item. If its key is watched, copies the old value first. Only the dialect of PyTorch
   1.13 has watches. */
CDP__PRIVATE void cdp__server_command(cdp__conn *c, const cdp__wire_item *it) {
    cdp_store_server *s = c->server;
    const cdp__kv_entry *e = it->key.data && s->watch_count ? cdp__kv_find(&s->kv, it->key) : NULL;
    const bool was_there = e && e->present;
    cdp_bytes old;
    uint8_t *copy = NULL;
    CDP_ASSERT(cdp__server_commands[it->cmd]);
    if (!e || cdp__chain_empty(&e->watches)) {
        cdp__server_commands[it->cmd](c, it);
        return;
    }
    old.bytes = was_there ? e->value_bytes : 0;
    if (old.bytes) copy = (uint8_t *)cdp__alloc(s->os, old.bytes);
    if (copy)
        memcpy(copy, e->value, (size_t)old.bytes);
    else
        old.bytes = 0;
    old.data = copy;
    cdp__server_commands[it->cmd](c, it);
    if (!c->closing && cdp__server_changed(it, e, was_there, old))
        cdp__server_notify_watchers(s, e, was_there, old);
    cdp__free(s->os, copy);
}
#else
CDP__PRIVATE void cdp__server_command(cdp__conn *c, const cdp__wire_item *it) {
    CDP_ASSERT(cdp__server_commands[it->cmd]);
    cdp__server_commands[it->cmd](c, it);
}
#endif

#endif /* CDP_NO_STORE_SERVER */

#endif /* CDP_SRC_STORE_SERVER_COMMANDS_H */

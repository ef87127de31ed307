/* store/server_waits.h - which connections wait for which key

   Knows: waiters. Promises: any number of connections may wait for one key: when it is set, they
   are moved aside in constant time, and then answered a bounded number per run. */
#ifndef CDP_SRC_STORE_SERVER_WAITS_H
#define CDP_SRC_STORE_SERVER_WAITS_H

#include "../base/config.h"
#include "../base/types_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "desc_api.h"
#include "wire.h"
#include "kv.h"
#include "server.h"

#ifndef CDP_NO_STORE_SERVER

CDP__PRIVATE cdp__waiter *cdp__waiter_of_conn(cdp__chain *link) {
    return (cdp__waiter *)(void *)((uint8_t *)link - offsetof(cdp__waiter, of_conn));
}

/* The entry that contains this chain's head. */
CDP__PRIVATE cdp__kv_entry *cdp__waiter_entry(cdp__chain *head, bool watch) {
    const uint64_t at = watch ? offsetof(cdp__kv_entry, watches) : offsetof(cdp__kv_entry, waits);
    return (cdp__kv_entry *)(void *)((uint8_t *)head - at);
}

CDP__PRIVATE void cdp__waiter_drop(cdp__waiter *w) {
    cdp__conn *c = w->conn;
    cdp_store_server *s = c->server;
    cdp__chain *empty = cdp__chain_remove(&w->of_key);
    (void)cdp__chain_remove(&w->of_conn);
    if (empty && empty != &s->satisfied)
        cdp__kv_release(&s->kv, cdp__waiter_entry(empty, w->watch));
    CDP_ASSERT(w->watch ? c->watch_count : c->wait_count);
    if (w->watch) {
        --c->watch_count;
        --s->watch_count;
    } else {
        --c->wait_count;
    }
    s->kv.bytes -= cdp__kv_cost(sizeof *w);
    cdp__free(s->os, w);
}

/* Makes a connection wait for a key. False: not possible; the connection is being closed. */
CDP__PRIVATE bool cdp__conn_await(cdp__conn *c, cdp_bytes key, bool watch) {
    cdp_store_server *s = c->server;
    const bool many =
        watch ? c->watch_count >= CDP__SERVER_MAX_WATCHES : c->wait_count >= s->limits.list;
    cdp__kv_entry *e = many ? NULL : cdp__kv_obtain(&s->kv, key);
    cdp__waiter *w = NULL;
    if (e && cdp__kv_has_room(&s->kv, sizeof *w))
        w = (cdp__waiter *)cdp__alloc_zero(s->os, sizeof *w);
    if (!w) {
        cdp__kv_release(&s->kv, e);
        cdp__conn_close(c,
            many ? "it waits for too many keys (max_list)"
                 : "no memory to wait for a key (max_total_bytes)");
        return false;
    }
    w->conn = c;
    w->watch = watch;
    cdp__chain_add(watch ? &e->watches : &e->waits, &w->of_key);
    cdp__chain_add(&c->waiters, &w->of_conn);
    s->kv.bytes += cdp__kv_cost(sizeof *w);
    if (watch) {
        ++c->watch_count;
        ++s->watch_count;
    } else {
        ++c->wait_count;
        ++c->awaited;
    }
    return true;
}

CDP__PRIVATE void cdp__conn_forget_waits(cdp__conn *c, bool watches) {
    cdp__chain *link = c->waiters.next, *next;
    for (; link != &c->waiters; link = next) {
        cdp__waiter *w = cdp__waiter_of_conn(link);
        next = link->next;
        if (!w->watch || watches) cdp__waiter_drop(w);
    }
    c->awaited = 0;
}

/* Removes waits of a connection. False: this run has done its share, and some are left. */
CDP__PRIVATE bool cdp__conn_forget_some_waits(cdp__conn *c) {
    while (!cdp__chain_empty(&c->waiters)) {
        if (!cdp__server_spend(c->server, 1)) return false;
        cdp__waiter_drop(cdp__waiter_of_conn(c->waiters.next));
    }
    c->awaited = 0;
    return true;
}

CDP__PRIVATE void cdp__conn_key_arrived(cdp__conn *c) {
    CDP_ASSERT(c->awaited);
    if (--c->awaited) return;
    c->wait_answered = true;
    cdp__conn_reply_byte(c, CDP__WIRE_STOP_WAITING);
}

CDP__PRIVATE void cdp__waiter_satisfied(cdp__waiter *w) {
    cdp__conn *c = w->conn;
    CDP_ASSERT(!w->watch);
    cdp__waiter_drop(w);
    cdp__conn_key_arrived(c);
}

/* Answers waiters whose key was set, within half of this turn's work; commands get the other half.
   */
CDP__PRIVATE void cdp__server_wake(cdp_store_server *s) {
    const uint32_t keep = CDP__SERVER_TURN_WORK / 2;
    while (!cdp__chain_empty(&s->satisfied)) {
        if (!cdp__server_spend(s, 1) || s->work_left < keep) {
            cdp__server_want_turn(s);
            return;
        }
        cdp__waiter_satisfied((cdp__waiter *)s->satisfied.next);
    }
}

/* The entry has a value now: ends all waits for it. NULL is allowed. */
CDP__PRIVATE void cdp__server_key_set(cdp_store_server *s, cdp__kv_entry *e) {
    if (!e) return;
    cdp__chain_move(&e->waits, &s->satisfied);
    cdp__server_wake(s);
}

/* The entry's queue has one more value: ends the wait of one connection. */
CDP__PRIVATE void cdp__server_item_pushed(cdp_store_server *s, cdp__kv_entry *e) {
    cdp__chain *first = e->waits.next;
    if (cdp__chain_empty(&e->waits)) return;
    (void)cdp__chain_remove(first);
    cdp__chain_add(&s->satisfied, first);
    cdp__server_wake(s);
}

/* Sends the old and the new value to all connections that watch this key. */
CDP__PRIVATE void cdp__server_notify_watchers(
    cdp_store_server *s, const cdp__kv_entry *e, bool was_there, cdp_bytes old) {
    const cdp__chain *link;
    uint8_t what = was_there ? CDP__WIRE_WATCH_UPDATED : CDP__WIRE_WATCH_CREATED;
    if (!e->present) what = CDP__WIRE_WATCH_DELETED;
    for (link = e->watches.next; link != &e->watches; link = link->next) {
        cdp__conn *c = ((const cdp__waiter *)link)->conn;
        (void)cdp__server_spend(s, 1 + (e->value_bytes + old.bytes) / 4096);
        cdp__conn_reply_byte(c, what);
        cdp__conn_reply_string(c, cdp__kv_key(e), e->key_bytes);
        cdp__conn_reply_string(c, old.data, old.bytes);
        cdp__conn_reply_string(c, e->value, e->value_bytes);
    }
}

#endif /* CDP_NO_STORE_SERVER */

#endif /* CDP_SRC_STORE_SERVER_WAITS_H */

/* store/client_answers.h - handles answers

   Knows: the meaning of each answer, and what is sent after it. Promises: nothing blocks; an
   invalid answer breaks the client. */
#ifndef CDP_SRC_STORE_CLIENT_ANSWERS_H
#define CDP_SRC_STORE_CLIENT_ANSWERS_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "interface_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "../base/bytes.h"
#include "wire.h"
#include "request.h"
#include "client.h"
#include "client_requests.h"

/* Sends the next part of the current request; `expect` says what the server then answers. */
CDP__PRIVATE void cdp__client_proceed(cdp__client *c, cdp__expect expect) {
    c->expect = expect;
    if (!cdp__client_put(c, c->rq)) cdp__client_done(c, CDP_ERR_NOMEM);
}

/* The server sends `count` values next. */
CDP__PRIVATE void cdp__client_expect_values(cdp__client *c, uint64_t count) {
    if (c->rq && !cdp__store_lists(c->rq))
        c->rq->number =
            (int64_t)cdp__max((uint64_t)c->rq->number, 1); /* the key exists, whatever follows */
    c->expect = CDP__EXPECT_VALUES;
    c->values = count;
    c->value_at = 0;
    if (!count) cdp__client_done(c, CDP_OK); /* an empty list has no answer */
}

/* The key exists: ends the request, or reads the value. */
CDP__PRIVATE void cdp__client_stopped(cdp__client *c) {
    cdp_store_request *rq = c->rq;
    bool sent;
    if (!rq || rq->op == CDP_STORE_WAIT || rq->op == CDP_STORE_BARRIER) {
        cdp__client_done(c, CDP_OK);
        return;
    }
#ifndef CDP_NO_STORE_CALLS
    if (rq->op == CDP_STORE_QUEUE_POP) {
        cdp__client_proceed(c, CDP__EXPECT_POP);
        return;
    }
#endif
    sent = rq->op == CDP_STORE_GET ? cdp__client_put_key(c, CDP__OP_GET, rq, 0)
                                   : cdp__client_put_list(c, CDP__OP_MULTI_GET, rq, false);
    if (sent)
        cdp__client_expect_values(c, rq->key_count);
    else
        cdp__client_done(c, CDP_ERR_NOMEM);
}

/* Handles the answer to a CHECK. If the key is absent, waits for it, unless the request was
   cancelled. */
CDP__PRIVATE void cdp__client_checked(cdp__client *c, uint8_t v) {
    const bool there = v == CDP__WIRE_READY;
    if (v > CDP__WIRE_NOT_READY) {
        cdp__client_violated(c, "neither yes nor no to a check");
    } else if (there && c->expect == CDP__EXPECT_TRY) {
        cdp__client_expect_values(c, 1);
    } else if (c->paired) { /* the answer to the WAIT follows; one to CANCEL_WAIT, if cancelled */
        c->expect = c->rq ? CDP__EXPECT_STOP : CDP__EXPECT_CANCEL;
    } else if (!c->rq) {
        cdp__client_done(c, CDP_OK);
    } else if (there && c->rq->op != CDP_STORE_BARRIER) {
        cdp__client_stopped(c);
    } else {
        c->expect = CDP__EXPECT_STOP;
        if (!cdp__client_put_wait(c, c->rq)) cdp__client_done(c, CDP_ERR_NOMEM);
    }
}

#define CDP__CLIENT_MAX_EMPTY_POPS 1000u

/* Handles the length of a queue. If it is 0, another client was faster, or the wait ended
   because of an ordinary key of the same name. */
CDP__PRIVATE void cdp__client_popped(cdp__client *c, uint64_t count) {
    if (c->rq) c->rq->number = (int64_t)count;
    if (count) {
        cdp__client_expect_values(c, 1);
    } else if (!c->rq || c->rq->delta) {
        cdp__client_done(c, CDP_OK);
    } else if (++c->empty_pops > CDP__CLIENT_MAX_EMPTY_POPS) {
        cdp__fail(CDP_ERR_STATE,
            "the queue is empty though its key is there: was an ordinary value set under the same "
            "key? (the store at %s)",
            c->name);
        cdp__client_done(c, CDP_ERR_STATE);
    } else {
        cdp__client_proceed(c, CDP__EXPECT_CHECK);
    }
}

CDP__PRIVATE void cdp__client_byte(cdp__client *c, uint8_t v) {
    if (v == CDP__WIRE_CLOSING && (c->is_cdp || c->expect != CDP__EXPECT_FLAG)) {
        cdp__client_closed(c);
    } else if (c->expect == CDP__EXPECT_FLAG) {
        if (v > CDP__WIRE_NOT_READY) {
            cdp__client_violated(c, "neither yes nor no to a check");
            return;
        }
        if (c->rq) c->rq->number = v == CDP__WIRE_READY;
        cdp__client_done(c, CDP_OK);
    } else if (c->expect == CDP__EXPECT_CHECK || c->expect == CDP__EXPECT_TRY) {
        cdp__client_checked(c, v);
    } else if (c->expect == CDP__EXPECT_STOP && v == CDP__WIRE_STOP_WAITING) {
        cdp__client_stopped(c);
    } else if (c->expect == CDP__EXPECT_CANCEL && v == CDP__WIRE_CANCELED) {
        cdp__client_done(c, CDP_OK);
        /* the answer to the wait crossed with the cancellation */
    } else if (c->expect != CDP__EXPECT_CANCEL || v != CDP__WIRE_STOP_WAITING) {
        cdp__client_violated(c, "an unknown answer to a wait");
    }
}

/* Handles a listed key. Keys of programs begin with a slash, which is removed. Other keys are
   dropped: they are the protocol's own, or empty ones that the server sends in place of keys
   deleted during the listing. */
CDP__PRIVATE void cdp__client_key_listed(cdp__client *c) {
    cdp_bytes *key = &c->rq->results[c->rq->number];
    uint8_t *p = c->value - key->bytes; /* the whole key has arrived */
    if (key->bytes && p[0] == '/') {
        memmove(p, p + 1, (size_t)key->bytes); /* including the terminating zero */
        --key->bytes;
        ++c->rq->number;
        return;
    }
    cdp__free(c->os, p);
    key->data = NULL;
}

CDP__PRIVATE void cdp__client_next_value(cdp__client *c) {
    c->in_value = false;
    if (c->rq && cdp__store_lists(c->rq)) cdp__client_key_listed(c);
    if (++c->value_at == c->values) cdp__client_done(c, CDP_OK);
}

/* Makes room for one more key in the results of a LIST_KEYS. The room grows with the keys that
   arrive. */
CDP__PRIVATE bool cdp__client_grow_list(cdp__client *c) {
    cdp_store_request *rq = c->rq;
    const uint64_t n = (uint64_t)rq->number;
    cdp_bytes *results;
    if (rq->results && (n < 16 || (n & (n - 1)))) return true; /* room doubles at powers of two */
    results = (cdp_bytes *)cdp__alloc_zero(c->os, cdp__max(16, 2 * n) * sizeof *results);
    if (!results) return false;
    if (rq->results) memcpy(results, rq->results, (size_t)n * sizeof *results);
    cdp__free(c->os, rq->results);
    rq->results = results;
    return true;
}

/* Out of memory for an answer: fails the request, and skips the answer's bytes. */
CDP__PRIVATE void cdp__client_drop_answer(cdp__client *c) {
    cdp_store_request *rq = c->rq;
    c->rq = NULL;
    cdp__client_drop_results(c, rq);
    rq->status = CDP_ERR_NOMEM;
}

/* The length of a value has arrived. */
CDP__PRIVATE void cdp__client_value(cdp__client *c, uint64_t bytes) {
    uint64_t at = c->value_at;
    if (bytes > c->max_value_bytes) {
        cdp__client_violated(c, "a value is larger than max_value_bytes");
        return;
    }
    c->value = NULL;
    if (c->rq && cdp__store_lists(c->rq)) {
        at = (uint64_t)c->rq->number;
        if (!cdp__client_grow_list(c)) cdp__client_drop_answer(c);
    }
    if (c->rq) c->value = cdp__store_request_result(c->os, c->rq, at, bytes);
    if (c->rq && !c->value) cdp__client_drop_answer(c);
    c->value_left = bytes;
    c->in_value = true;
    if (!bytes) cdp__client_next_value(c);
}

CDP__PRIVATE bool cdp__client_expects_number(const cdp__client *c) {
    return c->expect == CDP__EXPECT_NUMBER || c->expect == CDP__EXPECT_VALUES
        || c->expect == CDP__EXPECT_POP || c->expect == CDP__EXPECT_COUNT;
}

CDP__PRIVATE void cdp__client_number(cdp__client *c, uint64_t v) {
    switch (c->expect) {
    case CDP__EXPECT_VALUES: cdp__client_value(c, v); break;
#ifndef CDP_NO_STORE_CALLS
    case CDP__EXPECT_POP: cdp__client_popped(c, v); break;
#endif
    case CDP__EXPECT_COUNT: cdp__client_expect_values(c, v); break;
    default:
        if (c->rq) c->rq->number = (int64_t)v;
        cdp__client_done(c, CDP_OK);
        break;
    }
}

/* Handles the next bytes of the answer. False: there are none now. */
CDP__PRIVATE bool cdp__client_step(cdp__client *c) {
    const uint32_t want = cdp__client_expects_number(c) ? 8 : 1;
    int64_t r;
    if (c->in_value) {
        r = cdp__client_take(c, c->rq ? c->value : NULL, c->value_left);
        if (r <= 0) return false;
        c->value_left -= (uint64_t)r;
        if (c->value) c->value += r;
        if (!c->value_left) cdp__client_next_value(c);
        return true;
    }
    r = cdp__client_take(c, c->head + c->head_used, want - c->head_used);
    if (r <= 0) return false;
    c->head_used += (uint32_t)r;
    if (c->head_used < want) return true;
    c->head_used = 0;
    if (want == 1)
        cdp__client_byte(c, c->head[0]);
    else
        cdp__client_number(c, cdp__get_u64(c->head));
    return true;
}

/* No request is in progress: tests whether the server closed the connection. */
CDP__PRIVATE void cdp__client_check_idle(cdp__client *c) {
    const int64_t r = c->in_at != c->in_used ? (int64_t)(c->in_used - c->in_at)
                                             : cdp__client_recv(c, c->in, sizeof c->in);
    if (r <= 0) return;
    if (r == 1 && c->is_cdp && c->in[c->in_at == c->in_used ? 0 : c->in_at] == CDP__WIRE_CLOSING)
        cdp__client_closed(c);
    else
        cdp__client_violated(c, "bytes without a request");
}

CDP__PRIVATE cdp_status cdp__client_no_memory(const cdp__client *c) {
    return cdp__fail(CDP_ERR_NOMEM,
        "out of memory for a request to the store at %s, or for its answer", c->name);
}

CDP__PRIVATE bool cdp__client_old_can(cdp_store_op op) {
    return op < CDP_STORE_QUEUE_PUSH && op != CDP_STORE_APPEND;
}

/* Queues the bytes of the next request. False: that has ended with an error. */
CDP__PRIVATE bool cdp__client_issue(cdp__client *c, cdp__client_sent *sent) {
    const cdp__expect now = c->expect;
    cdp_store_request *rq = c->first;
    bool put;
    c->first = rq->next;
    if (!c->first) c->last = NULL;
    rq->next = NULL;
    if (CDP__OLD(c) && !cdp__client_old_can(rq->op)) {
        rq->status = cdp__fail(CDP_ERR_UNSUPPORTED,
            "the store at %s is one of PyTorch 1.13, which cannot append to values, list its keys, "
            "hold queues or serve barriers",
            c->name);
        return false;
    }
    rq->number = 0;
    sent->rq = rq;
    c->expect = cdp__client_expects(c, rq);
    sent->expect = (uint8_t)c->expect;
    sent->paired = c->expect == CDP__EXPECT_CHECK && cdp__client_pairs(c, rq);
    put = cdp__store_request_make_results(c->os, rq) && cdp__client_put(c, rq);
    c->expect = now;
    if (put) return true;
    cdp__store_request_drop_results(c->os, rq, 0);
    rq->status = cdp__client_no_memory(c);
    return false;
}

/* The answer to this request is the next one. */
CDP__PRIVATE void cdp__client_begun(cdp__client *c, const cdp__client_sent *sent) {
    c->rq = sent->rq;
    c->expect = (cdp__expect)sent->expect;
    c->paired = sent->paired;
    c->busy = true;
    c->empty_pops = 0;
    c->values = 1;
    c->value_at = 0;
}

/* True if this is a WAIT that was sent with its CHECK, and cancelled. */
CDP__PRIVATE bool cdp__client_called_off(const cdp_store_request *rq, bool paired) {
#ifdef CDP_NO_FRAMES
    (void)rq; /* for the sake of size */
    (void)paired;
    return false;
#else
    return paired && !rq;
#endif
}

/* True if a request of which such an answer is expected sends nothing more. */
CDP__PRIVATE bool cdp__client_all_sent(uint32_t expect, bool called_off) {
    return called_off || expect == CDP__EXPECT_NOTHING || expect == CDP__EXPECT_FLAG
        || expect == CDP__EXPECT_NUMBER || expect == CDP__EXPECT_VALUES
        || expect == CDP__EXPECT_COUNT || expect == CDP__EXPECT_CANCEL;
}

/* Sends queued requests behind the one in progress: so several of them take one round trip. To a
   server of this library alone. */
CDP__PRIVATE void cdp__client_send_ahead(cdp__client *c) {
    while (c->first && c->busy && c->is_cdp && !CDP__OLD(c) && c->sent_count < CDP__CLIENT_AHEAD) {
        const uint32_t next = (c->sent_at + c->sent_count) % CDP__CLIENT_AHEAD;
        const uint32_t last = (next + CDP__CLIENT_AHEAD - 1) % CDP__CLIENT_AHEAD;
        const cdp__client_sent *const s = &c->sent[last];
        const bool off = c->sent_count ? cdp__client_called_off(s->rq, s->paired)
                                       : cdp__client_called_off(c->rq, c->paired);
        if (!cdp__client_all_sent(c->sent_count ? s->expect : (uint32_t)c->expect, off)) return;
        if (cdp__client_issue(c, &c->sent[next])) ++c->sent_count;
    }
}

/* Nothing is in progress: begins with the next request. */
CDP__PRIVATE void cdp__client_begin_next(cdp__client *c) {
    cdp__client_sent one;
    if (c->sent_count) {
        one = c->sent[c->sent_at];
        c->sent_at = (c->sent_at + 1) % CDP__CLIENT_AHEAD;
        --c->sent_count;
        cdp__client_begun(c, &one);
    } else if (cdp__client_issue(c, &one)) {
        cdp__client_begun(c, &one);
    }
}

/* Makes progress without waiting. */
CDP__PRIVATE void cdp__client_pump(cdp__client *c) {
    while (c->state == CDP__CLIENT_READY) {
        bool sent;
        cdp__client_send_ahead(c);
        sent = cdp__client_flush(c);
        if (c->state != CDP__CLIENT_READY) return;
        if (c->busy && c->expect != CDP__EXPECT_NOTHING) {
            if (!cdp__client_step(c)) return;
        } else if (c->busy) {
            if (!sent) return;
            cdp__client_done(c, CDP_OK);
        } else {
            if (!c->sent_count && (c->io.ready & CDP_IO_READ || c->first))
                cdp__client_check_idle(c);
            if (c->state != CDP__CLIENT_READY || (!c->first && !c->sent_count)) return;
            cdp__client_begin_next(c);
        }
    }
}

#endif /* CDP_SRC_STORE_CLIENT_ANSWERS_H */

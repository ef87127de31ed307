/* rpc/roll_call.h - says and hears words of a shutdown among ranks that are alive

   Knows: the message of a word. Promises: a rank that is counted out is told so before its link is
   given up; a list that changes within a turn is said again. */
#ifndef CDP_SRC_RPC_ROLL_CALL_H
#define CDP_SRC_RPC_ROLL_CALL_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../base/error_api.h"
#include "../channel/channel_api.h"
#include "../base/compiler.h"
#include "../base/basics.h"
#include "../base/text.h"
#include "worker_api.h"
#include "roll.h"
#include "packets.h"
#include "state.h"
#include "send.h"

CDP__PRIVATE cdp_status cdp__rpc_roll_open(cdp_rpc *rpc) {
    cdp__roll *roll = &rpc->roll;
    const uint64_t bytes = cdp__roll_bytes(rpc->ranks);
    if (bytes > rpc->inline_max)
        return cdp__fail(CDP_ERR_INVALID,
            "cdp_rpc_create: survivors of %u ranks needs a window_bytes of the group of %llu",
            rpc->ranks, (unsigned long long)(4 * bytes));
    roll->rank = rpc->rank;
    roll->ranks = rpc->ranks;
    roll->cut_by = -1;
    roll->words = (cdp__roll_word *)cdp__alloc_zero(rpc->os, rpc->ranks * sizeof *roll->words);
    roll->out = (bool *)cdp__alloc_zero(rpc->os, rpc->ranks);
    roll->sum_out = (bool *)cdp__alloc_zero(rpc->os, rpc->ranks);
    rpc->word = (uint8_t *)cdp__alloc_zero(rpc->os, bytes);
    if (roll->words && roll->out && roll->sum_out && rpc->word) return CDP_OK;
    return cdp__fail_nomem("words of a shutdown", rpc->ranks * sizeof *roll->words);
}

CDP__PRIVATE void cdp__rpc_roll_close(cdp_rpc *rpc) {
    cdp__free(rpc->os, rpc->roll.words);
    cdp__free(rpc->os, rpc->roll.out);
    cdp__free(rpc->os, rpc->roll.sum_out);
    cdp__free(rpc->os, rpc->word);
}

/* Says something to all ranks that have not left. Those that are counted out hear it, and no more:
   so one that is alive learns that it is. */
CDP__PRIVATE void cdp__rpc_say(cdp_rpc *rpc, cdp__roll_kind kind, const cdp__roll_say *say) {
    const cdp__roll *roll = &rpc->roll;
    cdp_iov iov;
    cdp_args args;
    uint32_t r;
    cdp__roll_put(roll, say, rpc->word);
    iov.data = rpc->word;
    iov.bytes = cdp__roll_bytes(rpc->ranks);
    memset(&args, 0, sizeof args);
    args.iov = &iov;
    args.iov_count = 1;
    for (r = 0; r < rpc->ranks; ++r) {
        cdp__rpc_packet p;
        if (r == rpc->rank || rpc->lost[r]) continue;
        memset(&p, 0, sizeof p);
        p.kind = CDP__RPC_ROLL;
        p.aux = (uint32_t)kind;
        p.a = roll->turn + (kind == CDP__ROLL_LAST);
        cdp__rpc_must_post(rpc, r, &p, &args);
        if (roll->out[r])
            (void)cdp_channel_drop(rpc->channel, r, "a rank that goes on has lost it");
    }
}

/* The list has changed: within a turn, it is said again. */
CDP__PRIVATE void cdp__rpc_roll_changed(cdp_rpc *rpc) {
    rpc->changed = true;
    if (rpc->roll.turn && !rpc->roll.over) cdp__rpc_say(rpc, CDP__ROLL_TURN, &rpc->roll.mine);
}

CDP__PRIVATE const char *cdp__rpc_got_roll(cdp_rpc *rpc, uint32_t from, const cdp__rpc_packet *p) {
    const char *wrong;
    bool changed;
    if (!rpc->roll.words || p->bytes != cdp__roll_bytes(rpc->ranks)) return "a word of no length";
    if (p->aux >= CDP__ROLL_KINDS) return "a word of no kind";
    wrong = cdp__roll_got(&rpc->roll, from, (cdp__roll_kind)p->aux, p->a, p->body, &changed);
    rpc->changed = true;
    if (changed) cdp__rpc_roll_changed(rpc);
    return wrong;
}

/* The link to a rank has ended. */
CDP__PRIVATE void cdp__rpc_roll_lost(cdp_rpc *rpc, uint32_t rank) {
    if (rpc->roll.words && cdp__roll_lost(&rpc->roll, rank)) cdp__rpc_roll_changed(rpc);
}

/* True if the program learns that the link to this rank has ended. */
CDP__PRIVATE bool cdp__rpc_tells_lost(const cdp_rpc *rpc, uint32_t rank) {
    return !rpc->leaving && !(rpc->roll.words && rpc->roll.words[rank].left);
}

#endif /* CDP_SRC_RPC_ROLL_CALL_H */

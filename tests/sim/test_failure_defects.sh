#!/usr/bin/env bash
# Would the exploration notice? Each defect is one changed line in the section >>failure; the explorer, built with it,
# must find a scenario that goes wrong, or tests/unit/test_failure.c a case. A defect whose line is not there any more
# fails, too.
# test_failure_defects.sh [CC]. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
cc=${1:-gcc}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0

# NAME SCENARIOS FROM TO: FROM and TO are fixed strings; FROM occurs once. SCENARIOS: of the explorer, or unit
defect() {
    DEFECT_FROM=$3 DEFECT_TO=$4 awk '
        BEGIN { from = ENVIRON["DEFECT_FROM"]; to = ENVIRON["DEFECT_TO"] }
        at = index($0, from) { ++n; $0 = substr($0, 1, at - 1) to substr($0, at + length(from)) }
        { print }
        END { exit n != 1 }' cdp.h > "$dir/cdp.h"
    if [ $? -ne 0 ]; then
        echo "not ok $1: its line does not occur exactly once"
        failed=$((failed + 1))
        return
    fi
    local source=tests/sim/failure.c words=$2
    if [ "$2" = unit ]; then source=tests/unit/test_failure.c words=; fi
    if ! $cc -std=gnu11 -O1 -w -I"$dir" -Itests "$source" -o "$dir/failure" -pthread -lm; then
        echo "not ok $1: does not compile"
        failed=$((failed + 1))
        return
    fi
    # shellcheck disable=SC2086
    if timeout 120 "$dir/failure" $words > "$dir/out"; then
        echo "not ok $1: not noticed"
        failed=$((failed + 1))
    elif grep -q '^not ok' "$dir/out"; then
        echo "ok $1: noticed in$(grep -m 1 '^not ok' "$dir/out" | cut -c 7-50 | sed 's/ *$//')"
        passed=$((passed + 1))
    else
        echo "not ok $1: the explorer did not end in time"
        failed=$((failed + 1))
    fi
}

cp cdp.h "$dir/cdp.h"
defect 'a probe stops at the first rank' 'late_rank' \
    'if (e && !w->passed) cdp__failure_probe(f, e, v->probe - 1u);' ''
defect 'a wait that begins later passes no probe on' 'late_rank' \
    'if (probe > 1) cdp__failure_ask(f, e, probe - 1);' ''
defect 'wills are not kept' 'groups,_chain_of_3:_kill' \
    'cdp__failure_keep_report(f, v->from, v->record, v->time_ns);' ''
defect 'nobody reads wills' 'groups,_chain_of_3:_kill' \
    'if (w) cdp__failure_set_cause(d, &w->record);' ''
defect 'a cut link is taken for a circle' '--all long_ring' \
    'if (here && v->passed && end.last.waiter >= 0' 'if (0 && end.last.waiter >= 0'
defect 'circles go round' 'circle_of_2' \
    'if (end.why == CDP__WHY_CIRCLE && e->end.why == CDP__WHY_CIRCLE) continue;' ''
defect 'corrections are not counted' 'chain_of_3:_kill,_unfair' \
    'const bool newer = r.corrections > d->record.corrections;' 'const bool newer = true;'
defect 'nobody sides with the majority' 'different_calls' \
    'r->end.named = r->observer;' '(void)own;'
defect 'nobody says early what it calls' 'different_calls' \
    'e->compared = e->ask = f->outbox = true;' 'e->compared = true;'
defect 'settling never ends' 'pair:_stop' \
    'if (v->time_ns < d->due_ns && !v->sure) return 0;' 'return 0;'
defect 'others are not told' 'chain_of_3:_stop' \
    'return CDP__FAILURE_PUBLISH;' 'return 0;'
defect 'what has been settled starts again' 'pair:_cut' \
    'v->domain->state = CDP__FAILURE_DONE;' 'v->domain->state = CDP__FAILURE_HEALTHY;'
defect 'what completes late has failed all the same' 'late_pair' \
    'if (d->record.status != CDP_ERR_TIMEOUT) return 0;' 'return 0;'
defect 'a loss behind a late message is not seen' 'late_ring_of_3:_late,_kill' \
    'if (st == CDP_ERR_PEER_LOST && !cdp__failure_late_arrived(f, v->domain)) return 0;' 'if (st == CDP_ERR_PEER_LOST) return 0;'
defect 'a will holds for ever' 'wills' \
    'if (!w || w->since_ns + CDP__FAILURE_SETTLE_MS * CDP__MS >= v->begun_ns) return;' 'return;'
defect 'what came before a failure outlasts it' 'unit' \
    'if (!w || w->since_ns + CDP__FAILURE_SETTLE_MS * CDP__MS >= v->begun_ns) return;' 'if (!w || w->since_ns >= v->begun_ns) return;'
defect 'a will is not looked for' 'groups,_chain_of_3:_kill' \
    'if (!w) w = cdp__failure_find_report(f, f->rank);' 'w = NULL;'
defect 'any loss replaces a timeout' 'unit' \
    'if (st == CDP_ERR_PEER_LOST && !cdp__failure_late_arrived(f, v->domain)) return 0;' ''
defect 'who was silent is forgotten' 'unit' \
    'if (d->known && (cdp__endpoint_silent(&d->end) || d->end.why == CDP__WHY_AWAITED)' 'if (0'
defect 'the wait behind the late one is blamed' 'unit' \
    'if (!e || (d->known && !same)) return;' 'if (!e) return;'
defect 'the wait behind the late one is asked about' 'unit' \
    'if (d->found) return;' ''
defect 'the first of all others is not asked' 'unit' \
    'if (r->end.named >= 0 && cdp__failure_find_report(f, (uint32_t)r->end.named))' 'if (0)'
defect 'two losses need no explanation' 'unit' \
    'r->end.why == CDP__WHY_TEXT || r->end.why == CDP__WHY_FIRST;' 'r->end.why == CDP__WHY_TEXT;'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# Plants one defect at a time in a copy of cdp_mem.h and looks whether the tests find it. A defect that changes nothing, does
# not compile, or is not found fails. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0
cp -r cdp.h tests "$tmp/"
# cdp.h has no defect and is compiled once; a test with a defect links it and compiles the rest (own.h).
flags='-O1 -std=gnu11 -fno-omit-frame-pointer -I. -Itests'
printf '#define CDP_IMPLEMENTATION\n#include "cdp.h"\n' > "$tmp/core.c"
printf '#define _GNU_SOURCE\n#define CDP_IMPLEMENTATION\n#include "linked.h"\n#include "cdp.h"\n#include "own.h"\n' > "$tmp/first.h"
# shellcheck disable=SC2086
(cd "$tmp" && ${CC:-gcc} $flags -w -DCDP__PRIVATE=extern -c core.c -o core.o) || exit 1

defect() { # NAME TEST PERL-EXPRESSION, which sees the whole file
    local name=$1 test=$2
    perl -0pe "$3" cdp_mem.h > "$tmp/cdp_mem.h"
    if cmp -s cdp_mem.h "$tmp/cdp_mem.h"; then echo "not ok $name: nothing was planted"; failed=$((failed + 1)); return; fi
    # shellcheck disable=SC2086
    if ! (cd "$tmp" && ${CC:-gcc} $flags -fno-inline -w -include first.h "tests/mem/$test.c" core.o -o "$test" -pthread -lm -ldl) > "$tmp/out" 2>&1; then
        echo "not ok $name: does not compile"
        head -n 5 "$tmp/out"
        failed=$((failed + 1))
    elif timeout 120 "$tmp/$test" > "$tmp/out" 2>&1; then
        echo "not ok $name: no test found it"
        failed=$((failed + 1))
    else
        echo "ok $name: $(grep -m 1 -E '^  ' "$tmp/out" | cut -c 1-110)"
        passed=$((passed + 1))
    fi
}

defect 'an event is not recorded' test_mem_random 's/return s->event_record\(s->user, u->event, u->queue->stream\);/return CDP_OK;/'
defect 'reuse before the second stream' test_mem 's/if \(!--p->waits\) cdp__mem_complete/p->waits = 0;\n    if (!p->uses || 1) cdp__mem_complete/'
defect 'a merge is lost' test_mem_random 's/if \(next && next->state == CDP_MEM_INACTIVE\)/if (next && next->state == CDP_MEM_INACTIVE && next->size > 4096)/'
defect 'rounding at 1 MiB' test_mem 's/return size > CDP__MEM_SMALL;/return size >= CDP__MEM_SMALL;/'
defect 'rounding at 10 MiB' test_mem 's/size < CDP__MEM_OWN_SEGMENT/size <= CDP__MEM_OWN_SEGMENT/'
defect 'segment_free before free_completed' test_mem 's/(cdp__mem_event_part\(m, c, CDP_MEM_FREE_COMPLETED, p\);)(.*?)(\(void\)cdp__mem_release\(m, c, s\);\n)/$2$3/s'
defect 'a stack of its own for a free at ALLOC' test_mem_files 's/d->context == CDP_MEM_CONTEXT_ALL\)/d->context <= CDP_MEM_CONTEXT_ALLOC)/'
defect 'a statistic is forgotten' test_mem_random 's/cdp__mem_down\(&m->tally.requested_bytes[^;]*;//'
defect 'a bit of the map stays' test_mem_random 's/b->map\[i \/ 64\] &= ~\(1ull << i % 64\);//'
defect 'a hole in the table' test_mem 's/if \(!cdp__mem_table_moves\(t, i, hole\)\) continue;/break;/'
defect 'the limit is forgotten' test_mem 's/if \(m->limit && \(bytes > m->limit[^)]*\)\) \{/if (0) {/'
defect "more than 1,000 items at once" test_mem_random 's/if \(w->json \|\| i % 1000\) return;/if (w->json || i) return;/'
defect 'stack numbers are not remembered' test_mem_files 's/(cdp__mem_pickle_again\(w, w->stack_memo\[stack\])\)/$1 + 1)/'
defect 'what is recorded is decided before the lock' test_mem_record 's/c->wants = m->log.what;/c->wants &= m->log.what;/'
defect 'times before the history began' test_mem_record 's/c->now_ns = cdp__max\(c->now_ns, m->log.start_ns\);//'
defect 'numbers of a former history' test_mem_record 's/if \(c->history != m->histories\)\s+cdp__mem_call_recorded\(m, c\);\s+else if \(c->wants\)\s+cdp__mem_call_label\(m, c\);//'
defect 'an exact search is not exact' test_mem_search 's/(fit_among\(m, arena, a, )UINT64_MAX/$1CDP__MEM_QUICK_SEARCH/'
defect 'a round is cut short' test_mem_search 's/for \(s = m->spans; s; s = next\) \{(\s+next = s->next;\s+if \(!s->large)/for (s = m->spans; s && m->held > keep; s = next) {$1/'
defect 'a graph loses its memory' test_mem_search 's/ && !pool->captured;/;/'
defect 'a label is never given up' test_mem_labels 's/if \(\*place\) --l->at\[\*place - 1\].carried;//'
defect 'a live block has no alloc' test_mem_viewer 's/p->began = m->log.ring.total;/p->began = 0;/'
defect 'two allocators one after the other' test_mem_viewer 's/if \(!from \|\| from == d->count\) return true;/return true;/'
defect 'peaks without blocks that wait' test_mem 's/if \(cdp__mem_now\(&m->tally.active\)\) \{/if (0) {/'
defect 'peaks without blocks that do not wait' test_mem 's/active->peak_all = cdp__max\(active->peak_all, held->peak_all\);//'
defect 'a piece is counted twice' test_mem 's/if \(!merged\) cdp__mem_up\(&m->tally.inactive_split, large, 1\);/cdp__mem_up(&m->tally.inactive_split, large, 1);\n    cdp__mem_down(&m->tally.inactive_split, large, merged ? 1 : 0);/'
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]

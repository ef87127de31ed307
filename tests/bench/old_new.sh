#!/usr/bin/env bash
# Measures the headers of an earlier commit beside those that are here: the same benchmark (collectives.c), built with both,
# in worlds that live at once and take turns, measurement by measurement: old, new, old again. A pair is the time of new
# over the mean of the two old ones around it; the second old one over the first says how much the machine itself differs.
#
#   old_new.sh [OPTION ...] [COMMIT]        COMMIT: a commit or tag, default 6120c48 (the last of 0.1)
#     --pairs N        pairs of each operation and size, at least 31 for a verdict (default 31)
#     --seconds S      of one measurement (default 0.03)
#     --ranks LIST     default 2,4
#     --links LIST     of tcp, memory (any memory), segments (memory of cdp_group_alloc); default all three
#     --op LIST        default allreduce,reduce_scatter,allgather,broadcast,alltoall,barrier,pingpong
#     --size LIST      default 4,256,4K,64K,1M,16M
#     --lines DIR      keeps what was measured
#     --quick          3 pairs of few sizes: shows that it works and decides nothing
#
# Prints the median of the pairs for each operation and size; for each class (ranks, link, sizes up to 4 KiB, up to
# 64 KiB, from 1 MiB on) the geometric mean of these medians, and the same of old over old. Ends with 0 if all together are
# at most 1.02 and no class is above 1.05, with 1 if not, with 2 if it could not measure. Roughly half an hour,
# on a machine on which nothing else runs.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 2
export LC_ALL=C
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
commit=6120c48 pairs=31 seconds=0.03 ranks=2,4 links=tcp,memory,segments quick='' keep=''
ops=allreduce,reduce_scatter,allgather,broadcast,alltoall,barrier,pingpong sizes=4,256,4K,64K,1M,16M
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage; exit 0 ;;
    --quick) quick=1 pairs=3 seconds=0.01 ranks=2 ops=allreduce,broadcast,pingpong sizes=4,64K,1M; shift; continue ;;
    --*) [ $# -ge 2 ] || { usage >&2; exit 2; } ;;
    *) commit=$1; shift; continue ;;
    esac
    case $1 in
    --pairs) pairs=$2 ;; --seconds) seconds=$2 ;; --ranks) ranks=$2 ;; --links) links=$2 ;;
    --op) ops=$2 ;; --size) sizes=$2 ;; --lines) keep=$2 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift 2
done
full=$(git rev-parse --verify --quiet "$commit^{commit}") || { echo "there is no commit or tag $commit here" >&2; exit 2; }

tmp=$(mktemp -d) || exit 2
pids=()
finish() { for p in "${pids[@]}"; do kill "$p" 2> /dev/null; done; wait; rm -rf "$tmp"; }
trap finish EXIT
trap 'exit 130' INT TERM
mkdir "$tmp/old" "$tmp/lines"
git archive "$full" cdp.h cdp_store.h cdp_tcp.h | tar -x -C "$tmp/old" || exit 2
# The benchmark speaks the names of today; before 0.2 the members of a group's desc stood in cdp_tcp_desc itself.
cp tests/bench/collectives.c tests/bench/measure.h "$tmp"
if ! grep -q 'cdp_group_desc group;' "$tmp/old/cdp_tcp.h"; then
    sed -i.today 's/d\.group\./d./g; s/expose_bytes/lend_bytes/' "$tmp/collectives.c"
fi
# Before 0.3 memory of a group was returned, not written through a pointer.
if grep -q 'CDP_API void \*cdp_group_alloc' "$tmp/old/cdp.h"; then
    sed -i.today 's/return cdp_group_alloc(group, bytes, &p) == CDP_OK ? p : NULL;/return p = cdp_group_alloc(group, bytes);/' "$tmp/collectives.c"
fi
gcc -O2 -I"$tmp/old" "$tmp/collectives.c" -o "$tmp/bench_old" -pthread -lm || exit 2
gcc -O2 -I. tests/bench/collectives.c -o "$tmp/bench_new" -pthread -lm || exit 2

echo "# old: $(git log -1 --format='%h of %ad' --date=short "$full"), new: $(git log -1 --format='%h of %ad' --date=short)$(git diff --quiet HEAD -- 'cdp*.h' || echo ' and changes'); $pairs pairs"
echo "# $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(uname -sr), load $(cut -d' ' -f1-3 /proc/loadavg)"
for n in ${ranks//,/ }; do
    for link in ${links//,/ }; do
        meet=$(mktemp -p "$([ -d /dev/shm ] && echo /dev/shm || echo "$tmp")")
        pids=()
        for turn in 0 1 2; do # old, new, old
            program=$tmp/bench_old
            [ $turn != 1 ] || program=$tmp/bench_new
            "$program" --transport "$link" --ranks "$n" --op "$ops" --size "$sizes" --rounds "$pairs" --seconds "$seconds" \
                --iterations 2000 --bind --no-header --meet "$meet" --turn "$turn/3" < /dev/null > "$tmp/lines/$link.$n.$turn" 2> "$tmp/err.$turn" &
            pids+=($!)
        done
        bad='' # each world by itself: where one fails, the others, which wait for their turn, are ended
        for k in 0 1 2; do
            wait -n || { [ -n "$bad" ] || kill "${pids[@]}" 2> /dev/null; bad=1; }
        done
        pids=()
        rm -f "$meet"
        [ -z "$bad" ] || { cat "$tmp"/err.* >&2; echo "a world of $n ranks over $link failed" >&2; exit 2; }
    done
done
[ -z "$keep" ] || { mkdir -p "$keep" && cp "$tmp"/lines/* "$keep"; }

paste -d '\t' <(cat "$tmp"/lines/*.0) <(cat "$tmp"/lines/*.1) <(cat "$tmp"/lines/*.2) |
    awk -F '\t' -v enough=$((pairs >= 31 && !0$quick)) '
    function middle(list,   n, a, i, j, t) {
        n = split(list, a, " ")
        for (i = 2; i <= n; ++i)
            for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; --j) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    function class_of(bytes) { return bytes <= 4096 ? "up to 4 KiB" : bytes <= 65536 ? "up to 64 KiB" : "from 1 MiB" }
    function add(c, m, s) { sum[c] += log(m); noise[c] += log(s); ++count[c] }
    # a line holds the three measurements of one round, ten columns each
    {
        if ($1 FS $2 FS $3 FS $4 FS $5 != $11 FS $12 FS $13 FS $14 FS $15 || $15 != $25) { print "lines do not match"; broken = 1; exit }
        if ($6 <= 0 || $16 <= 0 || $26 <= 0) next
        k = $2 FS $4 FS $3 FS $5
        if (!(k in pairs)) order[++cases] = k
        pairs[k] = pairs[k] " " $16 / sqrt($6 * $26)
        again[k] = again[k] " " $26 / $6
        old_us[k] = old_us[k] " " $6; new_us[k] = new_us[k] " " $16
    }
    END {
        if (broken || !cases) { print "nothing was measured"; exit 2 }
        printf "\n%-9s %5s %-15s %9s | %10s %10s | %7s %7s\n", "link", "ranks", "op", "bytes", "old us", "new us", "new/old", "old/old"
        for (i = 1; i <= cases; ++i) {
            split(order[i], f, FS)
            m = middle(pairs[order[i]]); s = middle(again[order[i]])
            printf "%-9s %5d %-15s %9d | %10.2f %10.2f | %7.3f %7.3f\n", f[1], f[2], f[3], f[4], middle(old_us[order[i]]), middle(new_us[order[i]]), m, s
            c = f[2] " ranks, " f[1] ", " class_of(f[4])
            if (!(c in count)) classes[++class_count] = c
            add(c, m, s); add("all", m, s)
        }
        printf "\n%-36s | %7s %7s\n", "class", "new/old", "old/old"
        classes[++class_count] = "all"
        for (i = 1; i <= class_count; ++i) {
            c = classes[i]; r = exp(sum[c] / count[c]); limit = c == "all" ? 1.02 : 1.05
            printf "%-36s | %7.3f %7.3f%s\n", c, r, exp(noise[c] / count[c]), (r > limit ? "  above " limit : "")
            if (r > limit) ++above
        }
        if (!enough) { print "\nfewer than 31 pairs of each: this decides nothing"; exit 0 }
        print (above ? "\nnot ok: " above " above the limit" : "\nok")
        exit (above > 0)
    }'

#!/usr/bin/env bash
# Checkpoints beside PyTorch's DCP (where a Python has torch), two ranks of this machine: parameters with the shapes of
# GPT-2 are saved, loaded as they are, and loaded with matrices cut by columns, on a file system in memory and on a disk,
# from which files are read cold where the system forgets them on request. Both sides take turns, --rounds times.
#
# Columns: operation; medians in ms of plain calls for the same bytes (the limit), of ours, of theirs; ours / limit;
# theirs / ours of the medians, and the least and the largest of a round's theirs / ours.
#
#   checkpoint.sh [--rounds N] [--passes N] [--blocks N] [BUILD_DIR [FOLDER...]]      PYTHON: which Python to ask
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=5 passes=2 blocks=12
while [[ ${1:-} == --* ]]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --passes) passes=$2 ;;
    --blocks) blocks=$2 ;;
    *) echo "$0: unknown option $1"; exit 2 ;;
    esac
    shift 2
done
build=${1:-${BUILD:-build}}
shift $(($# > 0))
[ $# -gt 0 ] || set -- /dev/shm /tmp
mkdir -p "$build/bench" || exit 1
gcc -O2 -g -std=gnu11 -I. tests/bench/checkpoint_ranks.c -o "$build/bench/checkpoint_ranks" -pthread -lm || exit 1
python=
for p in ${PYTHON:-} python3 /usr/bin/python3; do
    "$p" -c 'import sys, torch.distributed as d, torch.distributed.checkpoint; sys.exit(not d.is_gloo_available())' > /dev/null 2>&1 && python=$p && break
done
[ -n "$python" ] || echo 'SKIP torch: no Python here has torch with Gloo'
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
port=$((20000 + $$ % 10000))

ranks() { # COMMAND...: rank 0's output
    port=$((port + 1))
    export CDP_JOB_KEY=measured WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 GLOG_minloglevel=2
    RANK=1 timeout 600 "$@" > "$out/other" 2>&1 &
    RANK=0 timeout 600 "$@" 2> "$out/said" || { echo failed; tail -n 3 "$out/said" >&2; }
    wait
}

report() { # lines of ours and theirs: ROUND OPERATION MS
    awk 'function mid(list,    v, n, i, j, x) { n = split(list, v, " ")
            for (i = 2; i <= n; ++i) { x = v[i] + 0; for (j = i - 1; j > 0 && v[j] + 0 > x; --j) v[j + 1] = v[j]; v[j + 1] = x }
            return n ? (v[int((n + 1) / 2)] + v[int(n / 2) + 1]) / 2 : 0 }
        NF != 3 { print FILENAME ": " $0; next }
        { f = FILENAME ~ /ours$/ ? "a" : "b"; all[f, $2] = all[f, $2] " " $3; of[f, $2, $1] = of[f, $2, $1] " " $3; if ($1 > last) last = $1 }
        END { n = split("save load load.columns", order, " ")
            for (i = 1; i <= n; ++i) { o = order[i]; l = o ~ /load/ ? "limit.load" : "limit.save"; a = mid(all["a", o]); b = mid(all["b", o]); low = high = 0
                for (r = 1; r <= last; ++r) { x = mid(of["a", o, r]); if (x && ("b", o, r) in of) { x = mid(of["b", o, r]) / x; if (!low || x < low) low = x; if (x > high) high = x } }
                printf "%-13s %9.1f %9.1f %9.1f %7.2f %7.2f (%.2f to %.2f)\n", o, mid(all["a", l]), a, b, a / mid(all["a", l]), a ? b / a : 0, low, high } }' "$out/ours" "$out/theirs"
}

echo "# $(uname -srm), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), ${python:+torch $("$python" -c 'import torch; print(torch.__version__)')}"
for where; do
    work=$(mktemp -d "$where/cdp_bench.XXXXXX") || exit 1
    trap 'rm -rf "$out" "$work"' EXIT
    : > "$out/ours" > "$out/theirs"
    for ((i = 1; i <= rounds; ++i)); do
        ranks "$build/bench/checkpoint_ranks" "$work" "$blocks" "$passes" | sed "s/^/$i /" >> "$out/ours"
        [ -z "$python" ] || ranks "$python" -W ignore tests/bench/checkpoint.py "$work" "$blocks" "$passes" | sed "s/^/$i /" >> "$out/theirs"
    done
    echo "# $where, $blocks blocks: limit, ours, theirs in ms; ours / limit; theirs / ours (of a round: least to largest)"
    report
    rm -rf "$work"
done
echo "# load $(cut -d' ' -f1-3 /proc/loadavg)"

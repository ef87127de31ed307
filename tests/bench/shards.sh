#!/usr/bin/env bash
# Sharded training beside PyTorch's fully_shard over Gloo (where a Python has it), 2 and 4 ranks on this machine: through shared
# memory, and over TCP as Gloo is. The sides take turns, process by process; the medians of the rounds are compared.
#
#   shards.sh [--rounds N] [BUILD_DIR] [options of shards]       PYTHON: which Python to ask
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=3
[ "${1:-}" != --rounds ] || { rounds=$2; shift 2; }
build=${BUILD:-build}
case "${1:-}" in --*|'') ;; *) build=$1; shift ;; esac
mkdir -p "$build/bench" || exit 1
gcc -O2 -g -std=gnu11 -I. tests/bench/shards.c -o "$build/bench/shards" -pthread -lm || exit 1
python=
for p in ${PYTHON:-} python3 /usr/bin/python3; do
    "$p" -c 'from torch.distributed.fsdp import fully_shard' > /dev/null 2>&1 && python=$p && break
done
[ -n "$python" ] || { echo 'SKIP shards beside PyTorch: no Python here has torch with fully_shard'; exit 0; }
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
port=$((20000 + $$ % 10000))

# job RANKS COMMAND...: rank 0 says what there is to say
job() {
    local n=$1 r
    shift
    port=$((port + 1))
    export CDP_JOB_KEY=measured WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port GLOO_SOCKET_IFNAME=lo GLOG_minloglevel=2 OMP_NUM_THREADS=1
    for ((r = 1; r < n; ++r)); do RANK=$r timeout 400 "$@" > /dev/null 2>&1 & done
    RANK=0 timeout 400 "$@" 2> /dev/null | sed "s/^/$n /" || echo "$n ${1##*/} failed"
    wait
}

echo "# $(uname -srm), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), torch $("$python" -c 'import torch; print(torch.__version__)'); options: ${*:-none}"
for n in 2 4; do
    for ((i = 0; i < rounds; ++i)); do
        job $n "$build/bench/shards" "$@"
        job $n "$python" tests/bench/shards.py "$@"
        job $n "$build/bench/shards" --tcp "$@"
    done
done | tee "$out"
# 2 memory step 270.50 ms, exposed 1.2 ms, memory 250.1 MB
awk '/failed/ { bad = 1; next }
    { i = ++count[$1, $2]; step[$1, $2, i] = $4; exposed[$1, $2, i] = $7; memory[$1, $2, i] = $10 }
    function median(of, n, side,   k, j, m, v, t) { m = count[n, side]
        for (k = 1; k <= m; ++k) { v[k] = of[n, side, k]; for (j = k; j > 1 && v[j] + 0 < v[j - 1] + 0; --j) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t } }
        return v[int((m + 1) / 2)] }
    function ratio(of, n, side,   theirs) { theirs = median(of, n, "torch"); return theirs > 0 ? median(of, n, side) / theirs : -1 }
    END { for (n = 2; n <= 4; n += 2) for (s = 1; s <= 2; ++s) { side = s == 1 ? "memory" : "tcp"
        if (count[n, side] && count[n, "torch"]) printf "%d ranks, %s, over fully_shard: step %.3f, exposed %.3f, memory %.3f\n", n, side, ratio(step, n, side), ratio(exposed, n, side), ratio(memory, n, side) }
        exit bad }' "$out"

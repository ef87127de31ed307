#!/usr/bin/env bash
# Redistributions beside PyTorch's DTensor over Gloo (where a Python has torch), and beside ScaLAPACK's pdgemr2d (where
# mpicc links with scalapack-openmpi), 2 and 4 ranks of this machine. Both sides take turns, --rounds times; of each side the
# least median over the rounds counts. Then losses and attention beside PyTorch's: losses.sh.
#
# Columns: pair, bytes; least and median of ours in us; the least possible time, measured in the same runs (each byte of the
# results copied once, by all ranks at once: see dtensor.c), and ours / that; least and median of theirs; theirs / ours of the
# least, of the medians, and of the processor time of all ranks together, which other programs on the machine change least;
# and theirs / least possible: theirs / ours cannot be larger than that.
#
#   dtensor.sh [--rounds N] [--seconds S] [--large] [BUILD_DIR]       PYTHON: which Python to ask; --large: 1 and 16 MiB alone
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=2 seconds=0.2 large=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --large) large=--large; shift; continue ;;
    --rounds) rounds=$2 ;;
    --seconds) seconds=$2 ;;
    *) echo "$0: unknown option $1"; exit 2 ;;
    esac
    shift 2
done
build=${1:-${BUILD:-build}}
mkdir -p "$build/bench" || exit 1
gcc -O2 -g -std=gnu11 -I. tests/bench/dtensor.c -o "$build/bench/dtensor" -pthread -lm || exit 1
python=
for p in ${PYTHON:-} python3 /usr/bin/python3; do
    "$p" -c 'import sys, torch.distributed as d, torch.distributed.tensor as t; sys.exit(not (d.is_gloo_available() and t.DTensor))' > /dev/null 2>&1 && python=$p && break
done
[ -n "$python" ] || echo 'SKIP torch: no Python here has torch with Gloo and DTensor'
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
port=$((20000 + $$ % 10000))

ranks() { # N COMMAND...: rank 0's output
    local n=$1 r
    shift
    port=$((port + 1))
    export WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 GLOG_minloglevel=2
    for ((r = 1; r < n; ++r)); do RANK=$r timeout 300 "$@" > /dev/null 2>&1 & done
    RANK=0 timeout 300 "$@" 2> /dev/null || echo 'failed'
    wait
}

report() { # files of ours and theirs
    awk 'NF < 4 || NF > 6 { print FILENAME ": " $0; next }
        { k = $1 " " $2; f = FILENAME ~ /ours$/ ? "a" : "b" }
        f == "a" && !(k in seen) { order[++n] = k; seen[k] = 1 }
        !((f, k) in low) || $3 < low[f, k] { low[f, k] = $3 }
        !((f, k) in mid) || $4 < mid[f, k] { mid[f, k] = $4 }
        NF > 4 && (!((f, k) in cpu) || $5 < cpu[f, k]) { cpu[f, k] = $5 }
        NF > 5 && (!(k in copy) || $6 < copy[k]) { copy[k] = $6 }
        function ratio(x, y) { return y ? sprintf("%7.1f", x / y) : "      -" }
        END { for (i = 1; i <= n; ++i) { k = order[i]; split(k, p, " "); a = mid["a", k]; b = mid["b", k]
            printf "%-14s %9d B %9.1f %9.1f %9.1f %s", p[1], p[2], low["a", k], a, copy[k], ratio(a, copy[k])
            if (("b", k) in low) printf " %9.1f %9.1f %s %s %s %s", low["b", k], b, ratio(low["b", k], low["a", k]), ratio(b, a), ratio(cpu["b", k], cpu["a", k]), ratio(b, copy[k])
            print "" } }' "$out/ours" "$out/theirs"
}

echo "# $(uname -srm), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), ${python:+torch $("$python" -c 'import torch; print(torch.__version__)')}"
for n in 2 4; do
    : > "$out/ours" > "$out/theirs"
    for ((i = 0; i < rounds; ++i)); do
        ranks "$n" "$build/bench/dtensor" --seconds "$seconds" $large >> "$out/ours"
        [ -z "$python" ] || ranks "$n" "$python" tests/bench/dtensor.py --seconds "$seconds" $large >> "$out/theirs"
    done
    echo "# $n ranks: ours: least, median, least possible, median to that; theirs: least, median; ratios of least, of medians, of processor time, to the least possible"
    report
done

[ -z "$large" ] || exit 0
PYTHON=$python bash tests/bench/losses.sh "$build"
if ! mpicc -O2 tests/bench/scalapack.c -o "$build/bench/scalapack" -lscalapack-openmpi > /dev/null 2>&1; then
    echo 'SKIP pdgemr2d: mpicc does not link with scalapack-openmpi'
    exit 0
fi
for n in 2 4; do
    : > "$out/ours" > "$out/theirs"
    for ((i = 0; i < rounds; ++i)); do
        ranks "$n" "$build/bench/dtensor" --seconds "$seconds" --f64 >> "$out/ours"
        timeout 300 mpirun --allow-run-as-root --oversubscribe -n "$n" "$build/bench/scalapack" --seconds "$seconds" >> "$out/theirs" 2> /dev/null || echo failed >> "$out/theirs"
    done
    echo "# $n ranks, doubles, beside pdgemr2d"
    report
done

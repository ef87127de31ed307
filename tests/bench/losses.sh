#!/usr/bin/env bash
# Losses and attention of cdp_dtensor.h beside PyTorch's (where a Python has torch), f32, one thread each, forward and backward. Both
# sides take turns, process by process; of each case the least processor time counts.
#
# Columns: case, ours and PyTorch's in us, ours / PyTorch's; of attention also beside its products written out.
#
#   losses.sh [--rounds N] [BUILD_DIR]       PYTHON: which Python to ask
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=3
[ "${1:-}" != --rounds ] || { rounds=$2; shift 2; }
build=${1:-${BUILD:-build}}
mkdir -p "$build/bench" || exit 1
gcc -O3 -march=native -std=gnu11 -I. tests/bench/losses.c -o "$build/bench/losses" -pthread -lm || exit 1
python=
for p in ${PYTHON:-} python3 /usr/bin/python3; do
    "$p" -c 'import torch' > /dev/null 2>&1 && python=$p && break
done
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
: > "$out/theirs"
for ((i = 0; i < rounds; ++i)); do
    "$build/bench/losses" >> "$out/ours" || exit 1
    [ -z "$python" ] || OMP_NUM_THREADS=1 "$python" tests/bench/losses.py >> "$out/theirs" || exit 1
done
[ -n "$python" ] || echo 'SKIP torch: no Python here has it'
echo "# load $(cut -d' ' -f1-3 /proc/loadavg)${python:+, torch $("$python" -c 'import torch; print(torch.__version__, "with MKL" if torch.backends.mkl.is_available() else "without MKL")')}"
awk 'FILENAME ~ /ours$/ { if (!($1 in ours)) order[++n] = $1; if (!($1 in ours) || $2 < ours[$1]) ours[$1] = $2; next }
    !($1 in theirs) || $2 < theirs[$1] { theirs[$1] = $2 }
    function beside(name, us) { return name in theirs ? sprintf(" %10.1f %6.2f", theirs[name], us / theirs[name]) : "" }
    END { for (i = 1; i <= n; ++i) { k = order[i]
        printf "%-28s %10.1f%s%s\n", k, ours[k], beside(k, ours[k]), beside(k "_products", ours[k]) } }' "$out/ours" "$out/theirs"

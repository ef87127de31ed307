#!/usr/bin/env bash
# examples/23_slow_network.c with two ranks, each in a network namespace, over a wire in user space: DDP beside DiLoCo.
# Needs root, ip and /dev/net/tun, else it is skipped.
#
#   slow_wire.sh [STEPS [PERIOD [MBIT_PER_S [DELAY_MS [loss.svg [FIRST]]]]]]     (default: 160 8 50 80); BUILD=DIR
#   FIRST of the steps are DDP in both ways, and are not counted.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
steps=${1:-160} period=${2:-8} mbit=${3:-50} delay=${4:-80} picture=${5:-} first=${6:-0}
build=${BUILD:-build}
[ "$(id -u)" = 0 ] && command -v ip > /dev/null && [ -w /dev/net/tun ] || { echo 'SKIP slow_wire: needs root, ip and /dev/net/tun'; exit 0; }
mkdir -p "$build/bench" || exit 1
gcc -O2 -Wall -Wextra tests/bench/slow_wire.c -o "$build/bench/slow_wire" || exit 1
gcc -O2 -w examples/23_slow_network.c -o "$build/bench/slow_network" -pthread -lm || exit 1
prefix=cdpw$$
coproc WIRE { "$build/bench/slow_wire" $prefix $((mbit * 125000)) "$delay"; }
read -r -t 10 -u "${WIRE[0]}" word && [ "$word" = up ] || { echo 'SKIP slow_wire: no namespaces or no tun here'; exit 0; }
exec 3<&"${WIRE[0]}"
echo "two ranks, $mbit Mbit/s and $delay ms each way, period $period"
export WORLD_SIZE=2 MASTER_ADDR=10.97.0.1 MASTER_PORT=$((20000 + $$ % 10000)) CDP_JOB_KEY=two_ranks_over_a_slow_wire
RANK=1 timeout 300 ip netns exec ${prefix}1 "$build/bench/slow_network" "$picture" "$steps" "$period" "$PWD" "$first" > /dev/null &
RANK=0 timeout 300 ip netns exec ${prefix}0 "$build/bench/slow_network" "$picture" "$steps" "$period" "$PWD" "$first"
result=$?
wait $!
eval "exec ${WIRE[1]}>&-"
read -r -t 10 -u 3 word && echo "over the wire, with all headers, of both runs: $word"
exit $result

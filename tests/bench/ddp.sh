#!/usr/bin/env bash
# DDP steps beside those of PyTorch (where a Python has torch with Gloo), two ranks: over loopback, and over links of 1 and
# 10 Gbit/s between network namespaces (root, ip and tc; else skipped). Both sides take turns, --rounds times.
#
#   ddp.sh [--rounds N] [BUILD_DIR]
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=3
[ "${1:-}" != --rounds ] || { rounds=$2; shift 2; }
build=${1:-${BUILD:-build}}
mkdir -p "$build/bench" || exit 1
gcc -O2 -g -std=gnu11 -I. tests/bench/ddp.c -o "$build/bench/ddp" -pthread -lm || exit 1
python=
for p in python3 /usr/bin/python3; do
    "$p" -c 'import sys, torch.distributed as d; sys.exit(not d.is_gloo_available())' > /dev/null 2>&1 && python=$p && break
done
[ -n "$python" ] || echo 'SKIP torch: no Python here has torch with Gloo'
port=$((20000 + $$ % 10000))
a=cdpa$$ b=cdpb$$
clean() { ip netns del $a; ip netns del $b; } 2> /dev/null
trap clean EXIT

# both ADDRESS PREFIX0 PREFIX1 COMMAND...: two ranks, each behind its prefix; the interface of Gloo in $interface
both() {
    local address=$1 before0=$2 before1=$3
    shift 3
    port=$((port + 1))
    export CDP_JOB_KEY=measured WORLD_SIZE=2 MASTER_ADDR=$address MASTER_PORT=$port GLOO_SOCKET_IFNAME=$interface GLOG_minloglevel=2
    RANK=1 timeout 60 $before1 "$@" > /dev/null 2>&1 &
    RANK=0 timeout 60 $before0 "$@" 2> /dev/null || echo 'failed'
    wait
}

# measure TITLE ADDRESS PREFIX0 PREFIX1 OPTIONS...
measure() {
    local title=$1 address=$2 before0=$3 before1=$4 i
    shift 4
    echo
    echo "$title: $*"
    for ((i = 0; i < rounds; ++i)); do
        both "$address" "$before0" "$before1" "$build/bench/ddp" "$@"
        [ -z "$python" ] || both "$address" "$before0" "$before1" "$python" tests/bench/ddp.py "$@"
    done
}

echo "# $(uname -srm), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)"
interface=lo
measure 'loopback' 127.0.0.1 '' '' --backward-ms 100 --bucket 1000000
measure 'loopback, backward on the processor' 127.0.0.1 '' '' --backward-ms 100 --bucket 1000000 --busy
for where in after whole parts; do
    python= measure "loopback, AdamW: $where" 127.0.0.1 '' '' --backward-ms 100 --bucket 1000000 --adam $where
done
measure 'loopback, small buckets' 127.0.0.1 '' '' --backward-ms 100 --bytes 2500000 --bucket 100000 --params 25

if ! ip netns add $a 2> /dev/null || ! ip netns add $b || ! ip link add ${a}v type veth peer name ${b}v 2> /dev/null || ! command -v tc > /dev/null; then
    echo 'SKIP limited links: needs root, ip (network namespaces, veth) and tc'
    exit 0
fi
ip link set ${a}v netns $a
ip link set ${b}v netns $b
ip -n $a addr add 10.77.0.1/24 dev ${a}v
ip -n $b addr add 10.77.0.2/24 dev ${b}v
for n in $a $b; do
    ip -n $n link set lo up
    ip -n $n link set ${n}v name veth0
    ip -n $n link set veth0 up
done
interface=veth0
for gbit in 1 10; do
    for n in $a $b; do
        tc -n $n qdisc replace dev veth0 root tbf rate ${gbit}gbit burst $((gbit * 256))kb latency 50ms 2> /dev/null || { echo "SKIP $gbit Gbit/s: tc has no tbf here"; continue 2; }
    done
    before=$(ip netns exec $a cat /sys/class/net/veth0/statistics/tx_bytes)
    measure "$gbit Gbit/s, backward long enough" 10.77.0.1 "ip netns exec $a" "ip netns exec $b" --backward-ms $((300 / gbit + 30)) --bucket 1000000 --steps 15
    measure "$gbit Gbit/s, backward too short" 10.77.0.1 "ip netns exec $a" "ip netns exec $b" --backward-ms $((60 / gbit + 4)) --steps 15
    after=$(ip netns exec $a cat /sys/class/net/veth0/statistics/tx_bytes)
    echo "# $(((after - before) / 1000000)) MB left rank 0's side of the link in all"
done

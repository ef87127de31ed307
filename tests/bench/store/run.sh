#!/usr/bin/env bash
# Our store server beside PyTorch's (python3-torch) and Redis (redis-server), one after the other, twice. See store.c.
# STORE_PYTHON names a Python with torch 2.x; STORE_SECONDS is for each measurement, STORE_ROUNDS how often everything is done.
set -u
cd "$(dirname "$0")/../../.." || exit 1
tmp=$(mktemp -d) || exit 1
pids=
trap 'kill $pids 2> /dev/null; rm -rf "$tmp"' EXIT
${CC:-gcc} -O2 -std=gnu11 -I. tests/bench/store/store.c -o "$tmp/store" -pthread || exit 1
ulimit -n "$(ulimit -Hn)"
port_of() { for _ in $(seq 300); do [ -s "$1" ] && break; sleep 0.1; done; head -n 1 "$1"; }
ours() { # NAME [KEY]
    mkfifo "$tmp/in.$1"
    "$tmp/store" serve ${2:+"$2"} < "$tmp/in.$1" > "$tmp/port.$1" &
    local pid=$!
    pids="$pids $pid"
    exec 5> "$tmp/in.$1"
    "$tmp/store" "$1" cdp "$(port_of "$tmp/port.$1")" $pid 10000 ${2:+"$2"}
    exec 5>&-
    wait $pid
    rm "$tmp/in.$1" "$tmp/port.$1"
}
redis() {
    local port=$((20000 + RANDOM % 10000))
    redis-server --port $port --bind 127.0.0.1 --save '' --appendonly no --maxclients 20000 > "$tmp/redis.txt" 2>&1 &
    local pid=$!
    pids="$pids $pid"
    for _ in $(seq 100); do (exec 6<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null && break; sleep 0.1; done
    "$tmp/store" redis resp $port $pid 10000
    kill $pid
    wait $pid 2> /dev/null
}
# JOINS: 1.13 walks through all its connections at every step; 2.x sends the answer to a GET in two pieces, the second after an
# acknowledgement that the system delays. So few, or it would take minutes.
torch() { # PYTHON PROTOCOL NAME JOINS
    "$1" -W ignore -c 'import torch.distributed as d, time; s = d.TCPStore("127.0.0.1", 0, None, True); print(s.port, flush=True); time.sleep(1000)' > "$tmp/port.torch" 2> /dev/null &
    local pid=$!
    pids="$pids $pid"
    "$tmp/store" "$3" "$2" "$(port_of "$tmp/port.torch")" $pid "$4"
    kill $pid
    wait $pid 2> /dev/null
    rm "$tmp/port.torch"
}
for _ in $(seq "${STORE_ROUNDS:-2}"); do
    ours cdp
    ours cdp-key secret
    if command -v redis-server > /dev/null; then redis; else echo 'SKIP redis: redis-server is not installed'; fi
    if /usr/bin/python3 -W ignore -c 'import torch.distributed' > /dev/null 2>&1; then torch /usr/bin/python3 old torch-1.13 1000; else echo 'SKIP PyTorch: /usr/bin/python3 has no torch'; fi
    [ -z "${STORE_PYTHON:-}" ] || torch "$STORE_PYTHON" cdp torch-2 500
    echo
done

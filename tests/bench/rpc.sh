#!/usr/bin/env bash
# Calls of cdp_rpc.h beside bare messages of this library, bare sockets and memory, gRPC and PyTorch's RPC: --help
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
usage() {
    cat << 'END'
rpc.sh [--rounds N] [--ms MS] [--least] [--help] [BUILD_DIR]

Measures calls between two processes of this machine, over memory and over loopback TCP: the null call,
16 calls under way at a time, results of 1 MiB and 64 MiB. All sides live at once and take turns,
measurement by measurement, N times (default 7), MS milliseconds each (default 100; 64 MiB: at least
three calls). Of each figure the median counts, of each ratio the median of the rounds' ratios. The
last lines compare the ratios with the goals of the project; the exit code does not depend on them.
--least: for a machine on which others work, too. The least of each side's rounds counts, and ratios
are those of the least; take many short rounds then (--rounds 20 --ms 20).

  cdp       cdp_rpc.h: rpc.c; "message" is a bare message there and back of the same library
  bare      sockets that block, a word of memory on which both sides spin: rpc.c
  gRPC      rpc_grpc.cc, with a thread for each call and with completion queues; needs libgrpc++-dev,
            g++ and pkg-config, else it is skipped
  PyTorch   rpc_torch.py, TensorPipe; PYTHON says which Python to ask (default: the first of python3
            and /usr/bin/python3 that has torch), else it is skipped

The physical limit of a result is one copy of its bytes ("copy"), over TCP what bare sockets need.
With two cores nothing else should run: see the spread between rounds in the last column.
END
}
rounds=7 ms=100 least=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --ms) ms=$2 ;;
    --least) least=yes && shift && continue ;;
    --help) usage && exit 0 ;;
    *) echo "$0: unknown option $1; try --help" && exit 2 ;;
    esac
    shift 2
done
build=${1:-${BUILD:-build}}/bench
mkdir -p "$build" || exit 1
${CC:-gcc} -O2 -g -std=gnu11 -I. tests/bench/rpc.c -o "$build/rpc" -pthread -lm || exit 1
out=$(mktemp -d) || exit 1
declare -A pid in from paused dead
sides=()
finish() { # they end with their input; what is left of them after 3 s does not
    local s
    for s in "${sides[@]}"; do
        kill -CONT -- "-${pid[$s]}" 2> /dev/null
        eval "exec ${in[$s]}>&-"
    done
    sleep 3
    for s in "${sides[@]}"; do kill -KILL -- "-${pid[$s]}" 2> /dev/null; done
    wait 2> /dev/null
    rm -rf "$out"
}
trap finish EXIT

# side NAME PAUSED COMMAND...: a program that takes orders; PAUSED: it polls, and is stopped outside its turns
side() {
    local name=$1 r w
    paused[$name]=$2
    shift 2
    mkfifo "$out/$name.in" "$out/$name.out"
    setsid "$@" < "$out/$name.in" > "$out/$name.out" 2> "$out/$name.err" &
    pid[$name]=$!
    exec {w}> "$out/$name.in" {r}< "$out/$name.out"
    in[$name]=$w from[$name]=$r
    sides+=("$name")
    order "$name" call 0 1 > /dev/null
}
order() { # NAME OP BYTES MS: what it answers
    local said=
    [ -z "${paused[$1]}" ] || kill -CONT -- "-${pid[$1]}" 2> /dev/null
    echo "$2 $3 $4" >&"${in[$1]}"
    read -r -t 120 -u "${from[$1]}" said
    [ -z "${paused[$1]}" ] || kill -STOP -- "-${pid[$1]}" 2> /dev/null
    [ -n "$said" ] && echo "$said" && return 0
    echo "SKIP $1 from here on: it did not answer: $(tail -n 1 "$out/$1.err")" >&2
    kill -KILL -- "-${pid[$1]}" 2> /dev/null
    dead[$1]=yes
    return 1
}

side cdp-memory '' "$build/rpc" cdp memory || exit 1
side cdp-tcp '' "$build/rpc" cdp tcp || exit 1
side bare-memory '' "$build/rpc" bare memory
side bare-tcp '' "$build/rpc" bare tcp
if pkg-config --exists grpc++ 2> /dev/null; then
    # shellcheck disable=SC2046
    if ${CXX:-g++} -O2 tests/bench/rpc_grpc.cc -o "$build/rpc_grpc" $(pkg-config --cflags --libs grpc++); then
        for how in sync async; do
            side "grpc-$how-unix" '' "$build/rpc_grpc" $how unix
            side "grpc-$how-tcp" '' "$build/rpc_grpc" $how tcp
        done
    fi
else
    echo 'SKIP gRPC: libgrpc++-dev is not installed'
fi
python=
for p in ${PYTHON:-} python3 /usr/bin/python3; do
    "$p" -W ignore -c 'import sys, torch.distributed.rpc as r; sys.exit(not r.is_available())' > /dev/null 2>&1 && python=$p && break
done
if [ -n "$python" ]; then
    export TP_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
    side torch-memory yes "$python" -W ignore tests/bench/rpc_torch.py memory
    side torch-tcp yes "$python" -W ignore tests/bench/rpc_torch.py tcp
else
    echo 'SKIP PyTorch: no Python here has torch with RPC'
fi

KiB=1024 MiB=1048576
metrics=("message 8" "call 0" "worker 0" "flight 0" "message $((64 * KiB))" "call $((64 * KiB))" "message $MiB" "call $MiB" "echo $MiB" "copy $MiB"
    "message $((64 * MiB))" "call $((64 * MiB))" "copy $((64 * MiB))")
for ((r = 0; r < rounds; ++r)); do
    for m in "${metrics[@]}"; do
        for s in "${sides[@]}"; do
            case $m in copy*) [ "$s" = bare-memory ] || continue ;; message*) [ "${s%%-*}" = cdp ] || continue ;; esac
            # shellcheck disable=SC2086
            [ -n "${dead[$s]:-}" ] || order "$s" $m "$ms" >> "$out/$s.${m// /.}"
        done
    done
    printf 'round %d of %d\r' $((r + 1)) "$rounds" >&2
done

column() { [ -f "$out/$1" ] && ! grep -qx -- - "$out/$1" && cat "$out/$1"; }
# of one number a line: the median, or with --least the first
middle() { sort -g | awk -v least="$least" '{a[NR] = $1} END {if (NR) printf "%.2f", a[least ? 1 : int((NR + 1) / 2)]; else printf "-"}'; }
spread() { sort -g | awk '{a[NR] = $1} END {if (NR) printf "%.1f-%.1f", a[1], a[NR]; else printf "-"}'; }
ratio() { # of FIRST to SECOND
    if [ -n "$least" ]; then
        paste <(column "$1" | middle) <(column "$2" | middle) | awk '{if ($1 > 0 && $2 > 0) printf "%.2f", $1 / $2; else printf "-"}'
    else
        paste <(column "$1") <(column "$2") | awk 'NF == 2 && $2 > 0 {print $1 / $2}' | middle
    fi
}
echo
printf '%-18s %-20s %12s   %s\n' side what us 'least-most'
for s in "${sides[@]}"; do
    for m in "${metrics[@]}"; do
        f=$s.${m// /.}
        [ -n "$(column "$f")" ] || continue
        # shellcheck disable=SC2086
        printf '%-18s %-8s %9s B %12s   %s\n' "$s" $m "$(column "$f" | middle)" "$(column "$f" | spread)"
    done
done
echo
gate() { # TEXT VALUE WANTED(<= or >=) LIMIT
    local good
    good=$(awk -v v="$2" -v w="$3" -v l="$4" 'BEGIN {if (v == "-") print "not measured"; else if (w == "<=" ? v <= l : v >= l) print "passed"; else print "NOT passed"}')
    printf '%-78s %10s  (%s %s)  %s\n' "$1" "$2" "$3" "$4" "$good"
}
for l in memory tcp; do
    limit=2
    [ $l = memory ] || limit=1.3
    gate "null call / message there and back of this library, $l" "$(ratio cdp-$l.call.0 cdp-$l.message.8)" '<=' $limit
done
for how in sync async; do
    gate "null call of gRPC ($how, Unix socket) / of this library in memory" "$(ratio grpc-$how-unix.call.0 cdp-memory.call.0)" '>=' 10
    gate "null call of gRPC ($how, TCP) / of this library over TCP" "$(ratio grpc-$how-tcp.call.0 cdp-tcp.call.0)" '>=' 2
done
gate 'calls a second with 16 under way, in memory' "$(column cdp-memory.flight.0 | middle | awk '{printf "%d", 1e6 / $1}')" '>=' 400000
gate 'result of 64 MiB in memory: bare copy from shared memory / call' "$(ratio bare-memory.call.67108864 cdp-memory.call.67108864)" '>=' 0.8
gate 'result of 64 MiB over TCP: bare sockets / call' "$(ratio bare-tcp.call.67108864 cdp-tcp.call.67108864)" '>=' 0.8
echo
for l in memory tcp; do
    printf '%s: null call %s of bare, result of 1 MiB %s of a message of this library and %s of bare; PyTorch takes %s times as long, with 1 MiB %s\n' $l \
        "$(ratio cdp-$l.call.0 bare-$l.call.0)" "$(ratio cdp-$l.call.$MiB cdp-$l.message.$MiB)" "$(ratio cdp-$l.call.$MiB bare-$l.call.$MiB)" \
        "$(ratio torch-$l.call.0 cdp-$l.call.0)" "$(ratio torch-$l.call.$MiB cdp-$l.call.$MiB)"
done

#!/usr/bin/env bash
# test_elastic_nodes.sh - machines that come and go: cdprun --nnodes MIN:MAX, with a launcher for each machine
#
#   bash tests/procs/test_elastic_nodes.sh [PART...]      BUILD=DIR (default: build), KILLS=N (default: 6; by hand, with
#                                                         the part kills: 1000, which takes 10 minutes)
#
# PART: restart, endings, stay, servers, names, kills, cut (default: all; names is a part of stay).
#
# The machines are launchers on this one; for `cut` one of them is a network namespace, which needs root. Every wait is
# for something that a program says, and has a limit. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/procs/launchers.sh
programs cdprun elastic_rank
empty_folder elastic_nodes
CDP_JOB_KEY=$(random_key 16)
export CDP_JOB_KEY
job=0
limit=90 # seconds that a launcher may live
evidence() { tail -qn 12 out.* runs log 2> /dev/null; }
await() { until_true "$@" || fail "wait" "never: $*"; }
lines() { # N PATTERN FILE: as many lines as that, or more
    [ "$(grep -cE -- "$2" "$3" 2> /dev/null)" -ge "$1" ]
}

later() { # LINE PATTERN [N]: in the log, from that line on, in as many lines as that (default: 1) or more
    [ "$(tail -n "+$1" log | grep -cE -- "$2")" -ge "${3:-1}" ]
}
newcomer() { # LINE PATTERN: in the log, from that line on, in the line of a process that was not there before
    awk -v from="$1" -v pattern="$2" '
        !/ pid / { next }
        NR < from { old[$NF] }
        NR >= from && $0 ~ pattern && !($NF in old) { found = 1 }
        END { exit !found }' log
}

common=()
host=127.0.0.1
where() { :; } # K: what to put before a command for machine K
# A new job. Its ranks in restart mode note each start in `runs`, and end when there is a file `stop`.
new_job() { # OPTION...: of all its launchers
    job=$((job + 1))
    rm -f out.* runs stop log log.stop events
    touch runs
    port=$(free_port)
    common=(--rdzv-conf last_call_timeout=0.3 --grace 0.2 --event-log events --rdzv-endpoint "$host:$port" "$@")
}
start() { # K ARGUMENT...: the launcher of machine K; pids[K]
    local k=$1
    shift
    # shellcheck disable=SC2046
    $(where "$k") env CDPTEST=$$.$job timeout -k 5 $((limit * slack)) "$B/cdprun" -n 1 "${common[@]}" "$@" > "out.$k" 2>&1 < /dev/null &
    pids[k]=$!
}
waiting='echo $TORCHELASTIC_RESTART_COUNT $RANK $WORLD_SIZE $GROUP_RANK >> runs; while [ ! -e stop ]; do sleep 0.05; done'
serve() { # a store of its own
    serve_at "$host:$port" || fail "the store" "does not serve at $host:$port"
    common+=(--external-store "$host:$port" --rdzv-id "job$job")
}

restart_mode() {
    echo '-- restart mode'
    new_job --nnodes 1:2 --max-restarts 1
    start 0 sh -c "$waiting"; await lines 1 '^0 0 1 0$' runs
    start 1 sh -c "$waiting"; await lines 2 '^0 [01] 2 [01]$' runs
    good 'a machine joins, which costs no restart'
    kill -KILL "$(launcher 1)"; await lines 1 '^1 0 1 0$' runs
    good 'a launcher is killed, and the other goes on'
    has 'and says which was lost' out.0 'node 1 is lost: the launcher on '
    start 2 sh -c "$waiting"; await lines 2 '^1 [01] 2 [01]$' runs
    good 'another launcher takes its place'
    touch stop; wait_for 0 1 2
    check 'all end well but the one that was killed' "$codes" '0 137 0'
    has 'the event log has epochs' events '"node": 0, "nodes": 2, "lost": 0, "joined": 1, "restarts": 1'

    new_job --nnodes 1:2 --max-restarts 0
    start 0 sh -c "$waiting"; await lines 1 '^0 0 1 0$' runs
    start 1 sh -c "$waiting"; await lines 2 '^0 [01] 2 [01]$' runs
    kill -TERM "$(launcher 1)"; wait_for 1
    await lines 2 '^0 0 1 0$' runs
    check 'a launcher leaves, which costs no restart' "$codes" 143
    touch stop; wait_for 0
    check 'and the other ends well' "$codes" 0

    new_job --nnodes 2:2 --max-restarts 1 --rdzv-conf last_call_timeout=0.3,join_timeout=$((20 * slack))
    start 0 sh -c "$waiting; exit 3"; start 1 --rdzv-conf is_host=0 sh -c "$waiting; exit 3"; await lines 2 '^0 [01] 2 [01]$' runs
    kill -KILL "$(launcher 1)"; wait_for 1
    start 2 sh -c "$waiting; exit 3"; await lines 2 '^1 [01] 2 [01]$' runs
    touch stop; wait_for 0 2
    check 'below the minimum the job waits; when restarts are used up, it ends' "$codes" '3 3'
    has 'and says why' out.0 'first failure: rank '
}

# It is as if its machine stood still.
stopped_launcher() {
    local keeper
    new_job --nnodes 1:2 --max-restarts 9 --rdzv-conf keep_alive_interval=1.5,keep_alive_max_attempt=1
    start 0 sh -c "echo \$\$ > pid; $waiting"; await lines 1 '^0 0 1 0$' runs
    start 1 sh -c "$waiting"; await lines 2 '^0 [01] 2 [01]$' runs
    keeper=$(pgrep -P "$(launcher 1)")
    kill -STOP "$keeper"
    kill -KILL "$(cat pid)"; await lines 1 '^1 0 1 0$' runs
    good 'a launcher that stands still is left out'
    kill -CONT "$keeper"; await lines 2 '^1 [01] 2 [01]$' runs
    good 'and comes back as a newcomer'
    has 'which it says' out.1 'the other machines went on without this one, which did not answer for 1.5 s; it asks to be taken in again'
    touch stop; wait_for 0 1
    check 'both end well' "$codes" '0 0'
}

# SIGTERM to one of two launchers, whose rank does something about it, while the rank elsewhere fails when it loses its peer
# (with --stay it goes on). In a folder of its own; what the launchers made of it becomes one line in the file `line`.
ending() { # KIND LAUNCHER ENDING
    local options k first other=$((1 - $2)) on_term on_loss="exit 1"
    mkdir -p "ending.$1.$2.$3" && cd "ending.$1.$2.$3" || return
    rm -f ./*
    case $3 in
    signal) on_term="touch lost; trap - TERM; kill -TERM \$\$" ;;
    exit0) on_term="touch lost; exit 0" ;;
    exit1) on_term="touch lost; exit 1" ;;
    late) on_term="touch lost; sleep 1; exit 0" ;;
    esac
    case $1 in
    static) options="--nnodes 2 --max-restarts 1" ;;
    elastic) options="--nnodes 1:2 --max-restarts 0 --rdzv-conf last_call_timeout=0.3" ;;
    stay) options="--nnodes 1:2 --max-restarts 0 --stay" on_loss=: ;;
    esac
    cat > rank.sh <<RANK
trap 'if [ \$k = $2 ]; then $on_term; else exit 0; fi' TERM
k=\$1; echo \$TORCHELASTIC_RESTART_COUNT >> ran.\$k
rm -f lost # a rank that made room for a newcomer has left it, too
[ \$WORLD_SIZE = 1 ] || echo \$k >> both
while [ ! -e stop ]; do [ \$k = $2 ] || [ \$WORLD_SIZE = 1 ] || [ ! -e lost ] || $on_loss; sleep 0.02; done
RANK
    port=$(free_port)
    for k in 0 1; do # the first one serves the store
        # shellcheck disable=SC2086
        timeout -k 5 $((limit * slack)) "$B/cdprun" -n 1 $options --grace $((5 * slack)) --rdzv-endpoint "$host:$port" \
            $([ "$1" = static ] && echo --node-rank $k) sh rank.sh $k > out.$k 2>&1 < /dev/null &
        pids[k]=$!
        [ "$1" = static ] || await test -s ran.$k
    done
    await lines 1 "^0" both; await lines 1 "^1" both
    kill -TERM "$(launcher "$2")"
    wait_for "$2"
    first=$codes
    [ "$1" = static ] || [ "$2" = 0 ] || touch stop
    wait_for $other
    echo "$first $codes $(grep -lE "ended by SIGTERM" out.0 out.1 | wc -l) $(cat out.0 out.1 | grep -c "first failure: rank") $(cat ran.* | sort -u | tr "\n" ,)" > line
}

# Every way of ending x the launcher that serves the store, and the other x fixed machines, machines that come and go, and
# ranks that stay: the exit codes of the launcher with the signal and of the other; how many name the signal; how many name
# a rank; the restarts that were used.
endings() {
    local kind who how want
    echo '-- one launcher is asked to end'
    for kind in static elastic stay; do
        for who in 0 1; do for how in signal exit0 exit1 late; do (ending $kind $who $how) & done; done
        wait
        for who in 0 1; do
            want="143 143 2 0 0,"
            [ $kind = static ] || [ $who = 0 ] || want="143 0 1 0 0,"
            for how in signal exit0 exit1 late; do
                check "$kind, launcher $who gets SIGTERM, its rank: $how" "$(cat ending.$kind.$who.$how/line)" "$want"
            done
        done
    done
}

options_and_times() {
    echo '-- options and times'
    new_job --nnodes 2:3 --join-timeout $((2 * slack))
    start 0 true; wait_for 0
    check 'too few come' "$codes" 124
    has 'and how many came is said' out.0 "1 of at least 2 machines came within $((2 * slack)) s; each must run cdprun with --rdzv-endpoint 127.0.0.1:$port"
    new_job --nnodes 1:2
    start 0 sh -c "$waiting"; await lines 1 '^0 0 1 0$' runs
    start 1 -n 2 true; wait_for 1
    check 'other options' "$codes" 2
    has 'are named' out.1 'this launcher was started with other options than the job: -n 2 --nnodes 1:2'
    touch stop; wait_for 0
    check 'and do not disturb the job' "$codes" 0
}

stores() {
    echo '-- the machine of the store'
    new_job --nnodes 1:2 --max-restarts 5
    start 0 sh -c "$waiting"; await lines 1 '^0 0 1 0$' runs
    start 1 sh -c "$waiting"; await lines 2 '^0 [01] 2 [01]$' runs
    kill -KILL "$(launcher 0)"; wait_for 0 1
    check 'the launcher that serves the store is killed: all end' "$codes" '137 1'
    has 'and say so' out.1 'the store of the job is out of reach'

    new_job --nnodes 1:1 --max-restarts 5
    serve
    start 0 sh -c "$waiting"; await lines 1 '^0 0 1 0$' runs
    start 1 sh -c "$waiting"; start 2 sh -c "$waiting"
    kill -KILL "$(launcher 0)"; wait_for 0
    await lines 1 '^1 0 1 0$' runs
    good 'with a store of its own the job goes on: a spare takes over'
    touch stop; wait_for 1 2
    check 'all end well' "$codes" '0 0'
    check 'one was not needed' "$(cat out.1 out.2 | grep -c 'this machine was not needed')" 1
    start 3 sh -c "$waiting"; wait_for 3
    check 'who comes too late ends well' "$codes" 0
    kill -TERM $store; wait $store
    check 'the store ends at a signal' $? 0
}

stay_mode() {
    echo '-- ranks that stay'
    new_job --nnodes 1:2 --max-restarts 1 --stay --cooldown 0.05 -n 2
    # launcher 1, which will be killed, must not be the first to serve the store
    start 0 "$B/elastic_rank" train log 2; start 1 --rdzv-conf is_host=0 "$B/elastic_rank" train log 2
    await lines 4 ' size 4 ' log
    kill -KILL "$(sed -n 's/.* size 4 rank 3 pid //p' log | tail -n 1)"
    await grep -q 'restart 1 of 1' out.0 out.1
    await lines 8 ' size 4 ' log
    good 'a rank is killed and replaced'
    before=$(wc -l < log)
    kill -KILL "$(sed -n 's/.* size 4 rank 0 pid //p' log | tail -n 1)"
    await grep -q 'is not replaced: the job has used all its restarts (--max-restarts 1)' out.0 out.1
    await later $((before + 1)) ' size 3 ' 3
    good 'the restarts of the job are counted once, and the others go on'
    before=$(wc -l < log)
    kill -KILL "$(launcher 1)"; wait_for 1
    start 2 "$B/elastic_rank" train log 2
    await newcomer $((before + 1)) ' size [34] ' # there are no restarts left: launcher 2 started it
    touch log.stop; wait_for 0 2
    check 'a launcher is killed and another one joins' "$codes" '0 0'
    check 'the end is that of a serial program' "$("$B/elastic_rank" replay log | grep -o 'the loss of the serial program')" 'the loss of the serial program'
}

# A new job whose store lives on three places of this machine; each of the first three launchers serves one.
new_job_of_three() { # OPTION...
    local a b c
    until [ -n "${a-}" ] && [ "$a" != "$b" ] && [ "$b" != "$c" ] && [ "$a" != "$c" ]; do
        a=$(free_port) b=$(free_port) c=$(free_port)
    done
    list=$host:$a,$host:$b,$host:$c
    new_job --rdzv-endpoint "$list" "$@"
}

# Any launcher may be killed, also one that serves a third of the store.
servers() {
    local before
    echo '-- three launchers keep the store'
    new_job_of_three --nnodes 2:3 --max-restarts 2
    start 0 sh -c "$waiting"; sleep 0.5
    check 'one of three waits for the others' "$(wc -l < runs)" 0
    start 1 sh -c "$waiting"; start 2 sh -c "$waiting"; await lines 3 '^0 [0-2] 3 [0-2]$' runs
    good 'a job begins when all three are there'
    kill -KILL "$(launcher 0)"; wait_for 0
    await lines 2 '^1 [01] 2 [01]$' runs
    good 'the launcher of the first server is killed, and the others go on'
    has 'which they say' out.1 "quorum store: server ${list%%,*} is lost"
    start 3 sh -c "$waiting"; await lines 3 '^1 [0-2] 3 [0-2]$' runs
    good 'another one joins in its place'
    touch stop; wait_for 1 2 3
    check 'and all end well' "$codes" '0 0 0'

    new_job_of_three --nnodes 1:3 --max-restarts 0
    start 0 sh -c "$waiting"; start 1 sh -c "$waiting"; start 2 sh -c "$waiting"
    await lines 3 '^0 [0-2] 3 [0-2]$' runs
    kill -TERM "$(launcher 1)"; wait_for 1
    await lines 2 '^0 [01] 2 [01]$' runs
    check 'one that serves leaves, which costs no restart' "$codes" 143
    kill -KILL "$(launcher 2)"; wait_for 2 0
    check 'without a majority the job ends' "$codes" '137 1'
    has 'and says why' out.0 'there is no majority of the 3 servers'

    new_job_of_three --nnodes 2:3 --max-restarts 5 --stay --cooldown 0.05
    for k in 0 1 2; do start $k "$B/elastic_rank" train log 2; done
    await lines 3 ' size 3 ' log
    before=$(wc -l < log)
    kill -KILL "$(launcher 0)"; wait_for 0
    await later $((before + 1)) ' size 2 ' 2
    good 'ranks that stay go on, too'
    before=$(wc -l < log)
    start 3 "$B/elastic_rank" train log 2
    await newcomer $((before + 1)) ' size 3 '
    good 'and take newcomers in'
    touch log.stop; wait_for 1 2 3
    check 'all end well' "$codes" '0 0 0'
    check 'with the end of a serial program' "$("$B/elastic_rank" replay log | grep -o 'the loss of the serial program')" 'the loss of the serial program'
}

# Launchers and ranks are killed at random moments, and launchers are started in place of the dead: the job goes on, ends
# well on all machines that are left, and nothing is left behind.
random_kills() { # HOW MANY
    local i k
    echo '-- random kills'
    limit=$((90 + 5 * $1))
    new_job --nnodes 1:3 --max-restarts 100000 --rdzv-conf last_call_timeout=0.1
    serve
    for k in 0 1 2; do start $k -n 2 sh -c "echo \$\$ > pid.$k.\$LOCAL_RANK; sleep 1000 & $waiting; kill \$!"; done
    for ((i = 0; i < $1; ++i)); do
        sleep "0.$((RANDOM % 10))"
        k=$((RANDOM % 3))
        if [ $((RANDOM % 2)) = 0 ]; then
            kill -KILL "$(cat pid.$k.$((RANDOM % 2)))"
        else
            await pgrep -P "${pids[k]}" # it may have been started just now
            kill -KILL "$(launcher $k)"
            wait "${pids[k]}"
            start $k -n 2 sh -c "echo \$\$ > pid.$k.\$LOCAL_RANK; sleep 1000 & $waiting; kill \$!"
        fi
    done 2> /dev/null
    touch stop # the ranks that are running, and those that will be, end then
    wait_for 0 1 2
    check "after $1 random kills all end well" "$codes" '0 0 0'
    kill -TERM $store; wait $store
    leaves
    check 'and nothing is left' "$left" ''
}

# The cable of machine 1 is pulled: machine 0, which has the store, goes on; when it is back, so are the ranks behind it.
cut_off() {
    echo '-- a machine is cut off'
    if [ "$(id -u)" != 0 ] || ! command -v ip > /dev/null; then
        echo 'SKIP a machine is cut off: this takes root and the program ip'
        return
    fi
    trap cables_away EXIT
    if ! cables 2> cables.txt; then
        echo "SKIP a machine is cut off: $(head -n 1 cables.txt)"
        return
    fi
    where() { if [ "$1" = 1 ]; then echo ip netns exec $b; else echo ip netns exec $a; fi; }
    host=10.77.0.1
    # the ranks notice the cut well before the launcher behind it gives up the store, after 30 s
    local ms=$((1500 * slack))
    [ $ms -le 10000 ] || ms=10000
    new_job --nnodes 1:2 --max-restarts 20 --stay --cooldown 0.3 -n 2
    start 0 "$B/elastic_rank" train log 5 $ms
    await lines 2 ' size 2 ' log
    start 1 --rdzv-conf is_host=0 "$B/elastic_rank" train log 5 $ms
    await lines 4 ' size 4 ' log
    before=$(wc -l < log)
    ip -n $b link set cdp0 down
    await later $((before + 1)) ' size 2 '
    good 'the others go on without it'
    before=$(wc -l < log)
    ip -n $b link set cdp0 up
    await later $((before + 1)) ' size 4 '
    good 'it comes back'
    touch log.stop; wait_for 0 1
    check 'and both end well' "$codes" '0 0'
    check 'with the end of a serial program' "$("$B/elastic_rank" replay log | grep -o 'the loss of the serial program')" 'the loss of the serial program'
    where() { :; } # the parts after this one need no cable
    host=127.0.0.1
}

# One machine, no endpoint: the launcher serves a store of its own.
stay_here() {
    rm -f out.* log log.stop left.*
    "$B/cdprun" -n 2 --stay --max-restarts 1 --cooldown 0.05 --grace 5 \
        sh -c 'sleep 1000 & echo $! > left.$$; exec "$@"' sh "$B/elastic_rank" train log 2 > out.0 2>&1 < /dev/null &
    pids[0]=$!
    await lines 2 ' size 2 ' log
    dead=$(sed -n 's/.* size 2 rank 1 pid //p' log | tail -n 1)
    kill -KILL "$dead"
    await lines 4 ' size 2 ' log
    good 'ranks stay on one machine'
    await sh -c "! kill -0 $(cat "left.$dead")" && good 'what a dead rank left behind has ended'
    kill -KILL "$(sed -n 's/.* size 2 rank 1 pid //p' log | tail -n 1)"
    wait_for 0
    check 'too few are left, and none is replaced: the job ends' "$codes" 137
    has 'and says how many' out.0 '; 1 of the 2 ranks that the job needs is left'
    has 'and what was first' out.0 ', killed by SIGKILL'
}

# A process that takes the place of rank 0 is the last rank of the job. It is killed while the others are stopped, so the
# launcher is the first to say why the epoch ends: with the number that the process has in the job.
stay_names() {
    local other dead
    rm -f out.* log log.stop events
    "$B/cdprun" -n 2 --stay --max-restarts 2 --cooldown 0.05 --event-log events \
        "$B/elastic_rank" train log 2 > out.0 2>&1 < /dev/null &
    pids[0]=$!
    await lines 2 ' size 2 ' log
    other=$(sed -n 's/^epoch 1 .* rank 1 pid //p' log)
    kill -KILL "$(sed -n 's/^epoch 1 .* rank 0 pid //p' log)"
    await lines 4 ' size 2 ' log
    dead=$(sed -n 's/.* size 2 rank 1 pid //p' log | tail -n 1)
    kill -STOP "$other"
    kill -KILL "$dead"
    await lines 2 '"event": "rank_end"' events
    await lines 2 ' ended: killed by SIGKILL' out.0
    kill -CONT "$other"
    await lines 6 ' size 2 ' log
    await lines 1 '"epoch": 3' events
    touch log.stop; wait_for 0
    check 'ranks are killed one after the other' "$codes" 0
    has 'and named by their numbers in the job' events "\"cause\": \"rank 1: process $dead on "
}

# All ranks die at once: nobody has the state of the job, so new ones would wait for nobody.
stay_lost() {
    local began=$SECONDS
    rm -f out.* log log.stop events
    "$B/cdprun" -n 3 --stay --max-restarts 9 --cooldown 0.05 --grace 0.2 --event-log events \
        "$B/elastic_rank" train log 2 > out.0 2>&1 < /dev/null &
    pids[0]=$!
    await lines 3 ' size 3 ' log
    # shellcheck disable=SC2046
    kill -KILL $(sed -n 's/.* size 3 .* pid //p' log)
    wait_for 0
    check 'all ranks are killed: the job ends' "$codes" 137
    has 'and says that its state is lost' out.0 'all ranks of epoch 1 have ended, and nobody has the state of the job'
    if [ $((SECONDS - began)) -lt $((30 * slack)) ]; then good 'at once'; else fail 'at once' "after $((SECONDS - began)) s"; fi
    check 'which costs no restart' "$(grep -c 'takes the place' out.0)" 0
    has 'and the event log has the end' events '"event": "end", "exit_code": 137, "restarts": 0'
}

# The event log: what happens to ranks that stay, and a disk that is full.
stay_events() {
    rm -f out.* log log.stop events
    "$B/cdprun" -n 2 --stay --max-restarts 1 --cooldown 0.05 --event-log events \
        "$B/elastic_rank" train log 2 > out.0 2>&1 < /dev/null &
    pids[0]=$!
    await lines 2 ' size 2 ' log
    kill -KILL "$(sed -n 's/.* size 2 rank 1 pid //p' log | tail -n 1)"
    await lines 4 ' size 2 ' log
    await grep -q '"epoch": 2' events
    touch log.stop; wait_for 0
    check 'a job with an event log ends well' "$codes" 0
    has 'its epochs are there' events '"event": "epoch", "epoch": 2, "node": 0, "ranks": 2, "lost": 1, "joined": 1, "step": '
    has 'and how ranks ended' events '"exit_code": -1, "signal": 9, '
    has 'and new processes' events '"event": "restart", "rank": '
    check 'and nothing but lines of JSON' "$(grep -cvE '^\{"time": [0-9]+\.[0-9]{3}, "pid": [0-9]+, "event": "[a-z_]+", .*\}$' events)" 0
    rm -f log; "$B/cdprun" -n 1 --stay --event-log /dev/full "$B/elastic_rank" train log 1 > out.0 2>&1
    check 'a full disk does not end the job' $? 0
    check 'and is told once' "$(grep -c 'cannot write to /dev/full of --event-log, so events are lost: ' out.0)" 1
    # a word of Latin-1, and one of UTF-8
    new_job --nnodes 1:2 --max-restarts 1
    start 0 sh -c 'printf "{\"message\": \"caf\351 \303\274ber\"}" > "$TORCHELASTIC_ERROR_FILE"; exit 3'; wait_for 0
    check 'a rank fails twice' "$codes" 3
    check 'and what is not UTF-8 is replaced' "$(grep -c 'caf? \\u00fcber' events)" 2
}

# The launcher that serves the store has a connection from each rank, beside their output.
stay_files() {
    rm -f out.* log log.stop
    touch log.stop
    (ulimit -S -n 60; timeout $((60 * slack)) "$B/cdprun" -n 16 --stay "$B/elastic_rank" train log 1) > out.0 2>&1
    check 'sixteen ranks with a limit of 60 descriptors' $? 0
}

# The job ends well while the launcher still has a process: how that one ends costs no restart, and is no failure.
stay_late() {
    rm -f out.* log log.stop
    "$B/cdprun" -n 2 --stay --max-restarts 3 --cooldown 0.05 --grace $((5 * slack)) \
        sh -c '"$@"; sleep '"$slack"'; exit "$LOCAL_RANK"' sh "$B/elastic_rank" train log 2 > out.0 2>&1 < /dev/null &
    pids[0]=$!
    await lines 2 ' size 2 ' log
    touch log.stop; wait_for 0
    check 'a process that fails after the end of the job is no failure' "$codes" 0
    check 'and is not replaced' "$(grep -c 'takes the place' out.0)" 0
}

parts=("$@")
[ $# -gt 0 ] || parts=(restart endings stay servers kills cut)
for part in "${parts[@]}"; do
    case $part in
    restart) restart_mode; stopped_launcher; options_and_times; stores ;;
    endings) endings ;;
    stay) stay_mode; stay_here; stay_names; stay_late; stay_lost; stay_events; stay_files ;;
    servers) servers ;;
    names) stay_names ;;
    cut) cut_off ;;
    kills) random_kills "${KILLS:-6}" ;;
    esac
done
finish

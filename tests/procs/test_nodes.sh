#!/usr/bin/env bash
# test_nodes.sh - one job on several machines: a launcher (cdprun) for each of them
#
#   bash tests/procs/test_nodes.sh             BUILD=DIR (default: build), KILLS=N (default: 3), CUT=1 (45 s more)
#
# First the machines are launchers on this one, at different addresses of the loopback network. Then, as root and where the
# system lets us, each is a network namespace of its own with a cable between them; there a training job runs, ranks are
# killed, and the cable is cut. Every wait has a limit. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/procs/launchers.sh
programs cdprun 01_hello 03_train_text
empty_folder nodes
random_key 32 > key
chmod 600 key
yes 'The quick brown fox jumps over the lazy dog, and every rank has to see the same.' | head -n 1500 > text.txt

job=0
evidence() { tail -n 20 out.* err.*; }
under() { if [ "$2" -le $(($3 * slack)) ]; then good "$1"; else fail "$1" "$2 ms, more than $3 x $slack"; fi; }
ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
gone() { if leaves; then good "$1"; else fail "$1" "still alive: $left"; fi; }
await_files() { # FILE...: at most 20 s
    local f n
    for f in "$@"; do for ((n = 0; n < 1000 * slack; ++n)); do [ -s "$f" ] && break; sleep 0.02; done; done
}

where() { :; } # K: what to put before a command for machine K
host=127.0.0.1
nodes=2

# A new job, whose port nobody has.
new_job() {
    job=$((job + 1))
    rm -rf out.* err.* pid.* up.*
    port=$(free_port)
}

# The launcher of machine K in the background; pids[K].
start() { # K ARGUMENT...
    local k=$1
    shift
    # shellcheck disable=SC2046
    $(where "$k") env CDPTEST=$$.$job timeout -k 5 $((90 * slack)) "$B/cdprun" -n 2 --nnodes $nodes --node-rank "$k" --rdzv-endpoint $host:"$port" ${open---job-key-file key} ${open+--open} "$@" > "out.$k" 2> "err.$k" &
    pids[k]=$!
}

# Sets codes ("0 0") and took (ms since `began`).
ended() { # K...
    wait_for "$@"
    took=$(($(ms) - began))
}

run_all() { # ARGUMENT...
    new_job
    began=$(ms)
    for ((k = nodes - 1; k >= 0; --k)); do start $k "$@"; done
    ended $(seq 0 $((nodes - 1)))
}

together() {
    run_all sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE $MASTER_ADDR ${#CDP_JOB_KEY}'
    check "environment" "$codes $(sort out.0 out.1)" "0 0 [0] 0 0 4 2 0 2 0 4 $host 64
[1] 1 1 4 2 0 2 1 4 $host 64
[2] 2 0 4 2 1 2 2 4 $host 64
[3] 3 1 4 2 1 2 3 4 $host 64"
    run_all "$B/01_hello"
    check "all meet" "$codes $(sort out.0 out.1 | grep -c 'of 4 is here') $(cat err.0 err.1)" "0 0 4 "
}

failures() {
    run_all --grace 0.3 sh -c 'if [ $RANK = 3 ]; then sleep 0.2; echo "{\"message\": \"no bread\"}" > $TORCHELASTIC_ERROR_FILE; exit 7; fi; sleep 50'
    check "exit code everywhere" "$codes" "7 7"
    has "failure named elsewhere" err.0 "first failure: rank 3 on node 1, exit code 7 after "
    has "message elsewhere" err.0 "no bread"
    has "failure named here" err.1 "first failure: rank 3 on node 1, exit code 7 after "
    gone "nothing is left after a failure"
    run_all --grace 0.3 sh -c '[ $GROUP_RANK = 0 ] && exit 0; sleep 0.5; exit $LOCAL_RANK'
    check "who is done early learns of a failure" "$codes" "1 1"
    run_all --grace 0.3 sh -c 'case $RANK in 2) echo > up.2; kill -SEGV $$ ;; 0) while [ ! -s up.2 ]; do sleep 0.02; done; exit 3 ;; esac; sleep 50'
    check "a crash counts before what it causes" "$codes" "139 139"
}

restarts() {
    # no rank fails before all four have said what they have to say
    run_all --max-restarts 2 --grace 0.3 sh -c 'k=$TORCHELASTIC_RESTART_COUNT; echo $k $MASTER_PORT; echo >> up.$k; while [ $(wc -l < up.$k) -lt 4 ]; do sleep 0.05; done; [ $k = $GROUP_RANK ] && exit $RANK$RANK; sleep 0.6'
    check "all start again" "$codes $(cat out.0 out.1 | cut -d' ' -f2 | sort | uniq -c | tr -s ' \n' ' ')" "0 0  4 0 4 1 4 2 "
    check "with one new port each" "$(cat out.0 out.1 | cut -d' ' -f3 | sort | uniq -c | awk '{ print $1 }' | tr '\n' ' ')" "4 4 4 "
    run_all --max-restarts 1 --grace 0.1 sh -c '[ $RANK = 2 ] && exit 9; sleep 20'
    check "restarts are counted everywhere" "$codes $(grep -c 'starting all ranks again (restart 1 of 1)' err.0 err.1 | tr '\n' ' ')" "9 9 err.0:1 err.1:1 "
    run_all --max-restarts 1 --grace 0.3 sh -c 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then [ $RANK = 1 ] && kill -KILL $$; exec sleep 20; fi; exec "$0"' "$B/01_hello"
    check "ranks meet after a restart" "$codes $(sort out.0 out.1 | grep -c 'of 4 is here')" "0 0 4"
    gone "nothing is left after restarts"
}

# Who has another key, or none, is kept out of the launchers' store and of the ranks.
keys() {
    new_job; began=$(ms)
    tr 0-9a-f 1-9a-f0 < key > key.other
    join=2.5
    [ "$slack" = 1 ] || join=10
    start 0 --join-timeout $join "$B/01_hello"; start 1 --job-key-file key.other "$B/01_hello"
    ended 1 0
    check "another key" "$codes" "1 124"
    has "another key is named" err.1 "the job keys differ"
    has "and nobody came" err.0 "node rank 1 of 2 did not come within $join s"
    new_job; began=$(ms)
    start 0 --join-timeout $join "$B/01_hello"; open="" start 1 "$B/01_hello"
    ended 1 0
    check "no key" "$codes" "1 124"
    has "a key is asked for" err.1 "a job key is needed"
    open=""
    run_all "$B/01_hello"
    unset open
    check "without keys, on both sides" "$codes $(sort out.0 out.1 | grep -c 'of 4 is here')" "0 0 4"
}

not_coming() {
    nodes=4
    new_job; began=$(ms)
    join=1.5
    [ "$slack" = 1 ] || join=8
    start 0 --join-timeout $join "$B/01_hello"; start 2 --join-timeout $join "$B/01_hello"
    ended 0 2
    check "some do not come" "$codes" "124 124"
    has "who is missing" err.0 "cdprun: node ranks 1, 3 of 4 did not come within $join s; each must run cdprun with --rdzv-endpoint $host:$port"
    has "who is missing, elsewhere" err.2 "cdprun: node ranks 1, 3 of 4 did not come within $join s"
    under "at the deadline" "$took" 6000
    nodes=2
    new_job; began=$(ms)
    start 1 --join-timeout 1 "$B/01_hello"
    ended 1
    check "node 0 does not come" "$codes" 124
    has "node 0 is named" err.1 "cdprun: node rank 0 did not come within 1 s: no store answered at $host:$port"
    new_job; began=$(ms)
    start 0 "$B/01_hello"; start 1 -n 3 "$B/01_hello"
    ended 0 1
    check "other options" "$codes" "2 2"
    has "other options are named" err.1 "node 1 was started with other options than node 0: -n 3"
    new_job; began=$(ms)
    start 0 --join-timeout 3 "$B/01_hello"
    sleep 0.3; kill -TERM "$(launcher 0)"; ended 0
    check "asked to end while waiting" "$codes" 143
    under "at once" "$took" 4000
}

# A new job of two machines whose ranks are there and do nothing.
sleepers() { # OPTION...
    local n
    new_job
    for n in 0 1; do start $n "$@" --grace 0.3 sh -c 'echo up > up.$RANK; exec sleep 50'; done
    await_files up.0 up.1 up.2 up.3
    began=$(ms)
}

launchers_die() {
    sleepers
    kill -KILL "$(launcher 1)"; ended 0 1
    check "launcher 1 dies" "$codes" "1 137"
    has "launcher 1 is named" err.0 "the launcher of node 1 has died"
    gone "nothing is left of both"
    sleepers --max-restarts 3
    kill -KILL "$(launcher 0)"; ended 1 0
    check "launcher 0 dies" "$codes" "1 137"
    has "launcher 0 is named" err.1 "the launcher of node 0 is out of reach"
    gone "nothing is left of both again"
    sleepers --max-restarts 3
    kill -TERM "$(launcher 1)"; ended 0 1
    check "one is asked to end" "$codes" "143 143"
    has "who was asked" err.0 "first failure: node 1 was ended by SIGTERM"
    gone "nothing is left after a signal"
    new_job
    start 0 --grace 0.3 sh -c 'echo up > up.$RANK'; start 1 --grace 0.3 sh -c 'echo up > up.$RANK; exec sleep 50'
    await_files up.0 up.1 up.2 up.3; began=$(ms)
    sleep 0.5; kill -TERM "$(launcher 0)"; ended 0 1
    check "one is asked to end that only waits for the others" "$codes" "143 143"
    has "who was asked then" err.1 "first failure: node 0 was ended by SIGTERM"
    under "and ends at once" "$took" 8000
}

# Launchers and ranks are killed at random moments, from the first one on: everything ends, everywhere, and nobody is told
# of a success.
random_kills() { # HOW OFTEN
    local i k bad=
    for ((i = 0; i < $1; ++i)); do
        new_job; began=$(ms); k=$((RANDOM % 2))
        local again=$((RANDOM % 2))
        for n in 0 1; do start $n --grace 0.2 --max-restarts $again --join-timeout 20 sh -c 'echo $$ > pid.$RANK; "$0" & exec sleep 60' "$B/01_hello"; done
        sleep "0.$(printf '%03d' $((RANDOM % 700)))"
        if [ $((RANDOM % 2)) = 0 ]; then kill -KILL "$(launcher $k)"; else kill -KILL "$(cat pid.$((2 * k)) 2> /dev/null || launcher $k)"; fi 2> /dev/null
        sleep 0.3
        for n in 0 1; do kill -TERM "$(launcher $n)"; done 2> /dev/null
        ended 0 1
        case $codes in *' 0' | '0 '*) bad="$bad kill $i: codes $codes;" ;; esac
        [ $took -le 60000 ] || bad="$bad kill $i: $took ms;"
        leaves || bad="$bad kill $i: alive: $left;"
    done 2> /dev/null
    check "$1 random kills" "$bad" ""
}

echo "-- launchers on one machine"
together
failures
restarts
keys
not_coming
launchers_die
random_kills "${KILLS:-3}"

# ---- machines that are network namespaces ----

small=(--width 32 --context 16 --eval-every 0 --eval-bytes 1024 --sample 0)

train() {
    run_all "$B/03_train_text" "${small[@]}" --steps 30 --check text.txt
    check "two machines train" "$codes $(grep -c PASS out.0)" "0 0 1"
}

# Two machines in the middle of their training.
training() { # ARGUMENT...
    new_job
    for k in 1 0; do start $k "$@" sh -c 'echo $$ > pid.$RANK; exec "$@"' sh "$B/03_train_text" "${small[@]}" --steps 1000000 --log-every 1 text.txt; done
    for ((n = 0; n < 1000 * slack; ++n)); do grep -qs 'step  *[0-9]' out.0 && return 0; sleep 0.02; done
    fail "training" "it did not begin"
}

rank_dies() { # RANK
    training --grace 4
    began=$(ms)
    kill -KILL "$(cat pid."$1")"
    ended 0 1
    check "rank $1 is killed" "$codes" "137 137"
    has "and named by machine 0" err.0 "first failure: rank $1 on node $(($1 / 2)), killed by SIGKILL"
    has "and by machine 1" err.1 "first failure: rank $1 on node $(($1 / 2)), killed by SIGKILL"
    check "the survivors name it" "$(cat err.0 err.1 | grep -c "^\[[0-3]\] cdp: .*rank $1\>")" 3
    under "both end" "$took" 20000
    gone "nothing is left after rank $1"
}

restart_far() {
    training --grace 4 --max-restarts 1
    kill -KILL "$(cat pid.3)"
    for ((n = 0; n < 1000 * slack; ++n)); do [ "$(grep -c 'step  *1/' out.0)" -ge 2 ] && break; sleep 0.02; done
    check "training begins again" "$(grep -c 'step  *1/' out.0)" 2
    began=$(ms)
    kill -TERM "$(launcher 0)"
    ended 0 1
    gone "nothing is left after the second attempt"
}

steps() { grep -o 'step  *[0-9]*' out.0 | tail -n 1 | tr -dc '0-9'; }

# The cable is out for a moment, and then for good.
cable() {
    local before
    training --grace 4
    ip -n $b link set cdp0 down; sleep 3; ip -n $b link set cdp0 up
    before=$(steps)
    for ((n = 0; n < 1000 * slack; ++n)); do [ "$(steps)" -gt $((before + 20)) ] && break; sleep 0.02; done
    check "a short interruption is survived" "$([ "$(steps)" -gt $((before + 20)) ] && echo goes on) $(cat err.0 err.1)" "goes on "
    if [ "${CUT:-0}" = 0 ]; then kill -TERM "$(launcher 0)"; ended 0 1; gone "nothing is left of it"; return; fi
    began=$(ms)
    ip -n $b link set cdp0 down
    ended 0 1
    ip -n $b link set cdp0 up
    check "a cut cable ends the job on both machines" "$codes" "1 1"
    under "within a minute" "$took" 60000
    gone "nothing is left on either side"
}

echo "-- network namespaces"
if [ "$(id -u)" != 0 ]; then
    echo "SKIP network namespaces: only root may make them"
elif ! command -v ip > /dev/null; then
    echo "SKIP network namespaces: there is no program 'ip' (package iproute2)"
elif trap cables_away EXIT; ! cables 2> cables.txt; then
    echo "SKIP network namespaces: $(head -n 1 cables.txt)"
else
    where() { if [ "$1" = 0 ]; then echo ip netns exec $a; else echo ip netns exec $b; fi; }
    host=10.77.0.1
    together
    keys
    train
    not_coming
    for rank in 3 0; do rank_dies $rank; done
    restart_far
    cable
fi

finish

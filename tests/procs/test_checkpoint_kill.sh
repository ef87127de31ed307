#!/usr/bin/env bash
# test_checkpoint_kill.sh - a job that saves in the background is killed at random moments, and always goes on
#
#   bash tests/procs/test_checkpoint_kill.sh [--kills N] [--seed S]      BUILD=DIR (default: build)
#
# examples/22_checkpoint trains on two ranks and saves every 10 steps. After a random time all of the job gets SIGKILL, or
# one rank does. It is started again, and must go on from the newest step that was there before the kill, or a newer one,
# until its loss is that of a job that nobody killed; then the next one begins, until there were N kills (default: 3). Ends
# with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/procs/launchers.sh
kills=3 seed=1
numbers 'kills seed' "$@"
RANDOM=$seed
if [ -n "${JOB:-}" ]; then # JOB, CDPRUN: programs that are built already
    without_job
else
    programs cdprun 22_checkpoint
    JOB=$B/22_checkpoint CDPRUN=$B/cdprun
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
steps=600
newest() { # the highest step that is published
    find "$1" -mindepth 2 -maxdepth 2 -path '*/step-*/checkpoint.json' ! -path '*.tmp-*' 2> "$work/no" |
        sed 's,.*/step-0*\([0-9]\),\1,; s,/.*,,' | sort -n | tail -n 1
}
if ! timeout 120 "$CDPRUN" -n 2 "$JOB" train "$work/whole" $steps > "$work/out" 2>&1 < /dev/null; then
    bad "a job that nobody kills: $(tail -n 3 "$work/out")"
    finish
fi
want=$(grep -o 'step .*: loss .*' "$work/out")
good "a job that nobody kills: $want"

killed=0 jobs=0 alone=0 wrong=0
while [ $killed -lt "$kills" ] && [ $wrong = 0 ]; do
    jobs=$((jobs + 1))
    folder=$work/run$jobs before=0
    while :; do
        timeout 120 "$CDPRUN" -n 2 "$JOB" train "$folder" $steps > "$work/out" 2>&1 < /dev/null &
        job=$!
        sleep "$(printf '0.%03d' $((RANDOM % 700 + 30)))"
        before=$(newest "$folder")
        if [ $killed -lt "$kills" ] && kill -0 $job 2> "$work/no"; then
            killed=$((killed + 1))
            all=$(pgrep -f "train $folder $steps") # launcher and ranks
            rank=$(pgrep -f "^$JOB train $folder " | head -n $((RANDOM % 2 + 1)) | tail -n 1)
            if [ $((RANDOM % 3)) = 0 ] && [ -n "$rank" ]; then
                alone=$((alone + 1))
                all=$rank
            fi
            kill -9 $all 2> "$work/no"
        fi
        wait $job 2> "$work/no"
        rc=$?
        found=$(sed -n 's/.* go on at step //p' "$work/out")
        [ $rc = 0 ] && break
        [ -n "$(newest "$folder")" ] && [ "$(newest "$folder")" -ge "${before:-0}" ] || [ -z "$before" ] || wrong=1
    done
    [ "$(grep -o 'step .*: loss .*' "$work/out")" = "$want" ] || wrong=1
    [ $wrong = 0 ] || break
    rm -rf "$folder"
done
if [ $wrong = 0 ]; then good "$killed kills ($alone of one rank) of $jobs jobs: each went on, all ended with the right loss"
else bad "after $killed kills: went on at ${found:-nothing}, ${before:-no step} was there; $(tail -n 2 "$work/out")"; fi
finish

#!/usr/bin/env bash
# test_checkpoint_elastic.sh - an elastic job that saves loses one rank, then all of them; it goes on with others
#
#   bash tests/procs/test_checkpoint_elastic.sh      BUILD=DIR (default: build)
#
# examples/29_elastic_checkpoint trains on three ranks and saves every 100 steps. One rank gets SIGKILL: the others go on.
# Then all of the job gets it. Started again on two ranks, and on four, it goes on from the newest step and has the loss of
# a job that nobody killed. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/procs/launchers.sh
if [ -n "${JOB:-}" ]; then # JOB, CDPRUN: programs that are built already
    without_job
else
    programs cdprun 29_elastic_checkpoint
    JOB=$B/29_elastic_checkpoint CDPRUN=$B/cdprun
fi
work=$(mktemp -d) || exit 1
trap 'kill -9 $(pgrep -f "$work/run ") 2> "$work/no"; rm -rf "$work"' EXIT
evidence() { tail -n 5 "$work/out" "$work/again"; }
newest() { # the highest step that is published, or 0
    find "$work/run" -mindepth 2 -maxdepth 2 -path '*/step-*/checkpoint.json' ! -path '*.tmp-*' 2> "$work/no" |
        sed 's,.*/step-0*\([0-9]\),\1,; s,/.*,,' | sort -n | tail -n 1 | grep . || echo 0
}
# shellcheck disable=SC2317,SC2329
reached() { [ "$(newest)" -ge "$1" ]; }
# shellcheck disable=SC2317,SC2329
gone() { ! pgrep -f "$work/run "; }
job() { # RANKS FOLDER STEPS OUT
    timeout $((120 * slack)) "$CDPRUN" -n "$1" --stay --max-restarts 3 "$JOB" "$2" "$3" > "$4" 2>&1 < /dev/null
}

job 3 "$work/run" 100000000 "$work/out" &
launched=$!
until_true reached 200
check "a job on three ranks saves" $? 0
kill -9 "$(pgrep -f "^$JOB $work/run " | tail -n 1)"
until_true reached $(($(newest) + 300))
check "one rank is killed, and the job goes on saving" $? 0
kill -9 $launched $(pgrep -f "$work/run ") # launcher and ranks
wait $launched 2> "$work/no"
until_true gone
there=$(newest)
end=$((there + 250))
cp -r "$work/run" "$work/copy"

job 2 "$work/run" $end "$work/again"
check "all are killed: it goes on with two ranks" $? 0
has "at the newest step" "$work/again" "2 ranks go on at step $there"
job 4 "$work/copy" $end "$work/four"
check "or with four" $? 0
has "at the same step" "$work/four" "4 ranks go on at step $there"
job 2 "$work/whole" $end "$work/out"
check "a job that nobody kills" $? 0
want=$(grep -o "step $end: loss .*" "$work/out")
check "the loss of two ranks is the same" "$(grep -o "step $end: loss .*" "$work/again")" "${want:-a loss}"
check "the loss of four, too" "$(grep -o "step $end: loss .*" "$work/four")" "${want:-a loss}"
check "the job has saved again" "$(newest)" $((end - end % 100))
finish

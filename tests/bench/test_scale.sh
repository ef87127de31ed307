#!/usr/bin/env bash
# The table that `make scale` prints is whole: every algorithm of the library is in it, and of each operation, size and
# number of ranks exactly one is marked as the one that is selected.
#
#   test_scale.sh SCALE     the program
set -u
scale=$1 passed=0 failed=0
ok() { if [ -z "$2" ]; then passed=$((passed + 1)); echo "ok $1"; else failed=$((failed + 1)); printf 'not ok %s:\n%s\n' "$1" "$2"; fi; }
for hosts in 1 4; do
    table=$("$scale" --ranks 16,64,1024 --size 1K,1M --per-host $hosts) || ok "$hosts ranks on a host" "exit code $?"
    ok "one is selected, $hosts ranks on a host" "$(awk '
        / MB$/ { size = $1 }
        NF > 12 && ($1 == "*" || $1 ~ /^(all|bro|bar|red|gat|sca)/) { line = $0; star = sub(/^\*/, "", line); split(line, w, " "); match(line, / +[0-9]+ /); key = size " MB " w[1] " " substr(line, RSTART) + 0; seen[key] += star }
        END { for (k in seen) { ++n; if (seen[k] != 1) print "    " k " ranks: " seen[k] " marks" } if (n != 66) print "    " n " cases, not 2 sizes x 11 operations x 3 numbers of ranks" }' <<< "$table")"
    names='ring|recursive doubling|binomial tree|dissemination|linear|pairwise|fixed order|Bruck|recursive halving|spread|rabenseifner|direct|at once'
    [ $hosts = 1 ] || names="$names|hierarchical|leaders"
    ok "all algorithms, $hosts ranks on a host" "$(tr '|' '\n' <<< "$names" | while read -r name; do grep -q " $name  *[0-9]" <<< "$table" || echo "    $name is missing"; done)"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]

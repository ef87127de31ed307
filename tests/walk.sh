#!/usr/bin/env bash
# Walks through a program that runs: which functions lie between cdp_allreduce and the transport.send of its bytes, and
# which a death passes through until every rank reports it. What the head of cdp.h draws is compared with that.
#
#   [CC=gcc] walk.sh DIR        DIR: for the program
#
# In a drawing each function stands at the beginning of a line. It is called by a function of the next line above that
# stands less far to the right; functions one below the other do so in turn. What stands at the left edge is called by
# functions that are not drawn.
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
mkdir -p "$1" && dir=$1
passed=0 failed=0
result() { # NAME: what standard input says is wrong
    cat > "$dir/wrong"
    if [ -s "$dir/wrong" ]; then
        failed=$((failed + 1))
        echo "not ok $1"
        sed 's/^/    /' "$dir/wrong"
    else
        passed=$((passed + 1))
        echo "ok $1"
    fi
}

compile=("${CC:-gcc}" -O0 -std=gnu11 -finstrument-functions -D_GNU_SOURCE -I.)
printf 'void __cyg_profile_func_enter(void *f, void *s) { (void)f, (void)s; }\nint main(void) { return 0; }\n' > "$dir/x.c"
if ! "${compile[@]}" "$dir/x.c" -o "$dir/x" 2> /dev/null || ! nm "$dir/x" > /dev/null 2>&1; then
    echo "SKIP walks: ${CC:-gcc} does not compile with -finstrument-functions, or there is no nm"
    echo '0 passed, 0 failed'
    exit 0
fi
"${compile[@]}" tests/walk.c -o "$dir/walk" -pthread -lm && nm "$dir/walk" > "$dir/symbols" &&
    timeout 60 "$dir/walk" > "$dir/distances" || { echo 'not ok walk.c compiles and runs'; echo '0 passed, 1 failed'; exit 1; }

# The same lines with names instead of distances.
while read -r address kind name; do
    case $kind in [tT]) echo "$((16#$address)) $name" ;; esac
done < "$dir/symbols" > "$dir/functions"
awk 'NR == FNR { name[$1] = $2; if ($2 == "main") main = $1; next }
     { line = $1; for (i = 2; i <= NF; ++i) line = line " " ($1 == "send" && i == 2 ? $i : name[main + $i]); print line }' \
    "$dir/functions" "$dir/distances" > "$dir/names"

drawing() { # HEADING: "INDENT NAME" for each function that is drawn below it
    awk -v heading="$1" '
        /^#if/ { exit }
        index($0, heading) { on = 1; next }
        on && /^    [A-Z][A-Z ]+[A-Z(]/ { exit }
        on && /^ +(cdp_[a-z_]+|transport\.send)(  |$)/ { match($0, /^ +/); print RLENGTH, $1 }' cdp.h
}

# "send N F1 F2 ..." for each way that a payload took. Other messages are between the ranks: no call is their origin.
drawing 'HOW AN ALLREDUCE BECOMES BYTES' > "$dir/drawn"
last=$(awk '$2 == "transport.send" { print before } { before = $2 }' "$dir/drawn")
awk -v last="$last" '$1 == "send" && $NF == last { print $0, "transport.send" }' "$dir/names" > "$dir/sends"
result 'an allreduce becomes bytes in at most seven functions' < <(awk 'BEGIN { most = 7 }
     NF - 2 > most { $1 = $2 = ""; print NF - 2 " functions, where " most " are allowed:" $0 }
     END { if (!NR) print "no payload was sent by the function that is drawn above transport.send" }' "$dir/sends")
result 'an allreduce becomes bytes as cdp.h draws it' < <(awk 'NR == FNR { if ($1 != indent) ++level; indent = $1; drawn[level, $2]; next }
     {
         if (NF - 2 != level) wrong = wrong "\n" NF - 2 " functions, but " level " are drawn: " $0
         for (i = 3; i <= NF; ++i) { seen[i - 2, $i]; if (!((i - 2, $i) in drawn)) wrong = wrong "\n" $i " is not drawn as function " i - 2 }
     }
     END {
         for (d in drawn) if (!(d in seen)) { split(d, part, SUBSEP); wrong = wrong "\n" part[2] " is not function " part[1] " of any payload" }
         if (wrong) print substr(wrong, 2)
     }' "$dir/drawn" "$dir/sends")

drawing 'HOW A FAILURE REACHES ALL RANKS' > "$dir/drawn"
result 'a failure reaches all ranks as cdp.h draws it' < <(awk 'NR == FNR { if ($1 == "call") { call[$2, $3]; to[$3] }; next }
     {
         if (first == "") first = $1
         for (i = n; i && indent[i] >= $1; --i) ;
         for (found = above = i; i && indent[i] == indent[above]; --i) if ((name[i], $2) in call) found = -1
         if (!above && ($1 > first || !($2 in to))) print $2 " was not called"
         else if (above && found > 0) print name[above] " did not call " $2
         indent[++n] = $1; name[n] = $2
     }
     END { if (n < 5) print "only " n + 0 " functions are drawn" }' "$dir/names" "$dir/drawn")
echo "$passed passed, $failed failed"
[ $failed = 0 ]

#!/usr/bin/env bash
# Plants COUNT small defects, drawn by SEED, in copies of the headers, one at a time, and looks whether the tests notice. A
# defect's object is built once; the tests of its section run first, and the first that fails ends it. Prints every defect,
# the share that was noticed, and the survivors. Results are kept in BUILD/mutants: run it again to go on where it stopped.
#   COUNT (300), SEED (1), JOBS (2), LIMIT (10800: seconds, then no further defect is begun), HEADERS, BUILD (build)
# Not counted: what does not compile, what gives the same object (equivalent), and what tests/mutants/equivalent.txt names.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
B=$root/${BUILD:-build}/mutants
case ${BUILD:-build} in /*) B=$BUILD/mutants ;; esac
SEED=${SEED:-1} COUNT=${COUNT:-300} JOBS=${JOBS:-2} LIMIT=${LIMIT:-10800}
HEADERS=${HEADERS:-cdp.h cdp_store.h cdp_tcp.h cdp_dtensor.h cdp_mem.h cdp_nccl.h}
CC=${CC:-gcc}
flags='-O1 -std=gnu11 -w'
linked='cdp.h cdp_store.h cdp_tcp.h'
# shellcheck disable=SC2086
results=$B/results-$SEED-$(cat $HEADERS | cksum | cut -d ' ' -f 1) # others after a change of the headers
export root B CC flags linked results
mkdir -p "$B/declared" "$B/base/inc" "$B/obj" "$B/m"

source_of() { # TEST: its file
    local d
    for d in unit procs dtensor mem nccl sim; do
        if [ -f "$root/tests/$d/$1.c" ]; then echo "tests/$d/$1.c"; return; fi
    done
}

# Some tests set private macros of the headers, so they compile the library themselves.
is_own() { grep -qE '^#define (CDP__|__atomic)' "$root/$(source_of "$1")"; }

libs_of() { # TEST
    case $(source_of "$1") in tests/mem/* | tests/nccl/*) echo '-pthread -lm -ldl' ;; *) echo '-pthread -lm' ;; esac
}

# FOLDER: the library's object from the headers in FOLDER/inc, with private functions that tests can call.
library() {
    local h
    mkdir -p "$1/whole"
    for h in $linked; do "$B/sources" whole "$1/inc/$h" > "$1/whole/$h"; done
    (cd "$1" && $CC $flags -Iwhole -c "$root/tests/cdp.c" -o cdp.o)
}

# FOLDER TEST HEADER: the program of a test, for a defect in HEADER, or "" for none.
program() {
    local src
    src=$(source_of "$2")
    if is_own "$2"; then
        $CC $flags -I"$1/inc" -I"$root" -I"$root/tests" "$root/$src" -o "$1/$2" $(libs_of "$2")
    elif [ -n "$3" ] && [[ " $linked " != *" $3 "* ]]; then
        mkdir -p "$1/mixed"
        cp "$B"/declared/*.h "$1/mixed/"
        cp "$1/inc/$3" "$1/mixed/"
        $CC $flags -fno-omit-frame-pointer -I"$1/mixed" -I"$root" -I"$root/tests" "$root/$src" "$B/base/cdp.o" -o "$1/$2" $(libs_of "$2")
    else
        $CC "$B/obj/$2.o" "$1/cdp.o" -o "$1/$2" $(libs_of "$2")
    fi
}

# FOLDER TEST+WORD+WORD SECONDS: runs it in the folder; its exit code.
run() {
    local name=${1##*/}
    { (cd "$root" && ulimit -c 0 && TMPDIR=$1 timeout -k 2 "$3" "$1/${2%%+*}" $(tr + ' ' <<< "${2#"${2%%+*}"}")) > "$1/out-$name" 2>&1 < /dev/null; } 2> /dev/null
}

tests_of() { # HEADER SECTION: in their order, each once
    local header pattern rest t
    while read -r header pattern rest; do
        [ "$header" = "$1" ] || continue
        # shellcheck disable=SC2053
        [[ $2 == $pattern ]] || continue
        for t in $rest; do echo "$t"; done
    done < "$root/tests/mutants/tests.txt" | awk '!seen[$0]++'
}

# HEADER LINE AT KIND: one line of results.
mutant() {
    local id="$1:$2:$3:$4" d section text state=SURVIVED by='' t limit began
    d=$B/m/${id//[:.]/_}
    [ "$(date +%s)" -lt "$UNTIL" ] || return 0
    began=$(date +%s)
    rm -rf "$d"
    mkdir -p "$d/inc"
    cp "$root"/cdp*.h "$d/inc/"
    "$B/mutate" plant "$root/$1" "$2" "$3" "$4" > "$d/inc/$1"
    text=$("$B/mutate" show "$1" "$2" "$3" "$4")
    section=${text#* }
    section=${section%" $4 |"*}
    if [[ " $linked " == *" $1 "* ]] && ! library "$d" > /dev/null 2>&1; then
        state=uncompiled
    elif [[ " $linked " == *" $1 "* ]] && cmp -s "$d/cdp.o" "$B/base/cdp.o"; then
        state=same-object
    else
        while read -r t; do
            limit=$(awk -v t="$t" '$1 == t { print int($2 / 1000 * 4) + 10 }' "$B/baseline")
            [ -n "$limit" ] || continue
            if ! program "$d" "${t%%+*}" "$1" > /dev/null 2>&1; then
                state=uncompiled
                break
            fi
            if ! run "$d" "$t" "$limit"; then
                state=noticed
                by=$t
                break
            fi
        done < <(tests_of "$1" "$section")
    fi
    if [ $state = SURVIVED ] && grep -qxF "$1 | ${text#* | }" "$root/tests/mutants/equivalent.txt"; then state=equivalent; fi
    echo "$id $state | $text | $by | $(($(date +%s) - began)) s" | tee -a "$results" | cut -c 1-240
    rm -rf "$d"
}
export -f source_of is_own libs_of library program run tests_of mutant

make --no-print-directory "BUILD=${BUILD:-build}" "${BUILD:-build}/sources" "${BUILD:-build}/test/nccl/libnccl.so" > "$B/make.log" 2>&1
cp "${BUILD:-build}/sources" "$B/sources" && $CC -O1 tests/mutants/mutate.c -o "$B/mutate" || exit 1
mkdir -p "$B/nccl" "$B/base/nccl"
cp cdp*.h "$B/base/inc/"
for h in cdp*.h; do
    if [[ " $linked " == *" $h "* ]]; then "$B/sources" declared "$h" > "$B/declared/$h"; else cp "$h" "$B/declared/"; fi
done
touch "$results" "$B/baseline"
wanted=$(for h in $HEADERS; do awk -v h="$h" '$1 == h { for (i = 3; i <= NF; ++i) print $i }' tests/mutants/tests.txt; done | sort -u)
library "$B/base" || exit 1

baseline() { # TEST: how long it takes without a defect; a test that fails then is left out
    local name=${1%%+*} began src d=$B/base-$1
    src=$(source_of "$name")
    grep -q "^$1 " "$B/baseline" && return
    [ -n "$src" ] || { echo "no test $1"; return; }
    mkdir -p "$d"
    ln -sfn "$B/base/inc" "$d/inc"
    cp "$B/base/cdp.o" "$d/"
    if ! program "$d" "$name" ''; then echo "$1 does not compile"; return; fi
    began=$(date +%s%N)
    if run "$d" "$1" 300; then
        echo "$1 $((($(date +%s%N) - began) / 1000000))" >> "$B/baseline"
    else
        echo "left out, since it fails without a defect: $1"
        tail -n 3 "$d"/out-* | cut -c 1-200
    fi
}
export -f baseline
object() { # TEST: compiled once for all defects
    is_own "$1" || [ "$B/obj/$1.o" -nt "$root/$(source_of "$1")" ] && [ "$B/obj/$1.o" -nt "$root/cdp.h" ] \
        || $CC $flags -fno-omit-frame-pointer -I"$B/declared" -I"$root" -I"$root/tests" -c "$root/$(source_of "$1")" -o "$B/obj/$1.o"
}
export -f object
sed 's/+.*//' <<< "$wanted" | sort -u | xargs -P "$JOBS" -I{} bash -c 'object {}'
xargs -P "$JOBS" -I{} bash -c 'baseline {}' <<< "$wanted"

# shellcheck disable=SC2086
"$B/mutate" pick "$SEED" "$COUNT" $HEADERS > "$B/picked"
UNTIL=$(($(date +%s) + LIMIT))
export UNTIL
while read -r h line at kind; do
    grep -q "^$h:$line:$at:$kind " "$results" || echo "$h $line $at $kind"
done < "$B/picked" | xargs -P "$JOBS" -L 1 bash -c 'mutant "$@"' -

awk -F ' [|] ' '
    { split($1, w, " "); state[w[2]]++; if (w[2] == "SURVIVED") survivor[++n] = $2 " | " $3 " | " $4 }
    END {
        counted = state["noticed"] + state["SURVIVED"]
        for (i = 1; i <= n; ++i) print "survivor: " survivor[i]
        printf "%d defects: %d noticed, %d survived, %d give the same object, %d are equivalent, %d do not compile\n", NR,
            state["noticed"], state["SURVIVED"], state["same-object"], state["equivalent"], state["uncompiled"]
        if (counted) printf "noticed: %.1f %%\n", 100 * state["noticed"] / counted
    }' "$results"

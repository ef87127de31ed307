#!/usr/bin/env bash
# python/cdp.py: structs and functions are those of the headers; one process; a job of a C rank and three in Python;
# a rank that dies; the example; a wheel. PYTHON=python3 says which Python; it needs numpy. Everything is made in a
# temporary folder. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/tally.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for python in ${PYTHON:-python3 /usr/bin/python3}; do
    "$python" -c 'import numpy' 2> "$work/out" && break
    python=
done
if [ -z "$python" ]; then
    echo "SKIP: no Python with numpy: $(tail -n 1 "$work/out")"
    finish
fi
export PYTHONPATH=$PWD/python:$PWD/tests/python PYTHONDONTWRITEBYTECODE=1 CDP_LIBRARY=$work/libcdp.so CDPRUN=$work/cdprun
export XDG_CACHE_HOME=$work/cache
cc=${CC:-gcc}
try() { # NAME COMMAND...
    if "${@:2}" > "$work/out" 2>&1 < /dev/null; then good "$1"
    else
        bad "$1"
        grep -v -aE 'braces around scalar|near initialization' "$work/out" | tail -n 30 | sed 's/^/    /'
    fi
}

# The table of cdp.py without the implementation: it needs a second. All members of a struct, or the compiler says which is missing.
table() { # HEADERS OUT [FLAG...]
    "$python" -c 'import cdp; print(cdp.source(check=True))' |
        "$cc" -shared -fPIC "${@:3}" "-I$1" -x c - -o "$2"
}
all_members='-Werror=missing-field-initializers'
try 'structs have the members that cdp.py lists' table . "$work/table.so" $all_members
plant() { # FILE SCRIPT: a changed copy of the headers
    rm -rf "$work/changed" && mkdir "$work/changed" && cp cdp*.h "$work/changed" && sed -i "$2" "$work/changed/$1" &&
        ! cmp -s "$1" "$work/changed/$1"
}
fails_with() { # TEXT COMMAND...
    "${@:2}" && return 1
    grep -qa -- "$1" "$work/out"
}
load() { CDP_LIBRARY=$1 "$python" -c 'import cdp; cdp.version()'; }
plant cdp.h 's/^typedef struct cdp_request {$/&\n    uint64_t planted;/'
try 'a member that was added is named' fails_with planted table "$work/changed" "$work/changed.so" $all_members
table "$work/changed" "$work/changed.so" > "$work/out" 2>&1
try 'a library with it is not loaded' fails_with 'cdp_request of the library has members that cdp.py does not know' load "$work/changed.so"
plant cdp_tcp.h 's/^    bool alone_ok;$/&\n    bool planted;/'
try 'a member that was added where there was a gap is named' fails_with planted table "$work/changed" "$work/changed.so" $all_members
plant cdp.h 's/^CDP_API uint32_t cdp_rank(const cdp_group \*group);$/CDP_API int64_t cdp_rank(const cdp_group *group);/'
try 'a function that was changed is named' fails_with 'conflicting types for .*cdp_rank' table "$work/changed" "$work/changed.so"

try 'the library is built' "$python" -c 'import cdp, sys; cdp.build(sys.argv[1], flags=["-O1"])' "$CDP_LIBRARY"
if [ -x "${BUILD:-build}/test/cdprun" ]; then cp "${BUILD:-build}/test/cdprun" "$CDPRUN"
else "$cc" -O0 -w tools/cdprun.c -o "$CDPRUN" -pthread -lm; fi
suite() { # FILE: adds what it counts
    timeout 300 "$python" "tests/python/$1" > "$work/out" 2>&1 < /dev/null
    grep -E '^(ok|not ok) ' "$work/out"
    passed=$((passed + $(grep -c '^ok ' "$work/out"))) failed=$((failed + $(grep -c '^not ok ' "$work/out")))
    grep -qE '^[1-9][0-9]* passed, 0 failed$' "$work/out" && return
    bad "$1 came to its end without a failure"
    tail -n 40 "$work/out" | sed 's/^/    /'
}
suite test_one.py

# -ffp-contract=off: numpy rounds after each operation, and C shall, too.
job() { timeout 120 "$python" -m cdp run "$@"; }
together() {
    "$cc" -O1 -std=gnu11 -ffp-contract=off -Wall -Wextra -Werror -I. tests/python/rank.c "$CDP_LIBRARY" -o "$work/rank" "-Wl,-rpath,$work" &&
        # shellcheck disable=SC2016
        job -n 4 sh -c 'if [ "$RANK" = 0 ]; then exec "$0" "$2"; else exec "$1" tests/python/test_ranks.py "$2"; fi' \
            "$work/rank" "$python" "$work/checkpoint" && [ "$(grep -c ': C and Python agree$' "$work/out")" = 4 ]
}
try 'a C rank and three in Python reduce, train, call and save together' together
dies() {
    job -n 3 "$python" tests/python/dies.py
    [ "$(grep -c 'rank [02]: rank 1 is lost$' "$work/out")" = 2 ]
}
try 'ranks name the one that died' dies
example() { job -n "$1" "$python" examples/20_python.py && [ "$(grep -c ': PASS$' "$work/out")" = "$1" ]; }
try 'the example trains' example 4
try 'the example trains alone' timeout 120 "$python" examples/20_python.py
try 'the code of docs/PYTHON.md runs' timeout 120 "$python" tests/python/guide.py docs/PYTHON.md

# The wheel, of a copy, since setuptools writes beside setup.py; then from the wheel alone.
mkdir "$work/copy" && cp -r cdp*.h tools python "$work/copy"
if ! "$python" -c 'import setuptools, wheel, pip' 2> "$work/out"; then echo "SKIP the wheel: $(tail -n 1 "$work/out")"
elif ! PIP_NO_INDEX=1 CFLAGS=-O0 PYTHONPATH='' timeout 600 "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$work/wheel" "$work/copy/python" > "$work/out" 2>&1; then
    bad 'pip makes a wheel'
    tail -n 20 "$work/out" | sed 's/^/    /'
else
    good 'pip makes a wheel'
    of_wheel() {
        "$python" -m zipfile -e "$work"/wheel/cdp-*-py3-none-linux_*.whl "$work/installed" && chmod +x "$work/installed/cdp_library/cdprun" &&
            cd "$work/installed" && env -u CDP_LIBRARY -u CDPRUN PYTHONPATH="$PWD" "$python" -m cdp run -n 2 "$python" -c 'import cdp
w = cdp.init(); b = bytearray(1); b[0] = w.rank + 1; w.allreduce(b); assert b[0] == 3; w.close()
assert cdp.__file__.startswith(cdp.os.getcwd()) and cdp._lib().c._name.endswith("cdp_library/libcdp.so")' && [ ! -e "$XDG_CACHE_HOME" ]
    }
    try 'what is in the wheel runs a job, and compiles nothing' of_wheel
fi
finish

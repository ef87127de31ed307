#!/usr/bin/env bash
# How tests are compiled. The library is compiled once, without -Itests: CC -I. -c tests/library.c -o OBJECT. A test is
# linked with it and compiles only what is its own. Tests that set private macros of the library, or plant defects, compile
# what has these macros: one header (own.h), or everything.
#
#   linked.sh words OBJECT FILE     what the compiler is told of the test in FILE, the last word on optimisation among it
#   linked.sh own|partly [FILE...]  the names of those (of all, without FILE) that compile everything themselves, or a header
cd "$(dirname "$0")/.." || exit 1
partly() { grep -lE '"(own|(\.\./sim/)?elastic_plants)\.h"' "$@"; }
own() { grep -lE '^#define (CDP__|__atomic)' "$@" | xargs -r grep -LE '"own\.h"'; }
what=$1
shift
case $what in
own | partly)
    [ $# -gt 0 ] || set -- tests/*/*.c
    $what "$@" | sed 's|.*/||; s|\.c$||'
    ;;
words)
    if [ -n "$(own "$2")" ]; then
        echo "-I. -Itests $2"
    elif [ -n "$(partly "$2")" ]; then
        echo "-O1 -fno-inline -isystem . -Itests -include tests/linked.h $2 $1"
    else
        echo "-O0 -isystem . -Itests -include tests/linked.h $2 $1"
    fi
    ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

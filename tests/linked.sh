#!/usr/bin/env bash
# How tests are compiled. The library is compiled once, without -Itests: CC -I. -c tests/library.c -o OBJECT. A test is
# linked with it and compiles only what is its own, but for those that set private macros of the library, or plant defects.
#
#   linked.sh words OBJECT FILE   what the compiler is told of the test in FILE, the last word on optimisation among it
#   linked.sh own [FILE...]       the names of those (of all, without FILE) that compile everything themselves
cd "$(dirname "$0")/.." || exit 1
own() { grep -lE '^#define (CDP__|__atomic)|^#include "(\.\./sim/)?elastic_plants\.h"' "$@"; }
what=$1
shift
case $what in
own)
    [ $# -gt 0 ] || set -- tests/*/*.c
    own "$@" | sed 's|.*/||; s|\.c$||'
    ;;
words)
    if own "$2" > /dev/null; then
        echo "-I. -Itests $2"
    else
        echo "-O0 -isystem . -Itests -include tests/linked.h $2 $1"
    fi
    ;;
*)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

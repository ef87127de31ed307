#!/usr/bin/env bash
# Rules about the sources that no compiler checks. A rule is a function of tests/sources/*.sh that prints what breaks it,
# and prints nothing where all is well. That each file of src/ uses only what comes before it is checked by tools/join.c
# (make headers-check), and that each compiles alone by make src-check.
#
# check_sources.sh [RULE...]. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/planted"

HEADERS=$(ls cdp*.h)
PARTS=$(ls src/*/*.h)
SRC="$(ls src/*.h) $PARTS"
OTHERS=$(ls tools/*.[ch] examples/*.[ch] examples/*/*.[ch] tests/*.[ch] tests/*/*.[ch])
SCRIPTS=$(ls tests/*.sh tests/*/*.sh Makefile .ci/*)
gcc -O1 -D_GNU_SOURCE tests/sources/sources.c -o "$work/sources" || exit 1
sources() { "$work/sources" "$@"; }
# shellcheck disable=SC2086
{
    sources code $SRC > "$work/code"         # FILE:LINE: code, without comments and the insides of strings
    sources functions $SRC > "$work/functions" # LINES FILE NAME
    sources layout $SRC $OTHERS > "$work/layout"
}
. tests/sources/code.sh
. tests/sources/texts.sh

RULES='
planted_layout      the rules about layout find what was planted
planted_words       the rules about words find what was planted
planted_formats     directives that were made up are found
planted_public      exceptions of the public interface that were made up are found
planted_claims      claims that were made up are found
planted_named_tests names of tests that were made up are found
planted_platforms   systems that were made up are found in the table of platforms
planted_kinds       places that were forgotten for a dtype, a collective or a hook are found
planted_coming_from items that were made up are found in the table of what PyTorch has
heads               files of src/ begin with their name and title, and say what they know and promise
lengths             files of src/ have at most 650 lines
functions           functions of src/ and of examples have at most 60 lines
wide                lines have at most 100 columns
ternary             no ternary inside another
comma               no statements joined by commas
optimisation        no pragmas or attributes of optimisation but two macros
pure_calls          pure files call only pure files, and base/
pure_words          pure files know no clock, lock, socket, allocator or operating system
pure_variables      pure files have no variables of their own
systems             only config, compiler, basics and os/ ask which system this is
file_calls          only os/ calls the system for a file
extensions          only config and compiler know one compiler from another
dtypes              only src/dtype lists dtypes, or compares their order
blanks              no tabs, no blanks at ends of lines; the library is plain ASCII
includes            #include begins a line in joined headers
cases               every test is in the list of its file, once
unfinished          nothing is left to be done
public_tested       every public function is called by a test
public_comments     every public function, or its group, has a comment
must_check          what can fail must be checked, but for a list
out_params          where a function gives a pointer, a test says that it is NULL after a failure
overloads           in C++ each function that takes a desc takes a reference, too
macros              no macro has the name of a constant
walks               walks of the manuals are short, and lead through functions that exist
version             one version everywhere
licences            headers, tools and examples name their licences
readme              the README has at most 150 lines, and counts dtypes and reductions as src/ has them
formats             cdp__format() and cdp__text_add() know the directives that src/ gives them
kinds               each dtype, collective and hook has its test, and stands in manual and docs
chart               the chart of the README shows the recorded figures
rpc_scenarios       scenarios of remote calls have the tests that rpc_scenarios.txt names
elastic_scenarios   scenarios of elastic jobs have the tests that elastic_scenarios.txt names
claims              what README and manuals claim is shown by what tests/claims.txt names
named_tests         CONTRIBUTING.md and tests/README.md name tests that exist
platforms           the table of platforms has the systems that make platforms compiles for
coming_from         the table of what PyTorch has names functions, options and tests that exist'

passed=0 failed=0
while read -r rule says; do
    [ -n "$rule" ] && { [ $# = 0 ] || [[ " $* " == *" $rule "* ]]; } || continue
    "rule_$rule" > "$work/breaks" 2>&1
    if [ -s "$work/breaks" ]; then
        echo "not ok $rule: $says"
        head -n 20 "$work/breaks" | cut -c 1-200 | sed 's/^/    /'
        failed=$((failed + 1))
    else
        echo "ok $rule: $says"
        passed=$((passed + 1))
    fi
done <<< "$RULES"
sort -n "$work/functions" | awk '{ lines[NR] = $1 }
    END { print "INFO " NR " functions in src/, lines: median " lines[int((NR + 1) / 2)] ", 90 in 100 at most " lines[int(NR * 0.9)] ", longest " lines[NR] }'
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]

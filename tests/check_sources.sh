#!/usr/bin/env bash
# Rules about the sources that no compiler checks. Each rule prints what breaks it. Ends with "N passed, N failed".
# The folder to look at can be given, so that the rules themselves can be tried: check_sources.sh [DIR]
set -u
cd "${1:-$(dirname "$0")/..}" || exit 1
export LC_ALL=C
tally=$(mktemp -d) || exit 1
trap 'rm -rf "$tally"' EXIT

HEADERS=$(ls cdp*.h)
C_FILES=$(ls examples/*.c tests/*.h tests/*/*.h tests/*/*.c 2> /dev/null)
SOURCES="$HEADERS $C_FILES $(ls tests/*.sh tests/*/*.sh Makefile 2> /dev/null)"

rule() { # NAME: reads what breaks it; nothing is good
    cat > "$tally/text"
    if [ -s "$tally/text" ]; then
        echo "not ok $1"
        head -n 20 "$tally/text" | cut -c 1-200 | sed 's/^/    /'
        echo >> "$tally/failed"
    else
        echo "ok $1"
        echo >> "$tally/passed"
    fi
}

# Comments and the insides of strings become blanks; line numbers stay.
code_of() {
    awk '{
        out = ""; n = length($0)
        for (i = 1; i <= n; ++i) {
            c = substr($0, i, 1); d = substr($0, i, 2)
            if (comment) { if (d == "*/") { comment = 0; ++i } }
            else if (string != "") { if (c == "\\") ++i; else if (c == string) { string = ""; out = out c } }
            else if (d == "/*") { comment = 1; ++i }
            else if (d == "//") break
            else { if (c == "\"" || c == "\047") string = c; out = out c }
        }
        string = ""
        print out
    }' "$1"
}

# "file:line: text" for every line of code that lies in a section marked (pure)
pure_code() {
    for h in $HEADERS; do
        paste "$h" <(code_of "$h") | awk -F '\t' -v file="$h" '
            $1 ~ /^\/\* ---- >>/ { pure = $1 ~ /\(pure\)/ }
            pure { print file ":" FNR ": " $2 }'
    done
}
PURE=$(pure_code)
{ [ "$(wc -l <<< "$PURE")" -gt 300 ] || echo "only $(wc -l <<< "$PURE") lines in pure sections: are they still marked?"; } | rule 'pure sections are found'

grep -E 'os->|cdp__os_|now_ns|clock|mutex|cdp_lock|cdp__lock|pthread|socket|sockaddr|alloc\(|\bfree\(|cdp__free|cdp__io|cdp__loop|(^|[^_])errno\b' <<< "$PURE" |
    rule 'pure sections know no clock, lock, socket, allocator or operating system'
grep -E ': *(static|CDP__[A-Z]+) ' <<< "$PURE" | grep -vE 'static const|\(' | rule 'pure sections have no variables of their own'

for pair in 'cdp_tcp.h cdp_nccl.h' 'cdp_nccl.h cdp_tcp.h' 'cdp_nccl.h cdp_store.h' 'cdp_store.h cdp_tcp.h' 'cdp_store.h cdp_nccl.h' 'cdp.h cdp_store.h' 'cdp.h cdp_tcp.h' 'cdp.h cdp_nccl.h' \
    'cdp.h cdp_dtensor.h' 'cdp_store.h cdp_dtensor.h' 'cdp_tcp.h cdp_dtensor.h' 'cdp_nccl.h cdp_dtensor.h' 'cdp_dtensor.h cdp_store.h' 'cdp_dtensor.h cdp_tcp.h' 'cdp_dtensor.h cdp_nccl.h'; do
    read -r from to <<< "$pair"
    [ -f "$from" ] && code_of "$from" | grep -nE '#[[:space:]]*include' | paste - <(grep -nE '^#[[:space:]]*include' "$from") | grep "\"$to\"" | sed "s/^/$from: /"
done | rule 'headers include downwards only'

for h in $HEADERS; do
    awk -v file="$h" '/^\/\* ---- >>/ { section = $3 } /^#[ ]*(if|elif).*(__linux__|_WIN32|__APPLE__|__FreeBSD__)/ && section !~ /^>>os/ { print file ":" FNR ": " $0 }' "$h"
done | rule 'only the os section asks which system this is'

# The names of sections stand in the CONTENTS of the first comment, in the order of the file.
for h in $HEADERS; do
    awk -v file="$h" '
        /CONTENTS/ && !seen { on = 1; seen = 1; next }
        on && /^[ ]*$/ { on = 0 }
        on { contents = contents " " $0 }
        /^\/\* ---- >>/ {
            name = $0; sub(/^.*>>/, "", name); sub(/[ :,(].*/, "", name)
            if (name == "c++") next
            at = index(substr(contents, from + 1), name)
            if (!at) print file ":" FNR ": section " name " is not in CONTENTS, or not in this order"
            else from += at + length(name) - 1
            ++sections
        }
        END { if (!seen) print file ": no CONTENTS"; else if (sections < 3) print file ": no sections" }' "$h"
done | rule 'sections stand in the order of CONTENTS'

version=$(awk '/^#define CDP_VERSION_(MAJOR|MINOR|PATCH) / { v = v (v == "" ? "" : ".") $3 } END { print v }' cdp.h)
number=$(awk -F . '{ print $1 * 10000 + $2 * 100 + $3 }' <<< "$version")
{
    for h in $HEADERS; do
        head -n 1 "$h" | grep -q "v$version" || echo "$h: its first line does not say v$version"
        [ "$h" = cdp.h ] || grep -qE "^#define $(basename "$h" .h | tr '[:lower:]' '[:upper:]')_VERSION $number\b" "$h" || echo "$h: its version macro is not $number"
        [ "$h" = cdp.h ] || grep -qE '^#if CDP_[A-Z]+_VERSION != CDP_VERSION' "$h" || echo "$h: does not compare its version with that of cdp.h"
    done
    grep -qF "## $version" CHANGELOG.md || echo "CHANGELOG.md: nothing about $version"
    [ ! -f examples/cdprun.c ] || grep -qE "^#define VERSION +\"$version\"" examples/cdprun.c || echo "examples/cdprun.c: VERSION is not $version"
} | rule 'one version everywhere'

grep -nE 'TODO|FIXME|XXX' $SOURCES README.md CHANGELOG.md 2> /dev/null | grep -vE 'XXXXXX|^tests/check_sources.sh' | rule 'nothing is left to be done'
grep -nE '[[:space:]]+$' $HEADERS $C_FILES Makefile | rule 'no blanks at ends of lines'
grep -nP '\t' $HEADERS $C_FILES 2> /dev/null | cut -c 1-100 | rule 'no tabs'
grep -nP '[^\x00-\x7f]' $HEADERS 2> /dev/null | cut -c 1-100 | rule 'headers are plain ASCII'
awk 'length > 240 { print FILENAME ":" FNR ": " length " columns" }' $HEADERS | rule 'no line is longer than 240 columns'

# FILE NAME: functions that may be longer than 70 lines, each with a reason.
ALLOWED='
'
for f in $HEADERS $(ls examples/*.c 2> /dev/null); do
    awk -v file="$f" '
        /^[A-Za-z_].*\) *\{$/ && !/^(struct|union|enum|typedef|extern)/ { start = FNR; name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
        /^\}/ && start { if (FNR - start + 1 > 70) print file, name, FNR - start + 1; start = 0 }' "$f"
done > "$tally/long"
while read -r file name lines; do
    grep -qE "^$file $name( |$)" <<< "$ALLOWED" || echo "$file: $name has $lines lines"
done < "$tally/long" | rule 'functions have at most 70 lines'

# "file:line name" of every public function, from the declarations
public_functions() {
    for h in $HEADERS; do
        awk -v file="$h" '/_IMPL_INCLUDED\)/ { exit } /^(CDP_MUST_CHECK )?CDP_API .*\(/ { s = $0; sub(/^.*CDP_API /, "", s); if (match(s, /cdp_[a-z0-9_]+\(/)) print file ":" FNR, substr(s, RSTART, RLENGTH - 1) }' "$h"
    done
}
PUBLIC=$(public_functions)
{ [ "$(wc -l <<< "$PUBLIC")" -ge 40 ] || echo "only $(wc -l <<< "$PUBLIC") found"; } | rule 'public functions are found'
while read -r place name; do
    grep -qwF "$name" tests/*/*.c tests/*/*.h || echo "$place: no test mentions $name"
done <<< "$PUBLIC" | rule 'every public function is called by a test'

for h in $HEADERS; do
    awk -v file="$h" '
        function flush() { if (group && !commented) print file ":" group ": " first; group = 0 }
        /_IMPL_INCLUDED\)/ { exit }
        /^(CDP_MUST_CHECK )?CDP_API / {
            if (!group) { group = FNR; first = $0; commented = before ~ /\*\/[ ]*$/ }
            if ($0 ~ /\/\*/) commented = 1
            next
        }
        { if (group && $0 !~ /^[ ]+/) flush(); before = $0 }
        END { flush() }' "$h"
done | rule 'every public function, or its group, has a comment'

{ # what comes after a macro would mean the macro, and what comes before it the constant
    for h in $HEADERS; do code_of "$h"; done | grep -oE '^# *define +CDP_[A-Z0-9_]+' | sed 's/.* //' | sort -u > "$tally/macros"
    for h in $HEADERS; do code_of "$h"; done | awk '/(^|typedef )enum / { on = 1 } on { print } /}/ { on = 0 }' | grep -oE '\bCDP_[A-Z0-9_]+' | sort -u > "$tally/constants"
    [ "$(wc -l < "$tally/constants")" -ge 100 ] || echo "only $(wc -l < "$tally/constants") constants found"
    comm -12 "$tally/macros" "$tally/constants"
} | rule 'no macro has the name of a constant'

for h in $HEADERS; do # a definition above its uses keeps the sections in layers
    code_of "$h" | awk -v file="$h" '/^CDP__[A-Z]+ .*\);$/ { print file ":" FNR ": " $0 }'
done > "$tally/forward"
awk 'END { if (NR > 12) print NR " forward declarations of private functions, at most 12 are allowed:" } { line[NR] = $0 } END { if (NR > 12) for (i = 1; i <= NR; ++i) print line[i] }' "$tally/forward" | rule 'sections call upwards'

touch "$tally/passed" "$tally/failed"
echo "$(wc -l < "$tally/passed") passed, $(wc -l < "$tally/failed") failed"
[ ! -s "$tally/failed" ]

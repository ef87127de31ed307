# Rules about texts that name code, tests and figures, for tests/check_sources.sh.
# shellcheck shell=bash disable=SC2086

# What the manuals draw of the way of an operation, or of a failure: each function exists, in the files that are named,
# and the walks are short. tests/walk.sh compares the drawings with a program that runs.
drawn() { # HEADING: "INDENT NAME" for each function that is drawn below it
    awk -v heading="$1" '
        /^#if/ { exit }
        index($0, heading) { on = 1; next }
        on && /^    [A-Z][A-Z ]+[A-Z(]/ { exit }
        on && /^ +(cdp_[a-z_]+|transport[.]send)(  |$)/ { match($0, /^ +/); print RLENGTH, $1 }' src/cdp.h
}
rule_walks() {
    local h n
    awk '{ print $3 }' "$work/functions" | sort -u > "$work/names"
    for h in src/cdp*.h; do
        sed -n '1,/^#if/p' "$h" | grep -oE '\bcdp__[a-z0-9_]+' | sort -u | comm -23 - "$work/names" | sed "s|^|$h: there is no |"
    done
    n=$(drawn 'HOW AN ALLREDUCE BECOMES BYTES' | awk '$1 != before { ++n } { before = $1 } END { print n + 0 }')
    [ "$n" -ge 3 ] && [ "$n" -le 7 ] || echo "src/cdp.h: an allreduce becomes bytes in $n calls; 3 to 7 are wanted"
    drawn 'HOW A FAILURE REACHES ALL RANKS' | awk '{ print $2 }' | sort -u > "$work/drawn"
    n=$(wc -l < "$work/drawn")
    [ "$n" -ge 3 ] && [ "$n" -le 10 ] || echo "src/cdp.h: a failure reaches all ranks by $n functions; 3 to 10 are wanted"
    n=$(awk '{ print $3, $2 }' "$work/functions" | sort -u | join - "$work/drawn" | awk '{ print $2 }' | sort -u | wc -l)
    [ "$n" -ge 1 ] && [ "$n" -le 4 ] || echo "src/cdp.h: a failure reaches all ranks through $n files; 1 to 4 are wanted"
}

rule_version() {
    local version number h
    version=$(cat $SRC | awk '/^#define CDP_VERSION_(MAJOR|MINOR|PATCH) / { v = v (v == "" ? "" : ".") $3 } END { print v }')
    number=$(awk -F . '{ print $1 * 10000 + $2 * 100 + $3 }' <<< "$version")
    for h in src/cdp*.h; do
        head -n 1 "$h" | grep -q "v$version" || echo "$h: its first line does not say v$version"
        [ "$h" != src/cdp.h ] || continue
        grep -qE "^#define $(basename "$h" .h | tr '[:lower:]' '[:upper:]')_VERSION $number\b" "$h" || echo "$h: its version macro is not $number"
        grep -qE '^#if CDP_[A-Z]+_VERSION != CDP_VERSION' "$h" || echo "$h: does not compare its version with that of cdp.h"
    done
    grep -qF "## $version" CHANGELOG.md || echo "CHANGELOG.md: nothing about $version"
    for h in tools/cdprun_options.h; do
        grep -qE "^#define VERSION +\"$version\"" "$h" || echo "$h: VERSION is not $version"
    done
    grep -qF "\"version\": \"$version\"" packaging/vcpkg/cdp/vcpkg.json || echo "packaging/vcpkg/cdp/vcpkg.json: its version is not $version"
}

# What users copy says which licence it has; REUSE.toml says it of the rest.
rule_licences() {
    grep -L 'SPDX-License-Identifier: MIT-0 OR Unlicense' $HEADERS $(ls tools/*.[ch] examples/*.* examples/*/*.* | grep -v '[.]svg$') |
        sed 's|$|: lacks, after its first comment, the line /* SPDX-License-Identifier: MIT-0 OR Unlicense */|'
    grep -qF '"MIT-0 OR Unlicense"' REUSE.toml || echo 'REUSE.toml does not name the licences'
    grep -qF 'ALTERNATIVE B - Public domain (Unlicense' cdp.h || echo 'cdp.h: no text of the licences at its end'
}

constants_of() { cat $PARTS | awk -v from="typedef enum $1 {" 'index($0, from) { on = 1; next } on && /^}/ { exit } on' | grep -oE '^    CDP_[A-Z0-9_]+' | grep -vE '_(DEFAULT|NONE|COUNT)$' | tr -d ' '; }
constants() { constants_of "$1" | wc -l; }
rule_readme() {
    awk 'END { if (NR > 150) print "README.md has " NR " lines" }' README.md
    grep -qF "$(constants cdp_dtype) element types, $(constants cdp_reduce_op) reductions" README.md ||
        echo "README.md: there are $(constants cdp_dtype) element types and $(constants cdp_reduce_op) reductions"
    grep -A 2 'element types, .* reductions' README.md > "$work/types"
    grep -oE '^ +X\([A-Z0-9]+, "[a-z0-9]+"' src/dtype/dtype.h | cut -d '"' -f 2 | while read -r name; do
        grep -qw "$name" "$work/types" || echo "README.md: its list of element types lacks $name"
    done
}
# What CONTRIBUTING.md asks of a new dtype, collective or hook beside its row, where no compiler names a place that was
# forgotten. ENUM FOLDER: texts and tests are those below FOLDER.
kinds() {
    local constant name
    constants_of "$1" | while read -r constant; do
        name=${constant#CDP_COLL_} name=${name,,}
        case $1 in
        cdp_dtype) grep -qw "$constant" "$2/tests/unit/test_reduce.c" || echo "tests/unit/test_reduce.c has no values of $constant" ;;
        cdp_hook_kind)
            cat "$2"/tests/unit/test_ddp_hook*.c | grep -qw "$constant" || echo "tests/unit/test_ddp_hook_values.c does not test the formula of $constant"
            awk -v c="$constant" '$0 ~ "^    " c "[ ,]" && (/[*][/]$/ || (before ~ /[*][/]$/ && before !~ /^    CDP_/)) { said = 1 } { before = $0 } END { exit !said }' "$2/src/ddp/hooks_api.h" ||
                echo "src/ddp/hooks_api.h: no comment says what $constant does" ;;
        cdp_coll_kind)
            grep -qw "$constant" "$2/tests/sim/rounds.c" || echo "tests/sim/rounds.c does not know the results of $constant"
            sed '/^#if/q' "$2/src/cdp.h" | grep -qw "cdp_$name" || echo "src/cdp.h: its manual does not name cdp_$name"
            grep -q "def $name(" "$2/python/cdp.py" || echo "python/cdp.py has no $name()"
            grep -qE "[\`.]$name\b" "$2/docs/PYTHON.md" || echo "docs/PYTHON.md does not name $name" ;;
        esac
    done
}
rule_kinds() {
    local enum
    for enum in cdp_dtype cdp_coll_kind cdp_hook_kind; do
        [ "$(constants "$enum")" -ge 12 ] || echo "only $(constants "$enum") constants of $enum are found"
        kinds "$enum" .
    done
}
rule_planted_kinds() {
    local f places='tests/unit/test_reduce.c tests/unit/test_ddp_hook_values.c tests/unit/test_ddp_hooks.c tests/sim/rounds.c src/cdp.h
        src/ddp/hooks_api.h python/cdp.py docs/PYTHON.md'
    for f in $places; do
        mkdir -p "$work/planted/kinds/${f%/*}"
        sed -E 's/CDP_DTYPE_F8E5M2|CDP_COLL_EXSCAN|CDP_HOOK_SIGN/PLANTED/g; s/exscan/planted/g' "$f" > "$work/planted/kinds/$f"
    done
    for f in cdp_dtype cdp_coll_kind cdp_hook_kind; do kinds $f "$work/planted/kinds"; done > "$work/found"
    [ "$(wc -l < "$work/found")" = 7 ] || { echo 'not what was made up:'; cat "$work/found"; }
}
rule_chart() { bash tests/bench/peers/chart.sh --check 2>&1; }

# ---- lists of scenarios: "SCENARIO ... = TEST ..." or "SCENARIO ... - REASON"; the tests are in standard input ----

scenarios() { # FILE REASONS
    awk -v reasons="$2" 'NR == FNR { test[$1] = 1; next }
        /^#/ || /^$/ { next }
        / - / { if ($0 !~ "^[a-z_0-9 ]+ - (" reasons ")") print FILENAME ":" FNR ": not a reason: " $0; right = "-" }
        !/ - / { right = "="; if ($0 !~ /^[a-z_0-9 ]+ = [-a-z_0-9: ]+$/) print FILENAME ":" FNR ": neither tests nor a reason: " $0 }
        { tests = 0
            for (i = 1; i <= NF && $i != "-"; ++i) {
                if ($i == "=") tests = 1
                else if (tests && !($i in test)) print FILENAME ":" FNR ": there is no test " $i
                else if (!tests && seen[$i]++) print FILENAME ":" FNR ": a second time: " $i
            }
            ++lines }
        END { if (lines < 100) print "only " lines + 0 " scenarios" }' - "$1"
}
cases_of() { grep -ho '^TEST([a-z_0-9]*' "$@" | cut -c 6-; }
rule_rpc_scenarios() { # names of tests, and of programs that begin with "sim:", in all of which something is looked for
    { cases_of tests/unit/test_*.c; ls tests/sim/rpc_*.c | sed 's/.*\/\(.*\)[.]c/sim:\1/'; } |
        scenarios tests/unit/rpc_scenarios.txt 'python|torchscript|devices|not here'
}
faults() { sed -n '/fault_names\[F_KINDS\] = {/,/};/p' "tests/sim/elastic_$1.c" | grep -o '"[a-z_]*"' | tr -d '"'; }
rule_elastic_scenarios() {
    {
        cases_of tests/unit/test_*.c tests/procs/test_*.c tests/nccl/test_*.c
        ls tests/sim/elastic*.c | sed 's/.*\/\(.*\)[.]c/sim:\1/'
        ls tests/procs/test_*.sh | sed 's/.*test_\(.*\)[.]sh/script:\1/'
        ls tests/bench/*.c | sed 's/.*\/\(.*\)[.]c/bench:\1/'
        faults worlds | sed 's/^/world:/'
        faults shrink | sed 's/^/shrink:/'
        sed -n 's/^ *PLANT_\([A-Z_]*\).*/plant:\L\1/p' tests/sim/elastic_plants.h
        sed -n 's/^\([a-z_]*\)() {.*/nodes:\1/p' tests/procs/test_elastic_nodes.sh
        grep -oE '(^|; *)(check|has) "?[a-z][-a-z0-9]*' tests/procs/test_cdprun.sh | sed 's/.*[ "]/cdprun:/'
        sed -n 's/^usage \([-a-z0-9]*\).*/cdprun:usage-\1/p' tests/procs/test_cdprun.sh
    } | scenarios tests/unit/elastic_scenarios.txt 'not here: '
}

# ---- claims: "FILE: words = evidence ...": the words stand in FILE, and what shows that they are true exists ----

claims() { # FILE of claims
    local file words rest evidence text what
    declare -A texts=()
    { cases_of tests/*/*.c; ls tests/sim/scripts/*.txt | sed 's/.*\/\(.*\)[.]txt/script:\1/'; grep -oE '^[a-z-]+:' Makefile | sed 's/\(.*\):/make:\1/'; } | sort -u > "$work/evidence"
    while IFS= read -r rest; do
        case $rest in '' | '#'*) continue ;; esac
        file=${rest%%: *} words=${rest#*: } evidence=${words##* = } words=${words% = *}
        text=${texts[$file]-}
        [ -n "$text" ] || text=$(tr -s ' \n' '  ' < "$file")
        texts[$file]=$text
        case $text in *"$words"*) ;; *) echo "$file does not say: $words" ;; esac
        for what in $evidence; do
            case $what in file:*) [ -f "${what#file:}" ] ;; *) grep -qxF "$what" "$work/evidence" ;; esac || echo "$file: \"$words\" is shown by $what, which does not exist"
        done
    done < "$1"
}
rule_planted_claims() {
    printf '%s\n' 'README.md: a sentence that it lacks = claims_are_free file:none' > "$work/false_claims"
    claims "$work/false_claims" > "$work/found"
    [ "$(wc -l < "$work/found")" = 3 ] || { echo 'not what was made up:'; cat "$work/found"; }
}
rule_claims() {
    [ "$(grep -c ' = ' tests/claims.txt)" -ge 70 ] || echo 'fewer than 70 claims'
    claims tests/claims.txt
}

# ---- systems that `make platforms` compiles for have a row in the table of docs/PLATFORMS.md, and no others have one ----

platforms() { # SCRIPT PAGE: one line "SYSTEM PROCESSOR" for each, compared
    grep -oE '[a-z0-9_]+-(linux-musl[a-z]*|macos|freebsd|netbsd|openbsd|windows-gnu)\b' "$1" |
        sed 's/^arm-/armv7-/; s/^powerpc/ppc/; s/^x86_64/x86-64/; s/-linux.*/ Linux/; s/-macos/ macOS/; s/-freebsd/ FreeBSD/; s/-netbsd/ NetBSD/; s/-openbsd/ OpenBSD/
            s/-windows-gnu/ Windows/; s/\(.*\) \(.*\)/\2 \1/' | sort -u > "$work/compiled"
    awk -F '|' '/^\| system, processor/ { on = 1 } on && /^$/ { exit }
        on && $3 ~ /zig cc/ && $4 ~ /make platforms/ && $2 !~ /beside/ {
            count = split($2, word, /[ ,]+/); systems = 0
            for (i = 1; i <= count; ++i)
                if (word[i] ~ /^(Linux|Windows|.*OS|.*BSD)$/) of[++systems] = word[i]
                else if (word[i] != "") for (k = 1; k <= systems; ++k) print of[k], word[i]
        }' "$2" | sort -u > "$work/said"
    [ "$(wc -l < "$work/compiled")" -ge 12 ] || echo "$1: only $(wc -l < "$work/compiled") targets"
    comm -23 "$work/compiled" "$work/said" | sed "s|.*|$2: no row for &, which $1 compiles for|"
    comm -13 "$work/compiled" "$work/said" | sed "s|.*|$2: a row for &, which $1 does not compile for|"
}
rule_planted_platforms() {
    sed 's/^| macOS x86-64, /| macOS sparc, /; s/riscv64/riscv32/' docs/PLATFORMS.md > "$work/false_platforms.md"
    platforms tests/platforms.sh "$work/false_platforms.md" > "$work/found"
    [ "$(wc -l < "$work/found")" = 4 ] || { echo 'not what was made up:'; cat "$work/found"; }
}
rule_platforms() { platforms tests/platforms.sh docs/PLATFORMS.md; }

# ---- programs that pages name in backquotes exist: `test_x`, or `_y` for one of the same family as the name before ----

named_tests() { # PAGE...
    ls tests/*/test_*.* | sed 's|.*/||; s|\..*||' > "$work/programs"
    grep -HoE '`[a-z/]*test_[a-z_0-9*.]+`|`_[a-z_0-9]+`' "$@" | tr -d '`' | awk -F : -v have="$work/programs" '
        BEGIN { while ((getline name < have) > 0) is[name] = 1 }
        $2 ~ /^_/ { family = last; sub(/_[a-z0-9]+$/, "", family)
            if (!((last $2) in is) && !((family $2) in is)) print $1 ": no " $2 " beside " last
            next }
        { name = $2; sub(/^.*\//, "", name); sub(/\..*/, "", name) }
        name ~ /\*/ { begins = name; sub(/\*.*/, "", begins); found = 0
            for (one in is) found += index(one, begins) == 1
            if (!found) print $1 ": no " $2
            next }
        { last = name }
        !(name in is) { print $1 ": no " $2 }'
}
rule_planted_named_tests() {
    printf '`unit/test_core`, `_nothing`; `test_nowhere.c`; `unit/test_nobody*.c`; `unit/test_store`, `_auth`\n' > "$work/false_names.md"
    named_tests "$work/false_names.md" > "$work/found"
    [ "$(wc -l < "$work/found")" = 3 ] || { echo 'not what was made up:'; cat "$work/found"; }
}
rule_named_tests() { named_tests CONTRIBUTING.md tests/README.md; }

# cdp__text_add_v() ends a text at a directive that it does not know; compilers know more of them.
formats() { grep -nE '"([^"\\]|\\.)*%[-+#0-9.*]+[lz]*[a-zA-Z]' "$@"; }
rule_planted_formats() {
    cat > "$work/false_formats.h" << 'END'
    cdp__text_add(&t, "%016llx ", v);
    cdp__text_add(&t, "%llx %u%% [fe80::1%3]", v, w % 60);
END
    [ "$(formats "$work/false_formats.h" | wc -l)" = 1 ] || echo 'what was made up is not found'
}
# shellcheck disable=SC2086
rule_formats() { formats $PARTS; }

# ---- what docs/COMING-FROM-PYTORCH.md names exists: functions, constants, members, options; tests; and they belong together ----

# "KIND:NAME FILE" of each test that the third column may name.
evidence_files() {
    local script
    grep -oE '^TEST\([a-z_0-9]*' tests/*/*.c | sed 's/\(.*\):TEST(\(.*\)/\2 \1/'
    ls tests/sim/scripts/*.txt | sed 's/\(.*\/\(.*\)[.]txt\)/script:\2 \1/'
    script=tests/procs/test_cdprun.sh
    {
        grep -oE '(^|[;{] *)(check|has) "?[a-z][-a-z0-9]*' $script | sed 's/.*[ "]//'
        sed -n 's/^usage \([-a-z0-9]*\).*/usage-\1/p' $script
        sed -n 's/^for o in \(--.*\); do usage "refused.*/\1/p' $script | tr ' ' '\n' | sed 's/^/refused/'
    } | sed "s|.*|cdprun:& $script|"
}
coming_from() { # PAGE
    cat src/*/*_api.h | grep -oE '\b(cdp|CDP)_[A-Za-z0-9_]+' | sort -u > "$work/api_names"
    cat src/*/*_api.h | sed 's|/[*].*[*]/||' | grep -oE '\b[a-z_0-9]+(\[[^]]*\])?[,;]|[(][*][a-z_0-9]+[)]' | grep -oE '[a-z_][a-z_0-9]*' | sort -u > "$work/api_members"
    evidence_files > "$work/evidence_files"
    sed -n 's/^    {"\(-[^"]*\)".*/\1/p' tools/cdprun_options.h | tr ' ' '\n' > "$work/option_names"
    awk -F '|' -v page="$1" -v work="$work" '
        function load(file, into,   line, part) { while ((getline line < file) > 0) { split(line, part, " "); into[part[1]] = into[part[1]] " " (part[2] != "" ? part[2] : 1) } close(file) }
        function text_of(file,   line, all) {
            if (file in texts) return texts[file]
            while ((getline line < file) > 0) all = all "\n" line
            close(file); return texts[file] = all
        }
        function rig_of(file,   text, folder, all, other) { # what stands in headers that a test includes from its folder
            if (file in rigs) return rigs[file]
            text = text_of(file); folder = file; sub(/[^\/]*$/, "", folder)
            while (match(text, /#include "[a-z_]+[.]h"/)) {
                other = folder substr(text, RSTART + 10, RLENGTH - 11)
                text = substr(text, RSTART + RLENGTH); all = all text_of(other)
            }
            return rigs[file] = all
        }
        function bad(what) { print page ":" FNR ": " what }
        function exists(word) {
            if (word ~ /^file:/) return text_of(substr(word, 6)) != ""
            if (word ~ /^(cdp|CDP)_/) return word in api || index(variables, " " word " ")
            if (word ~ /^[.]/) return substr(word, 2) in member
            if (word ~ /^--/) return word in option
            return 1 # a word of another world
        }
        function together(   i, k, n, list) {
            for (i = 1; i <= files; ++i) for (k = 1; k <= names; ++k) {
                word = name[k]; sub(/^[.]/, "", word)
                if (word ~ /^--/) { gsub(/-/, "[-_]", word); if (text_of(file[i]) ~ word) return 1 }
                if (index(text_of(file[i]), word) || index(rig_of(file[i]), word)) return 1
            }
            return 0
        }
        BEGIN {
            load(work "/api_names", api); load(work "/api_members", member); load(work "/option_names", option); load(work "/evidence_files", test)
            variables = " CDP_LOG_LEVEL CDP_TIMER_FILE CDP_JOB_KEY "
        }
        /^\| (PyTorch|---) / || !/^\|/ { next }
        {
            ++rows; names = files = 0
            if (NF != 5) { bad("not three columns"); next }
            if (seen[$2]++) bad("a second row for" $2)
            rest = $3
            while (match(rest, /`[^`]+`/)) {
                word = substr(rest, RSTART + 1, RLENGTH - 2); rest = substr(rest, RSTART + RLENGTH)
                if (!exists(word)) bad("there is no " word)
                if (word ~ /^((cdp|CDP)_|[.]|--|cdprun)/) name[++names] = word
            }
            rest = $4
            while (match(rest, /`[^`]+`/)) {
                word = substr(rest, RSTART + 1, RLENGTH - 2); rest = substr(rest, RSTART + RLENGTH)
                if (word ~ /^file:/ && text_of(substr(word, 6)) != "") { file[++files] = substr(word, 6); continue }
                if (!(word in test)) { bad("there is no test " word); continue }
                n = split(test[word], list, " ")
                for (k = 1; k <= n; ++k) file[++files] = list[k]
            }
            if ($3 ~ /^ none/) { if ($3 !~ /^ none( yet)?: [^ ]/) bad("no reason for" $2); next }
            if (files == 0) bad("no test for" $2)
            else if (names > 0 && !together()) bad("no file with these tests uses a name of" $3)
        }
        END { if (rows < 267) print page ": only " rows + 0 " items" }' "$1"
}
rule_planted_coming_from() {
    {
        for ((i = 0; i < 267; ++i)); do echo "| item $i | none: it is made up | |"; done
        echo '| a | `cdp_does_not_exist` | `table` |'
        echo '| b | `cdp_store_set` | `nobody_tests_this` |'
        echo '| c | `.not_a_member` of `cdp_group_desc` | `table_on_7_ranks` |'
        echo '| d | none | |'
        echo '| e | `--no-such-option` | `cdprun:tee` |'
        echo '| f | `cdp_fsdp_create` | `formatter_equals_printf` |'
        echo '| f | `cdp_store_set` | `table` |'
    } > "$work/false_items.md"
    coming_from "$work/false_items.md" > "$work/found"
    for what in 'no cdp_does_not_exist' 'no test nobody_tests_this' 'no test for b' 'no .not_a_member' 'no reason for d' \
        'no --no-such-option' 'uses a name of `cdp_fsdp_create`' 'second row for f'; do
        tr -s ' ' < "$work/found" | grep -qF "$what" || echo "not found: $what"
    done
}
rule_coming_from() {
    coming_from docs/COMING-FROM-PYTORCH.md
    sed -n 's/^    {"\([^"]*\)".*\(TORCHRUN\|NO_EFFECT\|NOT_TAKEN\).*/\1/p' tools/cdprun_options.h | tr ' ' '\n' | grep -E '^--' | grep -vE '^--(help|version)$' |
        while read -r o; do grep -qF -- "\`$o" docs/COMING-FROM-PYTORCH.md || echo "docs/COMING-FROM-PYTORCH.md: no row for $o"; done
}

# shellcheck shell=bash disable=SC2034,SC2154
# For scripts of this folder that start jobs with cdprun; they source it at the top of the tree. What passed and what
# failed is counted by tally.sh; a script that wants to see files after a failure has a function `evidence` that prints them.
. tests/tally.sh
slack=${TEST_SCALE:-1} # how many times longer things may take; run_all.sh measures it

evidence() { :; }
fail() { bad "$1${2:+: $2}"; evidence | cut -c1-200 | sed 's/^/    /'; } # WHAT [WHY]
check() { if [ "$2" = "$3" ]; then good "$1"; else fail "$1" "got '$2', expected '$3'"; fi; } # WHAT GOT EXPECTED
has() { if grep -qF -- "$3" "$2"; then good "$1"; else fail "$1" "no '$3' in $2"; fi; }     # WHAT FILE TEXT

# "--NAME NUMBER" sets the variable NAME, for those that are listed. Anything else ends the script.
numbers() { # LIST ARGUMENT...
    local names=" $1 "
    shift
    while [ $# -gt 0 ]; do
        if [[ $1 != --?* || $names != *" ${1#--} "* || ! ${2-} =~ ^[0-9]+$ ]]; then
            echo "$0: what is '$*'? Options, each with a number:$names" >&2
            exit 2
        fi
        printf -v "${1#--}" %s "$2"
        shift 2
    done
}

# What a job around this script has set is not meant for its own jobs.
without_job() {
    local v
    for v in $(compgen -e | grep -E '^(RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|CDP_|CDPTEST)'); do unset "$v"; done
}
programs() { # NAME...: builds them; B: their folder
    B=${BUILD:-build}
    unset MAKEFLAGS MAKELEVEL
    make -s BUILD="$B" "${@/#/$B/test/}" || { echo "0 passed, 1 failed"; exit 1; }
    B=$(cd "$B/test" && pwd)
    without_job
}
empty_folder() { # NAME: below the folder of builds; the script goes there
    local folder=${BUILD:-build}/$1
    rm -rf "$folder"
    mkdir -p "$folder" && cd "$folder" || exit 2
}
random_key() { head -c "$1" /dev/urandom | od -An -tx1 | tr -d ' \n'; } # BYTES

until_true() { # COMMAND...: at most 30 s
    local n
    for ((n = 0; n < 600 * slack; ++n)); do
        "$@" > /dev/null 2>&1 && return 0
        sleep 0.05
    done
    return 1
}
free_port() { "$B/cdprun" -n 1 --no-prefix sh -c 'echo $MASTER_PORT'; }
launcher() { pgrep -P "${pids[$1]}" | head -n 1; } # K: cdprun itself, below timeout

# A store of its own at ADDRESS; `store`: its process. Fails if it ends: another program may have taken the port.
serve_at() { # ADDRESS
    "$B/cdprun" --serve --rdzv-endpoint "$1" > out.store 2>&1 &
    store=$!
    until_true store_decided "$1" && store_serves "$1"
}
store_serves() { grep -q "serving the store at $1" out.store; }
store_decided() { store_serves "$1" || ! kill -0 "$store"; }

leaves() { # nothing of the last job is left, or will be in a moment; else `left` tells what
    local n
    for ((n = 0; n < 300 * slack; ++n)); do
        left=$(grep -lzsx "CDPTEST=$$.$job" /proc/[0-9]*/environ)
        [ -z "$left" ] && return 0
        sleep 0.02
    done
    return 1
}
wait_for() { # K...: sets codes, as "0 0"
    local k
    codes=
    for k in "$@"; do wait "${pids[k]}" 2> /dev/null; codes="$codes $?"; done
    codes=${codes# }
}

# Two network namespaces a and b with a cable between them: 10.77.0.1 and 10.77.0.2.
a=cdp$$a b=cdp$$b
cables_away() { ip netns del $a 2> /dev/null; ip netns del $b 2> /dev/null; }
cables() {
    ip netns add $a && ip netns add $b && ip link add cdp0 netns $a type veth peer name cdp0 netns $b &&
        ip -n $a addr add 10.77.0.1/24 dev cdp0 && ip -n $b addr add 10.77.0.2/24 dev cdp0 &&
        ip -n $a link set cdp0 up && ip -n $b link set cdp0 up && ip -n $a link set lo up && ip -n $b link set lo up
}

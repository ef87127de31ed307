# For scripts that source it: what the end of the output says of a failure, in few lines.
report() { # NAME WHY OUTPUT: its lines that say "not ok", and the last ones
    printf 'not ok %s: %s\n' "$1" "$2"
    { grep -aE '^(not ok|FAIL|FAILED)' "$3" | head -n 10; echo ...; tail -n 5 "$3"; } 2>&1 | cut -c 1-300 | sed 's/^/    /'
}
# What no second run forgives, however seldom it shows.
sanitizer_spoke() { # OUTPUT
    grep -aqE '(ERROR|WARNING|SUMMARY): [A-Za-z]*(Sanitizer|Fuzzer)|runtime error: ' "$1"
}

# For scripts that source it: counts what passed and what failed; finish ends the script with "N passed, N failed".
passed=0 failed=0
good() { passed=$((passed + 1)); echo "ok $1"; }
bad() { failed=$((failed + 1)); echo "not ok $1"; }
finish() {
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
    exit
}

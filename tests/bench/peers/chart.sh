#!/usr/bin/env bash
# Draws speed.svg, the chart of the README, from the figures that docs/FIGURES.md records.
#   chart.sh            draws it anew
#   chart.sh --check    says whether the chart that is there shows these figures
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
figures=docs/FIGURES.md chart=tests/bench/peers/speed.svg
facts=$(sed -n 's/^Measured with `make bench-peers`: //p' "$figures")
[ -n "$facts" ] || { echo "$figures does not say when and on what the comparison with peers was measured"; exit 1; }
new=$(mktemp)
trap 'rm -f "$new"' EXIT
awk -v recorded=1 -f tests/bench/peers/chart_input.awk "$figures" |
    awk -v facts="1 is the time of the fastest of Open MPI, MPICH and Gloo. $facts" -v source='Figures: docs/FIGURES.md, with what was measured and how.' \
        -f tests/bench/peers/chart.awk > "$new"
[ "$(grep -c '<circle.*<title>' "$new")" -ge 200 ] || { echo "only $(grep -c '<circle.*<title>' "$new") figures were found in $figures"; exit 1; }
if [ "${1-}" != --check ]; then cp "$new" "$chart"; echo "$chart"; exit; fi
cmp -s "$new" "$chart" || { echo "$chart does not show the figures of $figures: run tests/bench/peers/chart.sh"; exit 1; }

#!/usr/bin/env bash
# The pages that tools/pages.py makes of the headers: each public function has a place of its own, links lead somewhere, tags are
# closed, and names that a manual speaks of are links. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/tally.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
python3 tools/pages.py "$work/pages" > "$work/out" 2>&1 || bad "pages are made: $(tail -n 1 "$work/out")"
grep -ohE 'CDP_API [^(;]*\bcdp_[a-z0-9_]+\(' cdp*.h | grep -oE 'cdp_[a-z0-9_]+\($' | tr -d '(' | sort -u > "$work/public"
grep -ohE 'id="cdp_[a-z0-9_]+"' "$work"/pages/*.html | cut -d '"' -f 2 | sort > "$work/places"
missing=$(comm -23 "$work/public" "$work/places" | xargs)
twice=$(uniq -d "$work/places" | xargs)
if [ "$(wc -l < "$work/public")" -gt 400 ] && [ -z "$missing" ]; then good 'every public function has a place'; else bad "without a place: $missing"; fi
if [ -z "$twice" ]; then good 'and one alone'; else bad "two places: $twice"; fi
python3 - "$work/pages" > "$work/out" << 'EOS'
import html.parser, pathlib, sys
pages = {p.name: p.read_text() for p in pathlib.Path(sys.argv[1]).glob("*.html")}
class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.wrong = [], set(), [], []
        self.feed(text)
        self.wrong += self.open
    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs["id"]} if "id" in attrs else set()
        self.links += [attrs["href"]] if "href" in attrs else []
        if tag not in ("meta", "input"):
            self.open.append(tag)
    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append("/" + tag)
parsed = {name: Page(text) for name, text in pages.items()}
for name, page in parsed.items():
    for wrong in page.wrong:
        print(f"{name}: <{wrong}> is open or too much")
    for link in page.links:
        to, _, place = link.partition("#")
        to = to or name
        if to not in parsed or (place and place not in parsed[to].ids):
            print(f"{name}: nothing is at {link}")
EOS
if [ ! -s "$work/out" ]; then good 'links lead somewhere, tags are closed'; else bad "$(head -n 5 "$work/out")"; fi
for link in cdp.html:cdp_tcp.html#cdp_init_from_env cdp_store.html:cdp.html#CDP_OK cdp_fsdp.html:cdp_fsdp.html#cdp_fsdp_desc; do
    if grep -q "href=\"${link#*:}\"" "$work/pages/${link%%:*}"; then good "${link%%:*} leads to ${link#*#}"; else bad "${link%%:*} does not lead to ${link#*#}"; fi
done
finish

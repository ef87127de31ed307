#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""Writes the documentation of the headers as plain pages: usage: pages.py OUT_DIR [HEADER ...]

One page for each header: its manual, then each public part with its comments and declarations, whose
names link to where they are declared, on whichever page. index.html lists headers and all names, and
finds a name as one types. The pages need no server and load nothing from anywhere.

A page is drawn from what the joined header says and from nothing else: the comment at its head, and
the parts whose mark ends in _api.
"""
import html
import re
import sys
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --dim: #59636e; --line: #d1d9e0; --code: #f6f8fa; --link: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --dim: #9198a1; --line: #3d444d; --code: #161b22; --link: #79b8ff; }
  body { background: #0d1117; color: #e6edf3; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 0 auto; padding: 1rem; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
h2 { margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { margin: 2rem 0 .5rem; }
pre { background: var(--code); padding: .6rem .8rem; overflow-x: auto; border-radius: 6px; }
pre, code { font: 13px/1.45 ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; }
td { padding: .2rem .8rem .2rem 0; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
td:first-child { width: 35%; }
.item { margin: 1.6rem 0; }
.item pre { margin: 0 0 .3rem; }
nav, .dim { color: var(--dim); font-size: 14px; }
nav ul, ul.names { columns: 16rem; padding-left: 1.1rem; margin: .3rem 0; }
input { font: inherit; width: 100%; box-sizing: border-box; padding: .4rem .6rem; }
:target { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 4px; }
"""

FIND = """
const rows = [...document.querySelectorAll('ul.names li')];
document.querySelector('input').addEventListener('input', e => {
  const words = e.target.value.toLowerCase().split(/\\s+/);
  for (const r of rows) r.hidden = !words.every(w => r.textContent.toLowerCase().includes(w));
});
"""

PROGRAMS = {"DO THIS", "QUICK START"}  # sections whose indented lines are programs
NAME = re.compile(r"\b(?:cdp|CDP)_[A-Za-z0-9_]*[A-Za-z0-9]\b")
MARK = re.compile(r"^/\* ---- >>(\S+): (.*?) -*\s*\*/$")


def paragraphs(lines):
    """Groups of lines between empty ones, without their common indentation."""
    groups, group = [], []
    for line in [*lines, ""]:
        if line.strip():
            group.append(line)
        elif group:
            groups.append(group)
            group = []
    return groups


def indent(line):
    return len(line) - len(line.lstrip())


def column(lines):
    """Where the right column of these lines begins, or 0: behind a gap, in most of those that begin at the left."""
    gaps = [re.match(r" *\S.*?  +(?=\S)", line) for line in lines if indent(line) == indent(lines[0])]
    starts = [g.end() for g in gaps if g]
    at = max(set(starts), key=starts.count, default=0)
    return at if len(starts) > 1 and starts.count(at) > 0.5 * len(gaps) else 0


def two_columns(lines):
    """Rows of (left, right) of the table with which these lines begin, and how many lines it has; each row may go on
    in further lines."""
    at, rows = column(lines), []
    for n, line in enumerate(lines):
        left, right, first = line[:at].rstrip(), line[at:], indent(line) == indent(lines[0])
        if not at or right.startswith(" ") or (right and line[at - 2 + (not first):at].strip()):
            return rows, n
        if left and first:
            rows.append([left.strip(), right])
        else:
            rows[-1] = [f"{rows[-1][0]} {left.strip()}".strip(), f"{rows[-1][1]} {right}".strip()]
    return rows, len(lines)


class Pages:
    def __init__(self, headers):
        self.headers = headers
        self.parsed = {h: Header(h) for h in headers}
        self.home, self.where = {}, {}  # name: item, page#name
        for h, item, name in ((h, item, name) for h, p in self.parsed.items()
                              for _, _, items in p.parts for item in items for name in item.names):
            if name not in self.home or ("{" in item.code and "{" not in self.home[name].code):  # rather what defines it
                self.home[name], self.where[name] = item, f"{h.stem}.html#{name}"

    def text(self, text, page="", code=False):
        """Escaped, with links from names to where they are declared."""
        def link(m):
            name = m.group()
            to = self.where.get(name)
            if name + ".h" in {h.name for h in self.headers} and m.string[m.end():m.end() + 2] == ".h":
                to = f"{name}.html"
            return f'<a href="{to}">{name}</a>' if to and to != page else name
        text = NAME.sub(link, html.escape(text, quote=False))
        return text if code else re.sub(r"`([^`]+)`", r"<code>\1</code>", text)

    def prose(self, lines, least, code=False):
        """Lines of a comment: paragraphs, tables, and what is indented more. code: what is indented is a program."""
        out = []
        for group in paragraphs(lines):
            while group:
                rows, n = ([], 0) if code else two_columns(group)
                deep = indent(group[0]) > least
                if len(rows) < 2:
                    rows, n = [], next((k for k, line in enumerate(group) if (indent(line) > least) != deep), len(group))
                piece, group = group[:n], group[n:]
                if rows:
                    cells = (f"<tr><td>{self.text(a)}</td><td>{self.text(b)}</td></tr>" for a, b in rows)
                    out.append(f"<table>{''.join(cells)}</table>")
                elif deep:
                    base = min(map(indent, piece))
                    out.append("<pre>" + self.text("\n".join(p[base:] for p in piece), code=True) + "</pre>")
                else:
                    out.append("<p>" + self.text(" ".join(p.strip() for p in piece)) + "</p>")
        return "\n".join(out)

    def frame(self, title, body, script=""):
        return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
                f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
                f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n"
                f"{'<script>' + script + '</script>' if script else ''}</body>\n</html>\n")

    def page(self, header):
        h = self.parsed[header]
        nav = [f'<li><a href="#{anchor(t)}">{t.capitalize() if t.isupper() else t}</a></li>' for t, _ in h.manual]
        parts = [f'<li><a href="#{anchor(p)}">{html.escape(t)}</a></li>' for p, t, _ in h.parts]
        body = [f'<nav><a href="index.html">all headers and names</a></nav>',
                f"<h1>{header.name}</h1>", f"<p>{html.escape(h.about)}</p>",
                f"<nav>Manual<ul>{''.join(nav)}</ul>Declarations<ul>{''.join(parts)}</ul></nav>"]
        for title, lines in h.manual:
            body += [f'<h2 id="{anchor(title)}">{html.escape(title)}</h2>', 
                     self.prose(lines, *((4, True) if title in PROGRAMS else (h.least(lines), False)))]
        for path, title, items in h.parts:
            body += [f'<h2 id="{anchor(path)}">{html.escape(title)}</h2>',
                     f'<p class="dim">src/{path}.h</p>']
            for item in items:
                named = "".join(f'<a id="{n}"></a>' for n in item.names if self.home[n] is item)
                code = f"<pre>{self.text(item.code, code=True)}</pre>" if item.code else ""
                body.append(f'<div class="item">{named}{code}{self.prose(item.comment, 0)}</div>')
        return self.frame(header.name, "\n".join(body))

    def index(self):
        rows = "".join(f'<tr><td><a href="{h.stem}.html">{h.name}</a></td><td>{html.escape(p.about)}</td></tr>'
                       for h, p in self.parsed.items())
        names = "".join(f'<li><a href="{to}">{name}</a></li>' for name, to in sorted(self.where.items()))
        return self.frame("cdp", f"<h1>cdp</h1><p>Distributed training in C headers.</p><table>{rows}</table>"
                          f'<h2>Names</h2><input type="search" placeholder="find a name" aria-label="find a name">'
                          f'<ul class="names">{names}</ul>', FIND)


def anchor(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Item:
    """A comment and the declarations behind it, up to an empty line."""

    def __init__(self, comment, code):
        self.comment, self.code = comment, "\n".join(code)
        bare = re.sub(r"/\*.*?\*/", "", self.code, flags=re.S)
        found = re.findall(r"^#define (CDP_\w+)", bare, re.M)
        found += re.findall(r"\b(cdp_\w+)\s*\((?!\*)", re.sub(r"\{.*?\n\}", "", bare, flags=re.S)) if "CDP_API" in bare else []
        found += re.findall(r"^\}\s*(cdp_\w+);", bare, re.M)
        found += re.findall(r"^typedef [^;{(]*\b(cdp_\w+);", bare, re.M)
        found += re.findall(r"^typedef [^;{]*\(\*(cdp_\w+)\)", bare, re.M)
        found += re.findall(r"^struct (cdp_\w+) \{", bare, re.M)
        for body in re.findall(r"enum\b[^{;]*\{(.*?)\}", bare, re.S):
            found += re.findall(r"\b(CDP_\w+)", re.sub(r"=[^,]*", "", body))
        self.names = [n for n in dict.fromkeys(found) if "__" not in n]


class Header:
    def __init__(self, path):
        lines = path.read_text(encoding="utf-8").split("\n")
        start = next(i for i, line in enumerate(lines) if line.startswith("/*  " + path.name))
        end = next(i for i in range(start, len(lines)) if "*/" in lines[i])
        self.about = re.sub(r"^/\*  \S+ - ", "", lines[start]).split(" - v")[0]
        self.manual = self.sections([line.split("*/")[0].rstrip() for line in lines[start + 1:end + 1]])
        self.parts = list(self.public(lines))

    @staticmethod
    def least(lines):
        return min((indent(line) for line in lines if line.strip()), default=0)

    @staticmethod
    def sections(lines):
        """The manual as (title, lines): a title stands at the left in capitals."""
        found = []
        for line in lines:
            title = line.strip()
            if indent(line) == 4 and re.match(r"^[A-Z][A-Z0-9 ,]{2,}(\b.*)?$", title) and not title.endswith("."):
                title, more, rest = title.partition(" (")
                found.append((title, ["    (" + rest] if more else []))
            elif found:
                found[-1][1].append(line)
        return found

    @staticmethod
    def public(lines):
        """Parts that hold what programs call: (path, title, items)."""
        marks = [(i, MARK.match(line)) for i, line in enumerate(lines) if line.startswith("/* ---- >>")]
        marks = [(i, m) for i, m in marks if m] + [(len(lines), None)]
        for (i, m), (j, _) in zip(marks, marks[1:]):
            if m.group(1).endswith("_api") and not m.group(1).endswith("/cxx_api"):
                title = m.group(2)
                yield m.group(1), title[0].upper() + title[1:], list(Header.items(lines[i + 1:j]))

    @staticmethod
    def items(lines):
        comment, code, depth, inside = [], [], 0, False
        for line in [*lines, ""]:
            if not line.strip() and not inside and depth == 0:
                if (comment or code) and "cdp__" not in "".join(code[:1]):
                    yield Item(comment, code)
                comment, code = [], []
            elif inside or (not code and line.startswith("/*")):
                inside = "*/" not in line
                text = re.sub(r"^/\*+ ?|\s*\*/.*$", "", line)
                comment.append(text[3:] if text.startswith("   ") else text)
            elif not re.match(r"#(if|ifdef|ifndef|else|endif|elif)\b", line):
                code.append(line)
                depth += line.count("{") - line.count("}")


def main(arguments):
    if not arguments or "--help" in arguments:
        print(__doc__)
        return 0 if arguments else 2
    root = Path(__file__).resolve().parent.parent
    headers = [Path(h) for h in arguments[1:]] or sorted(root.glob("cdp*.h"))
    out = Path(arguments[0])
    out.mkdir(parents=True, exist_ok=True)
    pages = Pages(headers)
    for header in headers:
        (out / f"{header.stem}.html").write_text(pages.page(header), encoding="utf-8")
    (out / "index.html").write_text(pages.index(), encoding="utf-8")
    print(f"{out}/index.html: {len(headers)} headers, {len(pages.where)} names")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

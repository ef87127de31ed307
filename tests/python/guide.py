# SPDX-License-Identifier: MIT-0 OR Unlicense
"""Runs the blocks of Python of a document, one after the other. guide.py DOCUMENT."""
import re
import sys

with open(sys.argv[1], encoding="utf-8") as document:
    blocks = re.findall(r"^```python\n(.*?)^```$", document.read(), re.M | re.S)
assert len(blocks) >= 2, "no blocks"
everything = {}
for block in blocks:
    exec(block, everything)

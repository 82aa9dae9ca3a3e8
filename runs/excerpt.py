#!/usr/bin/env python3
"""Lines of a committed text file as a fenced block: excerpt.py FILE FIRST LAST [DROP]

From the line that begins with FIRST to the next one that begins with LAST, without lines that match
the regular expression DROP. `_` in FIRST and LAST stands for a space.
"""

import pathlib
import re
import sys

path, first, last, *drop = sys.argv[1:]
lines = (pathlib.Path(__file__).resolve().parent / path).read_text().splitlines()
start = next(at for at, line in enumerate(lines) if line.startswith(first.replace("_", " ")))
end = next(at for at in range(start, len(lines)) if lines[at].startswith(last.replace("_", " ")))
shown = [line for line in lines[start : end + 1] if not (drop and re.search(drop[0], line))]
print("```text", *shown, "```", sep="\n")

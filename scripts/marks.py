"""A part of a file that a script writes: what lies between two marks, which a reader of the page does not see.

marks.py FILE NAME < TEXT   puts TEXT between the marks of NAME
"""
import os
import sys


def insert(path, script, text):
    """Put `text` between the marks of `script`, whole or not at all."""
    marks = f"<!-- {script} writes from here -->", "<!-- to here -->"
    with open(path) as f:
        whole = f.read()
    before, mark, rest = whole.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not mark or not end:
        raise SystemExit(f"{path}: expected a line '{marks[0]}' and after it a line '{marks[1]}'")
    with open(path + ".tmp", "w") as f:
        f.write(f"{before}{mark}\n\n{text}\n{end}{after}")
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    insert(sys.argv[1], sys.argv[2], sys.stdin.read())

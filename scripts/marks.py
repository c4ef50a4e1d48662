"""A part of a file that a script writes: what lies between two marks, which a reader of the page does not see.

marks.py FILE NAME < TEXT   puts TEXT between the marks of NAME
"""
import os
import sys


def parts(path, script):
    """The file up to and with the first mark of `script`, what is between its marks, and the rest."""
    marks = f"<!-- {script} writes from here -->", "<!-- to here -->"
    with open(path) as f:
        whole = f.read()
    before, mark, rest = whole.partition(marks[0])
    text, end, after = rest.partition(marks[1])
    if not mark or not end:
        raise SystemExit(f"{path}: expected a line '{marks[0]}' and after it a line '{marks[1]}'")
    if " writes from here -->" in text:
        raise SystemExit(f"{path}: the part after '{marks[0]}' has no end of its own; expected a line '{marks[1]}' before the next part")
    return before + mark, text, end + after


def insert(path, script, text):
    """Put `text` between the marks of `script`, whole or not at all."""
    before, _, after = parts(path, script)
    with open(path + ".tmp", "w") as f:
        f.write(f"{before}\n\n{text}\n{after}")
    os.replace(path + ".tmp", path)


def table(head, rows):
    """A table in Markdown."""
    line = lambda cells: f"| {' | '.join(map(str, cells))} |"
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


if __name__ == "__main__":
    insert(sys.argv[1], sys.argv[2], sys.stdin.read())

"""Tables and figures of the documents, each from one command: the work of reproduce.sh, which see. tables.py has what they are."""
import argparse
import datetime
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import crossing
import languages
import recall
import swaps
import zoo
from marks import insert, parts
from results import Kept, Page, Results, SoFar, build, figure
from tables import BY_HAND, ENTRIES, FIGURES, RUNS

PROGRAM = os.path.abspath(os.environ.get("TAPEZOO") or "target/release/tapezoo")
SCRATCH = "target/reproduce"
# Results of runs that take hours, one file a run.
KEPT = "docs/results"


def few(args, **more):
    """The arguments with other values for these flags."""
    for flag, value in more.items():
        args = re.sub(rf" --{flag} \S+", "", args) + f" --{flag} {value}"
    return args


def tapezoo(root, name, more):
    """The results of a run, made now if they are not there, with other values for the flags `more`."""
    args = few(RUNS[name][1], **more)
    path, command = f"{root}/{name}", f"tapezoo {args}\n"
    # A configuration counts by what it says; older folders have the command alone.
    config = re.search(r"--config (\S+)", args)
    known = command + (f"# {hashlib.sha256(open(config[1], 'rb').read()).hexdigest()} {config[1]}\n" if config else "")
    if os.path.exists(f"{path}.command") and open(f"{path}.command").read() not in (command, known):
        raise SystemExit(f"{path} is of another command or configuration, see {path}.command; delete both to run\n{command}")
    if not Results.finished(path):
        os.makedirs(root, exist_ok=True)
        with open(f"{path}.command", "w") as f:
            f.write(known)
        how = ["train", "--resume", path] if os.path.exists(f"{path}/config.toml") else [*shlex.split(args), "--out", path]
        print(f"{name}: {command}", end="", file=sys.stderr, flush=True)
        with open(f"{path}.log", "a") as log:
            done = subprocess.run([PROGRAM, *how, *JOBS], stdout=log, stderr=log)
        if done.returncode:
            raise SystemExit(f"{name} failed, see {path}.log; the same command goes on")
    return Results(path)


def version():
    """The build and the processor of the program as it is, as made_by.txt has them."""
    said = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
    build, processor, kernels = said.splitlines()[0], re.search("processor: (.*)", said)[1], re.search("kernels: (.*)", said)[1]
    return f"{datetime.date.today()}T {build}; {processor}; kernels {kernels}"


def stamp(name, made_by):
    """The line that says where a block is from."""
    return f"*`scripts/reproduce.sh {name}`; {build(name, made_by)}.*"


def stamp_of_rows(name, data):
    """The line under a table of which each row names its build."""
    return f"*`scripts/reproduce.sh {name}`; each row by the commit that it names; {'; '.join(sorted({r.origin(several=True)[1] for r in data}))}.*"


def results(entry, root, small, more):
    """The results of an entry's runs."""
    if small or not entry.rows:
        return [tapezoo(root, run, more) for run in entry.runs]
    return [found for run in entry.runs if (found := row(root, run, more))]


def row(root, run, more):
    """The results of a run that is a row, each row by its own build: with --kept from its file, if nothing newer is there.
    With --so-far no row is trained: a run that was interrupted counts as far as it got, and one that is not there has no row."""
    path, file = f"{root}/{run}", f"{KEPT}/{run}.json"
    if KEEP and os.path.exists(file) and not os.path.exists(path):
        return Kept(file)
    if not SO_FAR or Results.finished(path):
        found = tapezoo(root, run, more)
    elif not os.path.exists(f"{path}/config.toml") or not (found := SoFar(path)).runs:
        return Kept(file) if os.path.exists(file) else None
    # A row that is kept stays until a run has got further.
    if SO_FAR and os.path.exists(file) and (kept := Kept(file)).runs[0]["steps"] > found.runs[0]["steps"]:
        return kept
    found.keep(file)
    return found


def made(name, root, figures, small=False, **more):
    """The Markdown of an entry, with its stamp; its figures go to the folder `figures`. A small one has a few steps of one seed."""
    entry = ENTRIES[name]
    more = {"steps": 20, "seeds": 1, "eval-every": 10} if small else more
    data = results(entry, root, small, more)
    pages = [page.format(runs=root) for page in entry.pages]
    if small:
        pages = [page if entry.runs else few(page, steps=20) for page in pages if not entry.runs or "seed0" in page]
    line = stamp_of_rows(name, data) if entry.rows else stamp(name, sum((r.made_by() for r in data), []) or [version()])
    for file, runs, models, ending, title, labels in entry.figures:
        of = [data[entry.runs.index(run)].path for run in runs]
        figure(PROGRAM, of, models, ending, title, labels, f"{figures}/{file}")
    data = [Page(PROGRAM, page.split(), f"{SCRATCH}/{name}") for page in pages] or data
    return block(name, data, line)


def block(name, data, line):
    """What stands between an entry's marks: its figures, its table, and where both are from."""
    entry = ENTRIES[name]
    drawn = "\n".join(f"![{title}](figures/{file})" for file, _, _, _, title, _ in entry.figures)
    return "\n\n".join(part for part in (drawn, entry.write(*data), line) if part) + "\n"


def marks(name):
    entry = ENTRIES[name]
    return entry.marks.removesuffix(" writes from here") or f"reproduce.sh {name}"


def numbers(text):
    """Words and numbers that can be compared: without the stamp, and the columns of sizes and times."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("*`scripts/")]
    lines = [re.sub(r"(\s+\d+){2}\s+\d+\.\d+$", "", line) for line in lines]
    return re.findall(r"[-−]?\d+\.\d+|[^\d\s|−-]+|\d+|[-−]", "\n".join(lines))


def differences(old, new, entry):
    """The differences of a block made again from the written one, in the rows of one model if the entry has it so."""
    of_model = lambda text: "\n".join(line for line in text.splitlines() if line.startswith(entry.model))
    old, new = numbers(of_model(old)), numbers(of_model(new))
    if len(old) != len(new):
        return [f"{len(new)} words and numbers, where {len(old)} are written"]
    number = lambda word: float(word.replace("−", "-"))
    off = lambda a, b: abs(number(a) - number(b)) > entry.check if "." in a[1:-1] and "." in b[1:-1] else a != b
    return [f"{b}, where {a} is written" for a, b in zip(old, new) if off(a, b)]


def audit():
    """The parts of documents that no command would write: tables outside of marks, figures without an entry, blocks that do not say where they are from."""
    wrong = []
    figures = {file for entry in ENTRIES.values() for file, *_ in entry.figures} | FIGURES
    for path in sorted(glob("docs/figures/*") + glob("docs/*.svg")):
        if os.path.basename(path) not in figures and not os.path.basename(path).startswith("mixer_"):
            wrong.append(f"{path}: of no entry in scripts/tables.py")
    for document in sorted(glob("docs/*.md")) + ["README.md"]:
        with open(document) as f:
            text = f.read()
        blocks = [name for name, entry in ENTRIES.items() if entry.document == document and (entry.write or entry.marks)]
        for name in blocks:
            begin = f"{marks(name)} writes from here"
            if text.count(f"<!-- {begin} -->") != 1:
                wrong.append(f"{document}: expected once the marks of {name}")
                continue
            block = text.split(f"<!-- {begin} -->")[1].split("<!-- to here -->")[0]
            for what, pattern in ("a commit", r"commits? [0-9a-f]{7}|up to [0-9a-f]{7}"), ("a day", r"20\d\d-\d\d-\d\d"), ("a processor", "Intel|AMD|processor"):
                if not re.search(pattern, block) and name != "gpu":
                    wrong.append(f"{document}: {name} does not say {what}")
            text = text.replace(block, "\n")
        for figure in re.findall(r"!\[[^]]*\]\(figures/(.*?)\)", text):
            if not figure.startswith("mixer_"):
                wrong.append(f"{document}: {figure} stands outside of the marks of its entry")
        for row in re.findall(r"(?m)^\| (.*)\n\|-", text):
            if not any(row.startswith(begin) for begin in BY_HAND.get(document, [])):
                wrong.append(f"{document}: the table '{row[:40]}…' has no marks, and is not in BY_HAND of scripts/tables.py")
    return wrong


def stored():
    """The blocks that are made of results in the repository, and are not what their scripts make of them now. The rows of
    n-grams, which stand in italics and take half a minute, are left out."""
    zoo_page = "docs/zoo_results.md"
    again = [(zoo_page, "zoo.py", zoo.page()), (zoo_page, "zoo.py, task by task,", zoo.details()), (zoo_page, "languages.py", languages.page(()))]
    again += [(zoo_page, f"{of.__name__}.py", of.page()) for of in (recall, crossing, swaps)]
    for name in (name for name, entry in ENTRIES.items() if entry.rows):
        kept = [Kept(file) for run in ENTRIES[name].runs if os.path.exists(file := f"{KEPT}/{run}.json")]
        again.append((ENTRIES[name].document, marks(name), block(name, kept, stamp_of_rows(name, kept))))
    lines = lambda text: [line for line in text.strip().splitlines() if not line.startswith("| *")]
    return [f"{document}: the part of '{script}' is not what it makes of the results in docs/; write it again"
            for document, script, text in again if lines(parts(document, script)[1]) != lines(text)]


def check():
    shutil.rmtree(SCRATCH, ignore_errors=True)
    os.makedirs(f"{SCRATCH}/check")

    def again(name):
        begun, entry = time.monotonic(), ENTRIES[name]
        more = {"models": entry.model} if entry.model else {}
        _, old, _ = parts(entry.document, marks(name))
        found = differences(old, made(name, f"{SCRATCH}/check", f"{SCRATCH}/check", **more), entry)
        print(f"{name}: {'differs' if found else 'as written'}, to {entry.check}; {time.monotonic() - begun:.0f} s", flush=True)
        return [f"{entry.document}: {name}: {line} (±{entry.check}); if it is meant, scripts/reproduce.sh {name}" for line in found]

    if wrong := audit():
        raise SystemExit("\n".join(wrong))
    wrong = stored() + zoo.check() + languages.check()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(again, [name for name, entry in ENTRIES.items() if entry.check is not None]):
            wrong += found
    if wrong:
        raise SystemExit("\n".join(wrong))
    print("every table and figure has its command")


def listing():
    for name, entry in ENTRIES.items():
        hours = entry.hours + sum(RUNS[run][0] for run in entry.runs) / 60
        cost = f"{hours:6.2f}" if hours >= 0.005 or (hours == 0 and not entry.pages) else " <0.01"
        print(f"{name:21} {entry.document:22} {cost} core-hours  {entry.what}")
        if entry.command:
            print(f"{'':22}{entry.command}")


def main():
    global JOBS, KEEP, SO_FAR
    parser = argparse.ArgumentParser(description="Tables and figures of the documents; see reproduce.sh.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--runs", default="runs/reproduce")
    parser.add_argument("--jobs")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--so-far", action="store_true")
    options = parser.parse_args()
    KEEP, SO_FAR = options.kept or options.so_far, options.so_far
    JOBS = ["--jobs", options.jobs] if options.jobs else []
    if options.list:
        return listing()
    if options.check:
        return check()
    chosen = list(ENTRIES) if options.quick and options.names == ["all"] else options.names
    if not chosen or set(chosen) - set(ENTRIES):
        raise SystemExit(f"expected names of --list, not {', '.join(set(chosen) - set(ENTRIES)) or 'none'}")
    if options.quick:
        shutil.rmtree(f"{SCRATCH}/quick", ignore_errors=True)
        os.makedirs(f"{SCRATCH}/quick")
    failed = []
    for name in chosen:
        entry = ENTRIES[name]
        if entry.command:
            command = entry.small if options.quick else entry.command.split(";")[0] if "tests/" in entry.command else entry.command
            print(f"{name}: {command or 'no small version'}", flush=True)
            # Of several small ones the others go on: one may need PyTorch or a browser, which are not here.
            if command and subprocess.run(command, shell=True, check=not options.quick).returncode:
                failed.append(name)
        if options.quick and not entry.command:
            print(f"## {name}\n\n{made(name, f'{SCRATCH}/quick', f'{SCRATCH}/quick', small=True)}", flush=True)
        elif entry.write and not options.quick:
            insert(entry.document, marks(name), made(name, options.runs, "docs/figures"))
            print(f"{name}: written into {entry.document}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


main()

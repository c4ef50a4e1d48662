"""The work of scripts/gpu_walk.sh, which see."""

import argparse
import importlib.metadata
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from marks import insert  # noqa: E402

from . import facts, fla, gates, launches, table  # noqa: E402
from .compile import CACHE  # noqa: E402
from .cost import Walker  # noqa: E402
from .measured import Measured  # noqa: E402

PAGE = "docs/gpu.md"


def costs(walker, passes):
    """[(Pass, costs)], of an earlier revision without the launches that it has otherwise."""
    found = []
    for p in passes:
        there = []
        for n, launch in enumerate(p.launches):
            try:
                walker.kernel(launch)
                there.append(n)
            except LookupError as e:
                print(f"{p.name}: {e.args[0]}", file=sys.stderr)
        found.append((p, walker.costs(part(p, there))))
    return found


def part(p, chosen):
    """A Pass with these of its launches."""
    some = lambda launches: [launches[n] for n in chosen]
    return replace(p, launches=some(p.launches), shorter=[replace(s, launches=some(s.launches)) for s in p.shorter])


def sources(revision):
    """(a folder with src/ of a revision, its record of launches or None)"""
    git = lambda *args: subprocess.run(["git", *args], capture_output=True, check=False)
    commit = git("rev-parse", "--verify", f"{revision}^{{commit}}").stdout.decode().strip()
    if not commit:
        raise SystemExit(f"--against {revision}: git knows no such revision")
    folder = CACHE.parent / "revisions" / commit
    if not (folder / "src").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = git("archive", commit, "src").stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    recorded = git("show", f"{commit}:{launches.RECORD}")
    return folder, recorded.stdout.decode() if recorded.returncode == 0 else None


def selected(passes, options):
    """The passes that are asked for, with the launches that are asked for."""
    for p in passes:
        if p.dtype != options.dtype:
            continue
        name = options.kernel or ""
        kernels = [n for n, launch in enumerate(p.launches) if name in launch.kernel]
        if name in p.name:
            yield p
        elif kernels:
            yield part(p, kernels)


def check(options, passes):
    wrong = [f"the walker: {fact}" for fact in facts.check()]
    found = gates.measured(Walker(Path("."), {"4", "8"}), passes)
    if options.write:
        Path(gates.RECORD).write_text(gates.table(found))
    before = gates.read(Path(gates.RECORD).read_text()) if os.path.exists(gates.RECORD) else {}
    more, better = gates.faults(found, before)
    wrong += more
    if better:
        print(f"{better} numbers are better than in {gates.RECORD}: scripts/gpu_walk.sh --check --write keeps them")
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(
        f"{len(found)} launches of kernels made of tiles: as many mma as their formulas have, and no number is worse"
    )


def page(found, theirs):
    """The part of docs/gpu.md that this program writes."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("nvidia-cuda-nvrtc", "triton", "fla-core"))
    took = Measured()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = f"`scripts/gpu_walk.sh --write`, commit {commit}, {versions}. {table.DEVICE} Times in ms: least times, but for those measured."
    parts = [
        "\n".join(textwrap.wrap(f"{about} Measured: {took.about}.", 120)),
        table.summary(found, took, theirs),
        "## Launch by launch",
        *(table.kernels(p.name, costs, took.of(p, costs)) for p, costs in found),
        "## flash-linear-attention's kernels",
        *(table.kernels(f"FLA {p.name}", costs, ([None] * len(costs), None)) for p, costs in theirs),
    ]
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_walk.sh", description="See scripts/gpu_walk.sh --help.", add_help=False
    )
    parser.add_argument("--kernel")
    parser.add_argument("--by-line", action="store_true")
    parser.add_argument("--against")
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--fla", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    passes = launches.read(Path(launches.RECORD).read_text())
    if options.check:
        return check(options, passes)
    if options.write:
        if options.kernel or options.dtype != "bf16":
            raise SystemExit(f"--write writes all of {PAGE}: it goes with neither --kernel nor --dtype")
        text = page(costs(Walker(Path(".")), selected(passes, options)), fla.passes())
        print(text)
        return insert(PAGE, "gpu_walk.sh", text)
    of = [] if options.fla and not options.kernel else list(selected(passes, options))
    if not of and not options.fla:
        raise SystemExit(f"--kernel {options.kernel}: no kernel and no op in {launches.RECORD} has this in its name")
    found = costs(Walker(Path(".")), of)
    if options.against:
        folder, recorded = sources(options.against)
        if recorded is None:
            print(
                f"{options.against} has no record of launches: its kernels are walked with those of today",
                file=sys.stderr,
            )
        before = selected(launches.read(recorded), options) if recorded else of
        return print(table.against(costs(Walker(folder), before), found))
    theirs, took = fla.passes() if options.fla else [], Measured()
    whole = [(p, costs_) for p, costs_ in found if (options.kernel or "") in p.name]
    if whole:
        print(table.summary(whole, took, theirs), "\n")
    seen = set()
    ours = [(p.name, costs_, took.of(p, costs_)) for p, costs_ in found]
    theirs = [(f"FLA {p.name}", costs_, ([None] * len(costs_), None)) for p, costs_ in theirs]
    for name, costs_, times in ours + [one for one in theirs if (options.kernel or "") in one[0]]:
        print(table.kernels(name, costs_, times), "\n")
        for c in costs_ if options.by_line else []:
            if id(c) not in seen:
                print(f"{table.lines(c, Path('.'))}\n\n{table.kinds(c)}\n")
            seen.add(id(c))


signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
main()

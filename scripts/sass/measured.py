"""What launches took on a GPU (measured.txt): a line on the card and the date, and then what `launches --measure` of
examples/launches.rs wrote there, which scripts/gpu_check.sh runs. Behind it stands what scripts/gpu_torch.py measured of
others on the same card: `# op | way | type sizes | whose`, and one number."""

from pathlib import Path

RECORD = Path("scripts/sass/measured.txt")


class Measured:
    def __init__(self):
        self.about, self.passes, self.others = "", {}, {}
        pass_ = None
        for row in RECORD.read_text().splitlines() if RECORD.exists() else []:
            if row.startswith("# ") and " | " in row:
                op, way, about, *whose = (part.strip() for part in row[2:].split(" | "))
                dtype, *sizes = about.split()
                if whose:
                    pass_ = self.others.setdefault((op, way, dtype), {}).setdefault(whose[0], [])
                    continue
                # Of an op at several lengths the first is the whole.
                pass_ = [] if (op, way, dtype) in self.passes else self.passes.setdefault((op, way, dtype), [])
            elif row.startswith("# "):
                self.about = row[2:]
            elif row:
                kernel, ms = row.split()
                pass_.append((kernel, float(ms)))

    def elsewhere(self, p):
        """The times of other programs for a pass."""
        theirs = self.others.get((p.op, p.way, p.dtype), {})
        return ", ".join(f"{whose} {sum(ms for _, ms in took):.3g}" for whose, took in theirs.items())

    def of(self, p, costs):
        """The milliseconds of each launch of a pass, None for one that was not measured; and of the whole pass, if
        nothing but these launches was."""
        left = list(self.passes.get((p.op, p.way, p.dtype), []))
        found = []
        for c in costs:
            at = next((n for n, (kernel, _) in enumerate(left) if kernel == c.kernel), None)
            found.append(None if at is None else left.pop(at)[1])
        whole = sum(ms for ms in found) if found and None not in found and not left else None
        return found, whole

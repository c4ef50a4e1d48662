//! The demands of an emulated device's launches on a GPU, kernel by kernel, and their least time on an H100.

use std::collections::BTreeMap;

/// The counts of a launch, or of all launches of a kernel, as `cuemu/machine/count.cpp` makes them: in instructions of warps
/// where nothing else is said. `cuemu/README.md` explains the numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are the field's terms")]
pub struct Counts {
    pub blocks: u64,
    /// Of a block.
    pub threads: u64,
    /// Bytes of a block.
    pub dynamic_shared: u64,
    pub global_requests: u64,
    /// Of 32 bytes.
    pub sectors: u64,
    pub least_sectors: u64,
    /// Bytes of global memory, each once.
    pub touched_bytes: u64,
    pub shared_requests: u64,
    pub wavefronts: u64,
    pub least_wavefronts: u64,
    pub mma: u64,
    pub ldmatrix: u64,
    /// `cp.async`.
    pub copies: u64,
    pub functions: u64,
    /// Of blocks.
    pub barriers: u64,
    /// Accesses of a part of the lanes.
    pub divergent: u64,
}

/// An H100 SXM: multiprocessors, clocks a microsecond, bytes of memory a microsecond.
const PROCESSORS: u64 = 132;
const CLOCK: f64 = 1755.0;
const MEMORY: f64 = 3.35e6;

impl Counts {
    /// How often the grid fills the device. Registers, which nobody knows here, may allow fewer blocks at once.
    fn waves(&self) -> f64 {
        let by_threads = 2048 / self.threads.next_multiple_of(32).max(32);
        let by_shared = (228 << 10) / (self.dynamic_shared + 1024);
        self.blocks as f64 / (PROCESSORS * by_threads.min(by_shared).clamp(1, 32)) as f64
    }

    /// At least so many microseconds, with all processors: by memory, by tensor cores and by functions.
    fn floors(&self) -> [f64; 3] {
        let clocks = |n: u64| n as f64 / (PROCESSORS as f64 * CLOCK);
        // A processor's tensor cores take one product of 16 x 8 x 16 a clock, its function units 16 lanes.
        [self.touched_bytes as f64 / MEMORY, clocks(self.mma), clocks(self.functions * 32 / 16)]
    }
}

#[derive(Default)]
struct Row {
    launches: u64,
    all: Counts,
    waves: f64,
    floors: [f64; 3],
}

impl Row {
    fn add(&mut self, c: &Counts) {
        let all = &mut self.all;
        for (sum, n) in [
            (&mut self.launches, 1),
            (&mut all.blocks, c.blocks),
            (&mut all.global_requests, c.global_requests),
            (&mut all.sectors, c.sectors),
            (&mut all.least_sectors, c.least_sectors),
            (&mut all.touched_bytes, c.touched_bytes),
            (&mut all.shared_requests, c.shared_requests),
            (&mut all.wavefronts, c.wavefronts),
            (&mut all.least_wavefronts, c.least_wavefronts),
            (&mut all.mma, c.mma),
            (&mut all.ldmatrix, c.ldmatrix),
            (&mut all.copies, c.copies),
            (&mut all.functions, c.functions),
            (&mut all.barriers, c.barriers),
            (&mut all.divergent, c.divergent),
        ] {
            *sum += n;
        }
        self.waves += c.waves();
        for (sum, floor) in self.floors.iter_mut().zip(c.floors()) {
            *sum += floor;
        }
    }
}

/// Count what an emulated device is asked for from now on, or no more. Of a kernel whose module is loaded already it
/// counts nothing, unless it counted then.
#[allow(unused_variables)]
pub fn count(on: bool) {
    #[cfg(feature = "cuda")]
    super::emulator::count(on);
}

/// The launches counted since the last call, with the names of their kernels.
pub fn take() -> Vec<(String, Counts)> {
    #[cfg(feature = "cuda")]
    return super::emulator::counted();
    #[cfg(not(feature = "cuda"))]
    vec![]
}

type Column = (&'static str, fn(&Row) -> String);

/// Heading and cell. A table is as wide as the terminal, and the next one goes on with the columns behind.
const COLUMNS: &[Column] = &[
    ("launches", |r| r.launches.to_string()),
    ("requests", |r| r.all.global_requests.to_string()),
    ("sectors", |r| r.all.sectors.to_string()),
    ("least", |r| r.all.least_sectors.to_string()),
    ("touched kB", |r| format!("{:.1}", r.all.touched_bytes as f64 / 1e3)),
    ("wavefronts", |r| r.all.wavefronts.to_string()),
    ("least", |r| r.all.least_wavefronts.to_string()),
    ("divergent", |r| r.all.divergent.to_string()),
    ("barriers", |r| r.all.barriers.to_string()),
    ("between", |r| {
        let accesses = (r.all.global_requests + r.all.shared_requests) as f64;
        format!("{:.1}", accesses / (r.all.barriers + r.all.blocks) as f64)
    }),
    ("mma", |r| r.all.mma.to_string()),
    ("ldmatrix", |r| r.all.ldmatrix.to_string()),
    ("cp.async", |r| r.all.copies.to_string()),
    ("functions", |r| r.all.functions.to_string()),
    ("blocks", |r| r.all.blocks.to_string()),
    ("waves", |r| format!("{:.2}", r.waves)),
    ("memory µs", |r| format!("{:.3}", r.floors[0])),
    ("tensor µs", |r| format!("{:.3}", r.floors[1])),
    ("functions µs", |r| format!("{:.3}", r.floors[2])),
];

/// Tables of these launches, at most `width` columns wide, the kernels with the greatest least time first.
pub fn tables(launches: &[(String, Counts)], width: usize) -> String {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for (kernel, counts) in launches {
        rows.entry(kernel).or_default().add(counts);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    let least = |row: &Row| row.floors.into_iter().fold(0.0, f64::max);
    rows.sort_by(|a, b| least(&b.1).total_cmp(&least(&a.1)));
    let names = rows.iter().map(|row| row.0.len()).max().unwrap_or(0).clamp("kernel".len(), 32);
    let column = |&(heading, cell): &Column| {
        let cells: Vec<String> =
            std::iter::once(heading.to_string()).chain(rows.iter().map(|row| cell(&row.1))).collect();
        let wide = cells.iter().map(|c| c.chars().count()).max().unwrap_or(0);
        cells.into_iter().map(|c| format!("  {c:>wide$}")).collect::<Vec<_>>()
    };
    let first = || {
        let names_of_rows = rows.iter().map(|row| row.0);
        std::iter::once("kernel").chain(names_of_rows).map(|name| format!("{name:<names$.names$}")).collect::<Vec<_>>()
    };
    let wide = |lines: &[String]| lines[0].chars().count();
    let mut tables = vec![first()];
    for cells in COLUMNS.iter().map(column) {
        if wide(&tables[tables.len() - 1]) + wide(&cells) > width && wide(&tables[tables.len() - 1]) > names {
            tables.push(first());
        }
        let last = tables.len() - 1;
        tables[last].iter_mut().zip(cells).for_each(|(line, cell)| *line += &cell);
    }
    tables.iter().map(|lines| lines.join("\n") + "\n").collect::<Vec<_>>().join("\n")
}

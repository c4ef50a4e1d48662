//! Which channels are computed side by side: tensors to lanes and back.

use crate::{
    kernels::{
        lanes::{L, Lane, Table, gather, horizontal_sums, scatter},
        scan::put_all,
        selective::Size,
    },
    tensor::Real,
    with_width,
};

/// The number of states that stay in registers.
pub const GROUP: usize = 4;

/// GROUP states, or numbers that belong to them, of sixteen channels.
pub type States<T> = [Lane<T>; GROUP];

/// b or c [steps, padded] of each lane's sequence.
pub type Rows<'a, T> = [&'a [T]; L];

/// Where channels of a sequence lie: lanes `lane..` of a block.
#[derive(Clone, Copy)]
pub struct Piece {
    pub block: usize,
    pub lane: usize,
    pub sequence: usize,
    pub channel: usize,
    pub width: usize,
}

/// Sizes; steps to a chunk and chunks; sequences side by side, blocks of a sequence, states rounded up.
#[derive(Clone, Copy)]
pub struct Plan {
    pub z: Size,
    pub c: usize,
    pub chunks: usize,
    pub side: usize,
    pub m: usize,
    pub padded: usize,
}

/// Some steps of the sequences from `first` on.
#[derive(Clone, Copy)]
pub struct Part {
    pub first: usize,
    pub t0: usize,
    pub steps: usize,
}

impl Plan {
    pub fn new(z: Size, chunk: usize) -> Plan {
        let (side, m, padded) = ((L / z.e).max(1), z.e.div_ceil(L), z.n.next_multiple_of(GROUP));
        Plan { z, c: chunk.min(z.t), chunks: z.t.div_ceil(chunk), side, m, padded }
    }

    /// Chunk j.
    pub fn part(self, first: usize, j: usize) -> Part {
        Part { first, t0: j * self.c, steps: self.c.min(self.z.t - j * self.c) }
    }

    /// The pieces that are computed at once: the sequences from `first` on.
    pub fn pieces(self, first: usize) -> impl Iterator<Item = Piece> {
        let count = if self.side == 1 { self.m } else { self.side.min(self.z.b - first) };
        (0..count).map(move |i| match self.side {
            1 => Piece { block: i, lane: 0, sequence: first, channel: i * L, width: L.min(self.z.e - i * L) },
            _ => Piece { block: 0, lane: i * self.z.e, sequence: first + i, channel: 0, width: self.z.e },
        })
    }

    /// The sequences from `first` on that are computed at once, and the lane where the last block of each begins.
    fn sequences(self, first: usize) -> impl Iterator<Item = (usize, usize)> {
        let count = self.side.min(self.z.b - first);
        (0..count).map(move |i| (first + i, if self.side == 1 { 0 } else { i * self.z.e }))
    }

    /// Steps t0.. of a tensor [B, T, E] to lanes [blocks, steps].
    pub fn load<T: Real>(self, part: Part, x: &[T], y: &mut [Lane<T>]) {
        load(self, part, x, y);
    }

    /// From lanes to tensors, adding if `acc`.
    pub fn store<T: Real>(self, part: Part, y: &[Lane<T>], x: &mut [T], acc: bool) {
        store(self, part, y, x, acc);
    }

    /// Where a piece begins in the states [·, E, N] of the sequences from `from` on, or [E, N] if there is `one` for all;
    /// and of a whole block, where each lane does.
    fn begin(self, p: Piece, from: usize, one: bool) -> (usize, Option<[usize; L]>) {
        let first = if one { 0 } else { (p.sequence - from) * self.z.e } + p.channel;
        let whole = (p.width == L).then(|| std::array::from_fn(|l| (first + l) * self.z.n));
        (first * self.z.n, whole)
    }

    /// States [·, E, N] of the sequences from `from` on (or [E, N] for all) to lanes [blocks, states].
    pub fn load_state<T: Real>(self, from: usize, x: &[T], one: bool, y: &mut [Lane<T>]) {
        let n = self.z.n;
        for p in self.pieces(from) {
            let y = &mut y[p.block * self.padded..][..n];
            let (first, whole) = self.begin(p, from, one);
            if let Some(at) = whole {
                gather(x, at, 0, &[T::ONE; L], y, Table { n: 1, k: n, rs: 0, cs: 1 });
                continue;
            }
            for (e, x) in x[first..].chunks_exact(n).take(p.width).enumerate() {
                x.iter().zip(&mut *y).for_each(|(&x, y)| y[p.lane + e] = x);
            }
        }
    }

    /// From lanes to tensors, adding if `acc`.
    pub fn store_state<T: Real>(self, from: usize, y: &[Lane<T>], x: &mut [T], one: bool, acc: bool) {
        let n = self.z.n;
        for p in self.pieces(from) {
            let y = &y[p.block * self.padded..][..n];
            let (first, whole) = self.begin(p, from, one);
            if let Some(at) = whole {
                scatter(y, Table { n: 1, k: n, rs: 0, cs: 1 }, T::ONE, &at, 0, &mut (&mut *x, acc));
                continue;
            }
            for (e, x) in x[first..].chunks_exact_mut(n).take(p.width).enumerate() {
                x.iter_mut().zip(y).for_each(|(x, y)| *x = y[p.lane + e] + if acc { *x } else { T::ZERO });
            }
        }
    }

    /// Where the states of a piece before a chunk are saved, [N, channels rounded up to blocks]: of each state, counted
    /// in blocks of lanes.
    fn place(self, p: Piece, chunk: usize) -> impl Iterator<Item = usize> {
        let first = (p.sequence * self.chunks + chunk) * self.z.n;
        (first..first + self.z.n).map(move |row| row * self.m + p.block)
    }

    /// Save the states [blocks, padded] before a chunk.
    pub fn save<T: Real>(self, first: usize, chunk: usize, h: &[Lane<T>], saved: &mut [Lane<T>]) {
        for p in self.pieces(first) {
            for (at, h) in self.place(p, chunk).zip(&h[p.block * self.padded..]) {
                if p.width == L {
                    saved[at] = *h;
                } else {
                    saved[at] = [T::ZERO; L];
                    saved[at][..p.width].copy_from_slice(&h[p.lane..p.lane + p.width]);
                }
            }
        }
    }

    /// The states that were saved before a chunk.
    pub fn saved<T: Real>(self, first: usize, chunk: usize, saved: &[Lane<T>], h: &mut [Lane<T>]) {
        for p in self.pieces(first) {
            for (at, h) in self.place(p, chunk).zip(&mut h[p.block * self.padded..]) {
                if p.width == L {
                    *h = saved[at];
                } else {
                    h[p.lane..p.lane + p.width].copy_from_slice(&saved[at][..p.width]);
                }
            }
        }
    }

    /// How many sequences share all sixteen lanes equally: 1, 2 or 4; else L, and each lane is looked up on its own.
    pub fn shares(self) -> usize {
        match (self.side, self.z.e) {
            (1, _) => 1,
            (2, 8) => 2,
            (4, 4) => 4,
            _ => L,
        }
    }

    /// How many numbers [`Plan::rows`] needs room for: none where the rows are read in place.
    pub fn padded(self) -> usize {
        if self.padded == self.z.n { 0 } else { self.side * self.c * self.padded }
    }

    /// b or c [B, T, N] of some steps: for each lane the rows [steps, padded] of its sequence, where they lie or, if
    /// the number of states was rounded up, in `room`, which has zeros. Lanes beyond the last sequence have the numbers
    /// of the last: what they are multiplied by is 0.
    pub fn rows<'a, T: Real>(self, Part { first, t0, steps }: Part, x: &'a [T], room: &'a mut [T]) -> Rows<'a, T> {
        let Plan { z, padded, c, side, .. } = self;
        let sequence = |i: usize| &x[((first + i).min(z.b - 1) * z.t + t0) * z.n..][..steps * z.n];
        for (i, room) in room.chunks_exact_mut(c * padded).enumerate() {
            for (row, y) in sequence(i).chunks_exact(z.n).zip(room.chunks_exact_mut(padded)) {
                y[..z.n].copy_from_slice(row);
            }
        }
        let (room, mut rows) = (&*room, [x; L]);
        for (l, rows) in rows.iter_mut().enumerate() {
            let i = (l / z.e).min(side - 1);
            *rows = if room.is_empty() { sequence(i) } else { &room[i * c * padded..][..steps * padded] };
        }
        rows
    }

    /// The lanes' shares of db or dc of states n.. summed into [B, T, N].
    pub fn store_row<T: Real>(self, part: Part, y: &[States<T>], n: usize, x: &mut [T], acc: bool) {
        store_row(self, part, y, n, x, acc);
    }
}

/// Row after row, as they lie in memory: column after column, each line of it would be fetched by itself.
#[versions::versions]
fn load<T: Real>(plan: Plan, part: Part, x: &[T], y: &mut [Lane<T>]) {
    let Plan { z, c, .. } = plan;
    for (sequence, lane) in plan.sequences(part.first) {
        let (w, x) = (z.e, &x[(sequence * z.t + part.t0) * z.e..][..part.steps * z.e]);
        with_width!(w => for (t, x) in x.chunks_exact(w).enumerate() {
            let (blocks, rest) = x.as_chunks::<L>();
            blocks.iter().enumerate().for_each(|(k, x)| y[k * c + t] = *x);
            if !rest.is_empty() {
                y[blocks.len() * c + t][lane..lane + w % L].copy_from_slice(rest);
            }
        });
    }
}

#[versions::versions]
fn store<T: Real>(plan: Plan, part: Part, y: &[Lane<T>], x: &mut [T], acc: bool) {
    let Plan { z, c, .. } = plan;
    for (sequence, lane) in plan.sequences(part.first) {
        let (w, x) = (z.e, &mut x[(sequence * z.t + part.t0) * z.e..][..part.steps * z.e]);
        with_width!(w => for (t, x) in x.chunks_exact_mut(w).enumerate() {
            let (blocks, rest) = x.as_chunks_mut::<L>();
            let whole = blocks.len();
            blocks.iter_mut().enumerate().for_each(|(k, x)| put_all(x, &y[k * c + t], acc));
            if !rest.is_empty() {
                put_all(rest, &y[whole * c + t][lane..lane + w % L], acc);
            }
        });
    }
}

#[versions::versions]
fn store_row<T: Real>(plan: Plan, part: Part, y: &[States<T>], n: usize, x: &mut [T], acc: bool) {
    match plan.shares() {
        1 => store_shares::<T, 4>(plan, part, y, n, x, acc),
        2 => store_shares::<T, 2>(plan, part, y, n, x, acc),
        4 => store_shares::<T, 1>(plan, part, y, n, x, acc),
        _ => store_lanes(plan, part, y, n, x, acc),
    }
}

/// [`store_row`] where every sequence has F groups of four lanes.
#[inline(always)]
fn store_shares<T: Real, const F: usize>(
    plan: Plan,
    Part { first, t0, steps }: Part,
    y: &[States<T>],
    n: usize,
    x: &mut [T],
    acc: bool,
) {
    let z = plan.z;
    for i in 0..(4 / F).min(z.b - first) {
        let x = &mut x[((first + i) * z.t + t0) * z.n..][..steps * z.n];
        for (x, y) in x.chunks_exact_mut(z.n).zip(y) {
            let (x, sums) = (&mut x[n..], horizontal_sums::<T, F>(y, i * F));
            match x.first_chunk_mut::<GROUP>() {
                Some(x) => put_all(x, &sums, acc),
                None => put_all(x, &sums[..z.n - n], acc),
            }
        }
    }
}

/// [`store_row`] for any lanes.
fn store_lanes<T: Real>(
    plan: Plan,
    Part { first, t0, steps }: Part,
    y: &[States<T>],
    n: usize,
    x: &mut [T],
    acc: bool,
) {
    let z = plan.z;
    for p in plan.pieces(first) {
        let x = x[(p.sequence * z.t + t0) * z.n..][..steps * z.n].chunks_exact_mut(z.n);
        for (x, y) in x.zip(y) {
            for (x, y) in x[n..].iter_mut().zip(y) {
                let sum: T = y[p.lane..p.lane + p.width].iter().copied().sum();
                *x = sum + if acc { *x } else { T::ZERO };
            }
        }
    }
}

//! Attention for small heads, one query after another, sixteen heads side by side.
//!
//! The kernels are written for one lane, in a loop over the lanes inside of that over the keys, and with AVX-512 for
//! all of them (`fma`). N is a constant, so that a lane's query and sums stay in registers; heads that are narrower are
//! filled up with zeros.

use crate::{
    kernels::{
        attention::{Inputs, Outputs, Plan, faint},
        heads::Slot,
        lanes::{Avx512, Block, L, Lane, avx512_here, fma, lanes, lanes_mut, mul},
        math::Math,
    },
    tensor::{Cpu, Real},
};

/// N numbers of each lane: a query, a key, a value.
type Row<T, const N: usize> = [Lane<T>; N];

/// The widest heads.
pub const WIDEST: usize = 8;

/// Keys to a tile: with their values and the gradients of both they stay in the first cache.
const TILE: usize = 16;

/// The weights of a tile, none of whose vectors straddles two cache lines.
#[repr(align(64))]
struct Room<T>([Lane<T>; TILE]);

/// For each key of a tile the sum of the gates since that key, in two parts: up to the end of the tile, and beyond it.
/// The second part may have many gates, and is added up in doubles.
#[derive(Clone)]
struct Since<T> {
    own: [Lane<T>; TILE],
    beyond: Lane<f64>,
    rounded: Lane<T>,
}

impl<T: Math> Since<T> {
    const NONE: Since<T> = Since { own: [[T::ZERO; L]; TILE], beyond: [0.0; L], rounded: [T::ZERO; L] };

    /// Pass the gate of the next key, which is number `at` of the tile or lies beyond it.
    #[inline(always)]
    fn pass(&mut self, here: Option<Avx512>, at: usize, gate: &Lane<T>) {
        let Since { own, beyond, rounded } = self;
        if at < TILE {
            for own in &mut own[..at] {
                *own = plus(here, gate, own);
            }
        } else {
            for l in 0..L {
                beyond[l] += gate[l].to_f64();
            }
            for l in 0..L {
                rounded[l] = T::of(beyond[l]);
            }
        }
    }

    /// The sum since key s of the tile.
    #[inline(always)]
    fn of(&self, here: Option<Avx512>, s: usize) -> Lane<T> {
        plus(here, &self.own[s], &self.rounded)
    }
}

/// Scores up to this size are exact enough without subtracting the largest: e^20 times a million values of 10^23 is a
/// finite f32, and e^-20 as exact as any number.
const SMALL: f64 = 20.0;

/// The number that each lane subtracts from its scores before their exponential: nothing where |q| |k_s| <= [`SMALL`]
/// for all keys seen, and the last key's gate is not shut; else the largest score, −0 if that is 0. A lane looks only
/// at keys that it sees. None if no lane subtracts anything. Gates make scores smaller, but not that of the last key.
/// The score of a single key is always subtracted: its weight is then exactly 1, and the gradient of its score exactly
/// 0.
#[inline(always)]
fn reference<T: Math, const N: usize>(
    here: Option<Avx512>,
    q: &Row<T, N>,
    k: &[Row<T, N>],
    since: Option<&[Since<T>]>,
    longest: &Lane<T>,
) -> Option<Lane<T>> {
    let (mut small, mut all, square) = ([false; L], true, plus_dot(here, [T::ZERO; L], q, q));
    for l in 0..L {
        small[l] = k.len() > 1 && square[l] * longest[l] <= T::of(SMALL * SMALL);
        all &= small[l];
    }
    if all {
        return None;
    }
    let mut top = largest(here, q, k, since);
    for l in 0..L {
        let large = if top[l] == T::ZERO { -T::ZERO } else { top[l] };
        top[l] = if small[l] { T::ZERO } else { large };
    }
    Some(top)
}

/// −x, by a loop. Functions that `from_fn` or `map` call are compiled without the instruction set of this function's
/// callers unless they are inlined, which they were not; the numbers then went through memory.
#[inline(always)]
fn minus<T: Real>(mut x: Lane<T>) -> Lane<T> {
    for x in &mut x {
        *x = -*x;
    }
    x
}

/// x + q·k
#[inline(always)]
fn plus_dot<T: Real, const N: usize>(here: Option<Avx512>, mut x: Lane<T>, q: &Row<T, N>, k: &Row<T, N>) -> Lane<T> {
    if here.is_some() {
        for i in 0..N {
            x = fma(here, &x, &q[i], &k[i]);
        }
    } else {
        for l in 0..L {
            x[l] = (0..N).fold(x[l], |x, i| q[i][l].fma(k[i][l], x));
        }
    }
    x
}

/// x + y by [`fma`], for the reason given there.
#[inline(always)]
fn plus<T: Real>(here: Option<Avx512>, x: &Lane<T>, y: &Lane<T>) -> Lane<T> {
    fma(here, x, &[T::ONE; L], y)
}

/// y += a x, number by number of a row.
#[inline(always)]
fn add_times<T: Real, const N: usize>(here: Option<Avx512>, y: &mut Row<T, N>, a: &Lane<T>, x: &Row<T, N>) {
    if here.is_some() {
        for i in 0..N {
            y[i] = fma(here, &y[i], a, &x[i]);
        }
    } else {
        for l in 0..L {
            for i in 0..N {
                y[i][l] = a[l].fma(x[i][l], y[i][l]);
            }
        }
    }
}

/// |k|², where it is more than `longest`.
#[inline(always)]
fn lengthen<T: Math, const N: usize>(here: Option<Avx512>, k: &[Row<T, N>], longest: &mut Lane<T>) {
    for k in k {
        let square = plus_dot(here, [T::ZERO; L], k, k);
        for l in 0..L {
            longest[l] = longest[l].max(square[l]);
        }
    }
}

/// The largest score.
#[inline(always)]
fn largest<T: Math, const N: usize>(
    here: Option<Avx512>,
    q: &Row<T, N>,
    k: &[Row<T, N>],
    since: Option<&[Since<T>]>,
) -> Lane<T> {
    let mut top = [T::of(f64::NEG_INFINITY); L];
    for (j, k) in k.chunks(TILE).enumerate() {
        for (s, k) in k.iter().enumerate() {
            let begin = if let Some(since) = since { since[j].of(here, s) } else { [T::ZERO; L] };
            let x = plus_dot(here, begin, q, k);
            for l in 0..L {
                top[l] = x[l].max(top[l]);
            }
        }
    }
    top
}

/// w_s = exp(begin + since_s + q·k_s + later) for the keys of a tile. What is subtracted from large scores is in
/// `later`, as two numbers: q·k_s is then computed just as the largest score was, and is never more. Other lanes have
/// it in `begin`, which saves one operation.
///
/// The weights have a pass of their own, apart from the passes that use them. This is faster than one pass over the
/// keys, probably because there each key waits for its own exponential and a processor looks ahead at few keys.
#[inline(always)]
fn weights<'a, T: Math, const N: usize>(
    here: Option<Avx512>,
    q: &Row<T, N>,
    k: &[Row<T, N>],
    begin: &Lane<T>,
    since: Option<&Since<T>>,
    later: Option<[&Lane<T>; 2]>,
    room: &'a mut Room<T>,
) -> &'a mut [Lane<T>] {
    let w = &mut room.0[..k.len()];
    if let Some(since) = since {
        let beyond = plus(here, &since.rounded, begin);
        for (w, own) in w.iter_mut().zip(&since.own) {
            *w = plus(here, own, &beyond);
        }
    }
    match later {
        None => {
            for (w, k) in w.iter_mut().zip(k) {
                *w = plus_dot(here, if since.is_some() { *w } else { *begin }, q, k);
            }
        }
        Some([a, b]) => {
            for (w, k) in w.iter_mut().zip(k) {
                let x = plus_dot(here, if since.is_some() { *w } else { *begin }, q, k);
                *w = plus(here, &plus(here, &x, a), b);
            }
        }
    }
    for w in w.as_flattened_mut() {
        // Not `decay`: where nothing is subtracted, a score may be above 0.
        *w = w.exp();
        *w = if since.is_some() && *w < faint() { T::ZERO } else { *w };
    }
    w
}

/// o = Σ_s w_s v_s / Σ_s w_s with w_s = exp(q·k_s − top), and lse = [top, ln Σ_s w_s], of all queries of a block of
/// heads.
#[versions::versions]
fn attend<T: Math, const N: usize, const GATED: bool>(
    p: Plan<T>,
    q: &[Row<T, N>],
    k: &[Row<T, N>],
    v: &[Row<T, N>],
    g: &[Lane<T>],
    o: &mut [Row<T, N>],
    lse: &mut [[Lane<T>; 2]],
) {
    let (here, mut longest, mut from, mut room) = (avx512_here!(), [T::ZERO; L], 0, Room([[T::ZERO; L]; TILE]));
    let mut since = vec![Since::NONE; if GATED { p.s.div_ceil(TILE) } else { 0 }];
    // A gate below this leaves to the keys before it less than a rounding of the last key's weight.
    let shut = T::of(-2.0 * SMALL) - T::of(if size_of::<T>() == 4 { 20.0 } else { 40.0 });
    for (t, ((q, o), lse)) in q.iter().zip(o).zip(lse).enumerate() {
        let (k, v) = (&k[..p.seen(t)], &v[..p.seen(t)]);
        lengthen(here, &k[from..], &mut longest);
        if GATED {
            for s in from.max(1)..k.len() {
                for (j, since) in since[..=s / TILE].iter_mut().enumerate() {
                    since.pass(here, s - j * TILE, &g[s]);
                }
                for l in 0..L {
                    // A gate above 1 makes scores larger.
                    longest[l] = if g[s][l] > T::ZERO { T::of(f64::INFINITY) } else { longest[l] };
                }
            }
        }
        from = k.len();
        let mut longest = longest;
        if GATED && k.len() > 1 {
            let last = &g[k.len() - 1];
            for l in 0..L {
                // Behind a shut gate the last key is a single one.
                longest[l] = if last[l] < shut { T::of(f64::INFINITY) } else { longest[l] };
            }
        }
        let top = reference(here, q, k, if GATED { Some(&since) } else { None }, &longest);
        let (mut all, mut sum, zero) = ([T::ZERO; L], [[T::ZERO; L]; N], [T::ZERO; L]);
        let less = top.map(minus);
        for (j, (k, v)) in k.chunks(TILE).zip(v.chunks(TILE)).enumerate() {
            let (since, later) = (if GATED { Some(&since[j]) } else { None }, less.as_ref().map(|less| [less, &zero]));
            for (w, v) in weights(here, q, k, &zero, since, later, &mut room).iter().zip(v) {
                (0..L).for_each(|l| all[l] += w[l]);
                add_times(here, &mut sum, w, v);
            }
        }
        lse[0] = top.unwrap_or([T::ZERO; L]);
        for l in 0..L {
            let by = T::ONE / all[l];
            for j in 0..N {
                o[j][l] = by * sum[j][l];
            }
            lse[1][l] = all[l].ln();
        }
    }
}

/// −δ of each query.
#[versions::versions]
fn negative<T: Math, const N: usize>(g: &[Row<T, N>], o: &[Row<T, N>], starts: &mut [Start<T>]) {
    let here = avx512_here!();
    for ((g, o), start) in g.iter().zip(o).zip(starts) {
        start[0] = minus(plus_dot(here, [T::ZERO; L], g, o));
    }
}

/// The numbers with which a query's do·v_s and q·k_s begin: −δ and −ln Σ. In lanes from which the largest score was
/// subtracted they begin with 0, and these are added later: −top and −ln Σ to q·k_s, −δ to do·v_s.
type Start<T> = [Lane<T>; 5];

/// The inputs of the backward pass for a block of heads: the rows of each query and key, and in `starts` the query's
/// scalars.
struct Given<'a, T, const N: usize> {
    q: &'a [Row<T, N>],
    g: &'a [Row<T, N>],
    starts: &'a [Start<T>],
    /// Whether any lane subtracted the largest score.
    large: &'a [bool],
    k: &'a [Row<T, N>],
    v: &'a [Row<T, N>],
    /// The logarithms of the gates, if there are any.
    gates: &'a [Lane<T>],
}

/// One tile of keys, from `s0` on, and all queries that see any of it backwards: p_s = exp(q·k_s − top − ln Σ) and dx_s
/// = p_s (do·v_s − δ); dq += Σ_s dx_s k_s, dk_s += dx_s q, dv_s += p_s do. do·v_s is summed up as δ was: where one
/// weight is 1, the two are the same number. `sums` has room for a sum of each query.
#[versions::versions]
fn attend_back<T: Math, const N: usize, const GATED: bool>(
    p: Plan<T>,
    s0: usize,
    x: &Given<T, N>,
    dq: &mut [Row<T, N>],
    dk: &mut [Row<T, N>],
    dv: &mut [Row<T, N>],
    dg: &mut [Lane<T>],
    sums: &mut [Lane<T>],
) {
    let (here, mut room) = (avx512_here!(), Room([[T::ZERO; L]; TILE]));
    // Σ_t dx_ts over the queries t beyond the tile.
    let (mut since, mut next, mut columns) = (Since::NONE, s0 + 1, [[T::ZERO; L]; TILE]);
    for (t, dq) in dq.iter_mut().enumerate().skip(p.first(s0)) {
        let (all, seen) = (p.seen(t), s0..p.seen(t).min(s0 + TILE));
        if GATED {
            for s in next..all {
                since.pass(here, s - s0, &x.gates[s]);
            }
            next = all;
        }
        let (q, g, start) = (&x.q[t], &x.g[t], &x.starts[t]);
        let (k, v) = (&x.k[seen.clone()], &x.v[seen.clone()]);
        let (dk, dv) = (&mut dk[seen.clone()], &mut dv[seen]);
        let (large, since) = (x.large[t], if GATED { Some(&since) } else { None });
        let p = weights(here, q, k, &start[1], since, large.then_some([&start[2], &start[3]]), &mut room);
        if large {
            for ((p, v), dv) in p.iter_mut().zip(v).zip(dv) {
                let dp = plus(here, &plus_dot(here, start[0], g, v), &start[4]);
                add_times(here, dv, p, g);
                *p = mul(*p, dp);
            }
        } else {
            for ((p, v), dv) in p.iter_mut().zip(v).zip(dv) {
                let dp = plus_dot(here, start[0], g, v);
                add_times(here, dv, p, g);
                *p = mul(*p, dp);
            }
        }
        let mut sum = *dq;
        for ((dx, k), dk) in p.iter().zip(k).zip(dk) {
            add_times(here, dk, dx, q);
            add_times(here, &mut sum, dx, k);
        }
        *dq = sum;
        if GATED {
            // Σ_s dx_s so far, which the gates between s and t get: those of the tile here, the others at the end.
            let (mut so_far, beyond) = ([T::ZERO; L], all > s0 + TILE);
            for (s, (dx, column)) in p.iter().zip(&mut columns).enumerate() {
                so_far = plus(here, dx, &so_far);
                if beyond {
                    *column = plus(here, dx, column);
                } else if s0 + s + 1 < all {
                    dg[s0 + s + 1] = plus(here, &so_far, &dg[s0 + s + 1]);
                }
            }
            sums[t] = so_far;
        }
    }
    if GATED {
        let (mut sum, end) = ([T::ZERO; L], (s0 + TILE).min(p.s));
        for (d, column) in dg[s0 + 1..].iter_mut().zip(&columns).take(end - s0 - 1) {
            sum = plus(here, column, &sum);
            *d = plus(here, &sum, d);
        }
        let mut sum = [T::ZERO; L];
        for s in (end..p.s).rev() {
            if s + p.d.t >= p.s {
                sum = plus(here, &sums[s + p.d.t - p.s], &sum);
            }
            dg[s] = plus(here, &sum, &dg[s]);
        }
    }
}

/// Lanes as rows.
fn rows<T: Real, const N: usize>(x: &[T]) -> &[Row<T, N>] {
    lanes(x).as_chunks().0
}

/// The same to write.
fn rows_mut<T: Real, const N: usize>(x: &mut [T]) -> &mut [Row<T, N>] {
    lanes_mut(x).as_chunks_mut().0
}

/// The gates of a block of heads; lanes without a head have none.
fn gather_gates<T: Math>(b: Block, p: &Plan<T>, g: Option<&[T]>, to: &mut [T]) {
    let Some(g) = g else { return };
    b.gather(p.gates(), g, (0, p.s), T::ONE, lanes_mut(to), 1);
    lanes_mut(to).iter_mut().for_each(|lane| lane[b.len..].fill(T::ZERO));
}

/// Writes o and lse.
pub fn forward<T: Math, const N: usize>(
    cpu: &Cpu,
    p: Plan<T>,
    x: &Inputs<T>,
    o: &mut [T],
    (tops, ln_sums): (&mut [T], &mut [T]),
) {
    let (d, n, s) = (p.d, p.d.t, p.s);
    let lane = |n: usize| cpu.zeros::<T>(n * N * L);
    let (mut qs, mut ks, mut vs, mut os, mut all) = (lane(n), lane(s), lane(s), lane(n), cpu.temp::<T>(n * 2 * L));
    let (mut gs, attend) = match x.g {
        Some(_) => (cpu.temp::<T>(s * L), attend::<T, N, true> as fn(_, &_, &_, &_, &_, &mut _, &mut _)),
        None => (cpu.temp::<T>(0), attend::<T, N, false> as _),
    };
    for b in Block::all(d.b * d.h) {
        b.gather(d.keys(), x.q, (0, n), p.scale, lanes_mut(&mut qs), N);
        b.gather(p.keys(), x.k, (0, s), T::ONE, lanes_mut(&mut ks), N);
        b.gather(p.values(), x.v, (0, s), T::ONE, lanes_mut(&mut vs), N);
        gather_gates(b, &p, x.g, &mut gs);
        attend(p, rows(&qs), rows(&ks), rows(&vs), lanes(&gs), rows_mut(&mut os), rows_mut(&mut all));
        for (t, [top, log]) in rows::<T, 2>(&all).iter().enumerate() {
            for l in 0..b.len {
                let at = (b.first + l) * n + t;
                (tops[at], ln_sums[at]) = (top[l], log[l]);
            }
        }
        b.scatter(d.values(), lanes(&os), N, (0, n), T::ONE, &mut (o, false));
    }
}

/// Adds the gradients of q, k, v and the gates.
pub fn backward<T: Math, const N: usize>(
    cpu: &Cpu,
    p: Plan<T>,
    x: &Inputs<T>,
    y: &Outputs<T>,
    [mut dq, mut dk, mut dv]: [Slot<T>; 3],
    mut dg: Option<Slot<T>>,
) {
    let (d, n, s) = (p.d, p.d.t, p.s);
    let lane = |n: usize| cpu.zeros::<T>(n * N * L);
    let (mut qs, mut ks, mut vs, mut gs, mut os) = (lane(n), lane(s), lane(s), lane(n), lane(n));
    let (mut dqs, mut dks, mut dvs, mut starts) = (lane(n), lane(s), lane(s), cpu.temp::<T>(n * 5 * L));
    let gated = x.g.is_some();
    let [mut gates, mut dgs, mut sums] = [s, s, n].map(|n| cpu.zeros::<T>(if gated { n * L } else { 0 }));
    let mut large = vec![false; n];
    for b in Block::all(d.b * d.h) {
        b.gather(d.keys(), x.q, (0, n), p.scale, lanes_mut(&mut qs), N);
        b.gather(p.keys(), x.k, (0, s), T::ONE, lanes_mut(&mut ks), N);
        b.gather(p.values(), x.v, (0, s), T::ONE, lanes_mut(&mut vs), N);
        b.gather(d.values(), y.d_o, (0, n), T::ONE, lanes_mut(&mut gs), N);
        b.gather(d.values(), y.o, (0, n), T::ONE, lanes_mut(&mut os), N);
        gather_gates(b, &p, x.g, &mut gates);
        [&mut dqs, &mut dks, &mut dvs, &mut dgs].into_iter().for_each(|d| d.fill(T::ZERO));
        negative::<T, N>(rows(&gs), rows(&os), rows_mut(&mut starts));
        for (t, [delta, begin, later @ ..]) in rows_mut::<T, 5>(&mut starts).iter_mut().enumerate() {
            (*begin, *later, large[t]) = ([T::ZERO; L], [[T::ZERO; L]; 3], false);
            for l in 0..b.len {
                let at = (b.first + l) * n + t;
                let (top, log) = (y.lse[0][at], y.lse[1][at]);
                if top == T::ZERO && !top.sign_bit() {
                    begin[l] = -log;
                } else {
                    (later[0][l], later[1][l], later[2][l], delta[l], large[t]) = (-top, -log, delta[l], T::ZERO, true);
                }
            }
        }
        let (starts, large, gates) = (rows(&starts), &large[..], lanes(&gates));
        let given = Given::<T, N> { q: rows(&qs), g: rows(&gs), starts, large, k: rows(&ks), v: rows(&vs), gates };
        let attend_back = if gated { attend_back::<T, N, true> } else { attend_back::<T, N, false> };
        for s0 in (0..s).step_by(TILE) {
            let [dq, dk, dv] = [&mut dqs, &mut dks, &mut dvs].map(|d| rows_mut(d));
            attend_back(p, s0, &given, dq, dk, dv, lanes_mut(&mut dgs), lanes_mut(&mut sums));
        }
        b.scatter(d.keys(), lanes(&dqs), N, (0, n), p.scale, &mut dq);
        b.scatter(p.keys(), lanes(&dks), N, (0, s), T::ONE, &mut dk);
        b.scatter(p.values(), lanes(&dvs), N, (0, s), T::ONE, &mut dv);
        dg.iter_mut().for_each(|dg| b.scatter(p.gates(), lanes(&dgs), 1, (0, s), T::ONE, dg));
    }
}

//! The selective scan on the CPU: sixteen channels side by side, one in each lane, four of their states in registers.
//!
//! If a sequence has eight channels at most, the lanes hold several sequences. Everything is written for one lane, in a
//! loop over the lanes. The number of states is rounded up to a multiple of four by states whose b is 0.

use crate::{
    autograd::{Grad, In, Value, zeroed},
    kernels::{
        lanes::{L, Lane, lanes, lanes_mut},
        math::Math,
        scan::{cotangent, sequences, sequences_back, zeros},
        selective::{
            Size,
            layout::{GROUP, Plan, Rows, States},
        },
    },
    ops::selective::SelectiveScan,
    tensor::{Cpu, Real, Tensor},
};

/// b or c of GROUP states for each lane, from number `at` of the rows on. Lanes belong to Q sequences, the same number
/// to each.
#[inline(always)]
fn spread<T: Real, const Q: usize>(rows: &Rows<T>, at: usize) -> States<T> {
    let mut y = [[T::ZERO; L]; GROUP];
    for i in 0..Q {
        let lanes = i * (L / Q)..(i + 1) * (L / Q);
        let row = &rows[lanes.start][at..][..GROUP];
        for g in 0..GROUP {
            y[g][lanes.clone()].fill(row[g]);
        }
    }
    y
}

/// The properties of the transitions: Δ a ≤ 0 and s = 1, as in Mamba; Δ a ≤ 0; or none.
const FADING: u8 = 0;

const STRETCHED: u8 = 1;

const ANY: u8 = 2;

/// The properties that the signs of Δ and a give.
#[versions::versions]
fn kind<T: Real>(s: T, delta: &[T], a: &[T]) -> u8 {
    let mut grows = false;
    // An infinite Δ is ignored here. Otherwise a bad value late in a sequence would change how earlier steps are
    // rounded.
    for &delta in delta {
        grows |= delta < T::ZERO && delta.is_finite();
    }
    for &a in a {
        grows |= a > T::ZERO;
    }
    match (grows, s == T::ONE) {
        (true, _) => ANY,
        (false, true) => FADING,
        (false, false) => STRETCHED,
    }
}

/// w = exp(Δ a) from Δ times what [`in_powers_of_two`] makes of a.
#[inline(always)]
fn exp<T: Math, const KIND: u8>(x: T) -> T {
    if KIND == ANY { x.exp() } else { x.exp2() }
}

/// a as [`exp`] takes it: e^(Δ a) = 2^(Δ a log₂ e), where no state grows.
fn in_powers_of_two<T: Real>(kind: u8, a: &mut [T]) {
    if kind != ANY {
        for a in a {
            let rate = *a * T::of(std::f64::consts::LOG2_E);
            // A rate that is not finite becomes NaN, with the bits that `exp2` handles.
            *a = if rate.is_finite() { rate } else { T::of(f64::NAN) };
        }
    }
}

/// Rates without −∞, because −∞ times a step of length 0 is NaN.
fn bounded<T: Math>(a: &mut [T]) {
    a.iter_mut().filter(|a| **a < -T::FASTEST).for_each(|a| *a = -T::FASTEST);
}

/// ā from w.
#[inline(always)]
fn keep<T: Real, const KIND: u8>(w: T, s: T) -> T {
    if KIND == FADING { w } else { s * w - (s - T::ONE) }
}

/// Some steps of sixteen channels, and which of their states: GROUP from n on.
#[derive(Clone, Copy)]
struct Steps<'a, T> {
    s: T,
    delta: &'a [Lane<T>],
    write: &'a [Lane<T>],
    b: &'a Rows<'a, T>,
    c: &'a Rows<'a, T>,
    /// From row to row of b and c.
    padded: usize,
    n: usize,
}

impl<T: Real> Steps<'_, T> {
    /// b of step t.
    #[inline(always)]
    fn b<const Q: usize>(&self, t: usize) -> States<T> {
        spread::<T, Q>(self.b, t * self.padded + self.n)
    }

    /// c of step t.
    #[inline(always)]
    fn c<const Q: usize>(&self, t: usize) -> States<T> {
        spread::<T, Q>(self.c, t * self.padded + self.n)
    }
}

/// The states through some steps, at `rate`, a as [`exp`] takes it: `h` moves on, their share is added to y, which the
/// first states begin.
#[versions::versions]
fn run<T: Math, const Q: usize, const KIND: u8>(x: Steps<T>, rate: &States<T>, h: &mut States<T>, y: &mut [Lane<T>]) {
    let (rate, mut state) = (*rate, *h);
    for (t, ((delta, write), y)) in x.delta.iter().zip(x.write).zip(y).enumerate() {
        let (b, c) = (x.b::<Q>(t), x.c::<Q>(t));
        if x.n == 0 {
            *y = [T::ZERO; L];
        }
        for l in 0..L {
            let mut sum = y[l];
            for g in 0..GROUP {
                let w = exp::<T, KIND>(delta[l] * rate[g][l]);
                state[g][l] = keep::<T, KIND>(w, x.s).fma(state[g][l], write[l] * b[g][l]);
                sum = c[g][l].fma(state[g][l], sum);
            }
            y[l] = sum;
        }
    }
    *h = state;
}

/// The states before and after every step again, from the first of `h` on, and w = exp(Δ a).
#[versions::versions]
fn again<T: Math, const Q: usize, const KIND: u8>(
    x: Steps<T>,
    rate: &States<T>,
    h: &mut [States<T>],
    w: &mut [States<T>],
) {
    let (rate, (first, h)) = (*rate, h.split_at_mut(1));
    let mut state = first[0];
    for (t, (((delta, write), h), w)) in x.delta.iter().zip(x.write).zip(h).zip(w).enumerate() {
        let b = x.b::<Q>(t);
        for l in 0..L {
            for g in 0..GROUP {
                w[g][l] = exp::<T, KIND>(delta[l] * rate[g][l]);
                state[g][l] = keep::<T, KIND>(w[g][l], x.s).fma(state[g][l], write[l] * b[g][l]);
                h[g][l] = state[g][l];
            }
        }
    }
}

/// The results of [`again`], and the cotangents of y.
#[derive(Clone, Copy)]
struct Seen<'a, T> {
    a: &'a States<T>,
    h: &'a [States<T>],
    w: &'a [States<T>],
    dy: &'a [Lane<T>],
}

/// The backward pass. `grad` comes in as the gradient G from behind these steps and leaves as that of the first, and
/// `da` is added to. The first states write Σ g b and Σ q a of every step, and the others add to them. The lanes'
/// shares of db and dc, of every step and state, are added to if `add`, else written. The outputs are arguments and not
/// a struct, since the compiler knows only of arguments that they do not overlap.
#[versions::versions]
fn back<T: Math, const Q: usize, const KIND: u8>(
    add: bool,
    x: Steps<T>,
    seen: Seen<T>,
    (grad, da): (&mut States<T>, &mut States<T>),
    gb: &mut [Lane<T>],
    qa: &mut [Lane<T>],
    db: &mut [States<T>],
    dc: &mut [States<T>],
) {
    if add {
        back_of::<T, Q, KIND, true>(x, seen, (grad, da), gb, qa, db, dc);
    } else {
        back_of::<T, Q, KIND, false>(x, seen, (grad, da), gb, qa, db, dc);
    }
}

#[inline(always)]
fn back_of<T: Math, const Q: usize, const KIND: u8, const ADD: bool>(
    x: Steps<T>,
    seen: Seen<T>,
    (grad, da): (&mut States<T>, &mut States<T>),
    gb: &mut [Lane<T>],
    qa: &mut [Lane<T>],
    db: &mut [States<T>],
    dc: &mut [States<T>],
) {
    let (a, mut grads, mut das) = (*seen.a, *grad, *da);
    for t in (0..x.delta.len()).rev() {
        let (b, c) = (x.b::<Q>(t), x.c::<Q>(t));
        let (delta, write, dy, w) = (&x.delta[t], &x.write[t], &seen.dy[t], &seen.w[t]);
        let (before, after) = (&seen.h[t], &seen.h[t + 1]);
        let (mut gbt, mut qat, db, dc) = (gb[t], qa[t], &mut db[t], &mut dc[t]);
        if x.n == 0 {
            (gbt, qat) = ([T::ZERO; L], [T::ZERO; L]);
        }
        for l in 0..L {
            let (mut sum_b, mut sum_a) = (gbt[l], qat[l]);
            for g in 0..GROUP {
                let gt = c[g][l].fma(dy[l], grads[g][l]);
                let sw = if KIND == FADING { w[g][l] } else { x.s * w[g][l] };
                let q = gt * before[g][l] * sw;
                db[g][l] = if ADD { gt.fma(write[l], db[g][l]) } else { gt * write[l] };
                dc[g][l] = if ADD { dy[l].fma(after[g][l], dc[g][l]) } else { dy[l] * after[g][l] };
                sum_b = gt.fma(b[g][l], sum_b);
                sum_a = q.fma(a[g][l], sum_a);
                das[g][l] = q.fma(delta[l], das[g][l]);
                grads[g][l] = gt * keep::<T, KIND>(w[g][l], x.s);
            }
            (gbt[l], qat[l]) = (sum_b, sum_a);
        }
        (gb[t], qa[t]) = (gbt, qat);
    }
    (*grad, *da) = (grads, das);
}

/// Δ u.
#[versions::versions]
fn product<T: Real>(delta: &[T], u: &[T], write: &mut [T]) {
    write.iter_mut().zip(delta).zip(u).for_each(|((w, &d), &u)| *w = d * u);
}

/// From Σ g b and Σ q a to the gradients of u and Δ, in their place.
#[versions::versions]
fn through_product<T: Real>(delta: &[T], u: &[T], gb: &mut [T], qa: &mut [T]) {
    for (((gb, qa), &d), &u) in gb.iter_mut().zip(qa).zip(delta).zip(u) {
        (*gb, *qa) = (d * *gb, u * *gb + *qa);
    }
}

/// Scratch memory for the steps of a chunk, as lanes. In memory for tensors the lanes without a channel stay zero. The
/// lanes without a sequence, which only the last sequences leave, are set to zero. States are set to zero for each
/// sequence: a NaN or infinity of one sequence would stay in such lanes and get into the next.
macro_rules! scratch {
    ($cpu:ident, $($name:ident = $n:expr),+) => { $(let mut $name = $cpu.zeros::<T>(L * $n);)+ };
}

/// Calls $f::<T, Q, KIND> for the number Q of sequences side by side and the properties of the transitions.
macro_rules! instance {
    ($z:ident, $kind:ident, $f:ident $args:tt) => {
        match $z.shares() {
            1 => instance!(1 $kind, $f $args),
            2 => instance!(2 $kind, $f $args),
            4 => instance!(4 $kind, $f $args),
            _ => instance!(L $kind, $f $args),
        }
    };
    ($q:tt $kind:ident, $f:ident $args:tt) => {
        match $kind {
            FADING => $f::<T, $q, FADING> $args,
            STRETCHED => $f::<T, $q, STRETCHED> $args,
            _ => $f::<T, $q, ANY> $args,
        }
    };
}

fn states<T>(x: &[T]) -> &[States<T>] {
    lanes(x).as_chunks().0
}

fn states_mut<T>(x: &mut [T]) -> &mut [States<T>] {
    lanes_mut(x).as_chunks_mut().0
}

impl SelectiveScan {
    pub(super) fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [y, last, saved] = y else { return };
        let (size, s) = (Size::of(x), T::of(self.s));
        let kind = kind(s, x[1].host(), x[2].host());
        let (y, last, saved) = (y.host_mut::<T>(), last.host_mut::<T>(), saved.host_mut::<T>());
        if size.e * size.n == 0 {
            return y.fill(T::ZERO);
        }
        let z = Plan::new(size, self.chunk);
        let c = z.c;
        scratch!(
            cpu,
            rate = z.m * z.padded,
            h = z.m * z.padded,
            u = z.m * c,
            delta = z.m * c,
            write = z.m * c,
            sum = z.m * c
        );
        let (mut bs, mut cs) = (cpu.zeros::<T>(z.padded()), cpu.zeros::<T>(z.padded()));
        z.load_state(0, x[2].host(), true, lanes_mut(&mut rate));
        bounded(&mut rate);
        in_powers_of_two(kind, &mut rate);
        sequences(z.side * size.e * size.n, [x[5].host::<T>()], [last], |i, [state]| {
            let first = i * z.side;
            h.fill(T::ZERO);
            if first + z.side > size.b {
                [&mut u, &mut delta].into_iter().for_each(|x| x.fill(T::ZERO));
            }
            z.load_state(first, state, false, lanes_mut(&mut h));
            for j in 0..z.chunks {
                let part = z.part(first, j);
                z.save(first, j, lanes(&h), lanes_mut(saved));
                z.load(part, x[0].host(), lanes_mut(&mut u));
                z.load(part, x[1].host(), lanes_mut(&mut delta));
                let (br, cr) = (z.rows(part, x[3].host(), &mut bs), z.rows(part, x[4].host(), &mut cs));
                product(&delta, &u, &mut write);
                for k in 0..z.m {
                    let r = k * c..k * c + part.steps;
                    for n in (0..z.padded).step_by(GROUP) {
                        let (at, y) = ((k * z.padded + n) / GROUP, &mut lanes_mut(&mut sum)[r.clone()]);
                        let (delta, write) = (&lanes(&delta)[r.clone()], &lanes(&write)[r.clone()]);
                        let x = Steps { s, delta, write, b: &br, c: &cr, padded: z.padded, n };
                        instance!(z, kind, run(x, &states(&rate)[at], &mut states_mut(&mut h)[at], y));
                    }
                }
                z.store(part, lanes(&sum), y, false);
            }
            z.store_state(first, lanes(&h), state, false, false);
        });
    }

    pub(super) fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gu, gdelta, ga, gb, gc, gh0], [dy, dlast, ..]) = (dx, dy) else { return };
        let (size, s) = (Size::of(x), T::of(self.s));
        let kind = kind(s, x[1].host(), x[2].host());
        let zy = zeros::<T>(cpu, dy, &y[0]);
        let dy = cotangent(dy, &zy);
        let (du, ddelta) = (gu.slot_or_scratch::<[T]>(cpu, &x[0]), gdelta.slot_or_scratch::<[T]>(cpu, &x[1]));
        let (dxb, dxc) = (gb.slot_or_scratch(cpu, &x[3]), gc.slot_or_scratch(cpu, &x[4]));
        let dxa = zeroed(ga.slot_or_scratch::<[T]>(cpu, &x[2]));
        if size.e * size.n == 0 {
            return [du, ddelta, dxb, dxc].into_iter().filter(|d| !d.1).for_each(|d| d.0.fill(T::ZERO));
        }
        let (z, saved) = (Plan::new(size, self.chunk), y[2].host::<T>());
        let c = z.c;
        scratch!(
            cpu,
            a = z.m * z.padded,
            rate = z.m * z.padded,
            start = z.m * z.padded,
            g = z.m * z.padded,
            da = z.m * z.padded
        );
        scratch!(cpu, u = z.m * c, delta = z.m * c, write = z.m * c, dys = z.m * c, gbs = z.m * c, qas = z.m * c);
        let (mut bs, mut cs) = (cpu.zeros::<T>(z.padded()), cpu.zeros::<T>(z.padded()));
        scratch!(cpu, h = GROUP * (c + 1), w = GROUP * c, db = GROUP * c, dc = GROUP * c);
        z.load_state(0, x[2].host(), true, lanes_mut(&mut a));
        bounded(&mut a);
        rate.copy_from_slice(&a);
        in_powers_of_two(kind, &mut rate);
        let run = z.side * size.e * size.n;
        sequences_back(cpu, (run, &x[5]), [dlast], [gh0], |i, [state]| {
            let first = i * z.side;
            g.fill(T::ZERO);
            if first + z.side > size.b {
                [&mut u, &mut delta, &mut dys, &mut start].into_iter().for_each(|x| x.fill(T::ZERO));
            }
            z.load_state(first, state, false, lanes_mut(&mut g));
            for j in (0..z.chunks).rev() {
                let part = z.part(first, j);
                z.saved(first, j, lanes(saved), lanes_mut(&mut start));
                z.load(part, x[0].host(), lanes_mut(&mut u));
                z.load(part, x[1].host(), lanes_mut(&mut delta));
                z.load(part, dy, lanes_mut(&mut dys));
                let (br, cr) = (z.rows(part, x[3].host(), &mut bs), z.rows(part, x[4].host(), &mut cs));
                product(&delta, &u, &mut write);
                for n in (0..z.padded).step_by(GROUP) {
                    for k in 0..z.m {
                        let (r, at) = (k * c..k * c + part.steps, (k * z.padded + n) / GROUP);
                        let (delta, write) = (&lanes(&delta)[r.clone()], &lanes(&write)[r.clone()]);
                        let x = Steps { s, delta, write, b: &br, c: &cr, padded: z.padded, n };
                        let (h, w) = (&mut states_mut(&mut h)[..part.steps + 1], &mut states_mut(&mut w)[..part.steps]);
                        h[0] = states(&start)[at];
                        instance!(z, kind, again(x, &states(&rate)[at], h, w));
                        let seen = Seen { a: &states(&a)[at], h, w, dy: &lanes(&dys)[r.clone()] };
                        let (gb, qa) = (&mut lanes_mut(&mut gbs)[r.clone()], &mut lanes_mut(&mut qas)[r]);
                        let (db, dc) = (&mut states_mut(&mut db)[..part.steps], &mut states_mut(&mut dc)[..part.steps]);
                        let grad = (&mut states_mut(&mut g)[at], &mut states_mut(&mut da)[at]);
                        instance!(z, kind, back(k > 0, x, seen, grad, gb, qa, db, dc));
                    }
                    z.store_row(part, states(&db), n, dxb.0, dxb.1);
                    z.store_row(part, states(&dc), n, dxc.0, dxc.1);
                }
                through_product(&delta, &u, &mut gbs, &mut qas);
                z.store(part, lanes(&gbs), du.0, du.1);
                z.store(part, lanes(&qas), ddelta.0, ddelta.1);
            }
            z.store_state(first, lanes(&g), state, false, false);
        });
        z.store_state(0, lanes(&da), dxa, true, true);
    }
}

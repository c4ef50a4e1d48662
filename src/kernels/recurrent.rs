//! The driver of recurrent cells on the CPU, for LSTM and sLSTM: all sequences take a step together, so that a head has
//! one product with its recurrent weights R.
//!
//! ```text
//! z_t = h_{t-1} R,  then the cell: h_t from z_t          dz_t from dh_t by the cell,  then dh_{t-1} = dz_t Rᵀ
//! dR = Σ_{b,t} h_{t-1}ᵀ dz_t
//! ```
//!
//! The vectors of a step are sorted by heads: h [H, B, K] and z [H, B, 4K]. LSTM has one head, of all D channels.

use crate::{
    autograd::Grad,
    kernels::{
        gemm::Packed,
        matmul::{Mat, gemm},
        scan::put_all,
    },
    tensor::{Cpu, Real, Tensor},
};

/// All steps: `cell(t, z, h)` moves h on, which comes in as h0 and leaves as the last. `r` is R of every head.
pub(super) fn forward<T: Real>(
    cpu: &Cpu,
    steps: usize,
    r: &[Packed<T>],
    h: &mut [T],
    mut cell: impl FnMut(usize, &[T], &mut [T]),
) {
    let mut z = cpu.temp::<T>(4 * h.len());
    for t in 0..steps {
        products(r, h, &mut z);
        cell(t, &z, h);
    }
}

/// All steps backwards: `cell(t, dh, dz)` writes dz of a step. dh comes in as the gradient of the last h and leaves as
/// that of h0. `r` is Rᵀ of every head.
pub(super) fn backward<T: Real>(
    cpu: &Cpu,
    steps: usize,
    r: &[Packed<T>],
    dh: &mut [T],
    mut cell: impl FnMut(usize, &[T], &mut [T]),
) {
    let mut dz = cpu.temp::<T>(4 * dh.len());
    for t in (0..steps).rev() {
        cell(t, dh, &mut dz);
        products(r, &dz, dh);
    }
}

/// Every head's part of x times its matrix.
fn products<T: Real>(r: &[Packed<T>], x: &[T], y: &mut [T]) {
    let (from, to) = (x.len() / r.len().max(1), y.len() / r.len().max(1));
    if from > 0 {
        r.iter().zip(x.chunks_exact(from)).zip(y.chunks_exact_mut(to)).for_each(|((r, x), y)| r.times(x, y));
    }
}

/// Calls `run` with memory for the whole gradient of `x`: that of the slot, or, where it is to be added to, other memory.
pub(super) fn whole<T: Real>(cpu: &Cpu, slot: &mut Grad, x: &Tensor, run: impl FnOnce(&mut [T])) {
    let (dx, acc) = slot.slot_or_scratch::<[T]>(cpu, x);
    if !acc {
        return run(dx);
    }
    let mut own = cpu.temp::<T>(dx.len());
    run(&mut own);
    put_all(dx, &own, true);
}

/// dR, from dz [B, T, 4D], h0 [B, D] and h [B, T, D]: for each of H heads `gates` products over B T rows, whose results
/// lie one after another as `to` says, gate by gate. In a product each row of dz meets the row of h that lies before it
/// in memory. That row is h_{t-1}, except at t = 0, where it is the last of another sequence. So the rows of dz at t = 0
/// are copied, multiplied with h0, set to zero for the large product, and put back.
pub(super) fn weights_back<T: Real>(
    cpu: &Cpu,
    [b, t, d]: [usize; 3],
    dz: &mut [T],
    [h0, h]: [&[T]; 2],
    (heads, gates): (usize, usize),
    (dr, to, acc): (&mut [T], Mat, bool),
) {
    let (rows, n) = (b * t, 4 * d);
    if d == 0 {
        return;
    }
    let at = |i: usize| i * t * n..(i * t + 1) * n;
    let mut first = cpu.temp::<T>(if rows == 0 { 0 } else { b * n });
    for (i, first) in first.chunks_exact_mut(n).enumerate() {
        first.copy_from_slice(&dz[at(i)]);
        dz[at(i)].fill(T::ZERO);
    }
    let (some, later, k, width) = (b.min(rows), rows.saturating_sub(1), d / heads, n / (heads * gates));
    let dz_later = &dz[dz.len().min(n)..];
    for (i, dr) in dr.chunks_exact_mut(k * width).enumerate() {
        let (unit, z) = (i % heads * k, i / heads * d + i % heads * k);
        for (rows, h, dz, acc) in [(some, h0, &first[..], acc), (later, h, dz_later, true)] {
            let (h, dz) = (&h[unit.min(h.len())..], &dz[z.min(dz.len())..]);
            gemm(T::ONE, (h, Mat::new(rows, k, d).t()), (dz, Mat::new(rows, width, n)), (&mut *dr, to), acc);
        }
    }
    for (i, first) in first.chunks_exact(n).enumerate() {
        dz[at(i)].copy_from_slice(first);
    }
}

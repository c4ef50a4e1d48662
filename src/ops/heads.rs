//! Sizes of a matrix memory's inputs.

use crate::autograd::{Gen, In};

/// Sizes of q, k [B, T, H, K] and v [B, T, H, V].
#[derive(Clone, Copy)]
pub struct Dims {
    /// Batch.
    pub b: usize,
    /// Steps.
    pub t: usize,
    /// Heads.
    pub h: usize,
    /// Elements of a key.
    pub k: usize,
    /// Elements of a value.
    pub v: usize,
}

impl Dims {
    /// The sizes that inputs 0, 1, 2 of a memory op agree on; input 3 on is checked by the op.
    ///
    /// # Errors
    /// When they do not agree.
    pub fn of(x: In) -> Result<Dims, String> {
        let (q, k, v) = (x[0].shape(), x[1].shape(), x[2].shape());
        let [b, t, h, n] = q.array()?;
        if k != q || v.rank() != 4 || v.dims()[..3] != q.dims()[..3] {
            return Err(format!("q {q}, k {k} and v {v} do not fit [B, T, H, K], [B, T, H, K] and [B, T, H, V]"));
        }
        Ok(Dims { b, t, h, k: n, v: v.last() })
    }

    /// Check one more input.
    ///
    /// # Errors
    /// When it has another shape.
    pub fn expect(x: In, i: usize, name: &str, shape: &[usize]) -> Result<(), String> {
        if x[i].shape().dims() == shape {
            return Ok(());
        }
        Err(format!("{name} {} should be {shape:?} for q {} and v {}", x[i].shape(), x[0].shape(), x[2].shape()))
    }

    /// K and V for a sample: small, or large enough for matrix products.
    pub fn sample(g: &mut Gen) -> (usize, usize) {
        let least = if g.coin() { 0 } else { 16 };
        (least + g.size(5), least + g.size(5))
    }
}

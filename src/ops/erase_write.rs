//! The gated delta rule with a key of its own to erase by: a matrix memory that fades, forgets what it recalls under p,
//! and writes under k (gated DeltaNet, KDA, Comba, GDN-2, RWKV-7; DeltaProduct in several steps a token).
//!
//! ```text
//! S' = diag(exp(g_t)) S_{t-1}      u_t = v_t − S'ᵀ p_t      S_t = S' + k_t u_tᵀ      o_t = scale S_tᵀ q_t      g_t ≤ 0
//! ```
//!
//! The delta rule has p = β k and β v for v. RWKV-7 erases what p recalls under yet another key e,
//!
//! ```text
//! S_t = S' − e_t (S'ᵀ p_t)ᵀ + k_t v_tᵀ
//! ```
//!
//! which is a step that erases (p, e for k, nothing for v) and one that writes (k, v, nothing for p and g). For a chunk
//! with rows Q, P, K, V, the state S before it, and the scores A of P and K and M of Q and K as [`decay`] makes them,
//!
//! ```text
//! U = (I + stril(A))⁻¹ (V − (P ⊙ from_start) S)
//! O = (Q ⊙ from_start) S + tril(M) U      S ← all ⊙ S + (K ⊙ to_end)ᵀ U
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::heads::schedules,
    ops::{
        decay::decay,
        gated_linear_attention::{by_chunks, expect_gate, sample_gate},
        heads::Dims,
        same_dtype, some_steps,
        words::{insert_axis, outer, over_time, recall, token, zeros_like},
    },
    tensor::Tensor,
};

/// q, k [B, T, H, K], v [B, T, H, V], p [B, T, H, K], s0 [B, H, K, V] and, if it fades, g [B, T, H, K] or [B, T, H, 1];
/// with g [B, T, H, K] also e [B, T, H, K], if it is not k → o [B, T, H, V], s [B, H, K, V].
pub struct EraseWrite {
    /// How many steps the kernel takes at a time. For small heads it goes step by step, and this is how often it saves
    /// a state. The results do not depend on it, and the formula does not use it.
    pub chunk: usize,
    /// Factor of the queries.
    pub scale: f64,
}

impl Op for EraseWrite {
    fn name(&self) -> &'static str {
        "erase_write"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x)?;
        some_steps(self.chunk)?;
        let dims @ Dims { b, t, h, k, v } = Dims::of(x)?;
        Dims::expect(x, 3, "p", &[b, t, h, k])?;
        Dims::expect(x, 4, "s0", &[b, h, k, v])?;
        if x.len() > 5 {
            expect_gate(x, 5, dims)?;
        }
        if x.len() > 6 {
            Dims::expect(x, 5, "g", &[b, t, h, k])?;
            Dims::expect(x, 6, "e", &[b, t, h, k])?;
        }
        Ok([x[2].shape(), x[4].shape()].into())
    }

    /// Two keys are run as two steps; one gate per head is broadcast to all rows. Both call this op again, so that its
    /// kernel may run. All other inputs go to [`recurrent`].
    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let (tape, [q, k, v, p, s0]) = (x[0].tape(), std::array::from_fn(|i| x[i]));
        let (o, s) = match *x.get(5..).unwrap_or_default() {
            [g, e] => {
                let op = EraseWrite { chunk: self.chunk.saturating_mul(2), scale: self.scale };
                let [q, k, v, p, g] = erase_then_write([q, k, v, p, g, e]);
                let [o, s] = tape.apply_many(op, [q, k, v, p, s0, g]);
                (last_of(o, 2), s)
            }
            [g] if g.shape() != k.shape() => {
                let g = g + tape.full(k.shape(), k.dtype(), 0.0);
                let op = EraseWrite { chunk: self.chunk, scale: self.scale };
                tape.apply_many(op, [q, k, v, p, s0, g]).into()
            }
            ref g => recurrent([q, k, v, p], g.first().copied(), s0, self.scale),
        };
        Some(vec![o, s])
    }

    fn kernels(&self) -> Candidates<'_> {
        schedules(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(7), g.size(3));
        let (k, v) = Dims::sample(g);
        let op = EraseWrite { chunk: g.size(4), scale: g.uniform(0.3, 1.5) };
        let (key, a) = ([b, t, h, k], 1.2 / (k as f64).sqrt());
        let keys = |g: &mut Gen| g.range(key, -a, a);
        let mut x = vec![keys(g), keys(g), g.normal([b, t, h, v]), keys(g), g.normal([b, h, k, v])];
        match g.below(4) {
            0 => {}
            1 => x.extend([g.range(key, -2.0, 0.0), keys(g)]),
            _ => x.push(sample_gate(g, key)),
        }
        (op, x)
    }
}

/// The definition, step by step: q, k [B, T, H, K], v [B, T, H, V], p [B, T, H, K], g [B, T, H, K], [B, T, H, 1] or
/// none, to the outputs [B, T, H, V] and the last state [B, H, K, V].
#[track_caller]
pub fn recurrent<'t>(x: [Var<'t>; 4], g: Option<Var<'t>>, s0: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let ([_, t, _, _], mut s) = (x[0].dims(), s0);
    let o = over_time(t, x[2], |t| {
        let [q, k, v, p] = x.map(|x| token(x, t));
        if let Some(g) = g {
            s = insert_axis(token(g, t).exp(), 3) * s; // (S')
        }
        s = s + outer(k, v - recall(s, p)); // (u_t) (S_t)
        scale * recall(s, q) // (o_t)
    });
    (o, s)
}

/// [`recurrent`] by products over the whole sequence.
#[track_caller]
pub fn parallel<'t>([q, k, v, p, g]: [Var<'t>; 5], s0: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    by_chunks([scale * q, k, v, p, g], s0, q.shape().at(1).max(1), |[q, k, v, p, g], s| {
        let d = decay([q, p], k, g);
        let [read, erase] = d.scores;
        let u = erase.unit_lower_solve(v - (p * d.from_start).matmul(s)); // (U)
        let o = (q * d.from_start).matmul(s) + read.tril_matmul(u); // (O)
        (o, d.all * s + (k * d.to_end).t_matmul(u)) // (S ←)
    })
}

/// [`recurrent`] by products over chunks of so many steps.
#[track_caller]
pub fn chunked<'t>([q, k, v, p, g]: [Var<'t>; 5], s0: Var<'t>, scale: f64, chunk: usize) -> (Var<'t>, Var<'t>) {
    let [o, s] = q.tape().apply_many(EraseWrite { chunk, scale }, [q, k, v, p, s0, g]);
    (o, s)
}

/// The rule with two keys, q, k, v, p, g and e: what p recalls is erased under e, and v is written under k. It runs in
/// chunks of so many steps, or by products over the whole sequence.
#[track_caller]
pub fn two_keys<'t>(x: [Var<'t>; 6], s0: Var<'t>, scale: f64, chunk: Option<usize>) -> (Var<'t>, Var<'t>) {
    let [q, k, v, p, g, e] = x;
    match chunk {
        Some(chunk) => q.tape().apply_many(EraseWrite { chunk, scale }, [q, k, v, p, s0, g, e]).into(),
        None => {
            let (o, s) = parallel(erase_then_write(x), s0, scale);
            (last_of(o, 2), s)
        }
    }
}

/// The two steps of each token, q, k, v, p and g of both: one erases what p recalls under e, the other writes v under
/// k.
#[track_caller]
fn erase_then_write<'t>([q, k, v, p, g, e]: [Var<'t>; 6]) -> [Var<'t>; 5] {
    let [none, no_value] = [q, v].map(|x| x.tape().full(x.shape(), x.dtype(), 0.0));
    [[none, q], [e, k], [no_value, v], [p, none], [g, none]].map(|x| in_turn(&x))
}

/// Several steps a token, x [B, T, H, ..] of each in turn, as one sequence [B, n T, H, ..].
#[track_caller]
pub(crate) fn in_turn<'t>(x: &[Var<'t>]) -> Var<'t> {
    let [b, t, h, width] = x[0].dims();
    let x: Vec<Var<'t>> = x.iter().map(|x| x.reshape([b, t, 1, h * width])).collect();
    Var::concat(&x, 2).reshape([b, x.len() * t, h, width])
}

/// x [B, T, H, ..] at step i of each token's n, and zeros at the others: [B, n T, H, ..].
#[track_caller]
pub fn only(x: Var<'_>, i: usize, n: usize) -> Var<'_> {
    in_turn(&(0..n).map(|j| if i == j { x } else { zeros_like(x) }).collect::<Vec<_>>())
}

/// The last of each token's n steps: [B, n T, H, V] to [B, T, H, V].
#[track_caller]
pub(crate) fn last_of(o: Var<'_>, n: usize) -> Var<'_> {
    let [b, steps, h, v] = o.dims();
    o.reshape([b, steps / n, n, h, v]).narrow(2, n - 1, 1).reshape([b, steps / n, h, v])
}

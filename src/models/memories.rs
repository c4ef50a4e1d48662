//! The two matrix memories that most mixers have: one that fades and adds, and one that also erases. Their step with
//! names, and their forms.

use super::{Form, Init, P, at, over_time};
use crate::{
    autograd::Var,
    ops::{
        erase_write,
        gated_linear_attention::{by_products, gated_linear_attention},
        words::{insert_axis, maximum, outer, recall},
    },
    tensor::Tensor,
};

/// diag(exp(g)) S: g [B, H, K] or [B, H, 1], S [B, H, K, V].
pub fn fade<'t>(g: Var<'t>, s: Var<'t>) -> Var<'t> {
    insert_axis(g.exp().named("alpha"), 3) * s
}

/// S + k vᵀ: k [B, H, K], v [B, H, V], S [B, H, K, V].
pub fn add<'t>(k: Var<'t>, v: Var<'t>, s: Var<'t>) -> Var<'t> {
    s + outer(k.named("k"), v.named("v"))
}

/// scale Sᵀ q: q [B, H, K], S [B, H, K, V].
pub fn read<'t>(q: Var<'t>, s: Var<'t>, scale: f64) -> Var<'t> {
    (scale * recall(s, q.named("q"))).named("o")
}

/// S_t = diag(exp(g_t)) S_{t-1} + k_t v_tᵀ, o_t = scale S_tᵀ q_t: q, k [B, T, H, K], v [B, T, H, V], g ≤ 0 [B, T, H, K]
/// or [B, T, H, 1], S [B, H, K, V] to o [B, T, H, V] and the last S.
pub fn gated<'t>(x: [Var<'t>; 4], s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    match form {
        Form::Recurrent => {
            let mut s = s;
            let o = over_time(x[0].shape().at(1), x[2], |t| {
                let [q, k, v, g] = x.map(|x| at(x, t));
                s = add(k, v, fade(g, s));
                read(q, s, scale)
            });
            (o, s)
        }
        Form::Chunked(chunk) => gated_linear_attention(x, s, scale, chunk),
        _ => by_products(x, s, scale, x[0].shape().at(1).max(1)),
    }
}

/// S' = diag(exp(g_t)) S_{t-1}, S_t = S' + k_t (v_t − S'ᵀ p_t)ᵀ, o_t = scale S_tᵀ q_t: q, k, v, p like k, g as in
/// [`gated`].
pub fn erasing<'t>(x: [Var<'t>; 5], s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let [q, k, v, p, g] = x;
    match form {
        Form::Recurrent => erase_write::recurrent([q, k, v, p], Some(g), s, scale),
        Form::Chunked(chunk) => erase_write::chunked(x, s, scale, chunk),
        _ => erase_write::parallel(x, s, scale),
    }
}

/// The same for several steps a token, which is read after the last: a chunk has so many tokens.
pub fn erasing_in_turn<'t>(x: [Var<'t>; 5], n: usize, s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let form = if let Form::Chunked(chunk) = form { Form::Chunked(n * chunk) } else { form };
    let (o, s) = erasing(x, s, scale, form);
    (erase_write::last_of(o, n), s)
}

/// What a token's further steps leave alone: zeros like x.
pub fn nothing(x: Var<'_>) -> Var<'_> {
    x.tape().full(x.shape(), x.dtype(), 0.0)
}

/// The pairs (2j, 2j + 1), j < S, of the last axis, each turned by its angle; later channels stay. The cosines and
/// sines [.., S] fit x [.., K] where their axes are 1.
pub fn turn<'t>(x: Var<'t>, [cos, sin]: [Var<'t>; 2]) -> Var<'t> {
    let (shape, axis, turned) = (x.shape(), x.shape().rank() - 1, 2 * cos.shape().last());
    let outer = &shape.dims()[..axis];
    let pairs = x.narrow(axis, 0, turned).reshape(&[outer, &[turned / 2, 2]].concat()[..]);
    let ([a, b], [cos, sin]) =
        ([0, 1].map(|i| pairs.narrow(axis + 1, i, 1)), [cos, sin].map(|x| insert_axis(x, x.shape().rank())));
    let pairs = Var::concat(&[a * cos - b * sin, a * sin + b * cos], axis + 1).reshape(shape.with(axis, turned));
    Var::concat(&[pairs, x.narrow(axis, turned, shape.last() - turned)], axis)
}

/// The same along the key axis of a state [B, H, K, V]; cosines and sines fit [B, H, S].
pub fn turn_state<'t>(s: Var<'t>, angles: [Var<'t>; 2]) -> Var<'t> {
    turn(s.transpose(2, 3), angles.map(|x| insert_axis(x, x.shape().rank() - 1))).transpose(2, 3)
}

/// A constant on x's tape, of x's type.
pub fn constant<'t>(x: Var<'t>, values: Vec<f64>, shape: &[usize]) -> Var<'t> {
    x.tape().constant(&Tensor::from_vec(values, shape).cast(x.dtype().real())).cast(x.dtype())
}

/// A weight matrix [out, in] of normal numbers, of deviation 0.02 unless the model asks for another.
pub fn narrow_normal(init: &mut Init, name: &str, out: usize, inp: usize) -> P {
    let std = init.std.unwrap_or(0.02);
    init.normal(name, [out, inp], std)
}

/// A mixer's step by its sequence of one token: x [B, D] to y [B, D].
pub fn one_token<'t>(x: Var<'t>, sequence: impl FnOnce(Var<'t>) -> Var<'t>) -> Var<'t> {
    let [b, d] = x.dims();
    sequence(x.reshape([b, 1, d])).reshape([b, d])
}

/// x with the token before each in place of it: `past` [B, 1, D] stands before x [B, T, D].
pub fn shifted<'t>(past: Var<'t>, x: Var<'t>) -> Var<'t> {
    Var::concat(&[past, x], 1).narrow(1, 0, x.shape().at(1))
}

/// The pieces of T steps, of `size` each but for the last: where each begins and how long it is.
pub fn pieces(t: usize, size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..t).step_by(size.max(1)).map(move |from| (from, size.min(t - from)))
}

/// ln(e^a + e^b)
pub fn log_add<'t>(a: Var<'t>, b: Var<'t>) -> Var<'t> {
    let axis = a.shape().rank();
    Var::concat(&[insert_axis(a, axis), insert_axis(b, axis)], axis).logsumexp()
}

/// x, and 0 or 1 where x is not between them.
pub fn clipped(x: Var<'_>) -> Var<'_> {
    1.0 - relu(1.0 - relu(x))
}

/// max(x, 0)
pub fn relu(x: Var<'_>) -> Var<'_> {
    maximum(&[x, nothing(x)])
}

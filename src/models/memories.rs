//! The two matrix memories that most mixers have: one that fades and adds, and one that also erases. Their step with
//! names, and their forms.

use super::{Form, at, gla, over_time_with};
use crate::{
    autograd::Var,
    ops::{
        erase_write,
        gated_linear_attention::{by_products, in_parts},
        words::{insert_axis, outer, recall},
    },
    tensor::Tensor,
};

/// The forms of a mixer whose chunked form is one call of [`gated`].
pub const FORMS: [Form; 4] = [Form::Recurrent, Form::Parallel, Form::Split(2), Form::Chunked(Form::CHUNK)];

/// diag(exp(g)) S: g [B, H, K] or [B, H, 1], S [B, H, K, V].
#[track_caller]
pub fn fade<'t>(g: Var<'t>, s: Var<'t>) -> Var<'t> {
    insert_axis(g.exp().named("alpha"), 3) * s
}

/// S + k vᵀ: k [B, H, K], v [B, H, V], S [B, H, K, V].
#[track_caller]
pub fn add<'t>(k: Var<'t>, v: Var<'t>, s: Var<'t>) -> Var<'t> {
    s + outer(k.named("k"), v.named("v"))
}

/// scale Sᵀ q: q [B, H, K], S [B, H, K, V].
#[track_caller]
pub fn read<'t>(q: Var<'t>, s: Var<'t>, scale: f64) -> Var<'t> {
    (scale * recall(s, q.named("q"))).named("o")
}

/// S_t = diag(exp(g_t)) S_{t-1} + k_t v_tᵀ, o_t = scale S_tᵀ q_t: q, k [B, T, H, K], v [B, T, H, V], g ≤ 0 [B, T, H, K]
/// or [B, T, H, 1], S [B, H, K, V] to o [B, T, H, V] and the last S.
pub fn gated<'t>(x: [Var<'t>; 4], s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    match form {
        Form::Recurrent => {
            let t = x[0].shape().at(1);
            over_time_with(t, x[2], s, |i, s| gla::step(x.map(|x| at(x, i)), s, scale))
        }
        Form::Chunked(_) | Form::Split(_) => in_parts(x, s, scale, form.cut()),
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

/// The pairs (2j, 2j + 1), j < S, of the last axis, each turned by its angle; later channels stay. The cosines and
/// sines [.., S] fit x [.., K] where their axes are 1.
#[track_caller]
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
#[track_caller]
pub fn turn_state<'t>(s: Var<'t>, angles: [Var<'t>; 2]) -> Var<'t> {
    turn(s.transpose(2, 3), angles.map(|x| insert_axis(x, x.shape().rank() - 1))).transpose(2, 3)
}

/// A constant on x's tape, of x's type.
pub fn constant<'t>(x: Var<'t>, values: Vec<f64>, shape: &[usize]) -> Var<'t> {
    x.tape().constant(&Tensor::from_vec(values, shape).cast(x.dtype().real())).cast(x.dtype())
}

/// x with the token before each in place of it: `past` [B, 1, D] stands before x [B, T, D].
#[track_caller]
pub fn shifted<'t>(past: Var<'t>, x: Var<'t>) -> Var<'t> {
    Var::concat(&[past, x], 1).narrow(1, 0, x.shape().at(1))
}

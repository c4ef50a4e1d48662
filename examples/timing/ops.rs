//! The op in which each of nine mixers spends most time, with random inputs of any size. Also used by `benches/cores.rs`.

use super::inputs::Inputs;
use tapezoo::{
    autograd::Var,
    ops::{
        attention::causal_attention, delta::delta_rule, linear_attn::linear_attention, lstm::lstm_sequence,
        mlstm::mlstm, quasi_lstm::quasi_lstm, scan::lru_scan_joined, selective::selective_scan, slstm::slstm_sequence,
    },
    tensor::Tensor,
};

/// Sizes of the inputs.
pub struct Sizes {
    /// B, T, H, K = V of mixers with heads; D = H K of the others.
    pub b: usize,
    pub t: usize,
    pub h: usize,
    pub k: usize,
    /// N of Mamba.
    pub n: usize,
    /// B, T, D of recurrences whose gates see the state.
    pub recurrent: [usize; 3],
    /// Chunk size, for cores with chunks.
    pub chunk: usize,
    /// Random numbers that are drawn for a tensor, and then repeated.
    pub block: usize,
}

/// An op on a tape: the outputs that a model uses.
pub type Run = Box<dyn for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>>;

/// An op with inputs for it.
pub struct Core {
    pub x: Vec<Tensor>,
    pub run: Run,
}

/// 1/√K of q [B, T, H, K].
fn scale(q: Var<'_>) -> f64 {
    (q.shape().last() as f64).powf(-0.5)
}

/// The core of the mixer of this name.
pub fn core(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    match name {
        "lstm" | "slstm" => recurrent(name, g, s),
        "quasi_lstm" | "lru" | "mamba" => scans(name, g, s),
        _ => memories(name, g, s),
    }
}

/// Cores whose gates see the state: lstm and slstm.
fn recurrent(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    let [b, t, d] = s.recurrent;
    let x = g.normal([b, t, 4 * d], 1.0);
    let weight = |n: usize| (n as f64).powf(-0.5);
    match name {
        "lstm" => Core {
            x: vec![x, g.normal([4 * d, d], weight(d)), g.zeros([b, d]), g.zeros([b, d])],
            run: Box::new(move |x| vec![lstm_sequence(x[0], x[1], x[2], x[3]).0]),
        },
        _ => {
            let r = g.normal([4, d / s.k, s.k, s.k], weight(s.k));
            let state = (0..5).map(|_| g.zeros([b, d]));
            Core {
                x: [x, r].into_iter().chain(state).collect(),
                run: Box::new(move |x| vec![slstm_sequence(x[0], x[1], [x[2], x[3], x[4], x[5], x[6]]).0]),
            }
        }
    }
}

/// Linear scans with one number per channel (quasi_lstm, lru) or N numbers (mamba).
fn scans(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    let (b, t, d, n, chunk) = (s.b, s.t, s.h * s.k, s.n, s.chunk);
    match name {
        "quasi_lstm" => Core {
            x: vec![g.normal([b, t, 4 * d], 1.0), g.zeros([b, d])],
            run: Box::new(move |x| vec![quasi_lstm(x[0], x[1], 1.0, chunk).0]),
        },
        "lru" => {
            // |λ| = 0.99
            let lambda = [f64::cos, f64::sin].map(|part| {
                let mut i = 0.0;
                g.in_f32(|g| g.draw([d], |_| (i += 1.0, 0.99 * part(i)).1))
            });
            let rest = [g.normal([b, t, 2 * d], 1.0), g.zeros([b, d]), g.zeros([b, d])];
            Core {
                x: lambda.into_iter().chain(rest).collect(),
                run: Box::new(move |x| vec![lru_scan_joined((x[0], x[1]), x[2], (x[3], x[4]), chunk).0]),
            }
        }
        _ => {
            let mut i = 0;
            let a = g.in_f32(|g| g.draw([d, n], |_| (i += 1, -f64::from((i - 1) % 16 + 1)).1));
            let (u, delta) = (g.normal([b, t, d], 1.0), g.range([b, t, d], 0.001, 0.1));
            let (b_in, c_out) = (g.normal([b, t, n], 1.0), g.normal([b, t, n], 1.0));
            Core {
                x: vec![u, delta, a, b_in, c_out, g.zeros([b, d, n])],
                run: Box::new(move |x| vec![selective_scan(x[0], x[1], x[2], x[3], x[4], x[5], 1.0, chunk).0]),
            }
        }
    }
}

/// Cores with a matrix per head, or all keys and values: linear_transformer, mlstm, delta_net and attention.
fn memories(name: &str, g: &mut Inputs<'_>, s: &Sizes) -> Core {
    let (b, t, h, k, chunk) = (s.b, s.t, s.h, s.k, s.chunk);
    let [q, v] = [(); 2].map(|()| g.normal([b, t, h, k], 1.0));
    let key = g.normal([b, t, h, k], (k as f64).powf(-0.5)); // |k| is about 1
    match name {
        "linear_transformer" => Core {
            x: vec![q, key, v, g.zeros([b, h, k, k])],
            run: Box::new(move |x| vec![linear_attention(x[0], x[1], x[2], x[3], scale(x[0]), chunk).0]),
        },
        "mlstm" => {
            let gates = g.in_f32(|g| [g.normal([b, t, h], 1.0), g.range([b, t, h], 3.0, 6.0)]);
            let memory = [g.zeros([b, h, k, k]), g.zeros([b, h, k]), g.zeros([b, h]), g.zeros([b, h])];
            Core {
                x: [q, key, v].into_iter().chain(gates).chain(memory).collect(),
                run: Box::new(move |x| {
                    let mut memory = [x[5], x[6], x[7], x[8]];
                    vec![mlstm([x[0], x[1], x[2]], [x[3], x[4]], &mut memory, 1e-6, chunk)]
                }),
            }
        }
        "delta_net" => Core {
            x: vec![q, key, v, g.range([b, t, h], 0.0, 1.0), g.zeros([b, h, k, k])],
            run: Box::new(move |x| vec![delta_rule(x[0], x[1], x[2], x[3], x[4], scale(x[0]), chunk).0]),
        },
        _ => Core { x: vec![q, key, v], run: Box::new(move |x| vec![causal_attention(x[0], x[1], x[2], scale(x[0]))]) },
    }
}

//! The parameters that the equations of a page sum over: of gates, mostly.

use super::trace::Series;
use crate::models::{Model, ModelConfig};
use std::{collections::BTreeMap, ops::Range};

/// The most numbers that the weights of a page have.
const MOST: usize = 50_000;

/// A parameter of some mixers, in parts that their equations name.
pub struct Weight {
    mixers: &'static [&'static str],
    param: &'static str,
    part: Part,
    names: &'static [&'static str],
    /// The axes of a part: e is the input's, u a unit that is read, and the others as those of the quantities.
    pub axes: &'static str,
}

/// The axis of a parameter that equal parts are cut from.
#[derive(Clone, Copy)]
enum Part {
    /// All rows.
    All,
    /// These rows.
    Rows(fn(&ModelConfig) -> Range<usize>),
    /// [G, P O, I / G], a block-diagonal map to P parts: each as a whole matrix with its zeros.
    Blocks,
    /// [P, H, K, K], P maps from units to units of the same head: each transposed and whole, with its zeros.
    Units,
    /// Γ [H K, L] of HGRN2: the lower bound of a block's gates.
    Bound,
}

/// The rows of W_in into Δ, and as many more for each further number of a head.
fn after_channels(c: &ModelConfig, states: usize, each: usize) -> Range<usize> {
    let from = 2 * c.inner() + 2 * states;
    from..from + each * c.heads
}

const WEIGHTS: &[Weight] = &[
    all(&["delta_net", "gated_delta_net", "kda", "path"], "w_beta", &["W_β"], "he"),
    all(&["gated_delta_net"], "w_g", &["W_g"], "he"),
    all(&["gated_delta_net", "kda", "mamba2"], "A_log", &["A_log"], "h"),
    all(&["gated_delta_net"], "b_dt", &["b_dt"], "h"),
    all(&["gla", "kda"], "w_g2", &["W_2"], "hiu"),
    all(&["gla"], "b_g", &["b"], "hi"),
    all(&["kda"], "b_dt", &["b_dt"], "hi"),
    part(&["hgrn2"], "w_qfi", Part::Rows(|c| c.inner()..2 * c.inner()), &["W_f"], "hie"),
    part(&["hgrn2"], "bounds", Part::Bound, &["γ"], "hi"),
    part(&["lightnet"], "w_qkv", Part::Rows(|c| c.inner()..2 * c.inner()), &["W_k"], "hie"),
    all(&["mom"], "w_beta", &["W_β"], "me"),
    all(&["mom"], "w_g", &["W_g"], "me"),
    all(&["mom"], "A_log", &["A_log"], "m"),
    all(&["mom"], "b_dt", &["b_dt"], "m"),
    all(&["rwkv7"], "w2", &["W_w2"], "uhi"),
    all(&["rwkv7"], "w0", &["w_0"], "hi"),
    all(&["mamba"], "dt_proj_weight", &["W_dt"], "du"),
    all(&["mamba"], "dt_proj_bias", &["b_dt"], "d"),
    part(&["mamba2"], "in_proj_weight", Part::Rows(|c| after_channels(c, c.state, 1)), &["W_dt"], "he"),
    part(
        &["mamba3"],
        "in_proj_weight",
        Part::Rows(|c| after_channels(c, c.state.next_multiple_of(2), 3)),
        &["W_δ", "W_a", "W_λ"],
        "he",
    ),
    all(&["mamba2", "mamba3"], "dt_bias", &["b_dt"], "h"),
    all(&["ttt"], "w_lr", &["w_ℓ"], "he"),
    all(&["ttt"], "b_lr", &["b_ℓ"], "h"),
    all(&["seqboat"], "w_route", &["W_π0", "W_π1"], "e"),
    all(&["seqboat"], "tau", &["τ"], "d"),
    all(&["delta_product"], "w_beta", &["W_β"], "phe"),
    all(&["path"], "b_beta", &["b_β"], "h"),
    all(&["fox"], "w_f", &["w_f"], "he"),
    all(&["fox"], "b_f", &["b_f"], "h"),
    all(&["gsa"], "w_f", &["W_f"], "hme"),
    all(&["titans"], "w_rates", &["W_θ", "W_η", "W_α"], "he"),
    all(&["titans"], "b_rates", &["b_θ", "b_η", "b_α"], "h"),
    all(&["lstm"], "w_ih", &["W_ii", "W_if", "W_ig", "W_io"], "de"),
    all(&["lstm"], "w_hh", &["W_hi", "W_hf", "W_hg", "W_ho"], "du"),
    all(&["lstm"], "b_ih", &["b_ii", "b_if", "b_ig", "b_io"], "d"),
    all(&["lstm"], "b_hh", &["b_hi", "b_hf", "b_hg", "b_ho"], "d"),
    all(&["quasi_lstm"], "w", &["W_f", "W_i", "W_z", "W_o"], "de"),
    all(&["quasi_lstm"], "b", &["b_f", "b_i", "b_z", "b_o"], "d"),
    part(&["slstm"], "w_if", Part::Blocks, &["W_i", "W_f"], "de"),
    part(&["slstm"], "w_zo", Part::Blocks, &["W_z", "W_o"], "de"),
    part(&["slstm"], "r", Part::Units, &["R_i", "R_f", "R_z", "R_o"], "du"),
    all(&["slstm"], "bias", &["b_i", "b_f", "b_z", "b_o"], "d"),
    all(&["mlstm"], "w_if", &["W_i", "W_f"], "hu"),
    all(&["mlstm"], "b_if", &["b_i", "b_f"], "h"),
];

const fn all(
    mixers: &'static [&'static str],
    param: &'static str,
    names: &'static [&'static str],
    axes: &'static str,
) -> Weight {
    part(mixers, param, Part::All, names, axes)
}

const fn part(
    mixers: &'static [&'static str],
    param: &'static str,
    part: Part,
    names: &'static [&'static str],
    axes: &'static str,
) -> Weight {
    Weight { mixers, param, part, names, axes }
}

/// The parameter of a mixer that has a part of this name.
pub fn named(mixer: &str, name: &str) -> Option<&'static Weight> {
    WEIGHTS.iter().find(|w| w.mixers.contains(&mixer) && w.names.contains(&name))
}

/// Of each of so many blocks, the parameters that its equations name; none if they are too many.
pub fn of(model: &Model, blocks: usize) -> Vec<BTreeMap<String, Series>> {
    let (c, entries, flat) = (model.config(), model.params().entries(), model.params().flat().to_f64());
    let block = |l: usize| -> BTreeMap<String, Series> {
        let own = WEIGHTS.iter().filter(|w| w.mixers.contains(&c.mixer.as_str()));
        let parts = own.flat_map(|w| {
            // A parameter that all blocks share has the name of the first.
            let of = |l: usize| entries.iter().find(|e| e.name == format!("blocks.{l}.mixer.{}", w.param));
            let entry = of(l).or_else(|| of(0));
            entry.map(|e| w.parts(c, l, e.shape.dims(), &flat[e.offset..][..e.shape.len()])).unwrap_or_default()
        });
        parts.collect()
    };
    let all: Vec<_> = (0..blocks).map(block).collect();
    let numbers: usize = all.iter().flat_map(BTreeMap::values).map(|s| s.data.len()).sum();
    if numbers == 0 || numbers > MOST { vec![] } else { all }
}

impl Weight {
    /// The parts by name, of a parameter of block l.
    fn parts(&self, c: &ModelConfig, l: usize, dims: &[usize], all: &[f64]) -> Vec<(String, Series)> {
        let row = all.len() / dims[0];
        let numbers = match self.part {
            Part::All => all.to_vec(),
            Part::Rows(of) => all[of(c).start * row..of(c).end * row].to_vec(),
            Part::Blocks => {
                let (g, o, n) = (dims[0], dims[1] / self.names.len(), dims[2]);
                whole([self.names.len(), g, o, n], |p, g, row, i| all[(g * dims[1] + p * o + row) * n + i])
            }
            Part::Units => whole([dims[0], dims[1], dims[3], dims[2]], |p, h, o, i| {
                all[((p * dims[1] + h) * dims[2] + i) * dims[3] + o]
            }),
            Part::Bound => all.chunks(row).map(|gamma| bound(gamma, l)).collect(),
        };
        let n = numbers.len() / self.names.len();
        let known = |letter: char| match letter {
            'h' => Some(c.heads),
            'i' => Some(c.head_dim),
            'e' => Some(c.width),
            'u' if matches!(self.part, Part::Units) => Some(c.inner()),
            'u' if self.axes.ends_with('u') => dims.last().copied(),
            _ => None,
        };
        let rest = n / self.axes.chars().filter_map(known).product::<usize>();
        let shape: Vec<usize> = self.axes.chars().map(|letter| known(letter).unwrap_or(rest)).collect();
        let series = |(name, part): (&&str, &[f64])| {
            (name.to_string(), Series { shape: shape.clone(), data: part.iter().map(|&x| x as f32).collect() })
        };
        self.names.iter().zip(numbers.chunks(n)).map(series).collect()
    }
}

/// P block-diagonal matrices of G blocks [O, I] as whole ones [G O, G I].
fn whole([p, g, o, i]: [usize; 4], at: impl Fn(usize, usize, usize, usize) -> f64) -> Vec<f64> {
    let cell = |x: usize| {
        let (column, row, p) = (x % (g * i), x / (g * i) % (g * o), x / (g * i * g * o));
        if column / i == row / o { at(p, row / o, row % o, column % i) } else { 0.0 }
    };
    (0..p * g * o * g * i).map(cell).collect()
}

/// p_1 + … + p_l with p = softmax(Γ), of a channel.
fn bound(gamma: &[f64], l: usize) -> f64 {
    let most = gamma.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = |of: &[f64]| of.iter().map(|x| (x - most).exp()).sum::<f64>();
    sum(&gamma[1..=l]) / sum(gamma)
}

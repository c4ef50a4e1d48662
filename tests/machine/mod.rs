//! A mixer whose weights are set by hand, and sequences to run it on.
#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "not every test file needs all of it")]

use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{Eigenvalues, Form, Init, Mixer, ModelConfig, Params, State, find, run},
    tensor::{DType, Tensor},
};

/// The tokens of a long sequence.
pub const LONG: usize = 100_000;

/// A mixer over one-hot tokens, whose weights are set by name.
pub struct Machine {
    mixer: Box<dyn Mixer>,
    params: Params,
    /// The number of different tokens, which is the width.
    width: usize,
}

impl Machine {
    /// All weights zero, for two tokens.
    pub fn new(name: &str, eigenvalues: Eigenvalues, sizes: ModelConfig) -> Machine {
        Machine::over(2, name, eigenvalues, sizes)
    }

    /// All weights zero, for so many tokens.
    pub fn over(width: usize, name: &str, eigenvalues: Eigenvalues, sizes: ModelConfig) -> Machine {
        Machine::drawn(width, name, eigenvalues, sizes, 0, 0.0)
    }

    /// For so many tokens: `scale` times the weights that training starts from.
    pub fn drawn(
        width: usize,
        name: &str,
        eigenvalues: Eigenvalues,
        sizes: ModelConfig,
        seed: u64,
        scale: f32,
    ) -> Machine {
        let config = ModelConfig { mixer: name.into(), eigenvalues, width, ..sizes };
        config.check().unwrap();
        let mut init = Init::new(seed, None);
        let mixer = find(name).unwrap()(&config, &mut init).unwrap();
        let mut params = init.finish(DType::F32);
        params.flat_mut().host_mut::<f32>().iter_mut().for_each(|w| *w *= scale);
        Machine { mixer, params, width }
    }

    /// Replace a weight's zeros by these values.
    pub fn set(mut self, name: &str, values: &[f32]) -> Machine {
        let entry = self.params.entries().iter().find(|e| e.name == name).unwrap_or_else(|| panic!("no '{name}'"));
        let (at, n) = (entry.offset, entry.shape.len());
        assert_eq!(values.len(), n, "{name} {}", entry.shape);
        self.params.flat_mut().host_mut::<f32>()[at..at + n].copy_from_slice(values);
        self
    }

    /// The first of the outputs for every token, computed in pieces of `piece` tokens that share a tape's memory.
    pub fn outputs(&self, tokens: &[u8], form: Form, piece: usize) -> Vec<f32> {
        let mut tape = Tape::default();
        let mut carried: Option<Vec<Tensor>> = None;
        let mut out = Vec::with_capacity(tokens.len());
        for (i, tokens) in tokens.chunks(piece).enumerate() {
            let (y, s) = self.piece(&mut tape, tokens, i * piece, carried.as_deref(), form);
            out.extend(y);
            carried = Some(s);
        }
        out
    }

    /// The same for the tokens from `at` on, and the state after them, from the state before them (none: the first).
    pub fn piece(
        &self,
        tape: &mut Tape,
        tokens: &[u8],
        at: usize,
        carried: Option<&[Tensor]>,
        form: Form,
    ) -> (Vec<f32>, Vec<Tensor>) {
        let (y, s): (Vec<f32>, Vec<Tensor>) = {
            let tape = &*tape;
            let p = self.params.bind_frozen(tape);
            let mut state = match carried {
                None => State::zero(self.mixer.as_ref(), tape, 1, DType::F32),
                Some(s) => State::of(at, s.iter().map(|s| tape.constant(s)).collect()),
            };
            let y = run(self.mixer.as_ref(), &p, tape.constant(&one_hot_of(self.width, tokens)), &mut state, form);
            let copy = |v: &Var| Tensor::from_vec(v.value().host::<f32>().to_vec(), v.shape());
            (y.value().host::<f32>().to_vec(), state.s.iter().map(copy).collect())
        };
        tape.reset();
        (y.chunks(self.width).map(|y| y[0]).collect(), s)
    }

    /// Every way to compute it: form and piece length. Forms that hold a T × T matrix use short pieces.
    pub fn ways(&self) -> Vec<(Form, usize)> {
        let quadratic = self.mixer.state(1)[0].0 == "S";
        let mut all = vec![(Form::Recurrent, 1)];
        for form in self.mixer.forms() {
            match form {
                Form::Recurrent => {}
                Form::Parallel if quadratic => all.push((form, 125)),
                Form::Chunked(c) | Form::Split(c) | Form::Scan(c) => {
                    all.extend([(form, LONG), (form, 777), (form.with_steps(2 * c + 1), LONG)]);
                }
                _ => all.extend([(form, LONG), (form, 777)]),
            }
        }
        all
    }
}

/// One-hot tokens [1, T, 2].
pub fn one_hot(tokens: &[u8]) -> Tensor {
    one_hot_of(2, tokens)
}

/// One-hot tokens [1, T, n].
fn one_hot_of(n: usize, tokens: &[u8]) -> Tensor {
    let one = |token: u8| (0..n).map(move |i| f32::from(u8::from(i == usize::from(token))));
    Tensor::from_vec(tokens.iter().flat_map(|&token| one(token)).collect::<Vec<f32>>(), [1, tokens.len(), n])
}

/// Fair coins.
pub fn bits(n: usize, seed: u64) -> Vec<u8> {
    let mut g = Gen::new(seed);
    (0..n).map(|_| u8::from(g.coin())).collect()
}

/// Running sums modulo m.
pub fn sums(tokens: &[u8], m: u32) -> Vec<u32> {
    tokens.iter().scan(0, |s, &b| Some(std::mem::replace(s, (*s + u32::from(b)) % m)).map(|_| *s)).collect()
}

/// The share of right answers of the best rule 'odd above this threshold' or 'odd below it': no monotone readout can do
/// better.
pub fn best_threshold(y: &[f32], odd: &[u32]) -> f64 {
    let mut pairs: Vec<(f32, u32)> = y.iter().copied().zip(odd.iter().copied()).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ones = pairs.iter().filter(|p| p.1 == 1).count();
    let (n, mut below_even, mut below_odd, mut best) = (pairs.len(), 0, 0, 0);
    for (i, p) in pairs.iter().enumerate() {
        if i == 0 || pairs[i - 1].0 < p.0 {
            let above = below_even + (ones - below_odd);
            best = best.max(above).max(n - above);
        }
        if p.1 == 1 { below_odd += 1 } else { below_even += 1 }
    }
    best.max(ones).max(n - ones) as f64 / n as f64
}

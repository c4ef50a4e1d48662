//! A mixer of your own: written here, checked, trained and compared, without a change to the library.
//!
//! ```text
//! a_t = tanh(W_a x_t)            gate, from −1 to 1; or σ(W_a x_t), from 0 to 1
//! h_t = a_t ⊙ h_{t-1} + W_u x_t  state
//! y_t = W_y h_t
//! ```
//! Parity needs a state that can flip its sign (Grazzi et al. 2025, arXiv 2411.12537): which of the two gates learns
//! it?
//!
//! cargo run --release --example own_mixer
//!
//! With arguments it is the program `tapezoo`, which has one mixer more:
//!
//! cargo run --release --example own_mixer -- train --models gated,lstm --steps 500

use std::{env, error::Error, process::ExitCode, sync::Arc};
use tapezoo::{
    autograd::Var,
    check, cli,
    models::{self, Bound, Form, Init, Mixer, Model, ModelConfig, P, State},
    ops::scan::linear_scan,
    tasks::Parity,
    tensor::{DType, Shape},
    train::{Trainer, config::TrainConfig},
};

struct Gated {
    width: usize,
    signed: bool,
    w_a: P,
    w_u: P,
    w_y: P,
}

impl Gated {
    fn new(c: &ModelConfig, init: &mut Init, signed: bool) -> tapezoo::error::Result<Gated> {
        let mut square = |name| init.linear(name, c.width, c.width);
        Ok(Gated { width: c.width, signed, w_a: square("w_a"), w_u: square("w_u"), w_y: square("w_y") })
    }

    /// a and u of x, at one position or at all.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> (Var<'t>, Var<'t>) {
        let a = x.linear(p[self.w_a], None);
        (if self.signed { a.tanh() } else { a.sigmoid() }, x.linear(p[self.w_u], None))
    }
}

impl Mixer for Gated {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Scan(Form::CHUNK)]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("h", [b, self.width].into())]
    }

    /// The definition: one token.
    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let (a, u) = self.project(p, x);
        state.s[0] = a * state.s[0] + u;
        state.s[0].linear(p[self.w_y], None)
    }

    /// The same for all tokens at once, by an op that has a fast kernel.
    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let Form::Scan(chunk) = form else { unreachable!("not in `forms`") };
        let (a, u) = self.project(p, x);
        let (h, last) = linear_scan(a, u, state.s[0], chunk);
        state.s[0] = last;
        h.linear(p[self.w_y], None)
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if env::args().len() > 1 {
        models::add("gated", |c, init| Ok(Box::new(Gated::new(c, init, true)?)));
        return Ok(cli::tapezoo());
    }
    let settings: TrainConfig = "train_len = 16\neval_lens = [16, 64, 256]\nsteps = 400\nwarmup = 20".parse()?;
    for signed in [false, true] {
        let name = if signed { "gate in -1..1" } else { "gate in 0..1" };
        let build = |c: &ModelConfig, init: &mut Init| Gated::new(c, init, signed);
        let config = ModelConfig { mixer: name.into(), width: 16, layers: 1, mlp: 32, ..ModelConfig::default() };
        check::mixer(&ModelConfig { width: 4, ..config.clone() }, build)?;

        let model = Model::with_mixer(&config, build, 0, DType::F32)?;
        let mut trainer = Trainer::with(&settings, model, Arc::new(Parity::default()), 0)?;
        let losses = (0..400).map(|_| Ok(trainer.step()?.loss)).collect::<tapezoo::error::Result<Vec<f64>>>()?;
        println!("{name}: checked; loss {:.3} → {:.4}", losses[0], losses[399]);
        for (len, accuracy) in trainer.evaluate()?.0 {
            println!("    accuracy at length {len:>3}: {accuracy:.3}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

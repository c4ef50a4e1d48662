//! The registered mixers, with states, inputs and parameters at their edges, and whole models, published ones too.

use crate::{
    Draw,
    draw::{Size, normal, pick, rows, tensor},
    judge::{Core, Input, Role, formula},
};
use std::sync::Arc;
use tapezoo::{
    autograd::Gen,
    models::{
        Bound, Build, Eigenvalues, Form, Init, MIXERS, Model, ModelConfig, Params, Positions, State, Variant, names,
        published, run,
    },
    tensor::{DType, Tensor},
};

/// All mixers by name.
pub fn all() -> Vec<(&'static str, Draw)> {
    let draw = |build: Build| -> Draw { Box::new(move |g, size| mixer(build, g, size)) };
    MIXERS.iter().map(|&(name, build)| (name, draw(build))).collect()
}

/// All whole models by name, ours and then the published ones.
pub fn models() -> Vec<(&'static str, Draw)> {
    let draw = |name: &'static str, variant| -> Draw { Box::new(move |g, size| model(name, variant, g, size)) };
    let ours = names().into_iter().map(|name| (name, draw(name, Variant::Clean)));
    ours.chain(published::names().into_iter().map(|name| (name, draw(name, Variant::Published)))).collect()
}

/// Sizes with widths on both sides of the kernels' limits.
fn config(g: &mut Gen, z: Size) -> ModelConfig {
    ModelConfig {
        width: pick(g, &[1, 3, 4, 8, 16, 17]),
        heads: z.h.min(3),
        head_dim: if z.h > 1 { z.k.min(17) } else { z.k },
        state: z.n.min(16),
        conv: g.below(4),
        expand: g.size(2),
        dt_rank: g.size(2),
        householders: g.size(3),
        eigenvalues: if g.coin() { Eigenvalues::Positive } else { Eigenvalues::Signed },
        ..ModelConfig::default()
    }
}

/// One parameter as training may leave it: without effect, or so large that it saturates an activation. Logarithms of
/// rates may make a rate zero or infinite in single precision.
fn unusual(g: &mut Gen, name: &str, x: &Tensor, what: &mut String) -> Tensor {
    let name = name.rsplit('.').next().unwrap_or(name);
    let log = ["A_log", "nu_log", "log_a_real", "log_dt"].contains(&name);
    let bias = name.starts_with('b') || name.contains("bias");
    let value = match (log, bias) {
        (true, _) => pick(g, &[-100.0, 5.0, 100.0]),
        (_, true) => pick(g, &[0.0, -30.0, 100.0, -100.0, -200.0]),
        _ => pick(g, &[0.0, 1e-20]),
    };
    let all = g.coin();
    *what += &format!(", {}{name} = {value:e}", if all { "" } else { "some of " });
    let v = x.to_f64().into_iter().map(|x| if all || g.coin() { f64::from(value as f32) } else { x });
    Tensor::from_vec(v.collect(), x.shape())
}

/// The parameters as inputs: away from symmetric initial values, where a wrong term may vanish, and this many of them
/// unusual.
fn parameters(g: &mut Gen, params: &Params, odd: usize, what: &mut String) -> Vec<Input> {
    let entries: Vec<(&str, Tensor)> = params.tensors().collect();
    let odd: Vec<usize> = (0..odd).map(|_| g.below(entries.len())).collect();
    let mut inputs = vec![];
    for (i, (name, p)) in entries.into_iter().enumerate() {
        let noise = normal(g, p.shape()).to_f64();
        let v = p.to_f64().into_iter().zip(noise).map(|(x, noise)| f64::from((x + 0.3 * noise) as f32)).collect();
        let p = Tensor::from_vec(v, p.shape());
        let value = if odd.contains(&i) { unusual(g, name, &p, what) } else { p };
        inputs.push(Input { name: name.into(), value, role: Role::Weighs, timed: false, fixed: false });
    }
    inputs
}

/// A whole model on tokens.
fn model(name: &str, variant: Variant, g: &mut Gen, z: Size) -> Core {
    let positions = pick(g, &[Positions::None, Positions::Learned, Positions::Sinusoidal]);
    let c = ModelConfig {
        mixer: name.into(),
        variant,
        positions,
        width: pick(g, &[4, 16]),
        heads: 2,
        head_dim: pick(g, &[4, 9, 17]),
        state: z.n,
        conv: 2,
        mlp: 5,
        max_len: 128,
        ..ModelConfig::default()
    };
    // Not all published models take positions. A state has the precision of its model.
    let new = |dtype| {
        let without = ModelConfig { positions: Positions::None, ..c.clone() };
        Model::new(&c, 3, dtype).or_else(|_| Model::new(&without, 3, dtype)).unwrap()
    };
    let (single, model) = (new(DType::F32), new(DType::F64));
    // Gates of the published DeltaNet have no bound, and its states may then grow without bound.
    let grows = variant == Variant::Published && name == "delta_net";
    let t = if grows { z.t.min(8) } else { z.t } / 8 * 8;
    let tokens = g.ints([z.b, t], 2);
    let c = model.config();
    let mut what = format!(
        "b {} t {t} width {} heads of {} state {} positions {}",
        z.b, c.width, c.head_dim, c.state, c.positions
    );
    let odd = if grows { 0 } else { g.below(3) };
    let inputs = parameters(g, model.params(), odd, &mut what);
    let forms = model.forms().into_iter().filter(|&form| form != Form::Recurrent);
    Core {
        deep: true,
        inputs,
        outputs: vec![("logits".into(), true)],
        forms: forms.map(|form| form.with_steps(z.chunk)).collect(),
        run: formula(move |v, form| {
            let model = if v[0].dtype() == DType::F32 { &single } else { &model };
            let tokens = v[0].tape().constant(&tokens);
            vec![model.forward(&Bound::new(v.to_vec()), tokens, form)]
        }),
        what,
    }
}

fn mixer(build: Build, g: &mut Gen, z: Size) -> Core {
    let c = config(g, z);
    let mut init = Init::new(7, None);
    let mixer = Arc::new(build(&c, &mut init).unwrap());
    let params = init.finish(DType::F64);
    let mut what = format!(
        "b {} t {} width {} heads {} of {} state {} conv {} expand {} rank {} householders {} eigenvalues {} chunk {}",
        z.b,
        z.t,
        c.width,
        c.heads,
        c.head_dim,
        c.state,
        c.conv,
        c.expand,
        c.dt_rank,
        c.householders,
        c.eigenvalues,
        z.chunk
    );
    let odd = g.below(3);
    let parameters = parameters(g, &params, odd, &mut what);
    // The gradient of an infinite rate leaves no room for other large numbers.
    let sizes = if what.contains("A_log = 1e2") { &[1e-20, 1e-4][..] } else { &[1e-20, 1e-4, 1e2, 1e3] };
    let x = rows(g, "x", [z.b, z.t, c.width], sizes, &mut what);
    let mut inputs = vec![Input { name: "x".into(), value: x, role: Role::Times, timed: true, fixed: false }];
    // A state as before the first token (zeros), or as after some tokens.
    let fresh = g.coin();
    what += if fresh { ", fresh" } else { "" };
    let states = mixer.state(z.b);
    for (name, shape) in &states {
        let shape = if !fresh && shape.rank() == 4 && shape.at(1) == 0 { shape.with(1, 2) } else { *shape };
        let value = tensor(g, shape, |g| if fresh { 0.0 } else { g.uniform(0.1, 0.9) });
        inputs.push(Input { name: (*name).into(), value, role: Role::Adds, timed: false, fixed: fresh });
    }
    inputs.extend(parameters);
    let mut outputs = vec![("y".to_string(), true)];
    outputs.extend(states.iter().map(|(name, _)| (format!("last {name}"), false)));
    let forms = mixer.forms().into_iter().filter(|&form| form != Form::Recurrent);
    let forms = forms.map(|form| form.with_steps(z.chunk)).collect();
    let n = states.len();
    Core {
        deep: true,
        inputs,
        outputs,
        forms,
        run: formula(move |v, form| {
            let p = Bound::new(v[1 + n..].to_vec());
            let mut s = State::of(0, v[1..1 + n].to_vec());
            let y = run(mixer.as_ref().as_ref(), &p, v[0], &mut s, form);
            assert_eq!(s.t, v[0].shape().at(1), "tokens counted");
            [vec![y], s.s].concat()
        }),
        what,
    }
}

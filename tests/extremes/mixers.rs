//! The registered mixers, with states, inputs and parameters at their edges.

use crate::{
    Draw,
    draw::{Size, normal, pick, rows, tensor},
    judge::{Core, Input, Role, formula},
};
use std::sync::Arc;
use tapezoo::{
    autograd::Gen,
    models::{Bound, Build, Eigenvalues, Form, Init, MIXERS, ModelConfig, State, run},
    tensor::{DType, Tensor},
};

/// All mixers by name.
pub fn all() -> Vec<(&'static str, Draw)> {
    let draw = |build: Build| -> Draw { Box::new(move |g, size| mixer(build, g, size)) };
    MIXERS.iter().map(|&(name, build)| (name, draw(build))).collect()
}

/// Sizes in which widths are on both sides of what a kernel takes.
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

/// One parameter as training may leave it: without effect, or so large that what it feeds is saturated. Logarithms of
/// rates go where a rate is zero or infinite in single precision.
fn unusual(g: &mut Gen, name: &str, x: &Tensor, what: &mut String) -> Tensor {
    let log = ["A_log", "nu_log"].contains(&name);
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
    let mut inputs = vec![Input {
        name: "x".into(),
        value: rows(g, "x", [z.b, z.t, c.width], &[1e-20, 1e-4, 1e2, 1e4], &mut what),
        role: Role::Times,
        timed: true,
        fixed: false,
    }];
    // A state as before the first token, which is zeros, or as after some.
    let fresh = g.coin();
    what += if fresh { ", fresh" } else { "" };
    let states = mixer.state(z.b);
    for (name, shape) in &states {
        let shape = if !fresh && shape.rank() == 4 && shape.at(1) == 0 { shape.with(1, 2) } else { *shape };
        let value = tensor(g, shape, |g| if fresh { 0.0 } else { g.uniform(0.1, 0.9) });
        inputs.push(Input { name: (*name).into(), value, role: Role::Adds, timed: false, fixed: fresh });
    }
    let entries: Vec<(String, Tensor)> = params.tensors().map(|(e, p)| (e.to_string(), p)).collect();
    let odd: Vec<usize> = (0..g.below(3)).map(|_| g.below(entries.len())).collect();
    for (i, (name, p)) in entries.into_iter().enumerate() {
        // Away from symmetric initial values, where a wrong term may vanish.
        let noise = normal(g, p.shape()).to_f64();
        let v = p.to_f64().into_iter().zip(noise).map(|(x, noise)| f64::from((x + 0.3 * noise) as f32)).collect();
        let p = Tensor::from_vec(v, p.shape());
        let value = if odd.contains(&i) { unusual(g, &name, &p, &mut what) } else { p };
        inputs.push(Input { name, value, role: Role::Weighs, timed: false, fixed: false });
    }
    let mut outputs = vec![("y".to_string(), true)];
    outputs.extend(states.iter().map(|(name, _)| (format!("last {name}"), false)));
    let forms = mixer.forms().into_iter().filter(|&form| form != Form::Recurrent);
    let forms = forms.map(|form| if let Form::Chunked(_) = form { Form::Chunked(z.chunk) } else { form }).collect();
    let n = states.len();
    Core {
        deep: true,
        inputs,
        outputs,
        forms,
        run: formula(move |v, form| {
            let p = Bound::new(v[1 + n..].to_vec());
            let mut s = State { t: 0, s: v[1..1 + n].to_vec() };
            let y = run(mixer.as_ref().as_ref(), &p, v[0], &mut s, form);
            assert_eq!(s.t, v[0].shape().at(1), "tokens counted");
            [vec![y], s.s].concat()
        }),
        what,
    }
}

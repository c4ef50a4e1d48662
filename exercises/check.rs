//! What the checks of the exercises are made of. An exercise calls [`run`] with its checks, each a sentence and a
//! function; a check that fails says what was expected, what came, and where.

use std::{
    panic::{self, PanicHookInfo},
    path::Path,
    process::ExitCode,
    sync::Mutex,
};
use tapezoo::{
    autograd::{Gen, Kernels, Tape, Var},
    cuda::{
        Arg, Launch, Module,
        counters::{self, Counts},
        emulator::{self, Options, Order},
    },
    error::quietly,
    tensor::{Cx, DType, Device, Tensor},
    verify::Fixture,
};

/// Nothing, or a sentence with what is wrong.
pub type Checked = Result<(), String>;

/// A formula: from inputs on a tape to outputs.
pub type Formula<'f> = &'f dyn for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>;

/// A tensor of an exercise: its name, and the letters of its axes.
pub type Named = (&'static str, &'static str);

/// What a check finds out, and how.
pub type Check = (&'static str, fn() -> Checked);

/// Runs the checks in order, up to the first that fails.
pub fn run(checks: &[Check]) -> ExitCode {
    static PANIC: Mutex<String> = Mutex::new(String::new());
    let keep = |info: &PanicHookInfo| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let what = text.or_else(|| payload.downcast_ref().copied()).unwrap_or("it panicked");
        if let Ok(mut kept) = PANIC.lock() {
            *kept = match what.strip_prefix("not yet implemented: ") {
                Some(hole) => format!("the hole is still open: {hole}\nat {place}"),
                None => format!("{what}\nat {place}"),
            };
        }
    };
    panic::set_hook(Box::new(keep));
    for (what, check) in checks {
        let found =
            panic::catch_unwind(check).unwrap_or_else(|_| Err(PANIC.lock().map_or("".into(), |why| why.clone())));
        if let Err(why) = found {
            println!("FAIL  {what}");
            why.lines().flat_map(wrapped).for_each(|line| println!("      {line}"));
            return ExitCode::FAILURE;
        }
        println!("ok    {what}");
    }
    ExitCode::SUCCESS
}

/// A line as several of 72 characters at most, if words are not longer.
fn wrapped(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(line) if last == 0 || last + 1 + word.chars().count() <= 72 => {
                *line += if last == 0 { "" } else { " " };
                *line += word;
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// A check of one fact: `why` says what is wrong if it does not hold.
pub fn that(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

/// That two numbers agree.
pub fn close(what: &str, came: f64, expected: f64) -> Checked {
    let near = came == expected || (came - expected).abs() <= 1e-9 * expected.abs().max(1e-300);
    that(near, || format!("{what}: expected {expected:.6e}, and {came:.6e} came"))
}

/// That two tensors agree to `tolerance` of the largest element. NaN agrees with nothing.
pub fn same((name, axes): (&str, &str), came: &Tensor, expected: &Tensor, tolerance: f64) -> Checked {
    let shape = expected.shape();
    if came.shape() != shape {
        return Err(format!("{name} {axes}: expected the shape {shape}, and {} came", came.shape()));
    }
    let (came, expected) = (came.to_f64(), expected.to_f64());
    let size = expected.iter().filter(|x| x.is_finite()).fold(1e-6, |m: f64, x| m.max(x.abs()));
    let wrong = |i: &usize| {
        let near = came[*i] == expected[*i] || (came[*i] - expected[*i]).abs() <= tolerance * size;
        !near
    };
    let all: Vec<usize> = (0..came.len()).filter(wrong).collect();
    let Some(&first) = all.first() else { return Ok(()) };
    let (mut at, mut rest) = (vec![], first);
    for &n in shape.dims().iter().rev() {
        at.insert(0, rest % n);
        rest /= n;
    }
    let (came, expected) = (came[first], expected[first]);
    Err(format!(
        "{name} {axes} of shape {shape}: {} of {} elements are wrong. The first:\n{name}{at:?} should be {expected:.6}, \
         and is {came:.6}",
        all.len(),
        shape.len()
    ))
}

/// Inputs with their names.
pub type Inputs = Vec<(Named, Tensor)>;

/// The outputs of a formula, computed by plain loops, and the gradients of its inputs for random cotangents.
fn everything(f: Formula, inputs: &Inputs, seed: u64) -> [Vec<Tensor>; 2] {
    let tape = Tape::default().with_kernels(Kernels::Plain);
    let x: Vec<Var> = inputs.iter().map(|(_, x)| tape.leaf(x)).collect();
    let (y, mut g) = (f(&x), Gen::new(seed));
    let cotangents: Vec<Tensor> = y.iter().map(|y| g.normal(y.shape())).collect();
    let values = y.iter().map(|y| y.value()).collect();
    tape.backward_from(y.iter().copied().zip(cotangents));
    let gradient = |(x, (_, value)): (&Var, &(Named, Tensor))| {
        x.grad().unwrap_or_else(|| Tensor::zeros(value.shape(), DType::F64))
    };
    [values, x.iter().zip(inputs).map(gradient).collect()]
}

/// That `yours` has the outputs and the gradients of `expected`.
pub fn agree(inputs: &Inputs, outputs: &[Named], yours: Formula, expected: Formula) -> Checked {
    let [values, grads] = everything(expected, inputs, 7);
    let tape = Tape::default();
    let mine = yours(&inputs.iter().map(|(_, x)| tape.leaf(x)).collect::<Vec<_>>());
    that(mine.len() == outputs.len(), || format!("expected {} outputs, and {} came", outputs.len(), mine.len()))?;
    // Values first: of a wrong shape there are no gradients.
    for ((name, y), want) in outputs.iter().zip(&mine).zip(&values) {
        same(*name, &y.value(), want, 1e-9)?;
    }
    for ((((name, axes), _), d), want) in inputs.iter().zip(&everything(yours, inputs, 7)[1]).zip(&grads) {
        same((&format!("d{name}"), axes), d, want, 1e-8)?;
    }
    Ok(())
}

/// That a formula gives the outputs of a golden file, which another implementation has written (`tests/fixtures`).
pub fn golden(file: &str, inputs: &[&str], outputs: &[Named], f: Formula) -> Checked {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(file);
    let read = || {
        let fixture = Fixture::read(&path)?;
        let tensors = |kind: &str, names: &mut dyn Iterator<Item = &str>| {
            names.map(|name| fixture.tensor(&format!("{kind}.{name}")).cloned()).collect::<Result<Vec<_>, _>>()
        };
        Ok((tensors("in", &mut inputs.iter().copied())?, tensors("out", &mut outputs.iter().map(|y| y.0))?))
    };
    let (inputs, expected) = read().map_err(|e: tapezoo::error::Error| e.to_string())?;
    let tape = Tape::default().with_kernels(Kernels::Plain);
    let y = f(&inputs.iter().map(|x| tape.leaf(x)).collect::<Vec<_>>());
    for ((name, y), want) in outputs.iter().zip(y).zip(&expected) {
        same(*name, &y.value(), want, 1e-9).map_err(|why| format!("tests/fixtures/{file}: {why}"))?;
    }
    Ok(())
}

/// A list of numbers as a tensor.
pub fn list(x: &[f64]) -> Tensor {
    Tensor::from_vec(x.to_vec(), [x.len()])
}

/// Runs a kernel on an emulated GPU, on floats `x`, for `out` floats; its further arguments are integers. With `check` the
/// emulator looks for races, and else it counts what the kernel asks a GPU for. A module runs in one of these ways.
pub fn emulated(
    (module, kernel): (&'static Module, &'static str),
    launch: Launch,
    (x, sizes, out): (&[f32], &[i32], usize),
    (check, order): (bool, Order),
) -> Result<(Vec<f32>, Counts), String> {
    emulator::configure(Options { check, order, late: false })?;
    counters::count(!check);
    let cx = Cx::open(Device::Emulated)?;
    let Cx::Cuda(cuda) = &cx else { return Err("an emulated device is one of CUDA".into()) };
    let x = Tensor::from_vec(x.to_vec(), [x.len()]).to_device(&cx);
    let mut y = cuda.temp(DType::F32, out);
    y.fill(0.0);
    counters::take();
    let mut args = tapezoo::args![&x, &mut y].to_vec();
    args.extend(sizes.iter().map(|&n| Arg::from(n)));
    quietly(|| cuda.launch(module, kernel, DType::F32, launch, &args)).map_err(|why| {
        // What the emulator reports names the line of the kernel.
        emulator::fault().unwrap_or(why).replace("src/../exercises/", "exercises/")
    })?;
    let counts = counters::take().pop().map(|launch| launch.1).unwrap_or_default();
    Ok((y.to_host().host::<f32>().to_vec(), counts))
}

//! The launches of the mixers' ops on a device, each forward and backward, at the sizes that kernels are compared at.
//!
//! ```text
//! launches FILE              which kernels, with which arguments, as `scripts/gpu_walk.sh --record` runs it; no GPU
//! launches --measure FILE    what each launch takes on a GPU: medians in milliseconds, added to the file
//!     [TYPE [NAME]]          in this type alone, such as bf16, and of ops with this in their name
//! ```
//!
//! To record, it starts itself once more with the emulator's stand-ins in place of CUDA, which write launches down in place of running
//! them (`TAPEZOO_EMU_RECORD`, cuemu/driver/record.cpp): to the code that launches, that is a GPU of 132 processors. What
//! this program writes between the launches says whose they are.

#[path = "timing/inputs.rs"]
mod inputs;

use inputs::Inputs;
use std::{
    env,
    error::Error,
    ffi::OsString,
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, ExitCode},
};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    cuda::{Gpu, emulator, guarded},
    ops::{
        attention::{causal_attention, fading_attention},
        delta::{delta_rule, gated_delta_rule},
        erase_write,
        gated_linear_attention::gated_linear_attention,
        in_f32,
        linear_attn::linear_attention,
        lru_scan::lru_scan_joined,
        lstm::lstm_sequence,
        mlstm::mlstm,
        quasi_lstm::quasi_lstm,
        scan::linear_scan,
        selective::selective_scan,
        slstm::slstm_sequence,
    },
    tensor::{DType, Device, Shape, Tensor},
};

/// The sizes of an op: B, T, H, K = V, or D = H K; the steps of a chunk; N of Mamba.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    t: usize,
    h: usize,
    k: usize,
    chunk: usize,
    n: usize,
}

const LONG: Sizes = Sizes { b: 8, t: 4096, h: 16, k: 64, chunk: 64, n: 16 };
/// Sizes of recurrences whose gates see the state: D = 512, and sLSTM's heads of 64.
const RECURRENT: Sizes = Sizes { b: 64, t: 512, h: 8, k: 64, chunk: 0, n: 0 };

type Run = Box<dyn for<'t> Fn(&[Var<'t>]) -> Var<'t>>;

/// The values of an input where its op is run and not only recorded.
#[derive(Clone, Copy)]
enum Values {
    Normal(f64),
    Range(f64, f64),
    Zero,
}
use Values::{Normal, Range, Zero};

/// Gates that let most of a state pass.
const GATE: Values = Range(-0.1, 0.0);

type Input<'a> = (&'a [usize], Values);

/// An op: its name with switches, the name by which [`in_f32`] knows it, its inputs, and its output.
struct Op {
    name: &'static str,
    op: &'static str,
    sizes: Sizes,
    inputs: Vec<(Shape, Values)>,
    run: Run,
}

fn op(
    name: &'static str,
    op: &'static str,
    sizes: Sizes,
    inputs: &[Input],
    run: impl for<'t> Fn(&[Var<'t>]) -> Var<'t> + 'static,
) -> Op {
    Op { name, op, sizes, inputs: inputs.iter().map(|(s, v)| (Shape::new(s), *v)).collect(), run: Box::new(run) }
}

fn memories(s: Sizes) -> Vec<Op> {
    let Sizes { b, t, h, k, chunk, .. } = s;
    let (x, gate, state, scale) = (&[b, t, h, k][..], &[b, t, h][..], &[b, h, k, k][..], (k as f64).powf(-0.5));
    let (q, key, v, state) = ((x, Normal(1.0)), (x, Normal(scale)), (x, Normal(1.0)), (state, Zero));
    let (beta, gate, channels, head) = ((gate, Range(0.0, 1.0)), (gate, GATE), (x, GATE), (&[b, t, h, 1][..], GATE));
    let short = Sizes { chunk: 32, ..s };
    let (zeros, zero) = ((&[b, h, k][..], Zero), (&[b, h][..], Zero));
    vec![
        op("linear_attention", "linear_attention", s, &[q, key, v, state], move |x| {
            linear_attention(x[0], x[1], x[2], x[3], scale, chunk).0
        }),
        op("linear_attention, chunk 32", "linear_attention", short, &[q, key, v, state], move |x| {
            linear_attention(x[0], x[1], x[2], x[3], scale, 32).0
        }),
        op("linear_attention, a gate a head", "gated_linear_attention", s, &[q, key, v, head, state], move |x| {
            gated_linear_attention([x[0], x[1], x[2], x[3]], x[4], scale, chunk).0
        }),
        op(
            "linear_attention, a gate a channel",
            "gated_linear_attention",
            s,
            &[q, key, v, channels, state],
            move |x| gated_linear_attention([x[0], x[1], x[2], x[3]], x[4], scale, chunk).0,
        ),
        op("delta_rule", "delta_rule", s, &[q, key, v, beta, state], move |x| {
            delta_rule(x[0], x[1], x[2], x[3], x[4], scale, chunk).0
        }),
        op("delta_rule, chunk 32", "delta_rule", short, &[q, key, v, beta, state], move |x| {
            delta_rule(x[0], x[1], x[2], x[3], x[4], scale, 32).0
        }),
        op("gated_delta_rule", "gated_delta_rule", s, &[q, key, v, beta, state, gate], move |x| {
            gated_delta_rule(x[0], x[1], x[2], x[3], x[5], x[4], scale, chunk).0
        }),
        op("erase_write, a gate a channel", "erase_write", s, &[q, key, v, key, channels, state], move |x| {
            erase_write::chunked([x[0], x[1], x[2], x[3], x[4]], x[5], scale, chunk).0
        }),
        op("mlstm", "mlstm", s, &[q, key, v, beta, (gate.0, Range(3.0, 6.0)), state, zeros, zero, zero], move |x| {
            let mut memory = [x[5], x[6], x[7], x[8]];
            mlstm([x[0], x[1], x[2]], [x[3], x[4]], &mut memory, 1e-6, chunk)
        }),
        op("attention", "attention", s, &[q, q, v], move |x| causal_attention(x[0], x[1], x[2], scale)),
        op("attention, fading", "attention", s, &[q, q, v, gate], move |x| {
            fading_attention([x[0], x[1], x[2], x[3]], scale)
        }),
    ]
}

fn scans(s: Sizes) -> Vec<Op> {
    let Sizes { b, t, h, k, chunk, n } = s;
    let d = h * k;
    let (x, state, narrow) = ((&[b, t, d][..], Normal(1.0)), (&[b, d][..], Zero), (&[b, t, n][..], Normal(1.0)));
    let (dt, a, hidden) = ((x.0, Range(0.001, 0.1)), (&[d, n][..], Range(-16.0, -1.0)), (&[b, d, n][..], Zero));
    let (lambda, weight, taps) = ((&[d][..], Range(-0.7, 0.7)), (&[d][..], Normal(1.0)), (&[d, 4][..], Normal(0.5)));
    vec![
        op("selective_scan", "selective_scan", s, &[x, dt, a, narrow, narrow, hidden], move |x| {
            selective_scan(x[0], x[1], x[2], x[3], x[4], x[5], 1.0, chunk).0
        }),
        op("lru_scan", "lru_scan", s, &[lambda, lambda, (&[b, t, 2 * d], Normal(1.0)), state, state], move |x| {
            lru_scan_joined((x[0], x[1]), x[2], (x[3], x[4]), chunk).0
        }),
        op("quasi_lstm", "quasi_lstm", s, &[(&[b, t, 4 * d], Normal(1.0)), state], move |x| {
            quasi_lstm(x[0], x[1], 1.0, chunk).0
        }),
        op("linear_scan", "linear_scan", s, &[(x.0, Range(0.0, 1.0)), x, state], move |x| {
            linear_scan(x[0], x[1], x[2], chunk).0
        }),
        op("conv, 4 taps", "conv", s, &[x, taps, (&[b, 3, d], Zero)], |x| x[0].causal_conv1d(x[1], None, x[2])),
        op("rms_norm", "rms_norm", s, &[x, weight], |x| x[0].rms_norm(x[1], 1e-5)),
        op("layer_norm", "layer_norm", s, &[x, weight, weight], |x| x[0].layer_norm(x[1], Some(x[2]), 1e-5)),
    ]
}

/// The whole length, and two from which the cost of a step follows, for kernels that are too long to walk.
fn recurrent(s: Sizes) -> Vec<Op> {
    let Sizes { b, h, k, .. } = s;
    let d = h * k;
    let of = |t: usize| {
        let (s, x, state) = (Sizes { t, ..s }, (&[b, t, 4 * d][..], Normal(1.0)), (&[b, d][..], Zero));
        let (w, r) = ((&[4 * d, d][..], Normal(0.04)), (&[4, h, k, k][..], Normal(0.1)));
        [
            op("lstm", "lstm", s, &[x, w, state, state], |x| lstm_sequence(x[0], x[1], x[2], x[3]).0),
            op("slstm", "slstm", s, &[x, r, state, state, state, state, state], |x| {
                slstm_sequence(x[0], x[1], [x[2], x[3], x[4], x[5], x[6]]).0
            }),
        ]
    };
    [s.t, 8, 4].into_iter().flat_map(of).collect()
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Write into the record which op's launches follow.
fn say(record: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(record)?;
    Ok(writeln!(file, "{text}")?)
}

/// The line above the launches of a pass.
fn heading(op: &Op, pass: &str, dtype: DType) -> String {
    let Sizes { b, t, h, k, chunk, n } = op.sizes;
    format!("# {} | {pass} | {dtype} B={b} T={t} H={h} K={k} chunk={chunk} N={n}", op.name)
}

/// The type of an op's i-th input.
fn of(op: &Op, i: usize, dtype: DType) -> DType {
    if in_f32(op.op).contains(&i) { dtype.real() } else { dtype }
}

fn launch(record: &Path, tape: &Tape, op: &Op, dtype: DType) -> Result<()> {
    let new = |shape: &Shape, dtype: DType| tape.cx().pool().get(dtype, *shape);
    let x: Vec<Tensor> = op.inputs.iter().enumerate().map(|(i, (shape, _))| new(shape, of(op, i, dtype))).collect();
    let x: Vec<_> = x.iter().map(|x| tape.leaf(x)).collect();
    say(record, &heading(op, "forward", dtype))?;
    let y = (op.run)(&x);
    say(record, &heading(op, "backward", dtype))?;
    tape.backward_from([(y, new(&y.shape(), y.dtype()))]);
    Ok(())
}

/// How often a pass is measured, after one that is not: it compiles and allocates.
const TIMES: usize = 7;

/// Run a pass several times: the name of each kernel that it launches, and the median of its milliseconds.
fn medians(gpu: &Gpu, mut pass: impl FnMut(&mut dyn FnMut(&mut dyn FnMut()))) -> Vec<(&'static str, f64)> {
    let mut all: Vec<Vec<(&'static str, f64)>> = vec![];
    for _ in 0..=TIMES {
        pass(&mut |work| all.push(gpu.each_launch(work)));
    }
    let first = all.remove(0);
    let median = |i: usize| {
        let mut times: Vec<f64> = all.iter().map(|launches| launches[i].1).collect();
        times.sort_by(f64::total_cmp);
        times[TIMES / 2] * 1e3
    };
    first.iter().enumerate().map(|(i, (kernel, _))| (*kernel, median(i))).collect()
}

fn measure(file: &Path, tape: &mut Tape, op: &Op, dtype: DType) -> Result<()> {
    let gpu = tape.cx().gpu().ok_or("no device")?;
    let mut g = Inputs { tape, dtype, random: Gen::new(0), block: 1 << 18 };
    let draw = |g: &mut Inputs, i: usize, (shape, values): (Shape, Values)| {
        let draw = |g: &mut Inputs| match values {
            Normal(scale) => g.normal(shape, scale),
            Range(low, high) => g.range(shape, low, high),
            Zero => g.zeros(shape),
        };
        if in_f32(op.op).contains(&i) { g.in_f32(draw) } else { draw(g) }
    };
    let x: Vec<Tensor> = op.inputs.iter().enumerate().map(|(i, &input)| draw(&mut g, i, input)).collect();
    tape.reset();
    let forward = medians(&gpu, |timed| {
        let x: Vec<_> = x.iter().map(|x| tape.leaf(x)).collect();
        timed(&mut || {
            (op.run)(&x);
        });
        tape.reset();
    });
    let backward = {
        let x: Vec<_> = x.iter().map(|x| tape.leaf(x)).collect();
        let y = (op.run)(&x);
        let mut g = Inputs { tape, dtype: y.dtype(), random: Gen::new(1), block: 1 << 18 };
        let dy = g.normal(y.shape(), 1.0);
        medians(&gpu, |timed| timed(&mut || tape.backward_from([(y, dy.clone())])))
    };
    for (pass, launches) in [("forward", forward), ("backward", backward)] {
        say(file, &heading(op, pass, dtype))?;
        launches.iter().try_for_each(|(kernel, ms)| say(file, &format!("{kernel} {ms:.4}")))?;
    }
    Ok(())
}

/// Each op in each precision, on a device or its stand-in.
fn every(only: &[OsString], mut one: impl FnMut(&mut Tape, &Op, DType) -> Result<()>) -> Result<()> {
    let ops = [memories(LONG), scans(LONG), recurrent(RECURRENT)];
    let text = |i: usize| only.get(i).and_then(|text| text.to_str());
    for dtype in
        [DType::BF16, DType::F32].into_iter().filter(|dtype| text(0).is_none_or(|only| only == dtype.to_string()))
    {
        for op in ops.iter().flatten().filter(|op| text(1).is_none_or(|only| op.name.contains(only))) {
            // A pool of its own for each, so that a tensor's memory is no larger than it.
            let mut tape = Tape::open(Device::Cuda(0))?;
            guarded(tape.cx().gpu(), || one(&mut tape, op, dtype))??;
        }
    }
    Ok(())
}

/// Start this program again with the stand-ins under the names of CUDA's libraries.
fn start_again(to: &Path) -> Result<()> {
    let (libraries, partial) = (emulator::libraries()?, to.with_extension("partial"));
    for (library, name) in
        [("libcuda.so", "libcuda.so.1"), ("libnvrtc.so", "libnvrtc.so.13"), ("libcublas.so", "libcublas.so.13")]
    {
        if !libraries.join(name).exists() {
            symlink(library, libraries.join(name))?;
        }
    }
    let _ = fs::remove_file(&partial);
    let mut again = Command::new(env::current_exe()?);
    again.arg(&partial).env("TAPEZOO_EMU_RECORD", &partial).env("TAPEZOO_EMU_PROCESSORS", "132");
    again.env("TAPEZOO_EMU_MEMORY", "80g").env("TAPEZOO_CUDA_LIBS", &libraries).env("LD_LIBRARY_PATH", &libraries);
    if !again.status()?.success() {
        return Err("its launches were not all recorded".into());
    }
    Ok(fs::rename(&partial, to)?)
}

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    let recording = env::var_os("TAPEZOO_EMU_RECORD").is_some();
    let done = match &args[..] {
        [file] if recording => every(&[], |tape, op, dtype| launch(Path::new(file), tape, op, dtype)),
        [file] => start_again(Path::new(file)),
        [how, file, only @ ..] if how == "--measure" => {
            every(only, |tape, op, dtype| measure(Path::new(file), tape, op, dtype))
        }
        _ => Err("usage: launches FILE, or launches --measure FILE [TYPE [NAME]]".into()),
    };
    done.map_or_else(|e| (eprintln!("error: launches: {e}"), ExitCode::FAILURE).1, |()| ExitCode::SUCCESS)
}

//! What the ops of the mixers launch on a device, each once forward and once backward, at the sizes that kernels are
//! compared at: `launches FILE`, as `scripts/gpu_walk.sh --record` runs it.
//!
//! It starts itself once more with the emulator's stand-ins in place of CUDA, which write launches down in place of running
//! them (`TAPEZOO_EMU_RECORD`, cuemu/driver/record.cpp): to the code that launches, that is a GPU of 132 processors. What
//! this program writes between the launches says whose they are.

use std::{
    env,
    error::Error,
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, ExitCode},
};
use tapezoo::{
    autograd::{Tape, Var},
    cuda::{emulator, guarded},
    ops::{
        attention::{causal_attention, fading_attention},
        delta::{delta_rule, gated_delta_rule},
        erase_write,
        gated_linear_attention::gated_linear_attention,
        in_f32,
        linear_attn::linear_attention,
        lru_scan::lru_scan_joined,
        lstm::lstm_sequence,
        mlstm::{Memory, mlstm},
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
/// Of recurrences whose gates see the state: D = 512, and sLSTM's heads of 64.
const RECURRENT: Sizes = Sizes { b: 64, t: 512, h: 8, k: 64, chunk: 0, n: 0 };

type Run = Box<dyn for<'t> Fn(&[Var<'t>]) -> Var<'t>>;

/// An op: its name with switches, the name by which [`in_f32`] knows it, the shapes of its inputs, and its output.
struct Op {
    name: &'static str,
    op: &'static str,
    sizes: Sizes,
    shapes: Vec<Shape>,
    run: Run,
}

fn op(
    name: &'static str,
    op: &'static str,
    sizes: Sizes,
    shapes: &[&[usize]],
    run: impl for<'t> Fn(&[Var<'t>]) -> Var<'t> + 'static,
) -> Op {
    Op { name, op, sizes, shapes: shapes.iter().map(|s| Shape::new(s)).collect(), run: Box::new(run) }
}

fn memories(s: Sizes) -> Vec<Op> {
    let Sizes { b, t, h, k, chunk, .. } = s;
    let (x, gate, state, scale) = (&[b, t, h, k][..], &[b, t, h][..], &[b, h, k, k][..], (k as f64).powf(-0.5));
    let head = &[b, t, h, 1][..];
    let short = Sizes { chunk: 32, ..s };
    vec![
        op("linear_attention", "linear_attention", s, &[x, x, x, state], move |x| {
            linear_attention(x[0], x[1], x[2], x[3], scale, chunk).0
        }),
        op("linear_attention, chunk 32", "linear_attention", short, &[x, x, x, state], move |x| {
            linear_attention(x[0], x[1], x[2], x[3], scale, 32).0
        }),
        op("linear_attention, a gate a head", "gated_linear_attention", s, &[x, x, x, head, state], move |x| {
            gated_linear_attention([x[0], x[1], x[2], x[3]], x[4], scale, chunk).0
        }),
        op("linear_attention, a gate a channel", "gated_linear_attention", s, &[x, x, x, x, state], move |x| {
            gated_linear_attention([x[0], x[1], x[2], x[3]], x[4], scale, chunk).0
        }),
        op("delta_rule", "delta_rule", s, &[x, x, x, gate, state], move |x| {
            delta_rule(x[0], x[1], x[2], x[3], x[4], scale, chunk).0
        }),
        op("delta_rule, chunk 32", "delta_rule", short, &[x, x, x, gate, state], move |x| {
            delta_rule(x[0], x[1], x[2], x[3], x[4], scale, 32).0
        }),
        op("gated_delta_rule", "gated_delta_rule", s, &[x, x, x, gate, state, gate], move |x| {
            gated_delta_rule(x[0], x[1], x[2], x[3], x[5], x[4], scale, chunk).0
        }),
        op("erase_write, a gate a channel", "erase_write", s, &[x, x, x, x, x, state], move |x| {
            erase_write::chunked([x[0], x[1], x[2], x[3], x[4]], x[5], scale, chunk).0
        }),
        op("mlstm", "mlstm", s, &[x, x, x, gate, gate, state, &[b, h, k], &[b, h], &[b, h]], move |x| {
            let mut memory = Memory { c: x[5], n: x[6], m: x[7], w: x[8] };
            mlstm([x[0], x[1], x[2]], [x[3], x[4]], &mut memory, 1e-6, chunk)
        }),
        op("attention", "attention", s, &[x, x, x], move |x| causal_attention(x[0], x[1], x[2], scale)),
        op("attention, fading", "attention", s, &[x, x, x, gate], move |x| {
            fading_attention([x[0], x[1], x[2], x[3]], scale)
        }),
    ]
}

fn scans(s: Sizes) -> Vec<Op> {
    let Sizes { b, t, h, k, chunk, n } = s;
    let d = h * k;
    let (x, state) = (&[b, t, d][..], &[b, d][..]);
    vec![
        op("selective_scan", "selective_scan", s, &[x, x, &[d, n], &[b, t, n], &[b, t, n], &[b, d, n]], move |x| {
            selective_scan(x[0], x[1], x[2], x[3], x[4], x[5], 1.0, chunk).0
        }),
        op("lru_scan", "lru_scan", s, &[&[d], &[d], &[b, t, 2 * d], state, state], move |x| {
            lru_scan_joined((x[0], x[1]), x[2], (x[3], x[4]), chunk).0
        }),
        op("quasi_lstm", "quasi_lstm", s, &[&[b, t, 4 * d], state], move |x| quasi_lstm(x[0], x[1], 1.0, chunk).0),
        op("linear_scan", "linear_scan", s, &[x, x, state], move |x| linear_scan(x[0], x[1], x[2], chunk).0),
        op("conv, 4 taps", "conv", s, &[x, &[d, 4], &[b, 3, d]], |x| x[0].causal_conv1d(x[1], None, x[2])),
        op("rms_norm", "rms_norm", s, &[x, &[d]], |x| x[0].rms_norm(x[1], 1e-5)),
        op("layer_norm", "layer_norm", s, &[x, &[d], &[d]], |x| x[0].layer_norm(x[1], Some(x[2]), 1e-5)),
    ]
}

/// The whole length, and two from which the cost of a step follows, for kernels that are too long to walk.
fn recurrent(s: Sizes) -> Vec<Op> {
    let Sizes { b, h, k, .. } = s;
    let d = h * k;
    let of = |t: usize| {
        let (s, x, state) = (Sizes { t, ..s }, &[b, t, 4 * d][..], &[b, d][..]);
        [
            op("lstm", "lstm", s, &[x, &[4 * d, d], state, state], |x| lstm_sequence(x[0], x[1], x[2], x[3]).0),
            op("slstm", "slstm", s, &[x, &[4, h, k, k], state, state, state, state, state], |x| {
                slstm_sequence(x[0], x[1], [x[2], x[3], x[4], x[5], x[6]]).0
            }),
        ]
    };
    [s.t, 8, 4].into_iter().flat_map(of).collect()
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Say in the record whose launches follow.
fn say(record: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(record)?;
    Ok(writeln!(file, "{text}")?)
}

fn launch(record: &Path, tape: &Tape, op: &Op, dtype: DType) -> Result<()> {
    let Sizes { b, t, h, k, chunk, n } = op.sizes;
    let new = |shape: &Shape, dtype: DType| tape.cx().pool().get(dtype, *shape);
    let single = in_f32(op.op);
    let of = |i: usize| if single.contains(&i) { dtype.real() } else { dtype };
    let x: Vec<Tensor> = op.shapes.iter().enumerate().map(|(i, shape)| new(shape, of(i))).collect();
    let x: Vec<_> = x.iter().map(|x| tape.leaf(x)).collect();
    let sizes = format!("{dtype} B={b} T={t} H={h} K={k} chunk={chunk} N={n}");
    say(record, &format!("# {} | forward | {sizes}", op.name))?;
    let y = (op.run)(&x);
    say(record, &format!("# {} | backward | {sizes}", op.name))?;
    tape.backward_from([(y, new(&y.shape(), y.dtype()))]);
    Ok(())
}

/// Launch everything on what is taken for a GPU.
fn launch_all(record: &Path) -> Result<()> {
    let ops = [memories(LONG), scans(LONG), recurrent(RECURRENT)];
    for dtype in [DType::BF16, DType::F32] {
        for op in ops.iter().flatten() {
            // A pool of its own for each, so that a tensor's memory is no larger than it.
            let tape = Tape::open(Device::Cuda(0))?;
            guarded(tape.cx().gpu(), || launch(record, &tape, op, dtype))??;
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
    let Some(file) = env::args_os().nth(1) else {
        eprintln!("usage: launches FILE");
        return ExitCode::FAILURE;
    };
    let recording = env::var_os("TAPEZOO_EMU_RECORD").is_some();
    let done = if recording { launch_all(Path::new(&file)) } else { start_again(Path::new(&file)) };
    done.map_or_else(|e| (eprintln!("error: launches: {e}"), ExitCode::FAILURE).1, |()| ExitCode::SUCCESS)
}

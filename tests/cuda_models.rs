//! Whole models on the device: ten steps of training that follow the CPU's, gradients of every mixer, and the golden
//! numbers of other implementations in single precision.
#![allow(clippy::unwrap_used)]

mod device;

use approx::{abs_diff_eq, relative_eq};
use device::{device, root};
use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};
use tapezoo::{
    autograd::{Gen, Tape},
    models::{self, Form, Init, Model, ModelConfig, State},
    tensor::{DType, Device, Tensor},
    train::{
        Trainer,
        checkpoint::{self, Written},
        config::TrainConfig,
        on_device::Graphs,
    },
    verify::{check_file, tolerance},
};

const SMALL: &str = "batch = 4\ntrain_len = 9\neval_lens = [12]\neval_batch = 4\neval_batches = 1\nclip = 1.0\n\
                     [model]\nlayers = 2\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 16";

fn config(name: &str, device: Device, dtype: DType) -> TrainConfig {
    let mut table: toml::Table = SMALL.parse().unwrap();
    table.insert("device".into(), device.to_string().into());
    table.insert("dtype".into(), dtype.to_string().into());
    table.insert("models".into(), toml::Value::Array(vec![name.into()]));
    TrainConfig::load(None, table).unwrap().for_model(name).unwrap()
}

fn with_ngrams(mut config: TrainConfig, ngram: usize) -> TrainConfig {
    config.model.ngram = ngram;
    config
}

/// Mixers with a cell's state, a scan's, a memory and a cache, and layers of n-gram heads behind them.
const WITH_NGRAMS: [(&str, usize); 5] = [("lstm", 2), ("mamba", 2), ("delta_net", 3), ("gpt", 2), ("path", 1)];

/// In single precision to 1e-4; in bf16 to a few times 2^-9, the rounding of a logit.
#[test]
fn ten_steps_of_training_follow_the_cpu() {
    let Some(device) = device() else { return };
    for (name, ngram) in models::names().into_iter().map(|name| (name, 0)).chain(WITH_NGRAMS) {
        let run = |device: Device, dtype: DType| {
            let mut trainer = Trainer::new(&with_ngrams(config(name, device, dtype), ngram), 1).unwrap();
            let step = |e: tapezoo::error::Error| panic!("{name} in {dtype}: {e}");
            let losses: Vec<f64> = (0..10).map(|_| trainer.step().unwrap_or_else(step).loss).collect();
            (losses, trainer.evaluate().unwrap().0)
        };
        let want = run(Device::Cpu, DType::F32);
        for (dtype, tolerance, edge) in [(DType::F32, 1e-4, 0.05), (DType::BF16, 2e-2, 0.1)] {
            let got = run(device, dtype);
            for (i, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
                let fine = relative_eq!(got, want, epsilon = 0.0, max_relative = tolerance);
                assert!(fine, "{name} in {dtype}: loss {got} at step {i}, the CPU has {want}");
            }
            for ((_, got), (_, want)) in got.1.iter().zip(&want.1) {
                assert!(
                    abs_diff_eq!(got, want, epsilon = edge),
                    "{name} in {dtype}: accuracy {got}, the CPU has {want}"
                );
            }
        }
    }
}

/// bf16 rounds by at most 2^-9. Two blocks of ops may amplify this to 32 times, and for a single parameter to 64 times
/// (where keys and queries of width four are nearly orthogonal, and a norm divides by their small product).
#[test]
fn gradients_in_bf16_follow_single_precision() {
    let Some(device) = device() else { return };
    let kept = "nu_log theta_log gamma_log A_log dt_proj_bias dt_bias b_dt b_if log_dt log_a_real a_imag .delta .alpha";
    let kept: Vec<&str> = kept.split(' ').collect();
    for (name, ngram) in models::names().into_iter().map(|name| (name, 0)).chain(WITH_NGRAMS) {
        let cfg = with_ngrams(config(name, device, DType::F32), ngram);
        let (b, t) = (4, 9);
        let mut g = Gen::new(1);
        let mut ints = |n: usize| Tensor::from_vec((0..b * t).map(|_| g.below(n) as i32).collect(), [b, t]);
        let (tokens, targets) = (ints(cfg.model.vocab), ints(cfg.model.classes));
        let mut model = Model::new(&cfg.model, 3, DType::BF16).unwrap();
        let mut run = |dtype: DType| {
            let tape = Tape::new(device);
            match dtype {
                DType::BF16 => model.params_mut().copy_in_bf16(tape.cx()),
                _ => model.params_mut().to_host(),
            }
            let params = model.params().bind(&tape);
            for (e, p) in model.params().entries().iter().zip(params.vars()) {
                let kept = kept.iter().any(|kept| e.name.ends_with(kept));
                assert_eq!(p.dtype(), if kept { DType::F32 } else { dtype }, "{name}: {}", e.name);
            }
            let logits = model.forward(&params, tape.constant(&tokens), model.default_form());
            let loss = logits.cross_entropy(tape.constant(&targets), -1);
            assert_eq!((logits.dtype(), loss.dtype()), (dtype, DType::F32));
            tape.backward(loss);
            let mut grads = Tensor::zeros([model.params().len()], DType::F32).to_device(tape.cx());
            model.params().gather_grads(&tape, &params, &mut grads);
            grads.to_f64()
        };
        let (got, want) = (run(DType::BF16), run(DType::F32));
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let (unit, off): (f64, Vec<f64>) = (0.5f64.powi(9), got.iter().zip(&want).map(|(a, b)| a - b).collect());
        assert!(norm(&off) <= 32.0 * unit * norm(&want), "{name}: off by {:.1e}", norm(&off) / norm(&want));
        for e in model.params().entries() {
            let range = e.offset..e.offset + e.shape.len();
            let (off, own) = (norm(&off[range.clone()]), norm(&want[range]).max(norm(&want) / 100.0));
            assert!(off <= 64.0 * unit * own, "{name}: {} is off by {:.1e}", e.name, off / own);
        }
    }
}

/// A turn that is small beside the angle so far would be lost if Mamba-3 summed its angles in bf16.
#[test]
fn angles_are_summed_in_single_precision() {
    let Some(device) = device() else { return };
    let (tape, t) = (Tape::new(device), 600);
    let full = |shape: &[usize], value: f64| tape.full(shape, DType::BF16, value);
    let (row, number) = (full(&[1, t, 1, 2], 0.5), full(&[1, t, 1], -0.5));
    let dt = tape.full([1, t, 1], DType::F32, 0.004);
    let inputs = [row, row, row, dt, number, -number, full(&[1, t, 1, 1], 1.0)];
    let mut memory = [&[1, 1, 2, 2][..], &[1, 1, 1], &[1, 1, 2], &[1, 1, 2]].map(|shape| full(shape, 0.0));
    let o = models::mamba3::sequence(inputs, &mut memory, Form::Chunked(64));
    let phi = memory[1].value().to_f64()[0];
    assert!(abs_diff_eq!(phi, 0.004 * t as f64, epsilon = 1e-4), "{phi}");
    assert_eq!(o.dtype(), DType::BF16);

    // The layer hands on the Δ of its softplus as it is.
    let (mut init, config) = (Init::new(1, None), ModelConfig { width: 4, ..ModelConfig::default() });
    let mixer = models::find("mamba3").unwrap()(&config, &mut init).unwrap();
    let mut params = init.finish(DType::BF16);
    params.copy_in_bf16(tape.cx());
    let mut state = State::zero(mixer.as_ref(), &tape, 1, DType::BF16);
    models::run(mixer.as_ref(), &params.bind(&tape), full(&[1, 5, 4], 0.3), &mut state, Form::Chunked(64));
    assert_eq!(state.s[1].dtype(), DType::F32);
}

/// The trained weights are f32: updates that bf16 would round away add up.
#[test]
fn steps_smaller_than_bf16_can_tell_are_kept() {
    let Some(device) = device() else { return };
    let steps = |dtype: DType| {
        let cfg = TrainConfig { lr: 1e-6, warmup: 0, cuda_graph: Graphs::Off, ..config("lstm", device, dtype) };
        let mut trainer = Trainer::new(&cfg, 1).unwrap();
        let before = trainer.model().params().flat().to_f64();
        let buffers = |trainer: &mut Trainer| trainer.step().map(|_| trainer.fresh_buffers()).unwrap();
        let buffers: Vec<usize> = (0..10).map(|_| buffers(&mut trainer)).collect();
        assert!(buffers[2..].iter().all(|n| *n == buffers[2]), "{dtype}: {buffers:?} buffers were ever allocated");
        let after = trainer.into_model().unwrap();
        assert_eq!(after.params().flat().dtype(), DType::F32);
        let moved: Vec<f64> = after.params().flat().to_f64().iter().zip(&before).map(|(a, b)| a - b).collect();
        (moved, before)
    };
    let ((got, before), (want, _)) = (steps(DType::BF16), steps(DType::F32));
    // Half the distance from a weight to the next bf16 number is at least 2^-9 of the weight: for weights above 0.01
    // that is more than ten updates of 1e-6.
    let large = || (0..got.len()).filter(|&i| before[i].abs() > 0.01);
    assert!(large().count() > 200, "{} large weights", large().count());
    let jumps: Vec<_> =
        large().filter(|&i| got[i].abs() >= before[i].abs() / 512.0).map(|i| (before[i], got[i])).collect();
    assert!(jumps.is_empty(), "weights, and by how much they moved: {jumps:?}");
    let moved = large().filter(|&i| (got[i] - want[i]).abs() < 0.5 * want[i].abs()).count();
    assert!(
        moved * 10 > large().count() * 9,
        "{moved} of {} weights went where single precision took them",
        large().count()
    );
}

#[test]
fn a_run_in_bf16_goes_on_from_a_checkpoint_to_the_same_bits() {
    let Some(device) = device() else { return };
    let cfg = config("mamba", device, DType::BF16);
    let told = |trainer: &mut Trainer| (0..3).map(|_| trainer.step().unwrap()).collect::<Vec<_>>();
    let mut whole = Trainer::new(&cfg, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    told(&mut whole);
    whole.evaluate().unwrap();
    checkpoint::save(&path, &mut whole, Written::default(), Duration::ZERO).unwrap();
    let (mut resumed, _) = checkpoint::load(&path, &cfg, 1).unwrap();
    assert_eq!(told(&mut whole), told(&mut resumed));
    assert_eq!(whole.evaluate().unwrap().0, resumed.evaluate().unwrap().0);
    let weights = |trainer: Trainer| trainer.into_model().unwrap().params().flat().to_f64();
    assert_eq!(weights(whole), weights(resumed));
}

#[test]
fn what_bf16_is_not_for_is_said() {
    let refuses = |flags: &str, parts: &[&str]| {
        let error = TrainConfig::load(None, flags.parse().unwrap()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{flags}: {error}");
    };
    refuses("dtype = 'bf16'\ndevice = 'cpu'", &["dtype bf16", "device cuda or emulated", "f32 or f64"]);
    refuses("dtype = 'bf16'\ndevice = 'emulated'\nform = 'recurrent'", &["form recurrent", "scan, chunked or fused"]);
    let published = "dtype = 'bf16'\ndevice = 'emulated'\n[model]\nvariant = 'published'";
    refuses(published, &["dtype bf16", "variant = \"clean\""]);
}

/// Ids of tokens are compared in single precision: bf16 cannot tell 256 from 257.
#[test]
fn ngram_heads_tell_tokens_apart_that_bf16_cannot() {
    let Some(device) = device() else { return };
    let mut cfg = with_ngrams(config("gpt", device, DType::F32), 1);
    (cfg.model.vocab, cfg.model.classes) = (300, 300);
    let mut model = Model::new(&cfg.model, 3, DType::BF16).unwrap();
    let mut logits = |id: i32, dtype: DType| {
        let tape = Tape::new(device);
        if dtype == DType::BF16 {
            model.params_mut().copy_in_bf16(tape.cx())
        } else {
            model.params_mut().to_host()
        }
        let tokens = tape.constant(&Tensor::from_vec(vec![id, 7, 9, 257], [1, 4]));
        let y = model.forward(&model.params().bind_frozen(&tape), tokens, model.default_form());
        y.value().to_f64()[3 * 300..].to_vec()
    };
    for id in [256, 257] {
        let (got, want) = (logits(id, DType::BF16), logits(id, DType::F32));
        assert!(distance(&got, &want) < 0.02, "first id {id}: off by {:.1e}", distance(&got, &want));
    }
}

/// In double precision, where only a mistake makes a visible difference: logits, and the gradient of every parameter,
/// in every form.
#[test]
fn every_form_of_every_mixer_has_the_gradient_of_the_cpu() {
    let Some(device) = device() else { return };
    for name in models::names() {
        let cfg = config(name, Device::Cpu, DType::F64);
        let model = Model::new(&cfg.model, 3, DType::F64).unwrap();
        let (b, t) = (3, 7);
        let mut g = Gen::new(1);
        let tokens: Vec<i32> = (0..b * t).map(|_| g.below(cfg.model.vocab) as i32).collect();
        let tokens = Tensor::from_vec(tokens, [b, t]);
        let run = |device: Device, form: Form| {
            let tape = Tape::new(device);
            let params = model.params().bind(&tape);
            let logits = model.forward(&params, tape.constant(&tokens), form);
            let u = Gen::new(2).normal(logits.shape());
            tape.backward((logits * tape.constant(&u)).sum());
            let grads = params.vars().iter().map(|p| p.grad().map_or(vec![], |g| g.to_f64()));
            (logits.value().to_f64(), grads.collect::<Vec<_>>())
        };
        for form in model.forms() {
            let (got, want) = (run(device, form), run(Device::Cpu, form));
            assert!(distance(&got.0, &want.0) < 1e-9, "{name}, {form}: logits");
            for (i, (got, want)) in got.1.iter().zip(&want.1).enumerate() {
                assert!(distance(got, want) < 1e-9, "{name}, {form}: gradient of parameter {i}");
            }
        }
    }
}

/// Its kernels multiply tiles of 64 steps. Steps that were asked for stay.
#[test]
fn a_device_computes_in_chunks_of_a_tile() {
    let form = |text: &str, device: Device| {
        let cfg = TrainConfig { device, form: text.parse().ok(), ..config("delta_net", device, DType::F32) };
        cfg.form_of(&Model::new(&cfg.model, 0, DType::F32).unwrap())
    };
    assert_eq!(form("", Device::Cpu), Form::Chunked(32));
    assert_eq!(form("", Device::Cuda(0)), Form::Chunked(64));
    assert_eq!(form("chunked:16", Device::Cuda(0)), Form::Chunked(16));
    assert_eq!(Form::Scan(32).on(Device::Cuda(0)), Form::Scan(32));
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(1e-6);
    if d.is_nan() { f64::INFINITY } else { d }
}

#[test]
fn golden_numbers_agree_in_single_precision() {
    let Some(device) = device() else { return };
    let dir = root().join("tests/fixtures");
    let files: BTreeSet<PathBuf> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|path| path.is_file()).collect();
    assert!(files.len() >= 43, "only {} fixtures found", files.len());
    for path in files {
        for c in check_file(&path, device, DType::F32).unwrap().1 {
            let name = path.file_name().unwrap();
            let fine = c.passes(tolerance(DType::F32));
            assert!(fine, "{name:?} on {device}, {}: {} is off by {:.1e}", c.form, c.tensor, c.error);
        }
    }
}

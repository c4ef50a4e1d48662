//! A rehearsal asks a device for the kernels that the run then needs, and copies of the program compile them.
#![allow(clippy::unwrap_used)]

mod device;

use device::{device, side_by_side};
use std::{
    collections::BTreeSet,
    env, fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
};
use tapezoo::{
    cuda::ahead::{Source, compile_ahead, helped_by, needed_by},
    models,
    tensor::Device,
    train::{Trainer, config::TrainConfig, rehearsal::sources},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tapezoo");

/// The device that the kernels are named for: an emulated one compiles all kernels of a file at once.
const H100: Option<(Device, &str)> = Some((Device::Cuda(0), "sm_90"));

fn config(device: Device, model: &str, flags: &str) -> TrainConfig {
    let base = "batch = 3\ntrain_len = 6\neval_lens = [5, 70]\neval_batch = 2\neval_batches = 2\n";
    let sizes = "[model]\nlayers = 1\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 8\n";
    let text = format!("device = \"{device}\"\nmodels = [\"{model}\"]\n{flags}\n{base}{sizes}");
    TrainConfig::load(None, text.parse().unwrap()).unwrap().for_model(model).unwrap()
}

fn names(sources: &[Source]) -> BTreeSet<String> {
    sources.iter().map(|source| format!("{} {}", source.name, source.kernel.unwrap_or("all"))).collect()
}

/// In each precision and of each mixer, over the steps that are launched, recorded and replayed, and an evaluation.
#[test]
fn a_rehearsal_asks_for_the_kernels_of_the_run() {
    let Some(device) = device() else { return };
    let few = ["lstm", "delta_net", "gpt"].map(|model| (model, "dtype = \"bf16\""));
    let all: Vec<_> = models::names().into_iter().map(|model| (model, "")).chain(few).collect();
    let wrong = side_by_side(&all, |(model, flags)| {
        let cfg = config(device, model, flags);
        let rehearsed = names(&sources(&[&cfg], H100));
        let needed = names(&needed_by(H100, || {
            let mut trainer = Trainer::new(&cfg, 0).unwrap();
            (0..4).for_each(|_| {
                trainer.step().unwrap();
            });
            trainer.evaluate().unwrap();
        }));
        assert!(needed.len() > 10, "{model}: {needed:?}");
        (rehearsed != needed).then(|| format!("{model} {flags}: {:?}", &rehearsed ^ &needed))
    });
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In a process of its own, which has an empty cache.
#[test]
fn what_is_rehearsed_is_compiled_by_copies_of_the_program() {
    if device() != Some(Device::Emulated) {
        return;
    }
    let cache = emulator_in_a_cache_of_its_own();
    let mut inner = Command::new(env::current_exe().unwrap());
    inner.args(["--ignored", "--exact", "in_an_empty_cache"]).env("XDG_CACHE_HOME", cache.path());
    let ended = inner.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

/// The sources are in the cache before the run, which compiles no other.
#[test]
#[ignore = "another test runs it"]
fn in_an_empty_cache() {
    let kernels = Path::new(&env::var_os("XDG_CACHE_HOME").unwrap()).join("tapezoo/kernels");
    let count = || fs::read_dir(&kernels).map_or(0, Iterator::count);
    let cfg = config(Device::Emulated, "lru", "");
    let needed = sources(&[&cfg], None);
    assert!(needed.len() > 3 && count() == 0);
    helped_by(PROGRAM.into());
    let told = Mutex::new(vec![]);
    let tell = |go_on| {
        let told = &told;
        move |done, all| {
            told.lock().unwrap().push((done, all));
            go_on
        }
    };
    compile_ahead(needed.clone(), &tell(false));
    assert_eq!((count(), told.lock().unwrap().drain(..).count()), (0, 1));
    compile_ahead(needed.clone(), &tell(true));
    let all = needed.len();
    assert_eq!(count(), all);
    assert_eq!(*told.lock().unwrap(), (0..=all).map(|done| (done, all)).collect::<Vec<_>>());
    let mut trainer = Trainer::new(&cfg, 0).unwrap();
    trainer.step().unwrap();
    trainer.evaluate().unwrap();
    assert_eq!(count(), all, "the run compiled another one");
    compile_ahead(needed, &|_, _| panic!("they are there"));
}

/// A copy goes on after a source that does not compile, ends with its input, and refuses what it does not understand.
#[test]
fn a_copy_answers_each_source() {
    if device() != Some(Device::Emulated) {
        return;
    }
    let kept = emulator_in_a_cache_of_its_own();
    let answers = |requests: &[(&str, &str)]| {
        let mut command = Command::new(PROGRAM);
        command.arg("--compile-kernels").env("XDG_CACHE_HOME", kept.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut to = child.stdin.take().unwrap();
        requests.iter().for_each(|(head, text)| write!(to, "{head}\n{text}").unwrap());
        drop(to);
        let ended = child.wait_with_output().unwrap();
        (ended.status.success(), String::from_utf8(ended.stdout).unwrap())
    };
    let good = "extern \"C\" __global__ void f(float* x) { x[0] = 1; }\n";
    let head = |text: &str| format!("emulated sm_90 tests/f.cu {}", text.len());
    let bad = good.replace("x[0]", "y[0]");
    let all = answers(&[(&head(&bad), &bad), (&head(good), good)]);
    assert_eq!(all, (true, "failed\ncompiled\n".into()));
    assert_eq!(answers(&[]), (true, String::new()));
    assert_eq!(answers(&[("emulated sm_90", "")]), (false, String::new()));
    assert_eq!(answers(&[("moon sm_90 f.cu 0", "")]), (false, String::new()));
}

/// A cache that has the emulator and no kernel.
fn emulator_in_a_cache_of_its_own() -> tempfile::TempDir {
    // The emulator is found once in a process, in the user's own cache.
    let emulator = tapezoo::cuda::emulator::libraries().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let place = cache.path().join("tapezoo");
    fs::create_dir_all(&place).unwrap();
    std::os::unix::fs::symlink(&emulator, place.join(emulator.file_name().unwrap())).unwrap();
    cache
}

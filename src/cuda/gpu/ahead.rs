//! The kernels of a run, compiled before it begins, side by side.
//!
//! NVRTC takes from a tenth of a second to seconds for a kernel, and compiles one at a time in a process. A run asks for
//! kernels one after another. So the run is rehearsed first: the work asks for everything and nothing is done, which
//! tells which kernels it needs; then as many processes as there are cores compile those that are not in the cache.

use super::{
    Gpu,
    cache::Cache,
    compile::{self, Unit},
    locate, lock,
};
use crate::{
    cuda::{Device, Module},
    dtype::DType,
};
use std::{
    cell::RefCell,
    env,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{Mutex, OnceLock},
    thread,
};

/// The units that some work asks for.
struct Asked {
    /// Each once, with the target to compile it for.
    units: Vec<(Unit, String)>,
    /// Whether the work is a rehearsal.
    only: bool,
    /// The device and the target of the sources, where they are not those of the device that is asked.
    target: Option<Target>,
}

/// A device, and what kernels are compiled for on it, such as "sm_90".
pub type Target = (Device, &'static str);

thread_local! {
    static ASKED: RefCell<Option<Asked>> = const { RefCell::new(None) };
}

/// Whether what this thread asks of a device is only to be noted.
pub(super) fn rehearses() -> bool {
    ASKED.with_borrow(|asked| asked.as_ref().is_some_and(|asked| asked.only))
}

/// Note the unit with this kernel, if this thread is listened to; gives whether it rehearses.
pub(super) fn notes(gpu: &Gpu, module: &'static Module, kernel: &'static str, dtype: DType) -> bool {
    ASKED.with_borrow_mut(|asked| {
        let Some(asked) = asked else { return false };
        let (device, arch) = asked.target.unwrap_or((gpu.device, &gpu.arch));
        let unit = Unit::new(device, module, kernel, dtype);
        if !asked.units.iter().any(|(known, _)| *known == unit) {
            asked.units.push((unit, arch.into()));
        }
        asked.only
    })
}

/// Do this work without launching a kernel or multiplying a matrix: what it reads back from a device is zeros. Gives the
/// sources that it needs compiled, on a target if one is given.
pub fn rehearse(target: Option<Target>, work: impl FnOnce()) -> Vec<Source> {
    listen(Asked { units: vec![], only: true, target }, work)
}

/// Do this work, and give the sources that it needed compiled, earlier or now, as on a target if one is given.
pub fn needed_by(target: Option<Target>, work: impl FnOnce()) -> Vec<Source> {
    listen(Asked { units: vec![], only: false, target }, work)
}

fn listen(asked: Asked, work: impl FnOnce()) -> Vec<Source> {
    /// Nothing is noted any more, also where the work panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            ASKED.set(None);
        }
    }
    let _end = End;
    ASKED.set(Some(asked));
    work();
    let asked = ASKED.take().map_or(vec![], |asked| asked.units);
    asked.into_iter().map(|(unit, arch)| Source::of(&unit, arch)).collect()
}

/// The source of a kernel for an element type; in emulation, of all kernels of its file.
#[derive(Clone, Debug)]
pub struct Source {
    /// The device that asked.
    pub device: Device,
    /// The file's path under `src/`.
    pub name: &'static str,
    /// The kernel, if it is one.
    pub kernel: Option<&'static str>,
    /// The text.
    pub text: String,
    /// The target, such as "sm_90".
    pub arch: String,
}

impl Source {
    fn of(unit: &Unit, arch: String) -> Source {
        Source { device: unit.device, name: unit.module.name, kernel: unit.kernel, text: unit.source(), arch }
    }
}

/// The one argument of a process that compiles for another. It reads sources from its standard input, each behind a line
/// `DEVICE ARCH NAME BYTES`, and answers each with a line.
const COMPILE: &str = "--compile-kernels";

/// The program that compiles when it is started with [`COMPILE`].
static HELPER: OnceLock<PathBuf> = OnceLock::new();

/// To be called first of all by a program that trains on devices. In a process that [`compile_ahead`] started, this
/// compiles sources into the cache, and gives the status to end with; in any other process it says that copies of this
/// program can be started to do so.
pub fn helper() -> Option<ExitCode> {
    if env::args_os().nth(1).is_none_or(|first| first != COMPILE) {
        if let Ok(program) = env::current_exe() {
            helped_by(program);
        }
        return None;
    }
    match serve(io::stdin().lock(), io::stdout().lock()) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(why) => {
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "{why}");
            Some(ExitCode::FAILURE)
        }
    }
}

/// Have [`compile_ahead`] start copies of this program, which calls [`helper`] first of all. The first word counts.
pub fn helped_by(program: PathBuf) {
    let _ = HELPER.set(program);
}

fn serve(mut from: impl BufRead, mut to: impl Write) -> io::Result<()> {
    let mut head = String::new();
    while from.read_line(&mut head)? > 0 {
        let mut text = vec![];
        let asked = head.split_whitespace().collect::<Vec<_>>();
        let [device, arch, name, bytes] = asked[..] else { return Err(wrong("expected DEVICE ARCH NAME BYTES")) };
        let bytes = bytes.parse().map_err(wrong)?;
        from.by_ref().take(bytes).read_to_end(&mut text)?;
        let text = String::from_utf8(text).map_err(wrong)?;
        locate::load_compiler(device.parse().map_err(wrong)?).map_err(wrong)?;
        // What does not compile is compiled again by the run that needs it, which says what is wrong.
        let done = compile::compile(&Cache::of_user(), name, &text, arch);
        writeln!(to, "{}", if done.is_ok() { "compiled" } else { "failed" })?;
        to.flush()?;
        head.clear();
    }
    Ok(())
}

fn wrong(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Compile these sources into the cache with copies of this program, one for each core; those that are there are left
/// alone. `told` hears how many are compiled, and of how many, and says whether to go on. Where the program lends no helper
/// ([`helper`]), or a copy fails, each kernel is compiled when it is needed.
pub fn compile_ahead(sources: Vec<Source>, told: &(dyn Fn(usize, usize) -> bool + Sync)) {
    let Some(program) = HELPER.get() else { return };
    let cache = Cache::of_user();
    let mut missing = sources;
    missing.retain(|source| compile::is_missing(&cache, &source.text, &source.arch));
    if missing.is_empty() {
        return;
    }
    let all = missing.len();
    // From the end of the list. Kernels of long files take the longest, and so they come first.
    missing.sort_by_key(|source| source.text.len());
    let (left, done) = (Mutex::new(missing), Mutex::new(0));
    if !told(0, all) {
        return;
    }
    let next = || lock(&left).pop();
    let count = || {
        let mut done = lock(&done);
        *done += 1;
        if !told(*done, all) {
            lock(&left).clear();
        }
    };
    let work = || drop(have_compiled(program, next, count));
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(all);
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
        work();
    });
}

/// Have one copy of the program compile sources, as long as there is another one.
fn have_compiled(program: &Path, next: impl Fn() -> Option<Source>, done: impl Fn()) -> io::Result<()> {
    let mut command = Command::new(program);
    command.arg(COMPILE).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let talked = (|| {
        let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else { return Ok(()) };
        let mut answers = BufReader::new(from).lines();
        while let Some(Source { device, name, text, arch, .. }) = next() {
            writeln!(to, "{device} {arch} {name} {}", text.len())?;
            to.write_all(text.as_bytes())?;
            to.flush()?;
            answers.next().transpose()?.ok_or_else(|| wrong("no answer"))?;
            done();
        }
        Ok(())
    })();
    // Its standard input is closed, so that it ends.
    child.wait()?;
    talked
}

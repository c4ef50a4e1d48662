//! How long a first run of `parity` waits for NVRTC: the kernels that it needs compiled, each with its time, all of them one
//! after another, and side by side on the cores of this machine; for more cores, the time that they take if each core
//! compiles the longest that is left. The run is rehearsed on the emulator, and compiled for an H100: this takes NVRTC
//! (`TAPEZOO_CUDA_LIBS`) and no GPU.
//!
//! ```sh
//! cargo run --release --example first_run          # or with a type behind it: -- bf16
//! ```

use std::{
    env,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};
use tapezoo::{
    cuda::ahead::{Source, compile_ahead, helper},
    tensor::Device,
    train::{config::TrainConfig, rehearsal::sources},
};

fn main() -> ExitCode {
    if let Some(status) = helper() {
        return status;
    }
    match all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<(), Box<dyn std::error::Error>> {
    let dtype = env::args().nth(1).unwrap_or("f32".into());
    let cfg = TrainConfig::load(None, format!("device = \"emulated\"\ndtype = \"{dtype}\"").parse()?)?;
    let runs = cfg.each_model()?;
    let start = Instant::now();
    let needed = sources(&runs.iter().collect::<Vec<_>>(), Some((Device::Cuda(0), "sm_90")));
    println!(
        "{} models, {dtype}: {} kernels, found in {:.2} s",
        runs.len(),
        needed.len(),
        start.elapsed().as_secs_f64()
    );
    let mut each: Vec<(Duration, &Source)> = vec![];
    for source in &needed {
        each.push((time(vec![source.clone()])?, source));
    }
    each.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    for (time, source) in &each {
        println!("{:6.2} s  {} {}", time.as_secs_f64(), source.name, source.kernel.unwrap_or_default());
    }
    let one_by_one: Duration = each.iter().map(|(time, _)| time).sum();
    let cores = thread::available_parallelism()?;
    println!("{:6.2} s  one after another", one_by_one.as_secs_f64());
    println!("{:6.2} s  side by side, {cores} cores", time(needed.clone())?.as_secs_f64());
    for cores in [4, 8, 16] {
        println!("{:6.2} s  by these times on {cores} cores", on(cores, &each).as_secs_f64());
    }
    Ok(())
}

/// The time on so many cores, where each takes the longest that is left.
fn on(cores: usize, longest_first: &[(Duration, &Source)]) -> Duration {
    let mut busy = vec![Duration::ZERO; cores];
    for (time, _) in longest_first {
        if let Some(free) = busy.iter_mut().min() {
            *free += *time;
        }
    }
    busy.into_iter().max().unwrap_or_default()
}

/// The time to compile these into an empty cache.
fn time(sources: Vec<Source>) -> Result<Duration, Box<dyn std::error::Error>> {
    let cache = tempfile::tempdir()?;
    let n = sources.len();
    // SAFETY: this is the one thread.
    unsafe { env::set_var("XDG_CACHE_HOME", cache.path()) };
    let start = Instant::now();
    compile_ahead(sources, &|_, _| true);
    let (time, made) = (start.elapsed(), std::fs::read_dir(cache.path().join("tapezoo/kernels"))?.count());
    if made < n { Err(format!("{made} of {n} were compiled: is NVRTC there?").into()) } else { Ok(time) }
}

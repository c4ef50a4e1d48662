//! A CUDA kernel with coalesced loads: edit coalesced.cu, beside this file.
//!
//! It is run without a GPU, in an emulator that counts the sectors that each
//! warp asks memory for (cuemu/README.md, "Counters").

use exercises::{Checked, emulated, run, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::Gen,
    cuda::{Launch, Module, counters::Counts, emulator::Order},
};

static KERNEL: Module = Module::new("../exercises/coalesced.cu", &[include_str!("coalesced.cu")]);

fn main() -> ExitCode {
    run(&[
        ("every element is doubled", || [1, 100, 1000, 1024].into_iter().try_for_each(|n| twice(n).map(drop))),
        ("a warp's load takes as few sectors as there can be", few_sectors),
        ("memory is asked for once for each 32 elements", few_requests),
    ])
}

/// Runs the kernel on n numbers with 128 threads that have 8 elements each.
fn twice(n: usize) -> Result<Counts, String> {
    let g = &mut Gen::new(24);
    let x: Vec<f32> = (0..n).map(|_| g.below(1000) as f32).collect();
    let sizes = [n as i32, 8];
    let launch = Launch::blocks(1, 128);
    let (y, counts) = emulated((&KERNEL, "twice"), launch, (&x, &sizes, n), (false, Order::Forward))?;
    match (0..n).find(|&i| y[i] != 2.0 * x[i]) {
        Some(i) => Err(format!("n = {n}: y[{i}] should be {}, and is {}", 2.0 * x[i], y[i])),
        None => Ok(counts),
    }
}

fn few_sectors() -> Checked {
    let Counts { sectors, least_sectors, .. } = twice(1024)?;
    that(sectors > 0 && sectors == least_sectors, || {
        format!("1024 elements take {sectors} sectors to load and store, and {least_sectors} would do")
    })
}

fn few_requests() -> Checked {
    let requests = twice(1024)?.global_requests;
    that(requests == 64, || format!("expected 32 loads and 32 stores of warps, and {requests} came"))
}

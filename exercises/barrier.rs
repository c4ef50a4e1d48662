//! A CUDA kernel without a race: edit barrier.cu, beside this file.
//!
//! It is run without a GPU, in an emulator that knows which accesses a barrier
//! orders (cuemu/README.md), and that runs the threads of a block in any order.

use exercises::{Checked, emulated, run, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::Gen,
    cuda::{Launch, Module, emulator::Order},
};

static KERNEL: Module = Module::new("../exercises/barrier.cu", &[include_str!("barrier.cu")]);

fn main() -> ExitCode {
    run(&[
        ("one row: the sums of the warps are there before they are read", || check(1, 128, Order::Forward)),
        ("several rows: no sum is overwritten before all have read it", || check(3, 128, Order::Forward)),
        ("the last threads first", || check(3, 128, Order::Reverse)),
        ("threads in a random order, 8 warps", random_order),
        ("barriers are needed in two places, and no more", few_barriers),
    ])
}

fn check(rows: usize, threads: usize, order: Order) -> Checked {
    let (g, n) = (&mut Gen::new(23), 200);
    let x: Vec<f32> = (0..rows * n).map(|_| g.below(10) as f32).collect();
    let sizes = [rows as i32, n as i32];
    let (y, _) = emulated((&KERNEL, "sum_rows"), Launch::blocks(1, threads), (&x, &sizes, rows), (true, order))?;
    for (row, (y, x)) in y.iter().zip(x.chunks(n)).enumerate() {
        let expected: f32 = x.iter().sum();
        that(*y == expected, || format!("row {row}: expected {expected}, and {y} came"))?;
    }
    Ok(())
}

fn random_order() -> Checked {
    [1, 2, 3].into_iter().try_for_each(|seed| check(2, 256, Order::Random(seed)))
}

fn few_barriers() -> Checked {
    let code: Vec<&str> =
        include_str!("barrier.cu").lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    let code = code.join("\n");
    let count = code.matches("__syncthreads()").count();
    that(count <= 2, || format!("the kernel has {count} barriers: one between write and read, one behind the read"))
}

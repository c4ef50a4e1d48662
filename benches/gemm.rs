//! `kernels::gemm` against the `gemm` crate alone, at the shapes of small models.
//!
//! The products of a layer with `in` inputs and `out` outputs over as many tokens: y = x wᵀ, dx = g w and dw = gᵀ x;
//! and the products of mixers, with the matrices of one head.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;
use tapezoo::kernels::gemm::{Mat, gemm, library};

/// (m, k, n) and whether a or b is the transpose of what is in memory.
type Product = ((usize, usize, usize), bool, bool);

fn all() -> Vec<Product> {
    let mut all = vec![];
    let published = [(4, 16), (16, 4), (4, 48), (4, 64), (4, 8), (8, 4), (4, 4), (4, 2), (8, 17), (128, 256), (128, 8)];
    let (wide, wider) = ([(64, 64), (64, 256), (256, 64), (64, 2)], [(128, 128), (128, 512), (512, 128)]);
    let layers =
        published.map(|s| (1024, s)).into_iter().chain(wide.map(|s| (4096, s))).chain(wider.map(|s| (4096, s)));
    for (tokens, (i, o)) in layers {
        all.extend([((tokens, i, o), false, true), ((tokens, o, i), false, false), ((o, tokens, i), true, false)]);
    }
    all.extend([(128, 64, 256), (128, 256, 64)].map(|s| (s, false, false)));
    for s in
        [(4, 4, 1), (1, 4, 4), (4, 4, 4), (8, 4, 8), (8, 8, 8), (16, 4, 16), (32, 4, 32), (32, 16, 32), (32, 33, 32)]
    {
        all.extend([(s, false, false), (s, false, true)]);
    }
    all.extend([(32, 32, 16), (32, 32, 33), (64, 64, 64)].map(|s| (s, false, false)));
    all
}

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("gemm");
    group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(200)).sample_size(10);
    for ((m, k, n), ta, tb) in all() {
        let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
        let mut y = vec![0f32; m * n];
        let ma = if ta { Mat::new(k, m, m).t() } else { Mat::new(m, k, k) };
        let mb = if tb { Mat::new(n, k, k).t() } else { Mat::new(k, n, n) };
        let my = Mat::new(m, n, n);
        let t = |on| if on { "ᵀ" } else { "" };
        let name = format!("{m}x{k}x{n} a{} b{}", t(ta), t(tb));
        group.throughput(Throughput::Elements((2 * m * k * n) as u64));
        group.bench_function(BenchmarkId::new("ours", &name), |c| {
            c.iter(|| gemm(1.0, (&a, ma), (&b, mb), (&mut y, my), false))
        });
        group.bench_function(BenchmarkId::new("library", &name), |c| {
            c.iter(|| library(1.0, (&a, ma), (&b, mb), (&mut y, my), false))
        });
    }
}

criterion_group!(benches, products);
criterion_main!(benches);

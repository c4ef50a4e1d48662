//! `ops::gemm` against the `gemm` crate alone, at the shapes of small models: y [m, n] = a [m, k] b [k, n].

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;
use tapezoo::ops::gemm::{Mat, gemm, library};

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("gemm");
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600)).sample_size(10);
    let sizes =
        [(4, 4, 1), (1, 4, 4), (4, 4, 4), (8, 4, 8), (8, 8, 8), (16, 4, 16), (32, 4, 32), (1024, 4, 16), (64, 64, 64)];
    for (m, k, n) in sizes {
        let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
        let mut y = vec![0f32; m * n];
        group.throughput(Throughput::Elements((2 * m * k * n) as u64));
        for (layout, mb) in [("b", Mat::new(k, n, n)), ("bᵀ", Mat::new(n, k, k).t())] {
            let (ma, my) = (Mat::new(m, k, k), Mat::new(m, n, n));
            let name = format!("{m}x{k}x{n} {layout}");
            group.bench_function(BenchmarkId::new("ours", &name), |c| {
                c.iter(|| gemm(1.0, (&a, ma), (&b, mb), (&mut y, my), false))
            });
            group.bench_function(BenchmarkId::new("library", &name), |c| {
                c.iter(|| library(1.0, (&a, ma), (&b, mb), (&mut y, my), false))
            });
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);

//! How long some work takes: on a device between two events around a graph of several calls, so that neither the host
//! nor launches count; on a CPU by the clock.

use std::{sync::Arc, time::Instant};
use tapezoo::cuda::Gpu;

/// How to measure.
#[derive(Clone, Copy)]
pub struct Clock {
    /// About how many seconds all samples of one median may take.
    pub budget: f64,
    /// Whether a device replays a graph; if not, every kernel is launched by the host, which may take longer than the
    /// kernels.
    pub graphs: bool,
}

/// The median of the seconds of one call.
pub fn time(gpu: Option<&Arc<Gpu>>, Clock { budget, graphs }: Clock, mut work: impl FnMut()) -> f64 {
    // Twice: the first time kernels are compiled and buffers allocated.
    work();
    let first = once(gpu, &mut work);
    let calls = if budget > 0.0 { ((0.02 / first) as usize).clamp(1, 20) } else { 2 };
    let samples = ((budget / (first * calls as f64)) as usize).clamp(3, 50);
    let mut times: Vec<f64> = match gpu.filter(|_| graphs) {
        None => (0..samples).map(|_| once(gpu, &mut || (0..calls).for_each(|_| work())) / calls as f64).collect(),
        Some(on) => {
            let mut graph = on.capture(|| (0..calls).for_each(|_| work()));
            on.replay(&mut graph);
            (0..samples).map(|_| once(gpu, &mut || on.replay(&mut graph)) / calls as f64).collect()
        }
    };
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn once(gpu: Option<&Arc<Gpu>>, work: &mut dyn FnMut()) -> f64 {
    match gpu {
        None => {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        }
        Some(gpu) => {
            let start = gpu.mark();
            work();
            gpu.seconds(&start, &gpu.mark())
        }
    }
}

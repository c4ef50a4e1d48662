//! Processor time, for the examples that time something.

/// Milliseconds of processor time that this process has had.
#[cfg(unix)]
pub fn cpu_ms() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

/// Milliseconds on the clock, where there is no such count.
#[cfg(not(unix))]
pub fn cpu_ms() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_secs_f64() * 1e3
}

//! Processor time, for the examples that time something.

/// Milliseconds of processor time used by this process.
#[cfg(unix)]
pub fn cpu_ms() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

/// Milliseconds of wall-clock time, on systems without such a count.
#[cfg(not(unix))]
pub fn cpu_ms() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_secs_f64() * 1e3
}

//! The build and the processor that made a result.

use crate::tensor::{
    Cx,
    simd::{self, Level},
};
use std::{
    env, fs,
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

/// The crate's version, the commit if it was built in its repository ("+" where files differ from it), and a hash of
/// its sources.
pub const BUILD: &str = env!("TAPEZOO_BUILD");

/// The text that `--version` prints after a program's name.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let built = env!("TAPEZOO_BUILT").parse().map_or("at an unknown time".into(), utc);
        format!("{BUILD}\nbuilt {built}\nprocessor: {}\nkernels: {}", processor(), kernels())
    });
    &TEXT
}

/// The makers of this process's results, on one line: program, build, processor and kernels.
pub fn made_by(cx: &Cx) -> String {
    let exe = env::current_exe().unwrap_or_default();
    let program = exe.file_stem().unwrap_or_default().to_string_lossy();
    let on = match cx.gpu() {
        Some(gpu) => format!("{}, beside {}", gpu.name(), processor()),
        None => processor(),
    };
    format!("{program} {BUILD}; {on}; kernels {}", kernels())
}

/// The name of the processor's model.
pub fn processor() -> String {
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    named.map_or_else(|| env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// The instruction set whose kernels run here.
pub fn kernels() -> &'static str {
    match simd::level() {
        Level::Avx512 => "AVX-512",
        Level::Avx2 => "AVX2",
        Level::Plain => "plain",
    }
}

/// The name of this machine.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "this machine".into() } else { name.trim().into() }
}

/// The time, as 2026-01-31T12:00:00Z.
pub fn now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// A time in seconds since 1970.
#[doc(hidden)]
pub fn utc(seconds: u64) -> String {
    // Years start in March here, so that a leap day is the last day of its year: Howard Hinnant, "chrono-compatible
    // date algorithms".
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (of_month, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{of_month:02}T{h:02}:{m:02}:{s:02}Z")
}

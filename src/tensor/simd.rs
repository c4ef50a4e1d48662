//! Which of a kernel's versions run: plain loops, AVX2 or AVX-512.
//!
//! All that the processor has, unless the environment variable `TAPEZOO_SIMD` names less, to test the others on one
//! machine. AVX-512 and AVX2 give the same bits, but for products of fewer than eight rows with a wide matrix, which one
//! of them may leave to the `gemm` crate; plain loops sum some products in another order, so that they differ by
//! rounding.

use std::sync::atomic::{AtomicU8, Ordering};

/// A set of instructions; each has those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// Instructions that every processor has.
    Plain = 1,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 as of Ice Lake.
    Avx512,
}

/// The variable that names a level.
pub const VARIABLE: &str = "TAPEZOO_SIMD";

/// The level of this process, 0 while nobody has asked for it.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The versions that run.
#[inline(always)]
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        1 => Level::Plain,
        2 => Level::Avx2,
        3 => Level::Avx512,
        _ => choose(),
    }
}

#[cold]
fn choose() -> Level {
    // A level that is unknown, or that the processor lacks, was refused when the device was opened.
    let level = asked().ok().flatten().unwrap_or(Level::Avx512).min(most());
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}

/// The most that this processor has.
#[cfg(target_arch = "x86_64")]
fn most() -> Level {
    macro_rules! has {
        ($($feature:tt),*) => { $(is_x86_feature_detected!($feature))&&* };
    }
    // The instruction sets that `versions` compiles for.
    let avx512 = has!("avx512bitalg", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512ifma", "avx512vbmi")
        && has!("avx512vbmi2", "avx512vl", "avx512vnni", "avx512vpopcntdq", "gfni", "vaes", "vpclmulqdq");
    match has!("avx2", "fma") {
        true if avx512 => Level::Avx512,
        true => Level::Avx2,
        false => Level::Plain,
    }
}

/// There are no other versions for other processors.
#[cfg(not(target_arch = "x86_64"))]
fn most() -> Level {
    Level::Plain
}

/// The instruction set that the environment asks for.
fn asked() -> Result<Option<Level>, String> {
    let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
    match value.to_str() {
        Some("plain") => Ok(Some(Level::Plain)),
        Some("avx2") => Ok(Some(Level::Avx2)),
        Some("avx512") => Ok(Some(Level::Avx512)),
        _ => Err(format!("{VARIABLE}={}: expected plain, avx2 or avx512", value.to_string_lossy().escape_debug())),
    }
}

/// Whether the environment asks for what this processor has.
///
/// # Errors
/// When it does not: what it asks for.
pub fn check() -> Result<(), String> {
    let (name, most) = (|level| format!("{level:?}").to_lowercase(), most());
    match asked()? {
        Some(level) if level > most => {
            let [level, most] = [level, most].map(name);
            Err(format!("{VARIABLE}={level}: this processor has no such instructions; expected {most}, or less"))
        }
        _ => Ok(()),
    }
}

/// Whether instructions of this level may be used, if the processor has them: the kernels that are written for AVX-512
/// need less of it than [`Level::Avx512`] is.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn allows(level: Level) -> bool {
    /// The level that was asked for, 0 while nobody has asked for it.
    static ALLOWED: AtomicU8 = AtomicU8::new(0);
    #[cold]
    fn choose() -> u8 {
        let allowed = asked().ok().flatten().unwrap_or(Level::Avx512) as u8;
        ALLOWED.store(allowed, Ordering::Relaxed);
        allowed
    }
    let allowed = match ALLOWED.load(Ordering::Relaxed) {
        0 => choose(),
        allowed => allowed,
    };
    allowed >= level as u8
}

//! Internal parts that other tests reach only indirectly: functions, products, sums, caches.
#![allow(clippy::unwrap_used)]

mod arena;
mod cell;
mod cuda;
mod functions;
#[cfg(target_arch = "x86_64")]
mod gemm;
mod packed;
mod sums;

#[test]
fn times_are_those_of_the_calendar() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_740_787_200, "2025-03-01T00:00:00Z"),
        (4_107_542_399, "2100-02-28T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(tapezoo::stamp::utc(seconds), text);
    }
}

//! Closeness of numbers, for all tests.
#![allow(dead_code, reason = "not every test file needs all of it")]

use approx::relative_eq;
use std::fmt::Display;

/// Assert that two numbers differ by no more than `tolerance`, or, where the larger one is above 1, by no more than
/// that part of it. Equal infinities are close, and NaN is close to nothing.
#[track_caller]
pub fn close(got: f64, want: f64, tolerance: f64, what: impl Display) {
    let close = relative_eq!(got, want, epsilon = tolerance, max_relative = tolerance);
    assert!(close, "{what}: {got}, not {want} (to {tolerance:e})");
}

/// Assert the same for two lists of one length, element by element.
#[track_caller]
pub fn all_close(got: &[f64], want: &[f64], tolerance: f64, what: impl Display) {
    assert_eq!(got.len(), want.len(), "{what}: how many there are");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        close(got, want, tolerance, format_args!("{what}, element {i}"));
    }
}

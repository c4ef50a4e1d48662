//! Values of keys that a file may leave out.

/// Whether a key is left out of a file.
pub fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

/// The default of `checkpoint_every`, in seconds.
pub fn checkpoint_every() -> f64 {
    30.0
}

//! Values of keys that a file may leave out.

/// The default of `checkpoint_every`, in seconds.
pub fn checkpoint_every() -> f64 {
    30.0
}

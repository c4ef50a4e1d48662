//! The names that the file of a mixer needs: `use super::prelude::*`.

pub use super::{
    About, AttentionMaps, Bound, Capabilities, Conv, Convs, Family, Form, GatedOutput, GroupNorm, Init, LowRank, Mixer,
    ModelConfig, P, Projection, Rope, State, TokenShift, at, head_first, heads, inverse_root, linear_cut, linear_heads,
    linear_parts,
    maps::{SMALL_GAIN, place, signed_square, step_size_bias, xavier},
    memories::{FORMS, turn, turn_state},
    merge_heads, narrow_normal, no_steps, normed_output,
    positions::rotate,
    remembered,
};
pub use crate::{
    autograd::{Gen, Var},
    error::Result,
    ops::words::*,
    tensor::Shape,
};

//! The layers of NX-AI's xlstm, 2.0.6: `mLSTMLayer` and `sLSTMLayer`, without the norm before and, behind an sLSTM,
//! the MLP after them. The layers of `xlstm_large` are others.
//!
//! **Norms.** Weights are stored minus one. One is added here in single precision, or in double where the file is, as it
//! is there in every forward pass (a module in half precision rounds the sum to that); from ours it is taken off, without
//! a rounding for weights of ½ or more.
//!
//! **sLSTM.** `igate` and `fgate` are exchanged in the layer's code: what it calls fgate makes the input gate. Its
//! recurrent weights are in another order on a GPU, where they are told apart by their shape; we write those of
//! `backend="vanilla"`.

use super::{
    Package,
    table::{Row, TABLE, Table, row},
};
use crate::models::ModelConfig;

const CONV: Row = row("conv", &[("conv1d.conv.weight", "HK 1 W")]);
const CONV_BIAS: Row = row("conv_bias", &[("conv1d.conv.bias", "HK")]);
const W_IF: Row = row("w_if", &[("fgate.weight", "H K K"), ("igate.weight", "H K K")]).beside();
const W_ZO: Row = row("w_zo", &[("zgate.weight", "H K K"), ("ogate.weight", "H K K")]).beside();
const GROUP_NORM: Row = row("norm", &[("group_norm.weight", "HK")]).plus_one();

fn slstm(c: &ModelConfig, backend: &str) -> String {
    let (width, heads, conv) = (c.width, c.heads, c.conv);
    let sizes = format!("embedding_dim={width}, num_heads={heads}, conv1d_kernel_size={conv}");
    format!("sLSTMLayer(sLSTMLayerConfig({sizes}, backend=\"{backend}\"))")
}

/// Their norm of a head of one channel is 0, and ours leaves it as it is.
fn one_channel(c: &ModelConfig) -> Option<String> {
    (c.head_dim == 1).then(|| "head_dim is 1: the module's norm of one channel is 0".into())
}

pub const TABLES: &[Table] = &[
    Table {
        mixer: "mlstm",
        package: Package::Xlstm,
        module: |c, _| {
            let (width, heads, conv, inner) = (c.width, c.heads, c.conv, c.inner());
            let sizes = format!("embedding_dim={width}, num_heads={heads}, conv1d_kernel_size={conv}");
            // Theirs rounds the width times the quotient up, which may be a channel too many.
            let exact = (width as f64 * (inner as f64 / width as f64)).ceil() as usize == inner;
            let inner = if exact { format!("{inner}/{width}") } else { format!("({inner}-.5)/{width}") };
            let inner = format!("proj_factor={inner}, round_proj_up_to_multiple_of=1");
            format!("mLSTMLayer(mLSTMLayerConfig({sizes}, {inner}, context_length={}))", c.max_len)
        },
        refuses: |c| {
            let inner = c.inner();
            let blocks = || format!("heads times head_dim is {inner}: projections are blocks of 4 channels");
            one_channel(c).or_else(|| (inner % 4 > 0).then(blocks))
        },
        rows: &[
            row("w_up", &[("proj_up.weight", "2HK D")]),
            CONV,
            CONV_BIAS,
            row("w_q", &[("q_proj.weight", "HK/4 4 4")]),
            row("w_k", &[("k_proj.weight", "HK/4 4 4")]),
            row("w_v", &[("v_proj.weight", "HK/4 4 4")]),
            row("w_if", &[("mlstm_cell.igate.weight", "H 3HK"), ("mlstm_cell.fgate.weight", "H 3HK")]),
            row("b_if", &[("mlstm_cell.igate.bias", "H"), ("mlstm_cell.fgate.bias", "H")]),
            row("norm", &[("mlstm_cell.outnorm.weight", "HK")]).plus_one(),
            row("skip", &[("learnable_skip", "HK")]),
            row("w_down", &[("proj_down.weight", "D HK")]),
        ],
        ..TABLE
    },
    Table {
        mixer: "slstm",
        package: Package::Xlstm,
        module: |c, _| slstm(c, "vanilla"),
        refuses: one_channel,
        square: true,
        rows: &[
            CONV.of_conv(),
            CONV_BIAS.of_conv(),
            W_IF,
            W_ZO,
            // [H, 4, out, in] to [4, H, in, out].
            row("r", &[("slstm_cell._recurrent_kernel_", "H 4K K")]).axes("H 4 K K", &[1, 0, 3, 2]),
            row("bias", &[("slstm_cell._bias_", "4HK")]),
            GROUP_NORM,
        ],
        ..TABLE
    },
    Table {
        mixer: "slstm",
        package: Package::Xlstm,
        module: |c, _| slstm(c, "cuda"),
        refuses: one_channel,
        square: true,
        rows: &[
            CONV.of_conv(),
            CONV_BIAS.of_conv(),
            W_IF,
            W_ZO,
            // [H, in, 4, out] to [4, H, in, out], and [H, 4, K] to [4, H, K].
            row("r", &[("slstm_cell._recurrent_kernel_", "H K 4K")]).axes("H K 4 K", &[2, 0, 1, 3]),
            row("bias", &[("slstm_cell._bias_", "4HK")]).axes("H 4 K", &[1, 0, 2]),
            GROUP_NORM,
        ],
        ..TABLE
    },
];

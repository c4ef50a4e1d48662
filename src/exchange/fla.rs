//! Layers of flash-linear-attention, 0.6.0. In all of them keys and values are of one width here, so that `expand_v` is
//! 1 or as large as `expand_k`.
//!
//! **ε.** The norms' ε is in no file, and the layers' default is 1e-5; ours is 1e-6, as in FLA's models.
//!
//! `Mamba` and `Mamba2` have the names and shapes of the authors' own: see [`super::mamba`].

use super::{
    Package,
    table::{Row, TABLE, Table, row},
};
use crate::models::{Eigenvalues, ModelConfig};

/// The rows that DeltaNet and its variants share: n is 1 except in DeltaProduct.
const W_Q: Row = row("w_q", &[("q_proj.weight", "HK D")]);
const W_K: Row = row("w_k", &[("k_proj.weight", "HK D")]);
const W_V: Row = row("w_v", &[("v_proj.weight", "HK D")]);
const CONV_Q: Row = row("conv_q", &[("q_conv1d.weight", "HK 1 W")]).of_conv();
const CONV_K: Row = row("conv_k", &[("k_conv1d.weight", "HK 1 W")]).of_conv();
const CONV_V: Row = row("conv_v", &[("v_conv1d.weight", "HK 1 W")]).of_conv();
const W_BETA: Row = row("w_beta", &[("b_proj.weight", "H D")]);
const W_QKV: Row = row("w_qkv", &[("q_proj.weight", "HK D"), ("k_proj.weight", "HK D"), ("v_proj.weight", "HK D")]);
const O_NORM: Row = row("norm", &[("o_norm.weight", "K")]);
const W_O: Row = row("w_o", &[("o_proj.weight", "D HK")]);

/// The options of a short convolution and of the eigenvalues.
fn conv_and_eigenvalues(c: &ModelConfig) -> String {
    let conv = if c.conv == 0 { "use_short_conv=False".into() } else { format!("conv_size={}", c.conv) };
    let signed = if c.eigenvalues == Eigenvalues::Signed { "True" } else { "False" };
    format!("{conv}, allow_neg_eigval={signed}")
}

/// `expand_k` and `expand_v`.
fn expand(c: &ModelConfig) -> String {
    let (inner, width) = (c.inner(), c.width);
    // FLA rounds the width times the quotient down, which may be a channel too few.
    let exact = (width as f64 * (inner as f64 / width as f64)) as usize == inner;
    let inner = if exact { format!("{inner}/{width}") } else { format!("{inner}.5/{width}") };
    format!("expand_k={inner}, expand_v={inner}")
}

/// Mixers that nearly equal a layer, and the difference.
pub const DIFFERS: &[(&str, &str)] = &[
    ("hgrn2", "HGRN2Attention has ε = 1e-5 in its last norm, whatever is asked for, and ours is 1e-6"),
    ("gsa", "GatedSlotAttention has ε = 1e-5 in its last norm, whatever is asked for, and ours is 1e-6"),
    ("retnet", "MultiScaleRetention turns other pairs of channels, and by other angles, than the authors' and ours"),
    ("fox", "ForgettingAttention does not mix keys and values with those of the token before"),
    ("mom", "MomAttention has convolutions over the tokens of each memory"),
    ("linear_transformer", "LinearAttention has another ε in its denominator, and no biases"),
    super::mamba::MAMBA3,
];

const OURS: Table = Table { package: Package::Fla, ..TABLE };

pub const TABLES: &[Table] = &[
    Table {
        mixer: "delta_net",
        module: |c, _| {
            let (width, heads, expand, rest) = (c.width, c.heads, expand(c), conv_and_eigenvalues(c));
            format!("fla.layers.DeltaNet(hidden_size={width}, {expand}, num_heads={heads}, {rest}, norm_eps=1e-6)")
        },
        signed: true,
        rows: &[W_Q, CONV_Q, W_K, CONV_K, W_V, CONV_V, W_BETA, O_NORM, W_O],
        ..OURS
    },
    Table {
        mixer: "gated_delta_net",
        module: |c, _| {
            let ModelConfig { width, heads, head_dim, .. } = c;
            let rest = conv_and_eigenvalues(c);
            let sizes = format!("hidden_size={width}, head_dim={head_dim}, num_heads={heads}, expand_v=1");
            format!("fla.layers.GatedDeltaNet({sizes}, {rest}, norm_eps=1e-6)")
        },
        signed: true,
        rows: &[
            W_Q,
            CONV_Q,
            W_K,
            CONV_K,
            W_V,
            CONV_V,
            W_BETA,
            row("w_g", &[("a_proj.weight", "H D")]),
            row("A_log", &[("A_log", "H")]),
            row("b_dt", &[("dt_bias", "H")]),
            row("w_z", &[("g_proj.weight", "HK D")]),
            O_NORM,
            W_O,
        ],
        ..OURS
    },
    Table {
        mixer: "gla",
        module: |c, has| {
            let (width, heads, expand) = (c.width, c.heads, expand(c));
            let apart = if has("g_norm.weight") { "fuse_norm=False, " } else { "" };
            let sizes = format!("hidden_size={width}, {expand}, num_heads={heads}");
            format!("fla.layers.GatedLinearAttention({sizes}, {apart}norm_eps=1e-6)")
        },
        rows: &[
            W_QKV,
            row("w_g1", &[("gk_proj.0.weight", "16 D")]),
            row("w_g2", &[("gk_proj.1.weight", "HK 16")]),
            row("b_g", &[("gk_proj.1.bias", "HK")]),
            row("w_r", &[("g_proj.weight", "HK D")]),
            row("norm", &[("g_norm_swish_gate.weight|g_norm.weight", "K")]),
            W_O,
        ],
        ..OURS
    },
    Table {
        mixer: "kda",
        module: |c, _| {
            let ModelConfig { width, heads, head_dim, .. } = c;
            let rest = conv_and_eigenvalues(c);
            let sizes = format!("hidden_size={width}, head_dim={head_dim}, num_heads={heads}");
            format!("fla.layers.KimiDeltaAttention({sizes}, {rest}, norm_eps=1e-6)")
        },
        signed: true,
        rows: &[
            W_Q,
            CONV_Q,
            W_K,
            CONV_K,
            W_V,
            CONV_V,
            W_BETA,
            row("w_g1", &[("f_proj.0.weight", "K D")]),
            row("w_g2", &[("f_proj.1.weight", "HK K")]),
            row("A_log", &[("A_log", "H")]),
            row("b_dt", &[("dt_bias", "HK")]),
            row("w_z1", &[("g_proj.0.weight", "K D")]),
            row("w_z2", &[("g_proj.1.weight", "HK K")]),
            row("b_z", &[("g_proj.1.bias", "HK")]),
            O_NORM,
            W_O,
        ],
        ..OURS
    },
    Table {
        mixer: "delta_product",
        module: |c, _| {
            let ModelConfig { width, heads, head_dim, householders, .. } = c;
            let rest = conv_and_eigenvalues(c);
            let sizes = format!("hidden_size={width}, head_dim={head_dim}, num_heads={heads}, expand_v=1");
            let steps = format!("num_householder={householders}");
            let gates = "use_forget_gate=False, use_output_gate=False";
            format!("fla.layers.GatedDeltaProduct({sizes}, {steps}, {gates}, {rest}, norm_eps=1e-6)")
        },
        signed: true,
        rows: &[
            W_Q,
            CONV_Q,
            row("w_k", &[("k_proj.weight", "nHK D")]),
            row("conv_k", &[("k_conv1d.weight", "nHK 1 W")]).of_conv(),
            row("w_v", &[("v_proj.weight", "nHK D")]),
            row("conv_v", &[("v_conv1d.weight", "nHK 1 W")]).of_conv(),
            row("w_beta", &[("b_proj.weight", "nH D")]),
            O_NORM,
            W_O,
        ],
        ..OURS
    },
    Table {
        mixer: "lightnet",
        module: |c, _| {
            let (width, heads, k) = (c.width, c.heads, c.head_dim);
            let sizes = format!("hidden_size={width}, num_heads={heads}, expand_ratio={k}, gate_low_rank_dim={k}");
            format!("fla.layers.LightNetAttention({sizes})")
        },
        square: true,
        rows: &[
            W_QKV,
            row("norm", &[("g_norm.weight", "HK")]),
            row("w_g1", &[("g_proj.0.weight", "K D")]),
            row("w_g2", &[("g_proj.1.weight", "HK K")]),
            W_O,
        ],
        ..OURS
    },
    Table {
        mixer: "path",
        module: |c, _| format!("fla.layers.PaTHAttention(hidden_size={}, num_heads={})", c.width, c.heads),
        square: true,
        rows: &[
            W_QKV,
            row("w_w1", &[("w_proj.0.weight", "32 D")]),
            row("w_w2", &[("w_proj.1.weight", "HK 32")]),
            row("conv", &[("w_conv1d.weight", "HK 1 3")]),
            row("w_beta", &[("bt_proj.weight", "H D")]),
            row("b_beta", &[("bt_proj.bias", "H")]),
            W_O,
        ],
        ..OURS
    },
    Table {
        mixer: "gpt",
        module: |c, has| {
            let bias = if has("q_proj.bias") { ", qkv_bias=True" } else { "" };
            format!("fla.layers.Attention(hidden_size={}, num_heads={}{bias})", c.width, c.heads)
        },
        rope: true,
        square: true,
        rows: &[
            W_QKV,
            row("b_qkv", &[("q_proj.bias", "HK"), ("k_proj.bias", "HK"), ("v_proj.bias", "HK")]).or_idle(),
            W_O,
            row("b_o", &[]).or_idle(),
        ],
        ..OURS
    },
    // Its low-rank maps are transposed, and go through K channels; ε of its norm is that of the authors.
    Table {
        mixer: "rwkv7",
        module: |c, _| {
            // Only the initial weights depend on the number of layers; the layer divides by one less.
            let (width, k, layers) = (c.width, c.head_dim, c.layers.max(2));
            let ranks = ["decay", "gate", "a", "v"].map(|map| format!("{map}_low_rank_dim={k}")).join(", ");
            let place = format!("layer_idx=I, num_hidden_layers={layers}");
            format!(
                "fla.layers.RWKV7Attention(hidden_size={width}, head_dim={k}, {ranks}, norm_eps=64e-5/{k}, {place})"
            )
        },
        square: true,
        rows: &[
            row("x_r", &[("x_r", "1 1 D")]),
            row("x_w", &[("x_w", "1 1 D")]),
            row("x_k", &[("x_k", "1 1 D")]),
            row("x_v", &[("x_v", "1 1 D")]),
            row("x_a", &[("x_a", "1 1 D")]),
            row("x_g", &[("x_g", "1 1 D")]),
            row("w0", &[("w_lora.lora.2.bias", "HK")]),
            row("a0", &[("a_lora.lora.2.bias", "HK")]),
            row("k_k", &[("k_k", "HK")]),
            row("k_a", &[("k_a", "HK")]),
            row("ln_x_weight", &[("g_norm.weight", "HK")]),
            row("ln_x_bias", &[("g_norm.bias", "HK")]),
            row("r_k", &[("r_k", "H K")]),
            row("v0", &[("v_lora.lora.2.bias", "HK")]).of_later(),
            row("w1", &[("w_lora.lora.0.weight", "K D")]).axes("K D", &[1, 0]),
            row("w2", &[("w_lora.lora.2.weight", "HK K")]).axes("HK K", &[1, 0]),
            row("a1", &[("a_lora.lora.0.weight", "K D")]).axes("K D", &[1, 0]),
            row("a2", &[("a_lora.lora.2.weight", "HK K")]).axes("HK K", &[1, 0]),
            row("g1", &[("g_lora.lora.0.weight", "K D")]).axes("K D", &[1, 0]),
            row("g2", &[("g_lora.lora.2.weight", "HK K")]).axes("HK K", &[1, 0]),
            row("v1", &[("v_lora.lora.0.weight", "K D")]).axes("K D", &[1, 0]).of_later(),
            row("v2", &[("v_lora.lora.2.weight", "HK K")]).axes("HK K", &[1, 0]).of_later(),
            row("receptance_weight", &[("r_proj.weight", "HK D")]),
            row("key_weight", &[("k_proj.weight", "HK D")]),
            row("value_weight", &[("v_proj.weight", "HK D")]),
            row("output_weight", &[("o_proj.weight", "D HK")]),
        ],
        ..OURS
    },
];

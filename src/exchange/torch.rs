//! PyTorch's own modules.
//!
//! `nn.LSTM` gives h itself. Our LSTM maps it back to the model's width: W_post and b_post, which are the identity and
//! zeros where a file has no `post_l0.weight`. A stack of layers in one `nn.LSTM` passes h on as it is; our blocks add
//! to a residual stream, and only the layers are the same.
//!
//! `nn.MultiheadAttention` sees the future unless it is given a causal mask.

use super::{
    Package,
    table::{TABLE, Table, row},
};

pub const TABLES: &[Table] = &[
    Table {
        mixer: "lstm",
        package: Package::Torch,
        module: |c, has| {
            let bias = if has("bias_ih_l0") { "" } else { "bias=False, " };
            let post = if has("post_l0.weight") {
                format!(", and h through torch.nn.Linear({}, {})", c.inner(), c.width)
            } else {
                String::new()
            };
            format!("torch.nn.LSTM({}, {}, {bias}batch_first=True){post}", c.width, c.inner())
        },
        any_heads: true,
        rows: &[
            row("w_ih", &[("weight_ih_l{}", "4HK D")]),
            row("w_hh", &[("weight_hh_l{}", "4HK HK")]),
            row("b_ih", &[("bias_ih_l{}", "4HK")]).or_zeros().with("b_hh"),
            row("b_hh", &[("bias_hh_l{}", "4HK")]).or_zeros().with("b_ih"),
            row("w_post", &[("post_l{}.weight", "D HK")]).or_idle(),
            row("b_post", &[("post_l{}.bias", "D")]).or_idle().with("w_post"),
        ],
        ..TABLE
    },
    Table {
        mixer: "gpt",
        package: Package::Torch,
        module: |c, has| {
            let bias = if has("in_proj_bias") { "" } else { "bias=False, " };
            format!(
                "torch.nn.MultiheadAttention({}, {}, {bias}batch_first=True), called with a causal mask",
                c.width, c.heads
            )
        },
        square: true,
        rows: &[
            row("w_qkv", &[("in_proj_weight", "3HK D")]),
            row("b_qkv", &[("in_proj_bias", "3HK")]).or_zeros().with("b_o"),
            row("w_o", &[("out_proj.weight", "D HK")]),
            row("b_o", &[("out_proj.bias", "D")]).or_zeros().with("b_qkv"),
        ],
        ..TABLE
    },
];

//! The layers of mamba-ssm, 2.3.2. FLA's `Mamba` and `Mamba2` have the same names and shapes.

use super::{
    Package,
    table::{TABLE, Table, row},
};

/// Mixers that nearly equal a layer, and the difference. Our rate is that of the paper's own code.
pub const DIFFERS: &[(&str, &str)] = &[MAMBA3];

/// FLA's layer of this name decays as mamba-ssm's does.
pub const MAMBA3: (&str, &str) =
    ("mamba3", "Mamba3 decays at the rate -softplus(a'), and ours at -(1 + a') or -1 / (1 - a')");

pub const TABLES: &[Table] = &[
    Table {
        mixer: "mamba",
        package: Package::Mamba,
        module: |c, has| {
            let sizes = format!("d_model={}, d_state={}, d_conv={}, expand={}", c.width, c.state, c.conv, c.expand);
            let bias = if has("conv1d.bias") { "" } else { ", conv_bias=False" };
            format!("mamba_ssm.Mamba({sizes}, dt_rank={}{bias})", c.rank())
        },
        rows: &[
            row("in_proj_weight", &[("in_proj.weight", "2xD D")]),
            row("x_proj_weight", &[("x_proj.weight", "R+2N xD")]),
            row("dt_proj_weight", &[("dt_proj.weight", "xD R")]),
            row("out_proj_weight", &[("out_proj.weight", "D xD")]),
            row("conv1d_weight", &[("conv1d.weight", "xD 1 W")]),
            row("conv1d_bias", &[("conv1d.bias", "xD")]).or_zeros(),
            row("dt_proj_bias", &[("dt_proj.bias", "xD")]),
            row("A_log", &[("A_log", "xD N")]),
            row("D", &[("D", "xD")]),
        ],
        ..TABLE
    },
    Table {
        mixer: "mamba2",
        package: Package::Mamba,
        module: |c, has| {
            let (width, state, conv) = (c.width, c.state, c.conv);
            let sizes = format!("d_model={width}, d_state={state}, d_conv={conv}, expand={}", c.inner() / width.max(1));
            let bias = if has("conv1d.bias") { "" } else { ", conv_bias=False" };
            format!("mamba_ssm.Mamba2({sizes}, headdim={}{bias})", c.head_dim)
        },
        refuses: |c| {
            let (inner, width) = (c.inner(), c.width);
            (inner % width > 0)
                .then(|| format!("heads times head_dim is {inner}: it is a multiple of the width, {width},"))
        },
        rows: &[
            row("in_proj_weight", &[("in_proj.weight", "2HK+2N+H D")]),
            row("out_proj_weight", &[("out_proj.weight", "D HK")]),
            row("conv1d_weight", &[("conv1d.weight", "HK+2N 1 W")]),
            row("conv1d_bias", &[("conv1d.bias", "HK+2N")]).or_zeros(),
            row("dt_bias", &[("dt_bias", "H")]),
            row("A_log", &[("A_log", "H")]),
            row("D", &[("D", "H")]),
            row("norm_weight", &[("norm.weight", "HK")]),
        ],
        ..TABLE
    },
];

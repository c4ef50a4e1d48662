//! How ops are computed fast, on the CPU and on CUDA devices: one file for each [`Kernel`](crate::autograd::Kernel),
//! beside the loops, vectors and products that several of them share. The meaning of an op is in [`ops`](crate::ops).

pub(crate) mod arith;
pub(crate) mod arith_cpu;
pub(crate) mod arith_cuda;
pub(crate) mod attention;
pub(crate) mod block_diagonal;
pub(crate) mod cast;
pub(crate) mod conv;
pub(crate) mod cumsum;
pub(crate) mod decay;
pub mod elementwise;
pub(crate) mod embed;
pub(crate) mod erase_write;
pub(crate) mod gated_linear_attention;
pub(crate) mod gated_skip;
pub mod gemm;
pub(crate) mod glu;
pub(crate) mod heads;
pub mod lane_sums;
pub mod lanes;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod lru_scan;
pub(crate) mod lstm;
#[doc(hidden)]
pub use lstm::cell as lstm_cell;
pub mod math;
pub(crate) mod matmul;
pub(crate) mod mlstm;
pub(crate) mod movement;
pub(crate) mod movement_cuda;
pub(crate) mod norm;
pub(crate) mod permute;
pub(crate) mod quasi_lstm;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod rows;
pub(crate) mod scan;
pub(crate) mod segsum;
pub(crate) mod selective;
pub(crate) mod slstm;
pub(crate) mod softmax;
pub(crate) mod stabiliser;
pub(crate) mod triangular;
pub(crate) mod tril_matmul;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vector;

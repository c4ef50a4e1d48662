//! Launching kernels that are made of tiles (`tiles.cuh`).

use super::{Gpu, Launch};
use crate::dtype::DType;

/// A tile of 16 R × 16 R numbers; kernels named `.._R` exist for R = 1, 2 and 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// R
    pub r: usize,
}

impl Tiles {
    /// The smallest that `n` rows fit into, or the largest.
    pub fn of(n: usize) -> Tiles {
        Tiles {
            r: if n <= 16 {
                1
            } else if n <= 32 {
                2
            } else {
                4
            },
        }
    }

    /// The largest tiles with which a block has room for a gate for each channel (`fade.cuh`). In double precision the delta
    /// rule, which takes less, goes by it too.
    pub fn for_gates(gpu: &Gpu, dtype: DType) -> Tiles {
        let fits = |tiles: &Tiles| tiles.launch(1, dtype, 4, 8 * tiles.side()).shared <= gpu.shared();
        Some(Tiles::of(64)).filter(fits).unwrap_or(Tiles::of(32))
    }

    /// Rows and columns of a tile.
    pub fn side(self) -> usize {
        16 * self.r
    }

    /// How many tiles `n` columns take.
    pub fn over(self, n: usize) -> usize {
        n.div_ceil(self.side())
    }

    /// Numbers of `dtype.real()` that the slices of a tile of 16 R × 16 Q take (`Tile::SCRATCH`).
    pub fn slices(self, dtype: DType, q: usize) -> usize {
        let slice = |n: usize| match dtype {
            DType::BF16 if self.r * q >= 4 => usize::max(72 * n, 64 * (n + 8)) / 2,
            _ => 32 * (n + 4),
        };
        slice(self.side()) + slice(16 * q)
    }

    /// Blocks that keep two slices, `matrices` tiles and `more` numbers in shared memory.
    pub fn launch(self, blocks: usize, dtype: DType, matrices: usize, more: usize) -> Launch {
        let c = self.side();
        let numbers = self.slices(dtype, self.r) + matrices * c * (c + 8) + more;
        Launch::blocks(blocks, 256).shared(numbers * if dtype == DType::F64 { 8 } else { 4 })
    }

    /// Blocks that go along a head, each with a tile of rows and 32 columns of its state [K, V] and so many numbers in shared
    /// memory for each step of a chunk (`along` in memories.cuh), if they are enough to fill a device: about one for each
    /// processor of an H100. The number was compared at one size only, 256 blocks. (The choice depends on sizes alone, so
    /// that every device adds in the same order.)
    pub fn along(self, heads: usize, [k, v]: [usize; 2], dtype: DType, numbers: usize) -> Option<Launch> {
        let blocks = heads * self.over(k) * v.div_ceil(32);
        let numbers = self.slices(dtype, 2) + numbers * self.side();
        (blocks >= 128).then(|| Launch::blocks(blocks, 256).shared(numbers * if dtype == DType::F64 { 8 } else { 4 }))
    }
}

/// The name of a kernel for these tiles.
#[macro_export]
macro_rules! sized {
    ($name:literal, $tiles:expr) => {
        match $tiles.r {
            1 => concat!($name, "_1"),
            2 => concat!($name, "_2"),
            _ => concat!($name, "_4"),
        }
    };
}

//! The arguments and the grid of a launch.

use crate::dtype::DType;

/// One argument of a kernel. [`args!`](crate::args) makes them from tensors and numbers.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// An address on the device; null for a tensor that is not there.
    Ptr(u64),
    /// `int`, and `bool` as `int`
    I32(i32),
    /// `i64`
    I64(i64),
    /// `real`: float or double, as the module is compiled
    Real(f64),
    /// `Ints<N>`
    Ints([i64; 8], usize),
}

/// The arguments of a kernel: tensors (`&x` to read, `&mut y` to write; `None` is a null pointer), `usize` as `i64`,
/// `i32` and `bool` as `int`, `f64` as `real`, `[usize; N]` as `Ints<N>`.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { &[$($crate::cuda::Arg::from($arg)),*] };
}

impl<T> From<Option<T>> for Arg
where
    Arg: From<T>,
{
    #[track_caller]
    fn from(t: Option<T>) -> Arg {
        t.map_or(Arg::Ptr(0), Arg::from)
    }
}
impl From<i32> for Arg {
    fn from(n: i32) -> Arg {
        Arg::I32(n)
    }
}
impl From<bool> for Arg {
    fn from(on: bool) -> Arg {
        Arg::I32(i32::from(on))
    }
}
impl From<usize> for Arg {
    fn from(n: usize) -> Arg {
        Arg::I64(n as i64)
    }
}
impl From<f64> for Arg {
    fn from(x: f64) -> Arg {
        Arg::Real(x)
    }
}
impl<const N: usize> From<[usize; N]> for Arg {
    fn from(list: [usize; N]) -> Arg {
        let mut ints = [0; 8];
        ints.iter_mut().zip(list).for_each(|(to, n)| *to = n as i64);
        Arg::Ints(ints, N)
    }
}

/// Whether rows of `n` elements of these tensors begin at multiples of 16 bytes, which kernels read and write at once. An
/// absent tensor does not count.
pub fn in_packs<const N: usize>(n: usize, dtype: DType, tensors: [Arg; N]) -> bool {
    let aligned = |t: &Arg| !matches!(t, Arg::Ptr(at) if at % 16 > 0);
    (n * dtype.bytes()).is_multiple_of(16) && tensors.iter().all(aligned)
}

/// How many blocks of how many threads, with how much dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks along x, y and z. A grid with a zero in it launches nothing.
    pub grid: [usize; 3],
    /// Threads of a block along x, y and z.
    pub block: [usize; 3],
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Whether blocks wait for one another: all of them run at once, or the launch is refused.
    pub together: bool,
}

impl Launch {
    /// `blocks` blocks of `threads` threads in a row.
    pub fn blocks(blocks: usize, threads: usize) -> Launch {
        Launch::grid([blocks, 1, 1], [threads, 1, 1])
    }

    /// A grid of two or three axes.
    pub fn grid(grid: [usize; 3], block: [usize; 3]) -> Launch {
        Launch { grid, block, shared: 0, together: false }
    }

    /// The same with this many bytes of dynamic shared memory.
    pub fn shared(self, bytes: usize) -> Launch {
        Launch { shared: bytes, ..self }
    }

    /// The same for blocks that wait for one another; [`Gpu::room`](super::Gpu::room) says how many there may be.
    pub fn together(self) -> Launch {
        Launch { together: true, ..self }
    }
}

impl Arg {
    /// Write the bytes that the kernel reads; gives their number.
    pub(super) fn write(&self, dtype: DType, to: &mut [u8; 64]) -> usize {
        let mut put = |bytes: &[u8]| {
            to[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        match *self {
            Arg::Ptr(p) => put(bytemuck::bytes_of(&p)),
            Arg::I32(n) => put(bytemuck::bytes_of(&n)),
            Arg::I64(n) => put(bytemuck::bytes_of(&n)),
            Arg::Real(x) if dtype == DType::F64 => put(bytemuck::bytes_of(&x)),
            Arg::Real(x) => put(bytemuck::bytes_of(&(x as f32))),
            Arg::Ints(list, n) => put(bytemuck::cast_slice(&list[..n])),
        }
    }
}

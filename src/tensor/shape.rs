//! The sizes of a tensor's axes: at most five, held inline, so a `Shape` is `Copy`.

use std::fmt;

/// The most axes a tensor may have.
pub const MAX_RANK: usize = 5;

/// Axis sizes of a contiguous, row-major tensor, outermost first. A scalar has no axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: usize,
}

impl Shape {
    /// A shape with these axis sizes.
    ///
    /// # Panics
    /// With more than [`MAX_RANK`] axes, or more elements than a `usize` counts.
    #[track_caller]
    pub fn new(dims: &[usize]) -> Shape {
        assert!(dims.len() <= MAX_RANK, "a shape has at most {MAX_RANK} axes, got {dims:?}");
        let mut shape = Shape { dims: [0; MAX_RANK], rank: dims.len() };
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape.counted()
    }

    /// The shape itself, whose elements can be counted.
    #[track_caller]
    fn counted(self) -> Shape {
        let product = self.dims().iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        assert!(product.is_some(), "shape {self} has more elements than can be counted");
        self
    }

    /// The shape of a single number.
    pub fn scalar() -> Shape {
        Shape::new(&[])
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of elements; 1 for a scalar, 0 when any axis is empty.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether there are no elements at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The axis sizes, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The axis sizes as an array, for destructuring: `let [b, t, d] = shape.array()?`.
    ///
    /// # Errors
    /// When the shape does not have exactly `N` axes; the message gives both.
    pub fn array<const N: usize>(&self) -> Result<[usize; N], String> {
        self.dims().try_into().map_err(|_| format!("expected {N} axes, got shape {self}"))
    }

    /// The size of axis `i`; negative `i` counts from the innermost axis, -1.
    ///
    /// # Panics
    /// When there is no such axis.
    #[track_caller]
    pub fn at(&self, i: isize) -> usize {
        let axis = if i < 0 { i + self.rank as isize } else { i };
        assert!((0..self.rank as isize).contains(&axis), "shape {self} has no axis {i}");
        self.dims[axis as usize]
    }

    /// The innermost axis, 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// The number of rows: the product of all axes but the innermost.
    pub fn rows(&self) -> usize {
        self.dims().split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// The same shape with axis `i` of another size.
    ///
    /// # Panics
    /// When there is no such axis.
    #[track_caller]
    pub fn with(mut self, i: usize, size: usize) -> Shape {
        assert!(i < self.rank, "shape {self} has no axis {i}");
        self.dims[i] = size;
        self.counted()
    }

    /// (product of the axes before `axis`, its size, product of the axes after it).
    ///
    /// # Panics
    /// When there is no such axis.
    #[track_caller]
    pub fn split(&self, axis: usize) -> (usize, usize, usize) {
        assert!(axis < self.rank, "shape {self} has no axis {axis}");
        let d = self.dims();
        (d[..axis].iter().product(), d[axis], d[axis + 1..].iter().product())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    #[track_caller]
    fn from(dims: [usize; N]) -> Shape {
        Shape::new(&dims)
    }
}

impl From<&[usize]> for Shape {
    #[track_caller]
    fn from(dims: &[usize]) -> Shape {
        Shape::new(dims)
    }
}

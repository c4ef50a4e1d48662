//! How far a tensor is from its reference, by the reference's own size.

use crate::tensor::DType;

/// A difference and the size of its reference, as Euclidean norms in a unit in which neither overflows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    /// ‖ours − theirs‖ / unit; infinite where one is not finite and the other is not the same.
    pub apart: f64,
    /// ‖theirs‖ / unit
    pub size: f64,
    /// The largest magnitude in either of them, or 1 if all are 0.
    pub unit: f64,
}

impl Distance {
    /// The distance of two tensors of the same size. Infinities of the same sign are equal, and so are two NaN; they
    /// count in no norm. A reference too large for `dtype` counts as infinity, to which it would be rounded.
    pub fn between(ours: &[f64], theirs: &[f64], dtype: DType) -> Distance {
        let rounded = |x: f64| if dtype == DType::F32 && (x as f32).is_infinite() { f64::from(x as f32) } else { x };
        let (mut unit, mut same) = (0.0f64, ours.len() == theirs.len());
        let pairs = || ours.iter().zip(theirs).map(|(&a, &b)| (a, rounded(b)));
        for (a, b) in pairs() {
            match (a.is_finite(), b.is_finite()) {
                (true, true) => unit = unit.max(a.abs()).max(b.abs()),
                (false, false) => same &= a == b || a.is_nan() && b.is_nan(),
                _ => same = false,
            }
        }
        if unit == 0.0 {
            unit = 1.0;
        }
        let (mut apart, mut size) = (0.0, 0.0);
        for (a, b) in pairs().filter(|(a, b)| a.is_finite() && b.is_finite()) {
            let (a, b) = (a / unit, b / unit);
            apart += (a - b) * (a - b);
            size += b * b;
        }
        Distance { apart: if same { f64::sqrt(apart) } else { f64::INFINITY }, size: f64::sqrt(size), unit }
    }

    /// ‖ours − theirs‖.
    pub fn absolute(&self) -> f64 {
        self.apart * self.unit
    }

    /// ‖ours − theirs‖ and the floor, both divided by ‖theirs‖ or by `floor` if that is larger.
    pub fn relative(&self, floor: f64) -> [f64; 2] {
        let floor = floor / self.unit;
        if self.apart.is_infinite() {
            return [self.apart, 0.0];
        }
        let size = self.size.max(floor);
        [self.apart, floor].map(|x| {
            if x == 0.0 {
                0.0
            } else if x == size {
                1.0
            } else {
                x / size
            }
        })
    }
}

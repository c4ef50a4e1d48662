//! Counts of right and wrong predictions, from which the metrics of all tasks are computed.

/// Units of [`Counts::bits`] in a bit, and of [`Counts::distance`] in 1.
const UNITS: f64 = (1u64 << 32) as f64;

/// Predicted and true classes at the positions that have a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// How often each class was predicted correctly.
    pub right: Vec<u64>,
    /// How often each class was predicted.
    pub said: Vec<u64>,
    /// How often each class was the target.
    pub is: Vec<u64>,
    /// How many sequences had a target.
    pub sequences: u64,
    /// How many sequences were right at all their targets.
    pub perfect: u64,
    /// Σ −log₂ p of the targets where that is counted, in units of 2⁻³² bits: a whole number, since the sum of those
    /// does not depend on their order.
    bits: u128,
    /// Σ ½ Σ |p − p*| of the targets, in the same units.
    distance: u128,
}

/// As many bits as one target can count: as wrong as can be written down.
pub(super) const MOST_BITS: f64 = 1e6;

impl Counts {
    /// No counts yet, for this many classes.
    pub fn new(classes: usize) -> Counts {
        let zeros = || vec![0; classes];
        Counts { right: zeros(), said: zeros(), is: zeros(), sequences: 0, perfect: 0, bits: 0, distance: 0 }
    }

    /// Count a position; `said` is `None` where the logits were not finite. A class that the task does not have, of a model
    /// with more classes, is a wrong answer as well.
    pub fn add(&mut self, said: Option<usize>, is: usize) {
        self.is[is] += 1;
        if let Some(said) = said.filter(|&class| class < self.said.len()) {
            self.said[said] += 1;
            self.right[said] += u64::from(said == is);
        }
    }

    /// Count −log₂ p of a target, in bits.
    pub fn add_bits(&mut self, bits: f64) {
        // NaN counts as the worst answer.
        let bits = if bits < MOST_BITS { bits.max(0.0) } else { MOST_BITS };
        self.bits += (bits * UNITS).round() as u128;
    }

    /// Count the total variation distance of a target's probabilities, a number from 0 to 1.
    pub fn add_distance(&mut self, distance: f64) {
        // NaN counts as the largest distance.
        let distance = if distance < 1.0 { distance.max(0.0) } else { 1.0 };
        self.distance += (distance * UNITS).round() as u128;
    }

    /// Add the counts of `other`, which has as many classes.
    pub fn merge(&mut self, other: &Counts) {
        for (to, from) in [(&mut self.right, &other.right), (&mut self.said, &other.said), (&mut self.is, &other.is)] {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
        self.sequences += other.sequences;
        self.perfect += other.perfect;
        self.bits += other.bits;
        self.distance += other.distance;
    }

    /// The share of positions that were right; 0 if there are none.
    pub fn accuracy(&self) -> f64 {
        ratio(self.right.iter().sum(), self.is.iter().sum())
    }

    /// The share of a class's predictions that were right, averaged with equal weights over all classes that were
    /// predicted or true; 0 for a class that was never predicted (scikit-learn's macro average).
    pub fn precision(&self) -> f64 {
        self.macro_average(&self.said)
    }

    /// The share of a class's targets that were predicted as such, averaged as in [`Counts::precision`].
    pub fn recall(&self) -> f64 {
        self.macro_average(&self.is)
    }

    /// The share of sequences that were right at all their targets.
    pub fn sequence_accuracy(&self) -> f64 {
        ratio(self.perfect, self.sequences)
    }

    /// The mean of −log₂ p over the targets; 0 if there are none.
    pub fn bits(&self) -> f64 {
        self.bits as f64 / UNITS / self.is.iter().sum::<u64>().max(1) as f64
    }

    /// The mean total variation distance over the targets; 0 if there are none.
    pub fn distance(&self) -> f64 {
        self.distance as f64 / UNITS / self.is.iter().sum::<u64>().max(1) as f64
    }

    fn macro_average(&self, of: &[u64]) -> f64 {
        let seen = |&c: &usize| self.said[c] + self.is[c] > 0;
        let n = (0..of.len()).filter(seen).count();
        (0..of.len()).filter(seen).map(|c| ratio(self.right[c], of[c])).sum::<f64>() / n.max(1) as f64
    }
}

fn ratio(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

//! How often a model was right: what the metrics of all tasks are computed from.

/// What was said and what was true, at the positions that count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// How often each class was said and true.
    pub right: Vec<u64>,
    /// How often each class was said.
    pub said: Vec<u64>,
    /// How often each class was true.
    pub is: Vec<u64>,
    /// How many sequences had a position that counts.
    pub sequences: u64,
    /// How many of them were right at every such position.
    pub perfect: u64,
}

impl Counts {
    /// Nothing said yet, of so many classes.
    pub fn new(classes: usize) -> Counts {
        let zeros = || vec![0; classes];
        Counts { right: zeros(), said: zeros(), is: zeros(), sequences: 0, perfect: 0 }
    }

    /// Count a position; `said` is none where no class was (the logits were not finite).
    pub fn add(&mut self, said: Option<usize>, is: usize) {
        self.is[is] += 1;
        if let Some(said) = said {
            self.said[said] += 1;
            self.right[said] += u64::from(said == is);
        }
    }

    /// Count what `other` has counted too, of as many classes.
    pub fn merge(&mut self, other: &Counts) {
        for (to, from) in [(&mut self.right, &other.right), (&mut self.said, &other.said), (&mut self.is, &other.is)] {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
        self.sequences += other.sequences;
        self.perfect += other.perfect;
    }

    /// The share of positions that were right; 0 of none.
    pub fn accuracy(&self) -> f64 {
        ratio(self.right.iter().sum(), self.is.iter().sum())
    }

    /// Of what was said to be a class, the share that was: averaged over the classes that were said or true, each
    /// weighing the same, and 0 for a class never said (scikit-learn's macro average).
    pub fn precision(&self) -> f64 {
        self.macro_average(&self.said)
    }

    /// Of what was a class, the share that was said to be: averaged as [`Counts::precision`].
    pub fn recall(&self) -> f64 {
        self.macro_average(&self.is)
    }

    /// The share of sequences that were right at every position that counts.
    pub fn sequence_accuracy(&self) -> f64 {
        ratio(self.perfect, self.sequences)
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

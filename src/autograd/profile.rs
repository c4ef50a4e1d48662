//! Where a step's time goes, op by op.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

/// The cost of one kind of op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// How many times it ran forward.
    pub calls: usize,
    /// Time in forward.
    pub forward: Duration,
    /// Time in backward.
    pub backward: Duration,
    /// Bytes that its outputs hold.
    pub bytes: usize,
}

/// Costs by the name of the op, by that of the kernel where the op has several, or as "NAME (loops)" where a primitive
/// ran without a kernel.
#[derive(Clone, Debug, Default)]
pub struct Profile(pub BTreeMap<Cow<'static, str>, Cost>);

impl Profile {
    pub(super) fn of(&mut self, op: Cow<'static, str>) -> &mut Cost {
        self.0.entry(op).or_default()
    }

    /// Count one forward pass of an op.
    pub(super) fn count(&mut self, op: Cow<'static, str>, took: Duration, bytes: usize) {
        let cost = self.of(op);
        cost.calls += 1;
        cost.forward += took;
        cost.bytes += bytes;
    }

    /// Add the measurements of another tape.
    pub fn merge(&mut self, other: &Profile) {
        for (op, cost) in &other.0 {
            let own = self.of(op.clone());
            own.calls += cost.calls;
            own.forward += cost.forward;
            own.backward += cost.backward;
            own.bytes += cost.bytes;
        }
    }

    /// A table of the costs of one step, the dearest op first, when `steps` were recorded.
    pub fn table(&self, steps: usize) -> String {
        let steps = steps.max(1) as f64;
        let us = |d: Duration| d.as_secs_f64() * 1e6 / steps;
        let total: f64 = self.0.values().map(|c| us(c.forward) + us(c.backward)).sum();
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.1.forward + row.1.backward));
        let mut text = format!(
            "{:<24} {:>6} {:>11} {:>12} {:>6} {:>10}\n",
            "op", "calls", "forward µs", "backward µs", "share", "output kB"
        );
        for (name, c) in rows {
            let (f, b) = (us(c.forward), us(c.backward));
            let (calls, kb) = (c.calls as f64 / steps, c.bytes as f64 / steps / 1e3);
            text += &format!(
                "{name:<24} {calls:>6.0} {f:>11.1} {b:>12.1} {:>5.0}% {kb:>10.1}\n",
                100.0 * (f + b) / total.max(1e-9)
            );
        }
        text + &format!("{:<24} {:>6} {total:>24.1}\n", "all ops", "")
    }
}

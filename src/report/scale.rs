//! Axes: where a number lies between the ends, and the nice numbers that are written beside them.

/// How numbers are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Equal differences are equal distances.
    Linear,
    /// Equal ratios are equal distances.
    Log,
}

/// An axis: its two ends, and its ticks with their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// How numbers are spread.
    pub scale: Scale,
    /// The number at its start.
    pub lo: f64,
    /// The number at its end, above `lo`.
    pub hi: f64,
    /// The places of the ticks, and their labels.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Where x lies, from 0 at the start to 1 at the end; beyond an end, that end.
    pub fn at(&self, x: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (x - self.lo) / (self.hi - self.lo),
            Scale::Log => (x.max(f64::MIN_POSITIVE).ln() - self.lo.ln()) / (self.hi.ln() - self.lo.ln()),
        };
        part.clamp(0.0, 1.0)
    }

    /// From `lo` to `hi`, with about `n` ticks at multiples of 1, 2 or 5 times a power of ten.
    pub fn linear(lo: f64, hi: f64, n: usize) -> Axis {
        let hi = if hi > lo { hi } else { lo + lo.abs().max(1.0) };
        let step = nice((hi - lo) / n.max(1) as f64);
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let (first, last) = ((lo / step - 1e-9).ceil() as i64, (hi / step + 1e-9).floor() as i64);
        let tick = |i: i64| {
            let x = i as f64 * step;
            (x, if decimals == 0 { thousands(x) } else { format!("{x:.decimals$}") })
        };
        Axis { scale: Scale::Linear, lo, hi, ticks: (first..=last).map(tick).collect() }
    }

    /// From `lo` to `hi`, both above 0, with ticks at powers of ten, or at 1, 2 and 5 times those of a short axis. An axis
    /// of less than a decade has more multiples, so that there are two from a ratio of 2.25 on.
    pub fn log(lo: f64, hi: f64) -> Axis {
        let hi = if hi > lo { hi } else { lo * 10.0 };
        let (first, last) = (lo.log10().floor() as i32, hi.log10().ceil() as i32);
        let decades = (hi / lo).log10();
        let of: &[f64] = match decades {
            ..1.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            1.0..2.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let every = ((decades / 6.0).ceil() as i32).max(1);
        let ticks = (first..=last).filter(|p| p.rem_euclid(every) == 0).flat_map(|p| of.iter().map(move |m| (*m, p)));
        // The text of 5e-3 reads back as the nearest number; a product would be off by a rounding.
        let ticks = ticks.filter_map(|(m, p)| format!("{m}e{p}").parse().ok().map(|x: f64| (x, power(x, m, p))));
        Axis { scale: Scale::Log, lo, hi, ticks: ticks.filter(|t| (lo..=hi).contains(&t.0)).collect() }
    }

    /// The axis with only the labels that have room on `length`, at least `gap` apart; `width` gives the width of a
    /// label. Going back from the last label, which is kept, each label stays that does not touch the one kept before
    /// it. The ticks of the others stay, unlabelled.
    pub fn thinned(mut self, length: f64, gap: f64, width: impl Fn(&str) -> f64) -> Axis {
        let mut free = f64::INFINITY;
        for i in (0..self.ticks.len()).rev() {
            let (at, half) = (self.at(self.ticks[i].0) * length, width(&self.ticks[i].1) / 2.0);
            if at + half + gap <= free {
                free = at - half;
            } else {
                self.ticks[i].1.clear();
            }
        }
        self
    }
}

/// The least of 1, 2 or 5 times a power of ten that is not below x.
fn nice(x: f64) -> f64 {
    let power = 10f64.powf(x.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= x * 0.999).unwrap_or(10.0 * power)
}

/// A whole number with commas: 12,000.
fn thousands(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let mut text = String::from(if x < 0.0 { "−" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// m times ten to the p: in full where that is short.
fn power(x: f64, m: f64, p: i32) -> String {
    if (-3..=4).contains(&p) {
        return if p >= 0 && x.fract() == 0.0 { thousands(x) } else { format!("{x}") };
    }
    let raised = |c: char| match c {
        '-' => '⁻',
        c => c.to_digit(10).and_then(|d| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(d as usize)).unwrap_or(c),
    };
    let ten: String = "10".chars().chain(p.to_string().chars().map(raised)).collect();
    if m == 1.0 { ten } else { format!("{m}·{ten}") }
}

/// Three significant digits, for a person.
pub fn short(x: f64) -> String {
    if x == 0.0 {
        return "0".into();
    }
    let digits = x.abs().log10().floor();
    if !(-4.0..6.0).contains(&digits) {
        return format!("{x:.2e}");
    }
    format!("{x:.*}", (2.0 - digits).max(0.0) as usize)
}

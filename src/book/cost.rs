//! Time and memory of a training step of each mixer, as measured: `examples/scaling.rs` writes the file.

use crate::report::{
    plot::{Figure, Line, Point},
    scale::{Axis, short},
};

/// The measurements.
const TABLE: &str = include_str!("cost.tsv");

/// One of them, with sequences of `t` tokens.
#[derive(Debug)]
pub struct Cost {
    /// The mixer.
    pub mixer: &'static str,
    /// The form that was run.
    pub form: &'static str,
    /// The tokens of a sequence.
    pub t: f64,
    /// Microseconds of processor time for each token.
    pub us: f64,
    /// Bytes of memory for each token.
    pub bytes: f64,
    /// The build that was measured, and the processor.
    pub place: [&'static str; 2],
}

/// The measurements of a mixer, from short sequences to long ones; none of one that was not measured.
pub fn of(mixer: &str) -> Vec<Cost> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    let read = |line: &'static str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [mixer, form, t, us, bytes, build, processor] = cells[..] else { return None };
        let [t, us, bytes] = [t, us, bytes].map(|cell| cell.parse().ok());
        Some(Cost { mixer, form, t: t?, us: us?, bytes: bytes?, place: [build, processor] })
    };
    rows.filter_map(read).filter(|cost| cost.mixer == mixer).collect()
}

/// Time and memory of a token over the length of the sequence, a line for each of these mixers, under its usual name.
pub fn figures(mixers: &[(String, Vec<Cost>)]) -> [Figure; 2] {
    let figure = |name: &str, title: &str, unit: &str, y: fn(&Cost) -> f64| {
        let all = || mixers.iter().flat_map(|(_, costs)| costs);
        let (lo, hi) = all().map(y).fold((f64::INFINITY, 0.0f64), |(lo, hi), y| (lo.min(y), hi.max(y)));
        let line = |(style, (label, costs)): (usize, &(String, Vec<Cost>))| Line {
            label: label.clone(),
            style,
            points: (costs.iter())
                .map(|cost| {
                    let value = y(cost);
                    let about = format!("{label}, T = {}: {} {unit}", cost.t, short(value));
                    Point { x: cost.t, mean: value, lo: value, hi: value, about }
                })
                .collect(),
        };
        let ticks = [256.0, 1024.0, 4096.0, 16384.0, 65536.0].map(|t: f64| (t, format!("{t}"))).to_vec();
        Figure {
            name: name.into(),
            title: title.into(),
            x_label: "T, tokens in a sequence".into(),
            x: Axis { ticks, ..Axis::log(230.0, 73_000.0) },
            y: Axis::log(lo / 1.5, hi * 1.5),
            guess: None,
            trained: None,
            lines: mixers.iter().enumerate().map(line).collect(),
        }
    };
    [
        figure("time", "µs a token, in training", "µs", |cost| cost.us),
        figure("memory", "bytes a token, in training", "bytes", |cost| cost.bytes),
    ]
}

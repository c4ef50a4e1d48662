//! The exercises of the repository: files in `exercises/` with a hole that a reader fills, and checks below it.
//!
//! An exercise is done when its file has no `todo!` left and its checks pass. That is looked up anew each time; no state
//! is kept anywhere but in the files. A solution is no copy, but the lines of this project that do what is asked for.

use crate::error::{Error, Result, did_you_mean};
use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// An exercise.
pub struct Exercise {
    /// The name of its file.
    pub name: &'static str,
    /// Its title, which is the first line of the file.
    pub title: &'static str,
    /// The hints in order: first what to think of, last what to write.
    pub hints: &'static [&'static str],
    /// The lines of this project that do it.
    pub solution: &'static [Place],
}

/// Lines of a file: from the first that contains `from` to the next that contains `to`.
pub struct Place {
    /// Its path in the repository.
    pub file: &'static str,
    /// A part of the first line.
    pub from: &'static str,
    /// A part of the last line.
    pub to: &'static str,
}

const fn lines(file: &'static str, from: &'static str, to: &'static str) -> Place {
    Place { file, from, to }
}

/// All exercises, in order.
pub const EXERCISES: [Exercise; 22] = [
    Exercise {
        name: "derivative",
        title: "A derivative by hand",
        hints: &[
            "SiLU is a product, x times σ(x): the product rule gives two terms.",
            "The derivative of σ(x) is σ(x) (1 − σ(x)), and 1 − σ(x) is σ(−x).",
            "σ(x) + x σ(x) σ(−x)",
        ],
        solution: &[lines("src/ops/primitives/elementwise.rs", "silu = Silu", "silu = Silu")],
    },
    Exercise {
        name: "cross_entropy",
        title: "The gradient of softmax cross-entropy",
        hints: &[
            "−ln p_target = ln Σ e^x_i − x_target. Differentiate both terms by x_j.",
            "The first gives p_j. The second gives −1 where j is the target, else 0.",
            "Subtract the largest logit from all before you take exponentials.",
        ],
        solution: &[
            lines("src/ops/loss.rs", "loss = mean over", "1 − s + s/C and s/C"),
            lines("src/kernels/loss.rs", "let others = lane_sums::sum", "p[t as usize] = -others"),
        ],
    },
    Exercise {
        name: "counter",
        title: "A counter by a linear recurrence",
        hints: &[
            "a is what is kept of the state: 1 keeps it, 0 forgets it.",
            "b is what a token adds, whatever the state.",
            "'.' changes nothing: (1, 0). 'r' forgets, and adds nothing.",
        ],
        solution: &[
            lines("src/book/tour.rs", "title: \"A counter\"", "It holds how many ones"),
            lines("src/ops/scan.rs", "h = token(x[0], t) * h", "h = token(x[0], t) * h"),
        ],
    },
    Exercise {
        name: "linear_attention_step",
        title: "The step of linear attention",
        hints: &[
            "Write first: a token reads its own value too.",
            "`outer(k, v)` is k vᵀ, and `recall(s, q)` is Sᵀ q, of every head.",
            "q·z is `(q * z).sum_axis(2, true)`: [B, H, 1], which divides [B, H, V].",
        ],
        solution: &[lines("src/ops/linear_attn.rs", "s = s + outer(k, v);", "o / (self.scale")],
    },
    Exercise {
        name: "delta_step",
        title: "The step of the delta rule",
        hints: &[
            "What is under the key now: Sᵀ k. With k as [B, H, K, 1] it is `s.t_matmul(k)`, [B, H, V, 1].",
            "The error is v, as [B, H, V, 1], less that.",
            "Add k times the transpose of β error: `k.matmul_t(..)`, with β as [B, H, 1, 1].",
        ],
        solution: &[lines("src/models/delta_net.rs", "let k = k.named(\"k\").reshape", "s + k.matmul_t(beta")],
    },
    Exercise {
        name: "delta_backward",
        title: "The delta rule's backward pass, by hand",
        hints: &[
            "Begin with the read, o = S_tᵀ q: dq = S_t dₒ, and S_t gets q dₒᵀ more.",
            "From here on dS is the whole gradient of S_t. S_t has k eᵀ in it: de = dSᵀ k, and dk gets dS e.",
            "e = β δ: dβ = de·δ, and dδ = β de. v is in δ with +: dv = dδ.",
            "δ also has −S_{t-1}ᵀ k in it: dk gets −S_{t-1} dv, and dS_{t-1} = dS − k dvᵀ.",
        ],
        solution: &[lines("src/ops/delta.rs", "dq_t = scale S_t do_t", "dk_t = dS u_t")],
    },
    Exercise {
        name: "delta_parallel",
        title: "The delta rule by a triangular solve",
        hints: &[
            "b K is `beta * k`, as β is [B, H, T, 1]. A is that times Kᵀ, and the solve reads only below its diagonal.",
            "The right-hand side is `beta * v - bk.matmul(s)`.",
            "O needs no S of its own for each step: Q S is what was there, and tril(Q Kᵀ) U what the steps wrote.",
        ],
        solution: &[lines("src/models/delta_net.rs", "let bk = beta * k;", "(head_first(o), s + k.t_matmul(u))")],
    },
    Exercise {
        name: "chunked_linear_attention",
        title: "The chunked form of linear attention",
        hints: &[
            "What a query reads has two parts: what was written before the chunk, Q S, and what was written in it.",
            "In the chunk step t reads of the steps s ≤ t: the mask is the lower triangle, with the diagonal.",
            "Kᵀ V is the sum of all k vᵀ: one product, `k.t_matmul(v)`.",
        ],
        solution: &[lines(
            "src/models/linear_transformer.rs",
            "let p = q.matmul_t(k).tril(0);",
            "m.s = m.s + k.t_matmul(v);",
        )],
    },
    Exercise {
        name: "gated_chunk",
        title: "A gated chunk without a positive exponent",
        hints: &[
            "`g.segsum()` has the sums of all segments, each over its own steps, and −∞ above the diagonal.",
            "r is the last row of D: `decay.narrow(2, t - 1, 1)`, as [B, H, T].",
            "The first column of D is exp(g_2 + … + g_t). Only exp(g_1) is missing for γ: `g.narrow(2, 0, 1).exp()`.",
            "γ_T is the last element of γ: `from_start.narrow(2, t - 1, 1)`.",
        ],
        solution: &[lines("src/models/gated_delta_net.rs", "let decay = g.segsum().exp();", "let (to_end, all)")],
    },
    Exercise {
        name: "lstm_step",
        title: "The step of an LSTM",
        hints: &[
            "The activations are `.sigmoid()` and `.tanh()`.",
            "Products and sums of tensors are element by element: `f.sigmoid() * c + …`.",
            "h_t shows the new c, not the old one. Assign both: `c = …; h = …;`.",
        ],
        solution: &[lines("src/ops/lstm.rs", "c = f.sigmoid() * c", "h = o.sigmoid() * c.tanh();")],
    },
    Exercise {
        name: "lstm_backward",
        title: "An LSTM's backward pass, by hand",
        hints: &[
            "From the end: h = o u. dõ = dh u σ′(õ), and c gets dh o (1 − u²) more than dc.",
            "With dc complete: dĩ = dc g σ′(ĩ), df̃ = dc c_{t-1} σ′(f̃), dg̃ = dc i (1 − g²).",
            "c_{t-1} is in c times f: its gradient is dc f.",
            "σ′(x) is sigmoid(x) * sigmoid(-x), and 1 − tanh²(x) is 1.0 / x.cosh().powi(2).",
        ],
        solution: &[lines("src/kernels/lstm/cell.rs", "dc += dh [o (1 − u²)]", "where the gate is saturated.")],
    },
    Exercise {
        name: "slstm_stabiliser",
        title: "The stabiliser of the sLSTM",
        hints: &[
            "l is `log_sigmoid(f) + (m + before)`, and m_t is `maximum(&[l, i])`.",
            "Take exponentials of `l - reference(m)` and `i - reference(m)`: where m_t is −∞ both are 0.",
            "c and n both use the old values: `(c, n) = (f * c + …, f * n + i)`.",
            "0/0 where nothing was written: add `(LEAST - reference(m)).exp()` to n, 1 there and 0 elsewhere.",
        ],
        solution: &[lines("src/ops/slstm.rs", "let l = log_sigmoid(f)", "y = o.sigmoid() * c / (n")],
    },
    Exercise {
        name: "mlstm_normaliser",
        title: "The normaliser of the mLSTM",
        hints: &[
            "Where m ≥ 0, e^(−m) is at most 1 and all is well. Where m < 0, multiply num, den and the 1 by e^m.",
            "With positive = max(m, 0) the factor is e^(m − positive), in both cases, and e^(−m) becomes e^(−positive).",
            "That factor may round to 0 where num is large. Take its root, e^((m − positive) / 2), and multiply twice.",
            "ε stands beside e^(−m): it gets the factor too. |x| is the larger of x and −x.",
        ],
        solution: &[lines("src/ops/mlstm.rs", "let positive = maximum", "(half * (half * num) / by")],
    },
    Exercise {
        name: "complex_scan",
        title: "The recurrence of the LRU: complex numbers",
        hints: &[
            "(a + bi)(c + di) = (ac − bd) + (ad + bc) i.",
            "hr and hi both need the old values of both: assign them at once, `(hr, hi) = (…, …);`.",
        ],
        solution: &[lines("src/ops/lru_scan.rs", "(hr, hi) = (lr", "(hr, hi) = (lr")],
    },
    Exercise {
        name: "selective_scan",
        title: "The step of Mamba's selective scan",
        hints: &[
            "Δ a is [B, E, N]: `insert_axis(dt, 2) * a`. s is `self.s`, a number: `self.s * x.exp() - (self.s - 1.0)`.",
            "Δ u is `dt * u`, [B, E]. b is [B, N]: `insert_axis(b, 1)` makes it [B, 1, N].",
            "y sums over N, the last axis: `.sum_axis(2, false)`. It reads the new h.",
        ],
        solution: &[lines("src/ops/selective.rs", "let transition = self.s", "(h * insert_axis(c, 1))")],
    },
    Exercise {
        name: "parallel_scan",
        title: "An associative scan",
        hints: &[
            "`while s < steps { …; s *= 2; }`: in a round elements from s on change, the first s stay.",
            "The later map is applied to the earlier: a is late(a) early(a), b is late(a) early(b) + late(b).",
            "late(x) is x.narrow(1, s, steps - s), early(x) is x.narrow(1, 0, steps - s).",
            "a and b change together: `(a, b) = (…, …)`, each a concat of its first s and the new rest.",
        ],
        solution: &[lines("src/ops/scan_parallel.rs", "while s < steps {", "    }")],
    },
    Exercise {
        name: "parity",
        title: "A reflection that tracks parity",
        hints: &[
            "A zero must leave S alone: β = 0, whatever k and v are.",
            "Two ones must undo one another: I − β k kᵀ applied twice is I. Along k it multiplies by 1 − β.",
            "Reflect the axis that o reads: k = (1, 0), β = 2, and write no value.",
        ],
        solution: &[lines(
            "tests/expressivity/delta_rules.rs",
            "/// Both tokens have the same key",
            "let beta = [-BIG, BIG];",
        )],
    },
    Exercise {
        name: "modulo_three",
        title: "Counting modulo three by a rotation",
        hints: &[
            "Two reflections turn by twice the angle between their keys, and a third of a circle is 120°.",
            "So the keys are 60° apart. The first may be (1, 0).",
            "cos 60° is 1/2, and sin 60° is √3 / 2.",
        ],
        solution: &[lines(
            "tests/expressivity/delta_rules.rs",
            "/// For a one, two reflections",
            "let first = [BIG, BIG",
        )],
    },
    Exercise {
        name: "online_softmax",
        title: "Softmax online, as in flash attention",
        hints: &[
            "Find the new maximum first: that of the old one and the block's scores.",
            "The factor by which l and y fade is e^(m − m'): 1 where the maximum is the old one.",
            "Where the new maximum is still −∞ nothing was seen: return before anything is subtracted from it.",
        ],
        solution: &[lines("src/kernels/attention/flash.cu", "const real now = fmax", "y.v[i][j] *= fade;")],
    },
    Exercise {
        name: "causal_convolution",
        title: "A causal convolution and its window",
        hints: &[
            "Put the window in front of x: `Var::concat(&[window, x], 1)`, of W − 1 + T steps.",
            "Tap j meets T steps of it, from step j on: `all.narrow(1, j, t)`, times `w.narrow(1, j, 1).reshape([d])`.",
            "The sum of the taps: `(0..taps).map(..).reduce(|a, b| a + b)`; there is one tap at least.",
            "The next window is the last W − 1 steps of it: those from step t on.",
        ],
        solution: &[
            lines("src/ops/conv.rs", "let all = Var::concat", "(0..taps)"),
            lines("src/models/conv.rs", "let ([_, window, _], [_, t, _])", "if t >= window"),
        ],
    },
    Exercise {
        name: "barrier",
        title: "A CUDA kernel without a race",
        hints: &[
            "The report names two lines: one thread has written what another reads, with no barrier between.",
            "Between the write to scratch and the reads of it all threads must meet.",
            "When a thread has its sum it goes on to the next row, and writes scratch again. Who still reads?",
        ],
        solution: &[lines("src/cuda/prelude.cuh", "__device__ inline T block_sum", "return v;")],
    },
    Exercise {
        name: "coalesced",
        title: "A CUDA kernel with coalesced loads",
        hints: &[
            "In one turn of the loop neighbouring threads should have neighbouring i.",
            "Thread t has the elements t, t + blockDim.x, t + 2 blockDim.x, …",
            "i = j * blockDim.x + threadIdx.x",
        ],
        solution: &[lines("src/tensor/tensor.cu", "// Kernels of the engine itself", "st(x + i, value);")],
    },
];

/// The exercise of this name, or of a file of this name.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> Result<&'static Exercise> {
    let name = Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or(name);
    EXERCISES.iter().find(|exercise| exercise.name == name).ok_or_else(|| {
        let near = did_you_mean(name, EXERCISES.iter().map(|exercise| exercise.name));
        Error::config(format!("exercise {name}: no such exercise{near}: `tapezoo exercise` lists them"))
    })
}

/// The repository that the current directory is in.
///
/// # Errors
/// When it is in none.
pub fn root() -> Result<PathBuf> {
    let here = env::current_dir().map_err(Error::io("the current directory"))?;
    let found = here.ancestors().find(|dir| dir.join("exercises/check.rs").is_file());
    found.map(Path::to_path_buf).ok_or_else(|| {
        Error::config("there are no exercises here: they are in tapezoo's repository, so go into a clone of it")
    })
}

impl Exercise {
    /// The file that a reader edits, from the root of the repository.
    pub fn file(&self, root: &Path) -> String {
        let kernel = format!("exercises/{}.cu", self.name);
        if root.join(&kernel).is_file() { kernel } else { format!("exercises/{}.rs", self.name) }
    }

    /// Whether the hole is still there.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn is_open(&self, root: &Path) -> Result<bool> {
        let path = root.join(self.file(root));
        Ok(fs::read_to_string(&path).map_err(Error::io(path))?.contains("todo!"))
    }
}

impl Place {
    /// Its lines in a repository, and the number of the first.
    ///
    /// # Errors
    /// When the file cannot be read, or has no such lines.
    pub fn lines(&self, root: &Path) -> Result<(usize, Vec<String>)> {
        let path = root.join(self.file);
        let text = fs::read_to_string(&path).map_err(Error::io(&path))?;
        let from = text.lines().position(|line| line.contains(self.from));
        let lines = from.and_then(|from| {
            let rest: Vec<String> = text.lines().skip(from).map(String::from).collect();
            let more = rest.iter().position(|line| line.contains(self.to))?;
            Some((from + 1, rest[..=more].to_vec()))
        });
        lines.ok_or_else(|| Error::format(path, format!("no lines from '{}' to '{}'", self.from, self.to)))
    }
}

/// Compile exercises in the profile of this program, so that the library is not compiled anew. Returns the programs of
/// the exercises that compile; with `aloud`, the compiler's errors about the others go to standard error.
///
/// # Errors
/// When cargo does not start, or, where it is not aloud, fails at anything but an exercise.
pub fn compile(root: &Path, names: &[&str], aloud: bool) -> Result<HashMap<String, PathBuf>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root).args(["build", "--package", "exercises", "--keep-going"]);
    build.arg("--message-format=json-render-diagnostics");
    build.args(names.iter().flat_map(|name| ["--bin", name]));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let stderr = if aloud { Stdio::inherit() } else { Stdio::piped() };
    let output = build.stderr(stderr).output().map_err(|e| {
        Error::config(format!("cargo, which compiles the exercises, does not start ({e}); rustup.rs has it"))
    })?;
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some((message["target"]["name"].as_str()?.to_string(), message["executable"].as_str()?.into()))
    };
    let programs: HashMap<String, PathBuf> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    let blamed = |name: &str| programs.contains_key(name) || said.contains(&format!("(bin \"{name}\")"));
    if !aloud && !output.status.success() && !names.iter().all(|name| blamed(name)) {
        let why = said.lines().find(|line| line.starts_with("error")).or(said.lines().last()).unwrap_or("no reason");
        return Err(Error::Config(format!("cargo, which compiles the exercises, failed: {why}")));
    }
    Ok(programs)
}

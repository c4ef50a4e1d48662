//! A task of your own: sequences, and a target at each position. Here it is the largest number so far.
//!
//! cargo run --release --example own_data
//!
//! With arguments it is the program `tapezoo`, which has one task more:
//!
//! cargo run --release --example own_data -- train --task largest --models gla,lstm --steps 500

use rand::RngExt;
use serde::Deserialize;
use std::{env, error::Error, process::ExitCode, sync::Arc};
use tapezoo::{
    check, cli,
    models::{Model, ModelConfig},
    rng::Rng,
    tasks::{self, Task},
    tensor::DType,
    train::{Trainer, config::TrainConfig, train_on},
};

/// Numbers below this one, small ones more often, so that the largest is not seen at once.
const NUMBERS: usize = 10;

/// Its fields, if it had any, would be its options in a configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Largest {}

impl Task for Largest {
    fn name(&self) -> &'static str {
        "largest"
    }

    fn vocab(&self) -> usize {
        NUMBERS
    }

    fn classes(&self) -> usize {
        NUMBERS
    }

    fn legend(&self) -> String {
        "the largest number so far".into()
    }

    /// Tokens and targets are `[batch, len]`. A position without a target has `tasks::IGNORE`.
    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        for (x, y) in tokens.chunks_mut(len).zip(targets.chunks_mut(len)) {
            let mut largest = 0;
            for (x, y) in x.iter_mut().zip(y) {
                *x = (0..3).map(|_| rng.random_range(0..NUMBERS as i32)).fold(NUMBERS as i32, i32::min);
                largest = largest.max(*x);
                *y = largest;
            }
        }
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if env::args().len() > 1 {
        tasks::add::<Largest>("largest");
        return Ok(cli::tapezoo());
    }
    check::task(&Largest {}, 16)?;
    // The keys are those of a configuration file, over the default preset.
    let settings: TrainConfig = "train_len = 16\neval_lens = [16, 64, 256]\nsteps = 300\nwarmup = 20".parse()?;
    for mixer in ["gla", "lstm"] {
        let config = ModelConfig { mixer: mixer.into(), vocab: NUMBERS, classes: NUMBERS, ..ModelConfig::default() };
        let model = Model::new(&config, 0, DType::F32)?;
        let trained = train_on(Trainer::with(&settings, model, Arc::new(Largest {}), 0)?, &mut ())?;
        let accuracy: Vec<String> = trained.accuracy.iter().map(|(len, a)| format!("{a:.3} at {len}")).collect();
        println!(
            "{mixer}: accuracy {}, after {:.1} s of training",
            accuracy.join(", "),
            trained.training.as_secs_f64()
        );

        let mut stream = trained.model.stream();
        for number in [1, 4, 2, 7, 3] {
            let logits = stream.next(number)?;
            let said = (0..NUMBERS).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
            println!("    read {number}: the largest so far is {said}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

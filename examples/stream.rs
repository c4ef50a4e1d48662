//! A training loop by hand, weights in a file, and a model that reads one token at a time from a state of fixed size.
//!
//! cargo run --release --example stream

use std::error::Error;
use tapezoo::{
    autograd::Tape,
    models::{Model, ModelConfig},
    rng,
    tasks::{Batch, Parity},
    tensor::DType,
    train::optimizer::{Adam, AdamConfig},
};

fn main() -> Result<(), Box<dyn Error>> {
    let config = ModelConfig { mixer: "lstm".into(), layers: 1, width: 16, ..ModelConfig::default() };
    let mut model = Model::new(&config, 0, DType::F32)?;
    let mut adam = Adam::of(model.params(), AdamConfig::default());
    let (mut tape, mut batch) = (Tape::default(), Batch::new(32, 12));
    for step in 0..=400 {
        batch.fill(&Parity::default(), rng::stream(0, "train", step));
        let (loss, grads) = model.params().gradient(&mut tape, |tape, p| model.loss(tape, p, &batch));
        adam.update(1e-2, model.params_mut(), &grads);
        if step % 100 == 0 {
            println!("step {step:>3}: loss {loss:.4}");
        }
    }

    // Another model of the same sizes, with these weights.
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("stream.safetensors");
    model.save(&file)?;
    let mut model = Model::new(&config, 1, DType::F32)?;
    model.load(&file)?;

    // 3000 bits, where it was trained on 12.
    let mut stream = model.stream();
    let (mut ones, mut right) = (0, 0);
    for t in 1..=3000 {
        let bit = i32::from(t % 3 == 0 || t % 7 == 0);
        ones += bit;
        let logits = stream.next(bit)?;
        right += usize::from((logits[1] > logits[0]) == (ones % 2 == 0)); // class 1: an even number of ones so far
        if [1, 12, 100, 3000].contains(&t) {
            let even = 1.0 / (1.0 + (logits[0] - logits[1]).exp());
            println!(
                "{t:>4} bits: P(even) = {even:.3}, {right} of {t} right, a state of {} bytes",
                stream.state_bytes()
            );
        }
    }
    Ok(())
}

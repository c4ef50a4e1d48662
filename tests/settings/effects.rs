//! A key of `[model]` has an effect if and only if there is no warning about it.

use tapezoo::{
    autograd::Tape,
    models::{Model, ModelConfig, names},
    tensor::{DType, Tensor},
    train::config::TrainConfig,
};
use toml::Table;

/// Keys that some models do not read, and another value for each.
const CHANGES: [(&str, &str); 14] = [
    ("heads", "4"),
    ("head_dim", "8"),
    ("state", "3"),
    ("conv", "2"),
    ("expand", "3"),
    ("dt_rank", "3"),
    ("householders", "3"),
    ("r_min", "0.5"),
    ("r_max", "0.5"),
    ("eigenvalues", "\"-1..1\""),
    ("mlp", "12"),
    ("positions", "\"rope\""),
    ("width", "16"),
    ("ngram", "2"),
];

/// The shapes and the initial weights of a model, and its output for a few tokens.
type Does = (Vec<(String, usize)>, Vec<f64>, Vec<f64>);

/// The weights and outputs of a model; none if it is refused.
fn what_it_does(config: &ModelConfig) -> Option<Does> {
    let mut model = Model::new(config, 1, DType::F64).ok()?;
    let flat = model.params().flat().to_f64();
    // Weights that start at 0 hide everything behind them.
    model.params_mut().flat_mut().host_mut::<f64>().iter_mut().filter(|w| **w == 0.0).for_each(|w| *w = 0.1);
    let tape = Tape::default();
    let tokens = tape.constant(&Tensor::from_vec(vec![1, 0, 1, 1, 0, 1, 0, 0], [1, 8]));
    let logits = model.forward(&model.params().bind_frozen(&tape), tokens, model.default_form()).value().to_f64();
    let entries = model.params().entries().iter().map(|e| (e.name.clone(), e.shape.len())).collect();
    Some((entries, flat, logits))
}

#[test]
fn a_key_has_an_effect_if_and_only_if_nothing_is_said_of_it() {
    let (mut wrong, mut tried) = (vec![], 0);
    for (mixer, variant) in names().into_iter().flat_map(|mixer| [(mixer, "clean"), (mixer, "published")]) {
        let text = format!(
            "models = [\"{mixer}\"]\n[model]\nvariant = \"{variant}\"\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 8"
        );
        let base: Table = text.parse().unwrap();
        let load = |table| TrainConfig::from_settings("default", None, table).ok();
        let of = |config: &TrainConfig| what_it_does(&config.for_model(mixer).unwrap().model);
        let Some(before) = load(base.clone()).and_then(|(config, _)| of(&config)) else { continue };
        for (key, value) in CHANGES {
            let mut table = base.clone();
            let changed = format!("x = {value}").parse::<Table>().unwrap().remove("x").unwrap();
            table["model"].as_table_mut().unwrap().insert(key.into(), changed);
            let Some((config, settings)) = load(table) else { continue };
            let Some(after) = of(&config) else { continue };
            let said = settings.iter().find(|s| s.key == format!("model.{key}")).and_then(|s| s.idle.clone());
            tried += 1;
            if (before != after) != said.is_none() {
                wrong.push(format!("{mixer}, {variant}: {key} has an effect: {}; {said:?}", before != after));
            }
        }
    }
    assert!(tried > 300, "only {tried} keys were tried");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

//! Cells whose gates see the state.

use crate::machine::Machine;
use crate::{assert_fails, assert_tracks};
use tapezoo::models::{Eigenvalues, ModelConfig};

/// One unit, c in {0, 1}. A zero keeps it, f = 1 and i = 0. A one forgets it, f = 0, and writes 1 only if h = tanh(c)
/// says that it was 0.
#[test]
fn lstm_tracks_parity() {
    let sizes = ModelConfig { heads: 1, head_dim: 1, ..ModelConfig::default() };
    let machine = Machine::new("lstm", Eigenvalues::Positive, sizes);
    let (i, f, g, o) = ([-1000.0, 200.0], [200.0, -200.0], [50.0, 50.0], [200.0, 200.0]);
    let machine = machine.set("w_ih", &[i, f, g, o].concat()).set("w_hh", &[-800.0, 0.0, 0.0, 0.0]);
    assert_tracks("lstm", &machine.set("w_post", &[1.0, 0.0]), 0.4);
}

/// One unit, c / n in {−1, 1}. A zero keeps it, f = 1 and i = 0. A one forgets it, f = 0 and i = 1, and writes
/// tanh(z) = −h: the state, flipped. The stabiliser m is 0 from the first one on; until then every zero writes −1, the
/// initial state. `mixing` is the R of z, through which the unit sees its state.
fn slstm(mixing: f32) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 1, conv: 0, ..ModelConfig::default() };
    let machine = Machine::new("slstm", Eigenvalues::Positive, sizes);
    let (i, f, z, o) = ([-1000.0, 0.0], [1000.0, -1000.0], [-1000.0, 100.0], [200.0, 200.0]);
    let machine = machine.set("w_if", &[i, f].concat()).set("w_zo", &[z, o].concat());
    machine.set("r", &[0.0, 0.0, mixing, 0.0]).set("norm", &[1.0]).set("w_o", &[1.0, 0.0])
}

#[test]
fn slstm_tracks_parity_and_cannot_without_seeing_its_state() {
    assert_tracks("slstm", &slstm(-200.0), 0.0);
    assert_fails("slstm with R = 0", &slstm(0.0));
}

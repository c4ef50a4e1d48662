//! Where the time and the memory of training steps go.

use super::{Trainer, micro_batches::MicroBatches, on_device::Graphs};
use crate::{
    autograd::{Profile, Tape},
    error::Result,
};

impl Trainer {
    /// The tapes that the trainer computes on.
    fn tapes(&mut self) -> impl Iterator<Item = &Tape> {
        let parts = self.micro_batches.as_mut().map(MicroBatches::tapes).unwrap_or_default();
        std::iter::once(&self.tape).chain(parts)
    }

    /// Take this many steps and say where the time of the ops went; on a device, launched one by one.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn profile(&mut self, steps: usize) -> Result<Profile> {
        self.tapes().for_each(Tape::start_profile);
        let graphs = std::mem::replace(&mut self.cfg.cuda_graph, Graphs::Off);
        let done = (0..steps).try_for_each(|_| self.step().map(drop));
        self.cfg.cuda_graph = graphs;
        let mut all = Profile::default();
        self.tapes().for_each(|tape| all.merge(&tape.take_profile()));
        done.map(|()| all)
    }

    /// The names of the kernels that computed ops, here and in earlier processes of this run.
    pub fn kernels(&mut self) -> Vec<String> {
        let mut names: Vec<_> = self.tapes().flat_map(Tape::ran).map(String::from).collect();
        names.extend_from_slice(&self.earlier_kernels);
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The form, with the kernels that have computed ops of several kernels: "chunked:32 by delta_rule.fused".
    pub fn form(&mut self) -> String {
        let form = self.cfg.form_of(&self.model);
        let mut kernels = self.kernels();
        kernels.retain(|name| name.contains('.'));
        if kernels.is_empty() { form.to_string() } else { format!("{form} by {}", kernels.join(", ")) }
    }

    /// How many buffers the tapes ever allocated.
    pub fn fresh_buffers(&mut self) -> usize {
        self.tapes().map(Tape::fresh_buffers).sum()
    }

    /// The bytes of buffers that the tapes hold, and the most that were in use at once in the last steps.
    pub fn memory(&mut self) -> [usize; 2] {
        self.tapes().fold([0; 2], |[held, peak], tape| {
            let pool = tape.cx().pool();
            [held + pool.held(), peak + pool.peak()]
        })
    }
}

//! `tapezoo`: see [`tapezoo::cli`].

fn main() -> std::process::ExitCode {
    tapezoo::cli::tapezoo()
}

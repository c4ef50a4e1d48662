//! `tapezoo parity` under a name of its own.

fn main() -> std::process::ExitCode {
    tapezoo::cli::alone("parity")
}

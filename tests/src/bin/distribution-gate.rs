//! The distribution gate of CI; started by `cargo xtask check` and `cargo xtask gate`.

use std::process::ExitCode;

use clap::Parser;
use tests::gate::Gate;

/// Sends new flows through a balancer in network namespaces, and fails unless they are shown to be spread evenly.
#[derive(Parser)]
struct Arguments {
    /// So many, over all ways of picking
    #[arg(long, default_value_t = 1_000_000)]
    flows: u64,
}

fn main() -> ExitCode {
    let flows = Arguments::parse().flows;
    match Gate::set(&[]).and_then(|gate| gate.pass(flows)) {
        Ok(lines) => {
            println!("   PASSED   {}", lines.join("\n            "));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("   FAILED   {error:#}");
            ExitCode::FAILURE
        }
    }
}

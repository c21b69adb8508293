//! Everything a developer of Evenkeel types: `cargo xtask setup|build|test|check|gate|demo|bench|simulate`.

mod bench;
mod bpf_build;
mod bpf_object;
mod build;
mod check;
mod demo;
mod dependencies;
mod gate;
mod packages;
mod run;
mod setup;
mod simulate;
#[cfg(test)]
mod source_rules;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Develop Evenkeel.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find or install the BPF toolchain and what the tests need
    Setup,
    /// Build the XDP program and the `evenkeel` binary
    Build(build::Arguments),
    /// Install what is missing, build, and run every test
    Test(test::Arguments),
    /// Watch it balance, heal broken seeds and slots, keep flows and survive kill -9, in network namespaces of this machine
    Demo(demo::Arguments),
    /// What a packet and a change cost, beside a floor and a kernel-LRU balancer in the same run
    Bench(bench::Arguments),
    /// The detectors of uneven spread against simulated traffic and faults, beside the figures they must reach
    Simulate(simulate::Arguments),
    /// The distribution gate: a million new flows, in every way of picking, must be spread evenly
    Gate(gate::Arguments),
    /// What CI runs: format, lints, documentation, dependencies, every test, the distribution gate
    Check,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Setup => setup::run(),
        Command::Build(arguments) => build::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Gate(arguments) => gate::run(&arguments),
        Command::Check => check::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

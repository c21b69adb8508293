//! `evenkeel bench distribution`: a gate for staging: does the balancer spread, after so many flows of real traffic?

mod distribution;
mod judge;

use super::{Context, exit::Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Wait for N fresh flows of this host's traffic, or read a recording, and judge their spread.
    Distribution(distribution::Args),
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    match args.command {
        Command::Distribution(args) => distribution::run(&args, context).await,
    }
}

//! The command line: nouns read, verbs write; one file a command.

mod apply;
mod backend;
mod backends;
mod bench;
mod check;
mod completions;
mod decap;
mod detach;
mod discovery;
pub mod duration;
mod events;
pub mod exit;
mod explain;
mod explain_skew;
mod flows;
mod plan;
mod reload;
mod run;
mod seeds;
mod service;
mod services;
mod skew;
mod status;
pub mod table;

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};
use serde::Serialize;

use crate::api::{DEFAULT_SOCKET, client::Client};
use exit::{Outcome, print_failure};
use table::Paint;

/// A layer-4 load balancer in XDP that knows whether it is balancing.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, propagate_version = true, after_long_help = exit::HELP, max_term_width = 100)]
pub struct Cli {
    /// The daemon's socket [default: /run/evenkeel/api.sock].
    #[arg(long, global = true, env = "EVENKEEL_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon: load, fill and attach the datapath, and keep it true.
    Run(run::Args),
    /// Check a configuration file without a daemon.
    Check(check::Args),
    /// Have the daemon read its configuration file again; a bad file changes nothing.
    Reload,
    /// Make a file's services what the command line wants, all together or none.
    Apply(apply::Args),
    /// Show what the daemon would write into the datapath now; changes nothing.
    Plan,
    /// One screen: is it ready, is it balancing, what is wrong and what to do.
    Status,
    /// Services: VIP, port, backends by state, flows.
    Services,
    /// Backends: share expected and observed, flows, state, next hop.
    Backends(backends::Args),
    /// Seeds: generation, age, next rotation; `seeds rotate` makes new ones.
    Seeds(seeds::Args),
    /// Is traffic spread as it should be: shares, evidence, effect, cause, what was done and what to do.
    Skew(skew::Args),
    /// What a recording of the spread shows; needs no daemon.
    ExplainSkew(explain_skew::Args),
    /// Gates for staging: judge the spread of real traffic.
    Bench(bench::Args),
    /// What the flow table holds.
    Flows(flows::Args),
    /// Sources of backends: what they say, what is believed, what is held; `accept` and `hold` decide.
    Discovery(discovery::Args),
    /// What happened lately.
    Events(events::Args),
    /// What would happen to a packet, stage by stage, and why.
    Explain(explain::Args),
    /// Add, change or remove a service.
    Service(service::Args),
    /// Add, change, drain or remove a backend.
    Backend(backend::Args),
    /// Take program, links and maps off this host; refused while a daemon runs.
    Detach(detach::Args),
    /// Strip IPIP on a backend that has no tunnel device.
    Decap(decap::Args),
    /// Print a completion script.
    Completions(completions::Args),
    /// Print the manual page.
    Man,
}

/// What every command needs to know.
#[derive(Debug)]
struct Context {
    socket: Option<PathBuf>,
    json: bool,
}

/// Parses the arguments, runs the command and says how the process should end.
pub fn main() -> u8 {
    let cli = Cli::parse();
    let json = cli.json;
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => print_failure(&error, json),
    }
}

fn dispatch(cli: Cli) -> Outcome {
    let context = Context {
        socket: cli.socket,
        json: cli.json,
    };
    match cli.command {
        Command::Run(args) => run::run(args, &context),
        Command::Check(args) => check::run(&args, &context),
        Command::ExplainSkew(args) => explain_skew::run(&args, &context),
        Command::Detach(args) => detach::run(&args, &context),
        Command::Decap(args) => decap::run(&args, &context),
        Command::Completions(args) => completions::run(&args, &mut Cli::command()),
        Command::Man => completions::man(Cli::command()),
        asking => ask(asking, &context),
    }
}

/// Commands that talk to the daemon.
fn ask(command: Command, context: &Context) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Command::Reload => reload::run(context).await,
            Command::Apply(args) => apply::run(&args, context).await,
            Command::Plan => plan::run(context).await,
            Command::Status => status::run(context).await,
            Command::Services => services::run(context).await,
            Command::Backends(args) => backends::run(args, context).await,
            Command::Seeds(args) => seeds::run(args, context).await,
            Command::Skew(args) => skew::run(args, context).await,
            Command::Bench(args) => bench::run(args, context).await,
            Command::Flows(args) => flows::run(args, context).await,
            Command::Discovery(args) => discovery::run(args, context).await,
            Command::Events(args) => events::run(&args, context).await,
            Command::Explain(args) => explain::run(&args, context).await,
            Command::Service(args) => service::run(args, context).await,
            Command::Backend(args) => backend::run(args, context).await,
            Command::Run(_)
            | Command::Check(_)
            | Command::ExplainSkew(_)
            | Command::Detach(_)
            | Command::Decap(_)
            | Command::Completions(_)
            | Command::Man => Ok(exit::OK),
        }
    })
}

impl Context {
    fn client(&self) -> Client {
        Client::new(self.socket.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET)))
    }

    /// Prints an answer: as JSON when asked to, else as `human` renders it.
    fn print<T: Serialize>(&self, answer: &T, human: impl FnOnce(Paint) -> String) -> Outcome {
        let text = if self.json {
            let mut text = serde_json::to_string_pretty(answer)?;
            text.push('\n');
            text
        } else {
            human(Paint::for_stdout())
        };
        table::write_stdout(&text)?;
        Ok(exit::OK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}

//! `evenkeel run`: the daemon.

use std::{path::PathBuf, time::Duration};

use super::{
    Context, duration,
    exit::{OK, Outcome},
};
use crate::daemon;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The datapath is pinned and goes on forwarding when the daemon ends, whatever ends it; the next daemon \
    adopts it without losing a packet. SIGHUP reads the configuration again. EVENKEEL_LOG sets what is logged, as in \
    EVENKEEL_LOG=info,lb_user=debug."
)]
pub(super) struct Args {
    /// The configuration file.
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "/etc/evenkeel/evenkeel.toml"
    )]
    config: PathBuf,
    /// Replace another XDP program on an interface, whatever it does.
    #[arg(long)]
    replace: bool,
    /// Leave the datapath forwarding at the end; this is the default.
    #[arg(long, conflicts_with = "detach_on_exit")]
    leave: bool,
    /// Take program, links and maps off this host at SIGTERM or SIGINT: flows end, nothing is balanced.
    #[arg(long)]
    detach_on_exit: bool,
    /// How long announced VIPs are withdrawn before the datapath is taken down, so that traffic goes elsewhere first.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse, requires = "detach_on_exit")]
    drain: Duration,
}

pub(super) fn run(args: Args, context: &Context) -> Outcome {
    daemon::logging::start()?;
    let options = daemon::Options {
        config_file: args.config,
        socket: context.socket.clone(),
        replace: args.replace,
        detach_on_exit: args.detach_on_exit && !args.leave,
        drain: args.drain,
    };
    daemon::run(options)?;
    Ok(OK)
}

//! `evenkeel check FILE`: is a configuration file right, without a daemon.

use std::path::PathBuf;

use super::{Context, exit::Outcome};
use crate::config::Config;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    file: PathBuf,
    /// Compare with this host too: interfaces, addresses.
    #[arg(long)]
    host: bool,
}

pub(super) fn run(args: &Args, context: &Context) -> Outcome {
    let config = Config::load(&args.file)?;
    if args.host {
        crate::daemon::host::check(&config)?;
    }
    let services = config.services.len();
    let backends: usize = config.services.iter().map(|service| service.backends.len()).sum();
    let answer = serde_json::json!({ "file": config.file, "services": services, "backends": backends });
    context.print(&answer, |_| {
        format!(
            "{} is right; services: {services}, backends: {backends}\n",
            config.file
        )
    })
}

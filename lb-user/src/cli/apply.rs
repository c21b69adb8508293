//! `evenkeel apply -f FILE`: services and backends of a file, all together or none.

use std::{io::Read, path::PathBuf};

use anyhow::Context as _;

use super::{Context, exit::Outcome, reload};
use crate::api::types::{ApplyFile, Done};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file holds [[service]] tables as the configuration file does. They become the whole of what the \
    command line wants: services of the configuration file are set to what is listed here, others are added, and what \
    the command line added before and is not listed here is removed. It survives restarts."
)]
pub(super) struct Args {
    /// The file; - reads standard input.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Refuse unless the revision is still this one (see `evenkeel status`).
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

pub(super) async fn run(args: &Args, context: &Context) -> Outcome {
    let file = args.file.display().to_string();
    let toml = if file == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        text
    } else {
        std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {file}"))?
    };
    let body = ApplyFile {
        file,
        toml,
        if_revision: args.if_revision,
    };
    let done: Done = context.client().post("/v1/apply", &body).await?;
    context.print(&done, |paint| reload::render(&done, paint))
}

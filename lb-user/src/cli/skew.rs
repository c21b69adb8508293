//! `evenkeel skew [SERVICE]`: is traffic spread as it should be; since when not, why, and what to do.

mod bar;
mod chance;
pub(super) mod headline;
mod host;
mod record;
pub(super) mod render;
mod rows;

#[cfg(test)]
pub(super) mod tests;

use std::{path::PathBuf, time::Duration};

use super::{
    Context, duration,
    exit::{self, Outcome},
};
use crate::{api::types::Filter, watch::report::SkewReport};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ends with 9 while an alarm stands or a self-check fails, with 0 otherwise.\n\n\
    EXPECTED is the part of the slot table that a backend owns; OBSERVED is its part of the new flows of the last minute, \
    each client counted once; BETWEEN is where its true part lies (99% for all backends together). In the bar, █ is what \
    was observed and │ marks what is expected. Evidence that reaches the threshold is an alarm; beside it stands how \
    often, at most, chance alone reaches it. MISPLACED is the part of the new flows that would have to go elsewhere.\n\n\
    WARNINGS are beside the alarms of services: weights that the slots do not stand for (weights), a filter of the shared \
    seed that is full (fresh-keys-full), seed after seed that prefers one backend (seeds, which is an alarm).\n\n\
    With auto_heal = false nothing is written because of what is found: seeds and slots that differ stay as they are until \
    `evenkeel reload`, `evenkeel apply` or `evenkeel seeds rotate --all`, or the next start of the daemon."
)]
pub(super) struct Args {
    /// Only this service, in full.
    service: Option<String>,
    /// Record counters at each check to a new file, for `evenkeel explain-skew FILE`.
    #[arg(long, value_name = "FILE", conflicts_with = "service")]
    record: Option<PathBuf>,
    /// Record for so long.
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse, default_value = "60s", requires = "record")]
    length: Duration,
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    if let Some(file) = &args.record {
        return record::run(file, args.length, context).await;
    }
    let in_full = args.service.is_some();
    let filter = Filter {
        service: args.service,
        ..Filter::default()
    };
    let report: SkewReport = context.client().query("/v1/skew", &filter).await?;
    context.print(&report, |paint| render::report(&report, in_full, paint))?;
    Ok(code(&report))
}

/// For scripts: 9 while something is wrong.
pub(super) fn code(report: &SkewReport) -> u8 {
    if report.is_alarm() { exit::UNEVEN } else { exit::OK }
}

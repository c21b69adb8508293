//! `evenkeel detach`: takes program, links and maps off this host.

use std::path::PathBuf;

use super::{Context, exit::Outcome};
use crate::program::{self, DEFAULT_PIN_DIRECTORY};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Traffic to the VIPs is no longer balanced afterwards, and the flow table is lost. A running daemon \
    refuses: end it first."
)]
pub(super) struct Args {
    /// Where program, links and maps are pinned.
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_PIN_DIRECTORY)]
    pin_directory: PathBuf,
}

pub(super) fn run(args: &Args, context: &Context) -> Outcome {
    let detached = program::detach(&args.pin_directory)?;
    let answer = serde_json::json!({ "interfaces": detached.interfaces, "maps": detached.maps });
    context.print(&answer, |_| {
        let pins = args.pin_directory.display();
        let from = match detached.interfaces.as_slice() {
            [] if detached.maps == 0 => {
                return format!(
                    "Nothing to take off: nothing is pinned in {pins}. Pins elsewhere: --pin-directory.\n"
                );
            }
            [] => "no interface".to_owned(),
            names => names.join(", "),
        };
        format!(
            "Detached from {from}; {} maps removed from {pins}.\n",
            detached.maps
        )
    })
}

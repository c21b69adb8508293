//! `evenkeel decap IFACE`: strips IPIP on a backend that has no tunnel device.

use super::{Context, exit::Outcome};
use crate::{decap, program::XdpMode};

#[derive(Debug, clap::Args)]
#[command(after_help = "The program stays attached after the command ends; --remove takes it off.")]
pub(super) struct Args {
    /// The interface that the encapsulated packets arrive on.
    interface: String,
    /// How to attach.
    #[arg(long, value_enum, default_value = "auto")]
    mode: XdpMode,
    /// Take the program off again.
    #[arg(long)]
    remove: bool,
}

pub(super) fn run(args: &Args, context: &Context) -> Outcome {
    if args.remove {
        decap::remove(&args.interface)?;
        let answer = serde_json::json!({ "removed": args.interface });
        return context.print(&answer, |_| {
            format!("IPIP is no longer stripped on {}.\n", args.interface)
        });
    }
    let attached = decap::attach(&args.interface, args.mode)?;
    context.print(&attached, |_| {
        let reason = attached
            .reason
            .as_ref()
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default();
        format!(
            "IPIP is stripped on {}, XDP mode {}{reason}.\n",
            attached.name,
            attached.mode.name()
        )
    })
}

//! `evenkeel service add|set|remove`.

use std::net::IpAddr;

use super::{Context, exit::Outcome, reload};
use crate::{
    api::types::{Change, Done, Edit, ServiceSettings},
    config::{Seconds, spec::Port},
    state::desired::{Affinity, Mode, Protocol, Selection},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a service; its backends come with `backend add`.
    Add {
        name: String,
        /// The address clients connect to.
        #[arg(long, value_name = "ADDRESS")]
        vip: IpAddr,
        /// A port number, or `all`.
        #[arg(long)]
        port: Port,
        #[arg(long)]
        protocol: Protocol,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        condition: Condition,
    },
    /// Change a service; what is not named stays as it is.
    Set {
        name: String,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        condition: Condition,
    },
    /// Remove a service and its backends; their flows end.
    Remove {
        name: String,
        #[command(flatten)]
        condition: Condition,
    },
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// How packets reach the backends.
    #[arg(long)]
    mode: Option<Mode>,
    /// Which seed picks.
    #[arg(long)]
    selection: Option<Selection>,
    /// What of a packet is hashed.
    #[arg(long)]
    affinity: Option<Affinity>,
    /// Slots of the table, rounded up to a prime.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// How long a UDP flow lives without a packet, as in 120s.
    #[arg(long, value_name = "TIME")]
    udp_idle: Option<Seconds>,
}

/// For edits that must not be made on top of somebody else's.
#[derive(Debug, clap::Args)]
pub(super) struct Condition {
    /// Refuse unless the revision is still this one (see `evenkeel status`).
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    let (edit, condition) = match args.command {
        Command::Add {
            name,
            vip,
            port,
            protocol,
            settings,
            condition,
        } => {
            let port = port.number();
            (
                Edit::ServiceAdd {
                    name,
                    vip,
                    port,
                    protocol,
                    settings: settings.into(),
                },
                condition,
            )
        }
        Command::Set {
            name,
            settings,
            condition,
        } => (
            Edit::ServiceSet {
                name,
                settings: settings.into(),
            },
            condition,
        ),
        Command::Remove { name, condition } => (Edit::ServiceRemove { name }, condition),
    };
    change(edit, &condition, context).await
}

/// Sends one edit and prints what came of it.
pub(super) async fn change(edit: Edit, condition: &Condition, context: &Context) -> Outcome {
    let done = send(edit, condition, context).await?;
    context.print(&done, |paint| reload::render(&done, paint))
}

/// Sends one edit.
pub(super) async fn send(edit: Edit, condition: &Condition, context: &Context) -> anyhow::Result<Done> {
    let body = Change {
        if_revision: condition.if_revision,
        edits: vec![edit],
    };
    Ok(context.client().post("/v1/change", &body).await?)
}

impl From<Settings> for ServiceSettings {
    fn from(settings: Settings) -> Self {
        Self {
            mode: settings.mode,
            selection: settings.selection,
            affinity: settings.affinity,
            slots: settings.slots,
            udp_idle: settings.udp_idle,
        }
    }
}

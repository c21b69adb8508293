//! `evenkeel service add|set|remove`.

use std::net::IpAddr;

use super::{Context, exit::Outcome, reload};
use crate::{
    api::types::{Change, Done, Edit, ServiceSettings},
    config::spec::Port,
    state::desired::Protocol,
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
        settings: ServiceSettings,
        #[command(flatten)]
        condition: Condition,
    },
    /// Change a service; what is not named stays as it is.
    Set {
        name: String,
        #[command(flatten)]
        settings: ServiceSettings,
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
                    settings,
                },
                condition,
            )
        }
        Command::Set {
            name,
            settings,
            condition,
        } => (Edit::ServiceSet { name, settings }, condition),
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

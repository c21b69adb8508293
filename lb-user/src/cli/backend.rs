//! `evenkeel backend add|set|drain|undrain|remove`.

use std::{net::IpAddr, time::Duration};

use tokio::time::Instant;

use super::{
    Context, duration,
    exit::{self, Outcome},
    service::{Condition, change, send},
    table,
};
use crate::api::types::{Backend, BackendSettings, Edit, Filter};

/// How often `drain --wait` asks.
const POLL: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a backend to a service.
    Add {
        #[command(flatten)]
        backend: Named,
        #[command(flatten)]
        settings: BackendSettings,
        #[command(flatten)]
        condition: Condition,
    },
    /// Change a backend; what is not named stays as it is.
    Set {
        #[command(flatten)]
        backend: Named,
        #[command(flatten)]
        settings: BackendSettings,
        #[command(flatten)]
        condition: Condition,
    },
    /// Give a backend no new flows; those it has go on.
    Drain {
        #[command(flatten)]
        backend: Named,
        /// Show the flows going down until none is left.
        #[arg(long)]
        wait: bool,
        /// Give up waiting after this time, with exit code 5; the backend stays draining.
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse, requires = "wait")]
        deadline: Duration,
        #[command(flatten)]
        condition: Condition,
    },
    /// Give a drained backend new flows again.
    Undrain {
        #[command(flatten)]
        backend: Named,
        #[command(flatten)]
        condition: Condition,
    },
    /// Remove a backend; its flows are picked anew.
    Remove {
        #[command(flatten)]
        backend: Named,
        #[command(flatten)]
        condition: Condition,
    },
}

#[derive(Debug, clap::Args)]
struct Named {
    service: String,
    /// IP address of the backend.
    address: IpAddr,
}

pub(super) async fn run(args: Args, context: &Context) -> Outcome {
    match args.command {
        Command::Add {
            backend: Named { service, address },
            settings,
            condition,
        } => {
            change(
                Edit::BackendAdd {
                    service,
                    address,
                    settings,
                },
                &condition,
                context,
            )
            .await
        }
        Command::Set {
            backend: Named { service, address },
            settings,
            condition,
        } => {
            change(
                Edit::BackendSet {
                    service,
                    address,
                    settings,
                },
                &condition,
                context,
            )
            .await
        }
        Command::Drain {
            backend: Named { service, address },
            wait: false,
            condition,
            ..
        } => change(Edit::BackendDrain { service, address }, &condition, context).await,
        Command::Drain {
            backend,
            wait: true,
            deadline,
            condition,
        } => drain_and_wait(&backend, deadline, &condition, context).await,
        Command::Undrain {
            backend: Named { service, address },
            condition,
        } => change(Edit::BackendUndrain { service, address }, &condition, context).await,
        Command::Remove {
            backend: Named { service, address },
            condition,
        } => change(Edit::BackendRemove { service, address }, &condition, context).await,
    }
}

async fn drain_and_wait(
    backend: &Named,
    deadline: Duration,
    condition: &Condition,
    context: &Context,
) -> Outcome {
    let start = Instant::now();
    let edit = Edit::BackendDrain {
        service: backend.service.clone(),
        address: backend.address,
    };
    let done = send(edit, condition, context).await?;
    if !context.json {
        table::write_stdout(&format!("{}\n", done.text))?;
    }
    let mut shown = None;
    loop {
        let flows = active_flows(backend, context).await?;
        if shown != Some(flows) {
            shown = Some(flows);
            progress(flows, start.elapsed(), context)?;
        }
        if flows == 0 {
            return Ok(exit::OK);
        }
        if start.elapsed() >= deadline {
            return Err(deadline_passed(backend, flows, deadline).into());
        }
        tokio::time::sleep(POLL.min(deadline.saturating_sub(start.elapsed()))).await;
    }
}

async fn active_flows(backend: &Named, context: &Context) -> anyhow::Result<u64> {
    let filter = Filter {
        service: Some(backend.service.clone()),
        backend: Some(backend.address),
        now: true,
        ..Filter::default()
    };
    let answer: Vec<Backend> = context.client().query("/v1/backends", &filter).await?;
    Ok(answer.iter().map(|backend| backend.active_flows).sum())
}

fn progress(flows: u64, elapsed: Duration, context: &Context) -> anyhow::Result<()> {
    let line = if context.json {
        serde_json::json!({ "active_flows": flows, "elapsed_seconds": elapsed.as_secs_f64() }).to_string()
    } else {
        let what = match flows {
            0 => "no flows left".to_owned(),
            1 => "1 flow left".to_owned(),
            flows => format!("{} flows left", table::count(flows)),
        };
        format!("{:>8}  {what}", duration::show(elapsed.as_secs()))
    };
    table::write_stdout(&format!("{line}\n"))?;
    Ok(())
}

fn deadline_passed(backend: &Named, flows: u64, deadline: Duration) -> exit::Advice {
    let name = format!("{}/{}", backend.service, backend.address);
    exit::Advice {
        error: format!(
            "{name} still has {} flows after {}; it stays draining",
            table::count(flows),
            duration::show(deadline.as_secs())
        ),
        next_step: format!(
            "wait again with a longer --deadline, see them with `evenkeel flows {} --backend {}`, or end them with \
             `evenkeel backend remove {} {}`",
            backend.service, backend.address, backend.service, backend.address
        ),
        code: exit::DEADLINE,
    }
}

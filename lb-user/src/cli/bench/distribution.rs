//! `evenkeel bench distribution [SERVICE]`: the distribution gate.

use std::{path::PathBuf, time::Duration};

use super::judge::{Finding, Judge, Judged, Verdict};
use crate::{
    api::client::Client,
    cli::{
        Context, duration,
        exit::{self, Advice, Outcome},
        explain_skew::advised,
        table::{self, Paint, Table},
    },
    watch::{
        record::{self, Reading},
        report::RatioSkew,
    },
};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Traffic is yours: send it, then run this. Counters of the running daemon are read at each check until N \
    fresh flows were seen (each client or flow counted once in the life of a seed), or an alarm stands.\n\n\
    Ends with 0 if no service is shown to be uneven; with 9 if the detector raised an alarm, a self-check failed, or with \
    99% confidence 2% of a service's flows are misplaced or a backend is outside 0.85 to 1.15 times its share; with 5 if \
    there was too little traffic."
)]
pub(super) struct Args {
    /// Only this service.
    service: Option<String>,
    /// Fresh flows to wait for.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    flows: u64,
    /// Give up after so long.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "10m", conflicts_with = "file")]
    timeout: Duration,
    /// Judge a recording (`evenkeel skew --record FILE`) instead of the running daemon.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) async fn run(args: &Args, context: &Context) -> Outcome {
    let judge = match &args.file {
        Some(file) => {
            let (header, checks) = record::open(file).map_err(advised)?;
            let mut judge = Judge::new(&header, args.service.clone());
            for check in checks {
                judge.take(&check.map_err(advised)?);
            }
            judge
        }
        None => watch(args, &context.client()).await?,
    };
    if judge.is_empty() {
        return Err(nothing_there(args));
    }
    if judge.fresh_flows() < args.flows && !judge.is_alarm() {
        return Err(too_little(args, &judge));
    }
    let verdict = judge.verdict(args.flows);
    context.print(&verdict, |paint| render(&verdict, paint))?;
    Ok(if verdict.passed { exit::OK } else { exit::UNEVEN })
}

/// Reads the running daemon until there were enough flows, an alarm stands, or the time is over.
async fn watch(args: &Args, client: &Client) -> anyhow::Result<Judge> {
    let first: Reading = client.get("/v1/skew/counters").await?;
    let mut judge = Judge::new(&first.header, args.service.clone());
    judge.take(&first.check);
    let mut last = first.check.at_ms;
    let end = tokio::time::Instant::now() + args.timeout;
    let mut ticks = tokio::time::interval(Duration::from_millis(first.header.interval_ms.max(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    while judge.fresh_flows() < args.flows && !judge.is_alarm() && !judge.is_empty() {
        if ticks.tick().await > end {
            break;
        }
        let reading: Reading = client.get("/v1/skew/counters").await?;
        if reading.check.at_ms > last {
            last = reading.check.at_ms;
            judge.take(&reading.check);
        }
    }
    Ok(judge)
}

fn nothing_there(args: &Args) -> anyhow::Error {
    let error = match &args.service {
        Some(name) => format!("there is no service {name:?} with a table"),
        None => "there is no service with a table".to_owned(),
    };
    anyhow::Error::new(Advice {
        error,
        next_step: "list services with `evenkeel services`".to_owned(),
        code: exit::NOT_FOUND,
    })
}

fn too_little(args: &Args, judge: &Judge) -> anyhow::Error {
    let (seen, seconds) = (judge.fresh_flows(), judge.seconds());
    let rate = if seconds > 0.0 { seen as f64 / seconds } else { 0.0 };
    let when = if rate > 0.0 {
        let needed = args.flows as f64 / rate;
        format!(
            "at this rate {} take {}",
            table::count(args.flows),
            duration::show(needed.ceil() as u64)
        )
    } else {
        "no traffic is counted at all: see `evenkeel services`".to_owned()
    };
    anyhow::Error::new(Advice {
        error: format!(
            "too little traffic to judge: {} fresh flows in {}, of {} that were asked for; {when}",
            table::count(seen),
            duration::show(seconds as u64),
            table::count(args.flows)
        ),
        next_step: "send more new flows from more clients or ports, wait longer (--timeout), or ask for fewer (--flows)"
            .to_owned(),
        code: exit::DEADLINE,
    })
}

fn render(verdict: &Verdict, paint: Paint) -> String {
    let head = if verdict.passed {
        paint.good("PASSED")
    } else {
        paint.bad("FAILED")
    };
    let mut text = format!(
        "{head}   {} fresh flows in {}\n\n",
        table::count(verdict.fresh_flows),
        duration::show(verdict.seconds as u64)
    );
    let mut table = Table::new(&[
        "SERVICE",
        "FINDING",
        ">FRESH FLOWS",
        ">MISPLACED",
        ">AT LEAST",
        ">AT MOST",
        ">LEAST",
        ">MOST",
    ]);
    for service in &verdict.services {
        table.row(row(service, paint));
    }
    text.push_str(&table.render(0, paint));
    for service in &verdict.services {
        if let Some(alarm) = &service.alarm {
            text.push_str(&format!("{} {}: {alarm}\n", paint.bad("alarm:"), service.service));
        }
        if service.table_changes > 0 {
            text.push_str(&format!(
                "{}: its table changed {} times; flows before the last change are left out\n",
                service.service, service.table_changes
            ));
        }
        if service.finding == Finding::NotShown {
            text.push_str(&format!(
                "{}: nothing speaks against it, but so few flows do not show every backend within 0.85 to 1.15 times its share\n",
                service.service
            ));
        }
    }
    for check in &verdict.failed_checks {
        text.push_str(&format!("{} {check}\n", paint.bad("self-check failed:")));
    }
    text
}

fn row(service: &Judged, paint: Paint) -> [String; 8] {
    let effect = &service.effect;
    let ratio = |ratio: &Option<RatioSkew>| {
        ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.3}", ratio.ratio))
    };
    [
        service.service.clone(),
        match service.finding {
            Finding::Even => paint.good("even"),
            Finding::NotShown => paint.warn("not shown"),
            Finding::Uneven => paint.bad("uneven"),
        },
        table::count(service.fresh_flows),
        table::percent(effect.tv),
        table::percent(effect.tv_low),
        table::percent(effect.tv_high),
        ratio(&effect.min_ratio),
        ratio(&effect.max_ratio),
    ]
}

#[cfg(test)]
mod tests;

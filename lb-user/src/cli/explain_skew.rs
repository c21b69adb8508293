//! `evenkeel explain-skew FILE`: what a recorded sample of the spread shows, on any machine and without a daemon.

use std::path::{Path, PathBuf};

use super::{
    Context,
    exit::{self, Advice, Outcome},
    skew::render,
    table::{self, Paint, Table},
};
use crate::watch::record::{self, Explained, RecordError, Replay};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The recorded checks go through the same detector, effect sizes and attribution as in the daemon; the same \
    file always gives the same answer. Remedies are not applied: what is shown is what happened with those that were.\n\n\
    Ends with 9 if an alarm stood or a self-check failed at any time of the recording, with 0 otherwise. Streams begin \
    with the recording: evidence from before it is not in it."
)]
pub(super) struct Args {
    /// What `evenkeel skew --record FILE` wrote.
    file: PathBuf,
}

pub(super) fn run(args: &Args, context: &Context) -> Outcome {
    let explained = explain(&args.file)?;
    context.print(&explained, |paint| render(&explained, paint))?;
    Ok(if explained.last_alarm.is_some() || explained.report.is_alarm() {
        exit::UNEVEN
    } else {
        exit::OK
    })
}

fn explain(file: &Path) -> anyhow::Result<Explained> {
    let (header, checks) = record::open(file).map_err(advised)?;
    let mut replay = Replay::new(&header);
    for check in checks {
        replay.step(&check.map_err(advised)?);
    }
    Ok(replay.finish())
}

/// An error of a record with its next step.
pub(super) fn advised(error: RecordError) -> anyhow::Error {
    let next_step = error.next_step();
    let code = exit::FAILED;
    let error = format!("{:#}", anyhow::Error::new(error));
    anyhow::Error::new(Advice {
        error,
        next_step,
        code,
    })
}

fn render(explained: &Explained, paint: Paint) -> String {
    // What people look for in a recording is its alarm, even if that was over before its end.
    let shown = explained.last_alarm.as_ref().unwrap_or(&explained.report);
    let mut text = format!(
        "{} checks in {:.1}s, the last at {} UTC\n",
        table::count(explained.checks),
        explained.seconds,
        table::utc(explained.report.at)
    );
    if shown.at != explained.report.at {
        let ago = explained.report.at.saturating_sub(shown.at) as f64 / 1000.0;
        text.push_str(&format!(
            "An alarm stood until {ago:.1}s before the end; this is how it was then.\n"
        ));
    }
    text.push('\n');
    text.push_str(&render::report(shown, false, paint));
    if !explained.events.is_empty() {
        let mut table = Table::new(&[">AFTER", "OBJECT", "WHAT"]);
        for event in &explained.events {
            table.row([
                format!("{:.1}s", event.seconds),
                event.object.clone(),
                event.text.clone(),
            ]);
        }
        text.push_str(&format!("\n{}", table.render(0, paint)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::skew::tests as example, watch::record::Moment};

    #[test]
    fn an_alarm_that_is_over_is_shown_as_it_was() {
        let alarm = example::firing();
        let mut report = example::quiet();
        report.at = alarm.at + 40_000;
        let explained = Explained {
            checks: 100,
            seconds: 99.0,
            report,
            last_alarm: Some(alarm),
            events: vec![
                Moment {
                    seconds: 51.0,
                    object: "web".into(),
                    text: "firing (page): evidence at 1.60 of its threshold".into(),
                },
                Moment {
                    seconds: 59.0,
                    object: "web".into(),
                    text: "resolved after 8.0 s".into(),
                },
            ],
        };
        insta::assert_snapshot!(render(&explained, Paint::PLAIN));
    }

    #[test]
    fn what_is_no_record_is_refused_with_its_line_and_a_next_step() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("record");
        std::fs::write(&file, "{}\n").unwrap();
        let error = explain(&file).unwrap_err();
        let advice = error.downcast_ref::<Advice>().unwrap();
        assert!(
            advice
                .error
                .contains("its first line is no header: missing field"),
            "{}",
            advice.error
        );
        assert!(advice.next_step.contains("--record"), "{}", advice.next_step);
    }
}

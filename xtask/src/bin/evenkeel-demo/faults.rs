//! Faults written straight into the maps while connections go on: noticed, named, healed.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tests::{
    lab::Tamper,
    traffic::{Kind, Spread},
};

use crate::{
    news::News,
    show::{self, heading, say},
    stage::Stage,
    traffic::{Traffic, between, total},
};

/// Connections before a fault, and after it, for its last table.
const BEFORE: u64 = 200;
const AFTERWARDS: u64 = 2000;
/// Fewer connections than these show nothing.
const SHOWN: u64 = 200;

/// The entropy of one CPU is lost.
pub fn seed(stage: &Stage) -> Result<()> {
    let cpu = stage.cpus as u32 - 1;
    heading("2. A seed breaks while connections go on");
    say(&format!(
        "behind the daemon's back, the seed that CPU {cpu} picks backends with becomes zero in the pinned map"
    ));
    let fault = Fault {
        cause: "seed-failure",
        make: &|tamper| tamper.zero_seed(cpu),
        is_undone: &|tamper| tamper.seed_is_fit(cpu),
    };
    let outcome = fault.suffer(stage)?;
    let rows = stage.rows(&outcome.all);
    show::table(&rows);
    ensure!(
        show::is_balanced(&rows),
        "new connections are not spread as they should be"
    );
    say(&format!("CPU {cpu} has a new seed; {}", outcome.sentence()));
    say(
        "the shares never suffered, since a good hash spreads with any seed: what was noticed is the lost entropy itself",
    );
    Ok(())
}

/// A backend gets the slots of another.
pub fn slots(stage: &Stage) -> Result<()> {
    let (to, from) = (&stage.backends[0], &stage.backends[1]);
    heading("3. A slot table is falsified while connections go on");
    say(&format!(
        "behind the daemon's back, all slots of {} become {}'s in the pinned map",
        from.address, to.address
    ));
    let wanted = Tamper::open(stage.daemon.pins(), stage.vip, Kind::Tcp)?.owned()?;
    let fault = Fault {
        cause: "table-mismatch",
        make: &|tamper| tamper.give_slots(from.address, to.address),
        is_undone: &|tamper| Ok(tamper.owned()? == wanted),
    };
    let outcome = fault.suffer(stage)?;
    println!();
    let few = total(&outcome.meanwhile);
    if few < SHOWN {
        // The comparison of all maps, every ten seconds, may come right after the fault.
        say(&format!(
            "healed so soon that only {few} connections were made while it lasted"
        ));
    } else {
        say("while it lasted:");
        let rows = stage.rows(&outcome.meanwhile);
        show::table(&rows);
        ensure!(
            !show::is_balanced(&rows),
            "the falsified slots made no difference"
        );
    }
    say("since it was healed:");
    let rows = stage.rows(&outcome.since);
    show::table(&rows);
    ensure!(
        show::is_balanced(&rows),
        "the spread is uneven after the fault was healed"
    );
    say(&outcome.sentence());
    say("`evenkeel skew` goes on saying HEALING until a minute of even traffic has proved it");
    Ok(())
}

/// What is done to the maps, how one sees that it is undone, and what the daemon must call it.
struct Fault<'a> {
    cause: &'static str,
    make: &'a dyn Fn(&mut Tamper) -> Result<()>,
    is_undone: &'a dyn Fn(&Tamper) -> Result<bool>,
}

/// How it went.
struct Outcome {
    /// From the fault to the alarm, by the daemon's record.
    noticed: f64,
    /// From the fault until the maps were right, as seen in the maps.
    healed: f64,
    /// Who answered while it lasted, since it was healed, and in all.
    meanwhile: Spread,
    since: Spread,
    all: Spread,
}

impl Fault<'_> {
    fn suffer(&self, stage: &Stage) -> Result<Outcome> {
        let mut tamper = Tamper::open(stage.daemon.pins(), stage.vip, Kind::Tcp)?;
        let mut news = News::from_now_on(stage)?;
        let mut traffic = Traffic::start(stage);
        traffic.wait_for_more(BEFORE)?;
        stage.wait_for_check()?;
        (self.make)(&mut tamper)?;
        let (start, before) = (Instant::now(), traffic.answers());
        let mut healed = None;
        say("seconds later, as `evenkeel events --follow` tells it:");
        let noticed = news.follow(stage, self.cause, || {
            if healed.is_none() && (self.is_undone)(&tamper)? {
                healed = Some((start.elapsed().as_secs_f64(), traffic.answers()));
            }
            Ok(())
        })?;
        let (healed, then) =
            healed.context("the daemon says that it is over, but the maps are not as they were")?;
        traffic.wait_for_more(AFTERWARDS)?;
        let all = traffic.finish()?;
        Ok(Outcome {
            noticed,
            healed,
            meanwhile: between(&before, &then),
            since: between(&then, &all),
            all: between(&before, &all),
        })
    }
}

impl Outcome {
    fn sentence(&self) -> String {
        format!(
            "noticed after {:.1} s, healed after {:.1} s; {} connections were made, none failed",
            self.noticed,
            self.healed,
            total(&self.all)
        )
    }
}

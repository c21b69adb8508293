//! T9: whether the cause that is named is the cause.

mod class;
mod faults;
mod watch;
mod world;

use std::fmt::Write;

use crate::{
    chance::quantile,
    lab::Lab,
    row::{Limit, Row, Unit},
};
use class::{Case, Class};
use watch::Known;
use world::{QUIET, Story};

pub fn attribution(lab: &mut Lab) {
    let runs = lab.size(200, 2);
    let stories: Vec<(Class, Vec<Story>)> = Class::ALL
        .into_iter()
        .map(|class| {
            let scenario = format!("T9 {}", class.name());
            (
                class,
                lab.repeat(&scenario, runs, |rng| world::run(&Case::new(class, rng), rng)),
            )
        })
        .collect();
    for (index, known) in Known::ALL.into_iter().enumerate() {
        let matrix = Matrix::new(&stories, index);
        for class in Class::ALL {
            right(lab, known, class, &matrix);
        }
        never(lab, known, &matrix);
        lab.note(format!(
            "causes by {}: rows are true, columns are named, {runs} runs each\n{}",
            known.name(),
            matrix.text()
        ));
    }
    detections(lab, &stories);
    few_clients(lab);
}

/// By true class and class named: how often.
struct Matrix([[u64; Class::ALL.len()]; Class::ALL.len()]);

impl Matrix {
    fn new(stories: &[(Class, Vec<Story>)], known: usize) -> Self {
        let mut counts = [[0; Class::ALL.len()]; Class::ALL.len()];
        for (truth, stories) in stories {
            for story in stories {
                counts[*truth as usize][Class::of(&story.verdicts[known]) as usize] += 1;
            }
        }
        Self(counts)
    }

    /// How often a case of one of `truth` was named one of `named`.
    fn count(&self, truth: impl Fn(Class) -> bool, named: impl Fn(Class) -> bool) -> u64 {
        let pairs = Class::ALL
            .into_iter()
            .flat_map(|truth| Class::ALL.map(|named| (truth, named)));
        let wanted = pairs.filter(|pair| truth(pair.0) && named(pair.1));
        wanted
            .map(|(truth, named)| self.0[truth as usize][named as usize])
            .sum()
    }

    fn text(&self) -> String {
        let mut text = format!("{:<16}", "");
        for class in Class::ALL {
            _ = write!(text, " {:>15}", class.name());
        }
        for (class, counts) in Class::ALL.into_iter().zip(self.0) {
            _ = write!(text, "\n{:<16}", class.name());
            for count in counts {
                _ = write!(text, " {count:>15}");
            }
        }
        text
    }
}

/// Part of the cases that are named right: at least, and in the study.
fn expectation(known: Known, class: Class) -> Option<(f64, f64)> {
    let alone = known == Known::Statistics;
    match class {
        Class::Healthy => Some((0.90, 0.94)),
        Class::KeyConcentration => Some((0.92, 0.965)),
        Class::EntropyGlobal => Some((0.95, 0.995)),
        Class::EntropyPartial => Some((0.95, 1.0)),
        Class::Table => Some(if alone { (0.93, 0.98) } else { (0.95, 1.0) }),
        Class::Stale => Some(if alone { (0.85, 0.915) } else { (0.95, 1.0) }),
        Class::Elephants | Class::Drained => Some((0.95, 1.0)),
        Class::TooLittle => Some((0.95, 0.99)),
        // Without a look at the seeds there is nothing to be seen.
        Class::Seed => (!alone).then_some((0.95, 1.0)),
    }
}

fn right(lab: &mut Lab, known: Known, class: Class, matrix: &Matrix) {
    let Some((least, study)) = expectation(known, class) else {
        return;
    };
    let all = matrix.count(|truth| truth == class, |_| true);
    let part = matrix.count(|truth| truth == class, |named| named == class) as f64 / all as f64;
    let scenario = format!("{}: named right by {}", class.name(), known.name());
    lab.push(
        Row::new("T9", scenario, part, Unit::Part, Limit::AtLeast(least))
            // As at the limit: few cases that came out alike show no error of their own.
            .error((least * (1.0 - least) / all as f64).sqrt())
            .study(study)
            .from(all, "cases"),
    );
}

/// What must not happen at all.
fn never(lab: &mut Lab, known: Known, matrix: &Matrix) {
    let innocent = |class: Class| class.is_excuse() || matches!(class, Class::Healthy | Class::Drained);
    let rows = [
        (
            "a broken hash named heavy keys or elephants",
            matrix.count(Class::is_entropy, Class::is_excuse),
            matrix.count(Class::is_entropy, |_| true),
        ),
        (
            "a fault named where there is none",
            matrix.count(innocent, Class::is_fault),
            matrix.count(innocent, |_| true),
        ),
    ];
    for (name, count, all) in rows {
        let scenario = format!("{name}, by {}", known.name());
        lab.push(
            Row::new("T9", scenario, count as f64, Unit::Count, Limit::AtMost(0.0))
                .study(0.0)
                .from(all, "cases"),
        );
    }
}

/// How long faults took to be seen.
fn detections(lab: &mut Lab, stories: &[(Class, Vec<Story>)]) {
    let study = |class| match class {
        Class::EntropyGlobal => [1.0, 2.0],
        Class::EntropyPartial => [3.0, 26.0],
        Class::Table => [2.0, 15.0],
        _ => [5.0, 71.0],
    };
    for (class, stories) in stories.iter().filter(|(class, _)| class.is_fault()) {
        for (name, seen) in [
            ("alarm", (|story| story.alarm) as fn(&Story) -> Option<u32>),
            ("wrong choice computed again", |story| story.audit),
        ] {
            let after = |story: &Story| {
                seen(story).map_or(f64::INFINITY, |check| f64::from(check) - f64::from(QUIET))
            };
            let delays: Vec<f64> = stories.iter().map(after).collect();
            for ((quantile_name, part), study) in [("median", 0.5), ("95 % within", 0.95)]
                .into_iter()
                .zip(study(*class))
            {
                let seconds = quantile(&delays, part);
                let scenario = format!("  {}: first {name}, {quantile_name}", class.name());
                lab.push(
                    Row::new("T9", scenario, seconds, Unit::Seconds, Limit::None)
                        .study((name == "alarm").then_some(study))
                        .seconds(seconds)
                        .from(stories.len() as u64, "cases"),
                );
            }
        }
    }
}

/// Where statistics end: few clients that the service keeps together. A seed's life has one fresh key of each, and most of
/// them on other CPUs; what is seen then is that few clients have most of the flows, which is so. Choices computed again
/// need no fresh keys.
fn few_clients(lab: &mut Lab) {
    let runs = lab.size(100, 2);
    let stories = lab.repeat("T9 few clients", runs, |rng| {
        world::run(&Case::few_clients(rng), rng)
    });
    let part = |index: usize, is_meant: fn(Class) -> bool| {
        let named = stories.iter().map(|story| Class::of(&story.verdicts[index]));
        named.filter(|class| is_meant(*class)).count() as f64 / runs as f64
    };
    for (index, known) in Known::ALL.into_iter().enumerate() {
        let limit = match known {
            Known::Audits => Limit::AtLeast(0.95),
            Known::Statistics | Known::Readback => Limit::None,
        };
        let name = format!(
            "a broken hash under 20 to 2000 clients: named by {}",
            known.name()
        );
        lab.push(Row::new("T9", name, part(index, Class::is_entropy), Unit::Part, limit).from(runs, "cases"));
        let excused = part(index, Class::is_excuse);
        let name = format!("  the same: named heavy keys or elephants by {}", known.name());
        lab.push(Row::new("T9", name, excused, Unit::Part, Limit::None).from(runs, "cases"));
    }
}

//! Runs of scenarios on all CPUs, and the rows that come of them.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::{
    chance::{Rng, rng},
    row::{Result, Row},
};

/// How much is run, from which chance, and what came of it so far.
pub struct Lab {
    pub seed: u64,
    pub quick: bool,
    /// Whether the time of computations is measured.
    pub timing: bool,
    bar: ProgressBar,
    rows: Vec<Row>,
    /// What does not fit into rows, printed at the end.
    tables: Vec<String>,
}

/// Few runs have large errors: in a quick run so many standard errors beyond a limit are no failure.
const QUICK_ERRORS: f64 = 3.0;

impl Lab {
    pub fn new(seed: u64, quick: bool, timing: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed:>5} {bar:24} {pos:>5}/{len:<5} {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        println!("{}", Row::heading());
        Self {
            seed,
            quick,
            timing,
            bar,
            rows: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// How many: in a full run, in a quick one.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Does `body` as often as said, each time with its own chance, on all CPUs. Results are in the order of the runs.
    pub fn repeat<T: Send>(&self, scenario: &str, runs: u64, body: impl Fn(&mut Rng) -> T + Sync) -> Vec<T> {
        self.bar.reset();
        self.bar.set_length(runs);
        self.bar.set_message(scenario.to_owned());
        let results = (0..runs).into_par_iter().map(|run| {
            let result = body(&mut rng(self.seed, scenario, run));
            self.bar.inc(1);
            result
        });
        results.collect()
    }

    /// Takes a row, and prints it.
    pub fn push(&mut self, row: Row) {
        self.bar.suspend(|| println!("{}", row.line(self.errors())));
        self.rows.push(row);
    }

    /// Takes something to be printed at the end.
    pub fn note(&mut self, table: String) {
        self.tables.push(table);
    }

    /// Prints the end, and tells whether everything is as it should be: no row failed, and some passed.
    pub fn finish(&self) -> bool {
        self.bar.finish_and_clear();
        for table in &self.tables {
            println!("\n{table}");
        }
        let count = |wanted| {
            self.rows
                .iter()
                .filter(|row| row.result(self.errors()) == wanted)
                .count()
        };
        let (passed, failed) = (count(Result::Pass), count(Result::Fail));
        println!("\n{passed} passed, {failed} failed (seed {})", self.seed);
        passed > 0 && failed == 0
    }

    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| row.json(self.errors())).collect();
        json!({"seed": self.seed, "quick": self.quick, "rows": rows})
    }

    fn errors(&self) -> f64 {
        if self.quick { QUICK_ERRORS } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Limit, Unit};

    fn row(measured: f64) -> Row {
        Row::new("T0", "a row", measured, Unit::Ratio, Limit::AtMost(1.0)).error(0.1)
    }

    #[test]
    fn one_row_that_fails_fails_all_and_none_is_no_success() {
        let mut full = Lab::new(1, false, false);
        assert!(!full.finish());
        full.push(row(0.9));
        assert!(full.finish());
        full.push(row(1.05));
        assert!(!full.finish());
        assert_eq!(full.json()["rows"][1]["result"], "FAIL");
        let mut quick = Lab::new(1, true, false);
        quick.push(row(1.05));
        assert!(quick.finish());
    }

    #[test]
    fn runs_are_in_order_each_with_its_own_chance() {
        use rand::RngExt;
        let lab = Lab::new(7, true, false);
        let draw = || lab.repeat("a scenario", 50, |rng| rng.random::<u64>());
        let drawn = draw();
        assert_eq!(drawn, draw());
        assert_eq!(drawn[3], rng(7, "a scenario", 3).random::<u64>());
        let distinct: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), 50);
    }
}

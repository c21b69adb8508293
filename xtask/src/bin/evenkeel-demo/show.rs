//! What the demo prints: headings, a progress bar, the table of shares.

use std::io::{IsTerminal, Write, stdout};

/// Columns of the bar of a backend, and the share that fills them.
const BAR: usize = 40;
const FULL: f64 = 0.6;
const PROGRESS: f64 = 30.0;
/// Columns of a line of text.
const WIDTH: usize = 110;

/// One backend of the table.
pub struct Row {
    pub name: String,
    pub weight: u32,
    /// 0..=1
    pub expected: f64,
    pub connections: u64,
}

pub fn heading(text: &str) {
    let (on, off) = if stdout().is_terminal() {
        ("\x1b[1m", "\x1b[0m")
    } else {
        ("", "")
    };
    println!("\n{on}{text}{off}");
}

pub fn say(text: &str) {
    println!("   {text}");
}

/// A text behind a head, in lines of the same width under each other.
pub fn hanging(head: &str, text: &str) {
    let indent = " ".repeat(head.chars().count());
    let mut line = head.to_owned();
    for word in text.split(' ') {
        if line.chars().count() + word.chars().count() >= WIDTH && line.trim_end().len() > indent.len() {
            say(line.trim_end());
            line.clone_from(&indent);
        }
        line.push_str(word);
        line.push(' ');
    }
    say(line.trim_end());
}

/// A bar on a line of its own, until [`progress_ends`]. Nothing where the output is not a terminal.
pub fn progress(what: &str, done: u64, total: u64) {
    let part = (done as f64 / total as f64).clamp(0.0, 1.0);
    let filled = (part * PROGRESS).round() as usize;
    let bar = "█".repeat(filled) + &"░".repeat(PROGRESS as usize - filled);
    redraw(&format!("   {what} {bar} {:3.0} %", part * 100.0));
}

pub fn progress_ends() {
    redraw("");
}

fn redraw(line: &str) {
    let mut out = stdout();
    if out.is_terminal() {
        // A terminal that has gone is noticed by the next line of text.
        let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
    }
}

pub fn table(rows: &[Row]) {
    let total = total(rows);
    println!();
    println!(
        "   {:<14}{:>6}{:>10}{:>13}{:>9}",
        "backend", "weight", "expected", "connections", "share"
    );
    for row in rows {
        let share = row.connections as f64 / total;
        println!(
            "   {:<14}{:>6}{:>8.1} %{:>13}{:>7.1} %  {}",
            row.name,
            row.weight,
            row.expected * 100.0,
            row.connections,
            share * 100.0,
            bar(share, row.expected)
        );
    }
    println!("   │ is where the expectation ends\n");
}

/// The share as a bar, with a mark where it is expected to end.
fn bar(share: f64, expected: f64) -> String {
    let column = |part: f64| ((part / FULL * BAR as f64).round() as usize).min(BAR);
    let (end, mark) = (column(share), column(expected));
    (0..=BAR.max(mark))
        .map(|at| match at {
            at if at == mark => '│',
            at if at < end => '█',
            _ => ' ',
        })
        .collect::<String>()
        .trim_end()
        .to_owned()
}

/// Whether the shares are as expected, as far as so few connections can tell.
pub fn is_balanced(rows: &[Row]) -> bool {
    let (worst, chance) = deviation(rows);
    worst < 2.0 * chance + 0.5
}

/// The largest difference of share and expectation, and the size of difference that chance explains (three standard
/// deviations), both in points.
pub fn deviation(rows: &[Row]) -> (f64, f64) {
    let total = total(rows);
    let worst = rows
        .iter()
        .map(|row| (row.connections as f64 / total - row.expected).abs())
        .fold(0.0, f64::max);
    let chance = rows
        .iter()
        .map(|row| (row.expected * (1.0 - row.expected) / total).sqrt())
        .fold(0.0, f64::max);
    (worst * 100.0, 3.0 * chance * 100.0)
}

fn total(rows: &[Row]) -> f64 {
    rows.iter().map(|row| row.connections).sum::<u64>().max(1) as f64
}

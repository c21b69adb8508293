//! The README's table of verdicts is the code's.

use crate::verdict::Verdict;

#[test]
fn every_verdict_has_its_row_and_no_other_has() {
    let text = include_str!("../../../README.md");
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let verdict = cells.next()?;
        let reason = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        let (meaning, metric) = (cells.next()?, cells.next()?);
        assert!(!meaning.is_empty(), "{line}");
        assert_eq!(
            metric,
            format!("`evenkeel_verdicts_total{{verdict=\"{verdict}\",reason=\"{reason}\"}}`")
        );
        Some((verdict.to_owned(), reason.to_owned()))
    });
    let named = Verdict::all().map(|verdict| {
        let (verdict, reason) = verdict.names();
        (verdict.to_owned(), reason.to_owned())
    });
    assert_eq!(rows.collect::<Vec<_>>(), named.collect::<Vec<_>>());
}

#[test]
fn the_first_readme_lists_the_same_verdicts() {
    let text = include_str!("../../../../README.md");
    for verdict in Verdict::all() {
        let (verdict, reason) = verdict.names();
        let row = format!("| {verdict} | `{reason}` |");
        assert_eq!(text.matches(&row).count(), 1, "{row}");
    }
}

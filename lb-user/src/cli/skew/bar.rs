//! A share as a bar, with a mark where it should end.

/// `width` characters that stand for 0 to `most`: blocks up to `observed`, a mark at `expected`.
pub(super) fn bar(observed: f64, expected: f64, most: f64, width: usize) -> String {
    let place = |share: f64| {
        let part = if most > 0.0 { share / most } else { 0.0 };
        (part.clamp(0.0, 1.0) * width as f64).round() as usize
    };
    let filled = place(observed);
    // The mark is the last cell that an expected share fills.
    let mark = place(expected).saturating_sub(1);
    let cell = |index| match (index == mark, index < filled) {
        (true, _) => '│',
        (false, true) => '█',
        (false, false) => '·',
    };
    (0..width).map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_more_and_less_than_expected() {
        assert_eq!(bar(0.5, 0.5, 1.0, 10), "████│·····");
        assert_eq!(bar(0.8, 0.5, 1.0, 10), "████│███··");
        assert_eq!(bar(0.2, 0.5, 1.0, 10), "██··│·····");
        assert_eq!(bar(0.0, 0.0, 1.0, 4), "│···");
        assert_eq!(bar(2.0, 1.0, 1.0, 4), "███│");
        assert_eq!(bar(0.0, 0.0, 0.0, 3), "│··");
    }
}

//! Reads the Prometheus text format, as much of it as the tests ask for.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

/// Samples by name and labels.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<Sample>);

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples: Result<_> = lines
            .map(|line| sample(line).with_context(|| format!("metrics line {line:?}")))
            .collect();
        Ok(Self(samples?))
    }

    /// The sum over the samples of a name that carry these labels; an error when there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let mut found = self.matching(name, labels).peekable();
        ensure!(found.peek().is_some(), "no metric {name} with {labels:?}");
        Ok(found.map(|sample| sample.value).sum())
    }

    /// Like [`sum`](Self::sum), for counters.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> Result<u64> {
        let sum = self.sum(name, labels)?;
        ensure!(
            sum >= 0.0 && sum.fract() == 0.0,
            "{name} {labels:?} is {sum}, no count"
        );
        Ok(sum as u64)
    }

    /// Values of a name by one of its labels.
    pub fn by_label(&self, name: &str, label: &str, labels: &[(&str, &str)]) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        for sample in self.matching(name, labels) {
            let key = sample.labels.get(label).cloned().unwrap_or_default();
            *values.entry(key).or_default() += sample.value;
        }
        values
    }

    pub fn names(&self) -> std::collections::BTreeSet<&str> {
        self.0.iter().map(|sample| sample.name.as_str()).collect()
    }

    /// Verdict and event counters that are not zero, one a line.
    pub fn moved(&self) -> String {
        let samples = self.0.iter().filter(|sample| {
            sample.value != 0.0 && (sample.name.contains("verdicts") || sample.name.contains("event"))
        });
        samples
            .map(|sample| format!("{} {:?} {}\n", sample.name, sample.labels, sample.value))
            .collect()
    }

    fn matching<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|own| own == value))
        })
    }
}

/// `name{label="value",…} 12` or `name 12`. None of our label values holds a quote or a backslash.
fn sample(line: &str) -> Result<Sample> {
    let (head, value) = line.rsplit_once(' ').context("no value")?;
    let (name, labels) = match head.split_once('{') {
        None => (head, BTreeMap::new()),
        Some((name, rest)) => {
            let inside = rest.strip_suffix('}').context("no closing brace")?;
            let pairs = inside.split("\",").filter(|pair| !pair.is_empty()).map(|pair| {
                let (key, value) = pair.split_once("=\"").context("a label without a value")?;
                Ok((key.to_owned(), value.trim_end_matches('"').to_owned()))
            });
            (name, pairs.collect::<Result<_>>()?)
        }
    };
    Ok(Sample {
        name: name.to_owned(),
        labels,
        value: value.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read() {
        let text =
            "# HELP x y\n# TYPE x counter\nx{a=\"1\",b=\"[::1]:80\"} 3\nx{a=\"2\",b=\"c, d\"} 4\ny 0.5\n";
        let metrics = Metrics::parse(text).unwrap();
        assert_eq!(metrics.count("x", &[]).unwrap(), 7);
        assert_eq!(metrics.count("x", &[("b", "c, d")]).unwrap(), 4);
        assert!(metrics.count("y", &[]).is_err());
        assert!(metrics.sum("z", &[]).is_err());
        assert_eq!(metrics.by_label("x", "b", &[])["[::1]:80"], 3.0);
    }
}

//! What the gate came to, in one line, or as an error.

use std::process::Output;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// What `evenkeel bench distribution` ends with when it was uneven.
pub const UNEVEN: i32 = 9;
/// Every service must have this part of the flows, so that none passes for want of them.
const LEAST_PART: f64 = 0.1;

/// What `evenkeel bench distribution --json` ended with and printed.
#[derive(Debug)]
pub struct Verdict {
    pub code: Option<i32>,
    pub report: Value,
}

impl Verdict {
    /// An error where nothing was judged.
    pub(super) fn of(output: Output) -> Result<Self> {
        let code = output.status.code();
        if !matches!(code, Some(0 | UNEVEN)) {
            let said = [output.stdout, output.stderr].concat();
            bail!(
                "`evenkeel bench distribution` came to no verdict ({}): {}",
                output.status,
                String::from_utf8_lossy(&said).trim()
            );
        }
        let report = serde_json::from_slice(&output.stdout)
            .context("`evenkeel bench distribution` printed no verdict")?;
        Ok(Self { code, report })
    }

    /// Each of `services` is shown to be even, of enough flows. Answers a line about all of it, and one about each.
    pub fn passes(&self, services: usize) -> Result<Vec<String>> {
        let judged: Vec<&Value> = self.report["services"].as_array().into_iter().flatten().collect();
        let all = self.report["fresh_flows"].as_u64().unwrap_or(0);
        let lines: Vec<String> = judged.iter().map(|service| line(service)).collect();
        let told: Vec<String> = lines.iter().cloned().chain(self.failed_checks()).collect();
        let told = told.join("; ");
        ensure!(
            self.code == Some(0) && self.report["passed"] == true,
            "new flows are not spread as they should be: {told}"
        );
        ensure!(
            judged.len() == services && judged.iter().all(|service| is_shown(service, all)),
            "too little is known of some ways of picking: {told}"
        );
        let seconds = self.report["seconds"].as_f64().unwrap_or(f64::NAN);
        let sum = format!("{all} new flows in {seconds:.0} s, in every way of picking");
        Ok([vec![sum], lines].concat())
    }

    fn failed_checks(&self) -> impl Iterator<Item = String> {
        let checks = self.report["failed_checks"].as_array().into_iter().flatten();
        checks.map(|check| format!("self-check {}", check.as_str().unwrap_or_default()))
    }
}

fn is_shown(service: &Value, all: u64) -> bool {
    let flows = service["fresh_flows"].as_u64().unwrap_or(0);
    service["finding"] == "even" && flows as f64 >= LEAST_PART * all as f64
}

fn line(service: &Value) -> String {
    let effect = &service["effect"];
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let alarm = match service["alarm"].as_str() {
        Some(alarm) => format!(" ({alarm})"),
        None => String::new(),
    };
    format!(
        "{} {}: {} flows, {:.2} % misplaced, backends at {:.3} to {:.3} of their share{alarm}",
        service["service"].as_str().unwrap_or_default(),
        service["finding"].as_str().unwrap_or_default(),
        service["fresh_flows"],
        100.0 * number(&effect["tv"]),
        number(&effect["min_ratio"]["ratio"]),
        number(&effect["max_ratio"]["ratio"]),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(finding: &str, flows: u64) -> Value {
        let ratio = json!({"ratio": 1.0});
        json!({
            "service": "web", "finding": finding, "fresh_flows": flows, "alarm": null,
            "effect": {"tv": 0.001, "min_ratio": ratio, "max_ratio": ratio},
        })
    }

    fn verdict(code: i32, passed: bool, services: &[Value]) -> Verdict {
        let report = json!({
            "passed": passed, "fresh_flows": 1000, "seconds": 9.6, "services": services, "failed_checks": [],
        });
        Verdict {
            code: Some(code),
            report,
        }
    }

    #[test]
    fn only_a_whole_and_even_verdict_passes() {
        let even = [service("even", 600), service("even", 400)];
        let lines = verdict(0, true, &even).passes(2).unwrap();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("1000 new flows in 10 s"), "{lines:?}");
        assert!(lines[2].starts_with("web even: 400 flows"), "{lines:?}");
        let fails = |verdict: Verdict, services| verdict.passes(services).unwrap_err().to_string();
        assert!(fails(verdict(9, false, &even), 2).contains("not spread"));
        assert!(fails(verdict(9, true, &even), 2).contains("not spread"));
        assert!(fails(verdict(0, false, &even), 2).contains("not spread"));
        assert!(fails(verdict(0, true, &even), 3).contains("too little"));
        assert!(
            fails(verdict(0, true, &[service("even", 950), service("even", 50)]), 2).contains("too little")
        );
        assert!(
            fails(
                verdict(0, true, &[service("even", 500), service("not-shown", 500)]),
                2
            )
            .contains("too little")
        );
    }

    #[test]
    fn no_verdict_is_no_success() {
        use std::os::unix::process::ExitStatusExt;
        for (code, text) in [(0, ""), (9, "nothing"), (5, "{}"), (3, "{}")] {
            let output = Output {
                status: std::process::ExitStatus::from_raw(code << 8),
                stdout: text.into(),
                stderr: Vec::new(),
            };
            assert!(Verdict::of(output).is_err(), "{code}");
        }
    }
}

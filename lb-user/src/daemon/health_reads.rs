//! Trouble with checks and announcements, as `status` shows it.

use super::view::View;
use crate::api::types::Problem;

pub fn problems(view: &View) -> Vec<Problem> {
    let panics = view.panics.iter().map(|(service, what)| Problem {
        object: format!("service {service}"),
        problem: what.words().to_owned(),
        next_step: format!("see what its checks find with `evenkeel backends {service}`"),
    });
    // A daemon that is not ready says so at the top, and withdraws everything for it.
    let silent = view.vips.iter().filter(|_| view.is_ready());
    let silent = silent.filter_map(|(vip, announced)| {
        let why = announced.as_ref().err()?;
        Some(Problem {
            object: format!("VIP {vip}"),
            problem: format!("it is not announced: {why}"),
            next_step: "it is as soon as that is over".to_owned(),
        })
    });
    panics.chain(silent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::OnPanic;

    #[test]
    fn a_panic_and_a_silent_vip_are_told_and_what_follows_from_not_being_ready_is_not() {
        let mut view = View {
            panics: [("web".to_owned(), OnPanic::Serve)].into(),
            vips: [
                ("192.0.2.1".parse().unwrap(), Ok(())),
                ("192.0.2.2".parse().unwrap(), Err("no backend serves".to_owned())),
            ]
            .into(),
            ..View::default()
        };
        let told: Vec<_> = problems(&view)
            .into_iter()
            .map(|one| (one.object, one.problem))
            .collect();
        assert_eq!(
            told,
            [
                ("service web".to_owned(), OnPanic::Serve.words().to_owned()),
                (
                    "VIP 192.0.2.2".to_owned(),
                    "it is not announced: no backend serves".to_owned()
                )
            ]
        );
        view.not_ready.push("waits".to_owned());
        assert_eq!(problems(&view).len(), 1);
    }
}

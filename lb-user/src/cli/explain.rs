//! `evenkeel explain`: what would happen to a packet, stage by stage, and why.

use std::net::SocketAddr;

use super::{
    Context,
    exit::Outcome,
    table::{Paint, Table},
};
use crate::{
    api::types::{Answer, ExplainQuery, Explanation},
    state::desired::Protocol,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "IPv6 in brackets: evenkeel explain tcp [2001:db8::7]:40000 [2001:db8::1]:443")]
pub(super) struct Args {
    /// tcp or udp.
    protocol: Protocol,
    /// The client: ADDRESS:PORT.
    source: SocketAddr,
    /// The VIP: ADDRESS:PORT.
    destination: SocketAddr,
    /// TCP: the first packet of a connection instead of one in the middle.
    #[arg(long)]
    syn: bool,
}

pub(super) async fn run(args: &Args, context: &Context) -> Outcome {
    let query = ExplainQuery {
        protocol: args.protocol,
        source: args.source,
        destination: args.destination,
        syn: args.syn,
    };
    let explanation: Explanation = context.client().query("/v1/explain", &query).await?;
    context.print(&explanation, |paint| render(&explanation, paint))
}

fn render(explanation: &Explanation, paint: Paint) -> String {
    let mut text = format!("{}\n", explanation.packet);
    for answer in &explanation.answers {
        text.push('\n');
        text.push_str(&one(answer, paint));
    }
    text
}

fn one(answer: &Answer, paint: Paint) -> String {
    let cpus: Vec<String> = answer.cpus.iter().map(u32::to_string).collect();
    let mut table = Table::new(&["STAGE", "FINDING"]);
    for stage in &answer.stages {
        table.row([stage.stage.clone(), stage.finding.clone()]);
    }
    let verdict = format!("{} ({})", answer.verdict, answer.reason);
    let verdict = match answer.verdict.as_str() {
        "forward" => paint.good(&verdict),
        "drop" => paint.bad(&verdict),
        _ => verdict,
    };
    let to = answer
        .backend
        .map(|backend| format!(" to {backend}"))
        .unwrap_or_default();
    format!(
        "On CPU {}: {verdict}{to}\n{}",
        cpus.join(", "),
        table.render(2, paint)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Stage;

    #[test]
    fn an_explanation_reads_stage_by_stage() {
        let stage = |stage: &str, finding: &str| Stage {
            stage: stage.into(),
            finding: finding.into(),
        };
        let explanation = Explanation {
            packet: "tcp 192.0.2.1:40000 > 198.51.100.7:443".into(),
            answers: vec![Answer {
                cpus: vec![0, 1],
                stages: vec![
                    stage("vip filter", "198.51.100.7 may be a VIP"),
                    stage("flow table", "hit"),
                ],
                verdict: "forward".into(),
                reason: "dsr".into(),
                backend: Some("10.0.0.2".parse().unwrap()),
            }],
        };
        insta::assert_snapshot!(render(&explanation, Paint::PLAIN));
    }
}

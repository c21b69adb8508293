//! `evenkeel services`: the services and how their backends are.

use super::{
    Context,
    exit::Outcome,
    table::{self, Paint, Table},
};
use crate::api::types::Service;

pub(super) async fn run(context: &Context) -> Outcome {
    let services: Vec<Service> = context.client().get("/v1/services").await?;
    context.print(&services, |paint| render(&services, paint))
}

fn render(services: &[Service], paint: Paint) -> String {
    if services.is_empty() {
        return "No services. Add one: evenkeel service add NAME --vip ADDRESS --port PORT --protocol tcp\n"
            .to_owned();
    }
    let mut table = Table::new(&[
        "SERVICE",
        "VIP",
        "PROTO",
        "PICKS",
        "SOURCE",
        ">SERVING",
        ">DRAINING",
        ">DOWN",
        ">UNRESOLVED",
        ">SLOTS",
        ">ACTIVE",
        ">FLOWS",
        ">PACKETS",
        ">BYTES",
    ]);
    for service in services {
        table.row([
            service.name.clone(),
            address(service),
            protocol(service).to_owned(),
            picks(service),
            service.source.clone(),
            serving(service, paint),
            service.draining.to_string(),
            service.down.to_string(),
            trouble(service.unresolved, paint),
            table::count(service.slots.into()),
            table::count(service.active_flows),
            table::count(service.totals.flows),
            table::count(service.totals.packets),
            table::octets(service.totals.bytes),
        ]);
    }
    table.render(0, paint)
}

/// `192.0.2.10:443`, `[2001:db8::1]:all`.
pub(super) fn address(service: &Service) -> String {
    let port = service
        .port
        .map_or_else(|| "all".to_owned(), |port| port.to_string());
    if service.vip.is_ipv6() {
        format!("[{}]:{port}", service.vip)
    } else {
        format!("{}:{port}", service.vip)
    }
}

pub(super) fn protocol(service: &Service) -> &'static str {
    use crate::state::desired::Protocol;
    match service.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

fn picks(service: &Service) -> String {
    use crate::state::desired::{Affinity, Selection};
    match (service.affinity, service.selection) {
        (Affinity::Client, _) => "by client",
        (Affinity::None, Selection::PerCpu) => "per-cpu",
        (Affinity::None, Selection::Fleet) => "fleet",
    }
    .to_owned()
}

/// A service that nobody serves is red.
pub(super) fn serving(service: &Service, paint: Paint) -> String {
    let text = service.serving.to_string();
    if service.slots == 0 {
        paint.bad(&text)
    } else {
        paint.good(&text)
    }
}

/// A number that should be 0.
pub(super) fn trouble(number: u32, paint: Paint) -> String {
    if number == 0 {
        "0".to_owned()
    } else {
        paint.warn(&number.to_string())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        api::types::Totals,
        state::desired::{Affinity, Protocol, Selection},
    };

    pub(in crate::cli) fn example() -> Vec<Service> {
        let web = Service {
            name: "web".into(),
            vip: "192.0.2.10".parse().unwrap(),
            port: Some(443),
            protocol: Protocol::Tcp,
            selection: Selection::PerCpu,
            affinity: Affinity::None,
            source: "static".into(),
            slots: 1021,
            table_generation: 4,
            serving: 3,
            draining: 1,
            down: 0,
            unresolved: 0,
            active_flows: 1832,
            totals: Totals {
                flows: 120_034,
                packets: 9_812_443,
                bytes: 7_310_004_224,
            },
        };
        let dns = Service {
            name: "dns".into(),
            vip: "2001:db8::53".parse().unwrap(),
            port: None,
            protocol: Protocol::Udp,
            selection: Selection::Fleet,
            affinity: Affinity::Client,
            source: "cli".into(),
            slots: 0,
            serving: 0,
            draining: 0,
            unresolved: 2,
            active_flows: 0,
            totals: Totals::default(),
            ..web.clone()
        };
        vec![dns, web]
    }

    #[test]
    fn services_stand_in_one_table() {
        insta::assert_snapshot!(render(&example(), Paint::PLAIN));
    }
}

//! What the command line may change, what comes out, and what the file's own changes leave of it.

use proptest::prelude::*;

use super::*;
use crate::{
    config::{Port, parse_services},
    state::desired::{Mode, Protocol, Selection, desired_service},
};

const FILE: &str = r#"
[[service]]
name = "web"
vip = "192.0.2.10"
port = 443
protocol = "tcp"

  [[service.backend]]
  address = "10.0.0.11"

  [[service.backend]]
  address = "10.0.0.12"
  state = "draining"
"#;

fn file() -> Vec<ServiceSpec> {
    parse_services(FILE, "test").unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn spec(name: &str, vip: &str, backends: &[&str]) -> ServiceSpec {
    ServiceSpec {
        udp_idle: "90s".parse().unwrap(),
        backends: backends
            .iter()
            .map(|address| BackendSpec::new(ip(address)))
            .collect(),
        ..ServiceSpec::new(name, ip(vip), Port::All, Protocol::Udp)
    }
}

/// Backends as "address weight state sources".
fn shown(overlay: &Overlay, service: &str) -> Vec<String> {
    let service = overlay.effective_service(&file(), service).unwrap();
    let line = |backend: &BackendSpec| {
        let sources: Vec<&str> = service.sources[&backend.address]
            .iter()
            .map(String::as_str)
            .collect();
        format!(
            "{} {} {:?} {}",
            backend.address,
            backend.weight,
            backend.state,
            sources.join("+")
        )
    };
    service.spec.backends.iter().map(line).collect()
}

fn weight(weight: u32) -> BackendSettings {
    BackendSettings {
        weight: Some(weight),
        ..BackendSettings::default()
    }
}

#[test]
fn an_untouched_file_is_what_is_wanted() {
    let overlay = Overlay::default();
    assert_eq!(overlay.effective(&file()).specs(), file());
    assert_eq!(
        shown(&overlay, "web"),
        ["10.0.0.11 1 Serving static", "10.0.0.12 1 Draining static"]
    );
}

#[test]
fn services_come_change_and_go() {
    let mut overlay = Overlay::default();
    let file = file();
    overlay
        .add_service(&file, spec("dns", "192.0.2.53", &["10.0.0.11"]))
        .unwrap();
    let patch = ServiceSettings {
        mode: Some(Mode::Ipip),
        slots: Some(2003),
        ..ServiceSettings::default()
    };
    overlay.set_service(&file, "dns", patch).unwrap();
    overlay.set_service(&file, "web", patch).unwrap();
    for name in ["dns", "web"] {
        let service = overlay.effective_service(&file, name).unwrap();
        assert_eq!(
            (service.spec.mode, service.spec.slots, service.from_file),
            (Mode::Ipip, Some(2003), name == "web")
        );
    }
    overlay
        .set_service(
            &file,
            "web",
            ServiceSettings {
                slots: Some(0),
                ..ServiceSettings::default()
            },
        )
        .unwrap();
    let web = overlay.effective_service(&file, "web").unwrap();
    assert_eq!((web.spec.mode, web.spec.slots), (Mode::Ipip, None));
    overlay.remove_service(&file, "dns").unwrap();
    assert_eq!(overlay.effective_service(&file, "dns"), None);
    assert_eq!(overlay.revision(), 5);
}

#[test]
fn backends_come_change_and_go() {
    let mut overlay = Overlay::default();
    let file = file();
    overlay
        .add_backend(&file, "web", BackendSpec::new(ip("10.0.0.13")))
        .unwrap();
    overlay
        .set_backend(&file, "web", ip("10.0.0.13"), weight(3))
        .unwrap();
    overlay
        .set_backend(&file, "web", ip("10.0.0.11"), weight(2))
        .unwrap();
    overlay.drain(&file, "web", ip("10.0.0.11")).unwrap();
    overlay.drain(&file, "web", ip("10.0.0.13")).unwrap();
    overlay.undrain(&file, "web", ip("10.0.0.12")).unwrap();
    let expected = [
        "10.0.0.11 2 Draining static",
        "10.0.0.12 1 Serving static",
        "10.0.0.13 3 Draining cli",
    ];
    assert_eq!(shown(&overlay, "web"), expected);
    overlay.remove_backend(&file, "web", ip("10.0.0.13")).unwrap();
    assert_eq!(shown(&overlay, "web"), expected[..2]);
}

#[test]
fn refusals_say_what_to_do_and_change_nothing() {
    let file = file();
    let mut overlay = Overlay::default();
    overlay
        .add_service(&file, spec("dns", "192.0.2.53", &["10.0.0.11"]))
        .unwrap();
    let before = overlay.clone();
    let other = |name: &str| spec(name, "192.0.2.99", &[]);
    let mut tcp = spec("web2", "192.0.2.10", &[]);
    (tcp.protocol, tcp.port) = (Protocol::Tcp, "443".parse().unwrap());
    let mut renamed = spec("web", "192.0.2.11", &[]);
    renamed.protocol = Protocol::Tcp;
    let down = BackendSettings {
        state: Some(BackendState::Down),
        ..BackendSettings::default()
    };
    let v6 = BackendSpec::new(ip("2001:db8::1"));
    let results = [
        overlay.add_service(&file, other("web")),
        overlay.add_service(&file, other("dns")),
        overlay.add_service(&file, other("No Name")),
        overlay.add_service(&file, tcp),
        overlay.add_service(&file, spec("loop", "10.0.0.12", &[])),
        overlay.add_service(&file, spec("loop", "192.0.2.99", &["192.0.2.10", "192.0.2.99"])),
        overlay.add_service(&file, spec("twice", "192.0.2.99", &["10.0.0.9", "10.0.0.9"])),
        overlay.set_service(&file, "nix", ServiceSettings::default()),
        overlay.set_service(
            &file,
            "web",
            ServiceSettings {
                slots: Some(3),
                ..ServiceSettings::default()
            },
        ),
        overlay.remove_service(&file, "web"),
        overlay.remove_service(&file, "nix"),
        overlay.add_backend(&file, "nix", BackendSpec::new(ip("10.0.0.9"))),
        overlay.add_backend(&file, "web", BackendSpec::new(ip("10.0.0.12"))),
        overlay.add_backend(&file, "web", BackendSpec::new(ip("192.0.2.53"))),
        overlay.add_backend(&file, "web", v6),
        overlay.set_backend(&file, "web", ip("10.0.0.9"), weight(1)),
        overlay.set_backend(&file, "web", ip("10.0.0.11"), weight(0)),
        overlay.set_backend(&file, "web", ip("10.0.0.11"), weight(65_535)),
        overlay.set_backend(&file, "web", ip("10.0.0.11"), down),
        overlay.remove_backend(&file, "web", ip("10.0.0.11")),
        overlay.remove_backend(&file, "web", ip("10.0.0.9")),
        overlay.apply_file(&file, vec![renamed]),
        overlay.apply_file(&file, vec![other("a"), other("b")]),
        overlay.apply_file(&file, vec![spec("a", "192.0.2.99", &["192.0.2.10"])]),
        overlay.check_revision(Some(7)),
    ];
    assert_eq!(overlay, before);
    let lines: Vec<String> = results
        .into_iter()
        .map(|result| result.unwrap_err())
        .map(|error| format!("{:?}: {error}\n  next: {}", error.kind(), error.next_step()))
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_change_of_a_static_backend_outlives_its_removal_by_hand() {
    let file = file();
    let mut overlay = Overlay::default();
    overlay.drain(&file, "web", ip("10.0.0.11")).unwrap();
    assert!(overlay.remove_backend(&file, "web", ip("10.0.0.11")).is_err());
    assert_eq!(shown(&overlay, "web")[0], "10.0.0.11 1 Draining static");
}

#[test]
fn the_same_backend_from_both_is_one_and_the_command_line_has_the_last_word() {
    let mut overlay = Overlay::default();
    let smaller: Vec<ServiceSpec> = {
        let mut file = file();
        file[0].backends.remove(0);
        file
    };
    overlay
        .add_backend(
            &smaller,
            "web",
            BackendSpec {
                weight: 4,
                ..BackendSpec::new(ip("10.0.0.11"))
            },
        )
        .unwrap();
    assert_eq!(shown(&overlay, "web")[0], "10.0.0.11 4 Serving cli+static");
    overlay.remove_backend(&file(), "web", ip("10.0.0.11")).unwrap();
    assert_eq!(shown(&overlay, "web")[0], "10.0.0.11 1 Serving static");
}

#[test]
fn apply_replaces_what_the_command_line_wanted() {
    let file = file();
    let mut overlay = Overlay::default();
    overlay
        .add_service(&file, spec("old", "192.0.2.53", &["10.0.0.11"]))
        .unwrap();
    overlay.drain(&file, "web", ip("10.0.0.11")).unwrap();
    let mut web = file[0].clone();
    web.selection = Selection::Fleet;
    web.backends.remove(0);
    web.backends[0].state = BackendState::Serving;
    web.backends.push(BackendSpec {
        weight: 9,
        ..BackendSpec::new(ip("10.0.0.13"))
    });
    let wanted = vec![web, spec("new", "192.0.2.54", &["10.0.0.14"])];
    overlay.apply_file(&file, wanted.clone()).unwrap();
    let expected = [
        "10.0.0.11 1 Serving static",
        "10.0.0.12 1 Serving static",
        "10.0.0.13 9 Serving cli",
    ];
    assert_eq!(shown(&overlay, "web"), expected);
    assert_eq!(shown(&overlay, "new"), ["10.0.0.14 1 Serving cli"]);
    assert_eq!(
        overlay.effective_service(&file, "web").unwrap().spec.selection,
        Selection::Fleet
    );
    assert_eq!(overlay.effective_service(&file, "old"), None);
    let before = overlay.clone();
    overlay.apply_file(&file, wanted).unwrap();
    assert_eq!(overlay.services, before.services);
    overlay.apply_file(&file, file.clone()).unwrap();
    assert_eq!(overlay.services, BTreeMap::new());
}

#[test]
fn what_lost_its_object_in_the_file_is_dropped_with_a_note() {
    let file = file();
    let mut overlay = Overlay::default();
    overlay.drain(&file, "web", ip("10.0.0.11")).unwrap();
    overlay
        .add_backend(&file, "web", BackendSpec::new(ip("10.0.0.13")))
        .unwrap();
    overlay
        .add_service(&file, spec("dns", "192.0.2.53", &["10.0.0.14"]))
        .unwrap();
    assert_eq!(overlay.settle(&file), Vec::<String>::new());
    let mut changed = file.clone();
    changed[0].backends.remove(0);
    changed.push(spec("dns", "192.0.2.54", &["10.0.0.15"]));
    let revision = overlay.revision();
    insta::assert_snapshot!(overlay.settle(&changed).join("\n"), @"
    service dns is now in the file: it rules, added backends stay
    backend 10.0.0.11 of service web is no longer in the file: what was set of it is dropped
    ");
    assert_eq!(overlay.revision(), revision + 1);
    let dns = overlay.effective_service(&changed, "dns").unwrap();
    assert_eq!(dns.spec.vip, ip("192.0.2.54"));
    assert_eq!(dns.spec.backends.len(), 2);
    insta::assert_snapshot!(overlay.settle(&[]).join("\n"), @"
    service dns is no longer in the file: what was set of it is dropped
    service web is no longer in the file: what was set of it is dropped
    ");
    assert_eq!(overlay.effective(&[]), Effective::default());
}

#[test]
fn at_start_the_file_wins_a_clash() {
    let file = file();
    let mut overlay = Overlay::default();
    overlay
        .add_service(&file, spec("dns", "192.0.2.53", &[]))
        .unwrap();
    let clashing = vec![spec("resolver", "192.0.2.53", &[])];
    assert!(validate(&overlay.effective(&clashing).specs()).is_err());
    let expected = "service dns is dropped: service resolver of the file has its 192.0.2.53:all/udp";
    assert_eq!(overlay.drop_clashing(&clashing), [expected]);
    assert!(validate(&overlay.effective(&clashing).specs()).is_ok());
}

#[test]
fn desired_backends_follow_the_service() {
    let file = file();
    let mut overlay = Overlay::default();
    let patch = ServiceSettings {
        mode: Some(Mode::Ipip),
        udp_idle: Some("9s".parse().unwrap()),
        ..ServiceSettings::default()
    };
    overlay.set_service(&file, "web", patch).unwrap();
    let own = BackendSettings {
        mode: Some(Mode::Dsr),
        ..BackendSettings::default()
    };
    overlay.set_backend(&file, "web", ip("10.0.0.12"), own).unwrap();
    let desired = desired_service(
        &overlay.effective_service(&file, "web").unwrap(),
        &BTreeMap::new(),
        &Default::default(),
    );
    let modes: Vec<_> = desired
        .backends
        .values()
        .map(|backend| (backend.mode, backend.udp_idle))
        .collect();
    assert_eq!(modes, [(Mode::Ipip, 9), (Mode::Dsr, 9)]);
}

#[derive(Clone, Debug)]
enum Verb {
    AddService(u8),
    RemoveService(u8),
    Add(u8, u8),
    Remove(u8, u8),
    Weight(u8, u8, u32),
    Drain(u8, u8),
    Undrain(u8, u8),
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let pair = (0u8..3, 11u8..15);
    let one = prop_oneof![
        (0u8..3).prop_map(Verb::AddService),
        (0u8..3).prop_map(Verb::RemoveService),
        pair.clone()
            .prop_map(|(service, backend)| Verb::Add(service, backend)),
        pair.clone()
            .prop_map(|(service, backend)| Verb::Remove(service, backend)),
        (pair.clone(), 0u32..70_000)
            .prop_map(|((service, backend), weight)| Verb::Weight(service, backend, weight)),
        pair.clone()
            .prop_map(|(service, backend)| Verb::Drain(service, backend)),
        pair.prop_map(|(service, backend)| Verb::Undrain(service, backend)),
    ];
    prop::collection::vec(one, 0..30)
}

proptest! {
    /// Whatever is asked for, what comes out is valid, survives the disk, and a refusal changes nothing.
    #[test]
    fn what_comes_out_is_always_valid(verbs in verbs()) {
        let file = file();
        let mut overlay = Overlay::default();
        let name = |service: u8| ["web", "s1", "s2"][usize::from(service)];
        let backend = |last: u8| IpAddr::from([10, 0, 0, last]);
        for verb in verbs {
            let before = overlay.clone();
            let result = match verb {
                Verb::AddService(service) => {
                    overlay.add_service(&file, spec(name(service), &format!("192.0.2.{service}"), &[]))
                }
                Verb::RemoveService(service) => overlay.remove_service(&file, name(service)),
                Verb::Add(service, last) => overlay.add_backend(&file, name(service), BackendSpec::new(backend(last))),
                Verb::Remove(service, last) => overlay.remove_backend(&file, name(service), backend(last)),
                Verb::Weight(service, last, to) => overlay.set_backend(&file, name(service), backend(last), weight(to)),
                Verb::Drain(service, last) => overlay.drain(&file, name(service), backend(last)),
                Verb::Undrain(service, last) => overlay.undrain(&file, name(service), backend(last)),
            };
            match result {
                Ok(()) => prop_assert_eq!(overlay.revision(), before.revision() + 1),
                Err(_) => prop_assert_eq!(&overlay, &before),
            }
            let effective = overlay.effective(&file);
            prop_assert_eq!(validate(&effective.specs()), Ok(()));
            for (name, service) in &effective.services {
                prop_assert_eq!(overlay.effective_service(&file, name), Some(service.clone()));
            }
            let json = serde_json::to_string(&overlay).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Overlay>(&json).unwrap(), &overlay);
        }
        prop_assert_eq!(overlay.clone().settle(&file), Vec::<String>::new());
    }
}

//! A datapath that was not set up, or by another version.

use lb_common::{seed::Seed, settings::Settings};

use crate::{
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS6, FOREIGN, WEB},
        },
    },
    verdict::Pass,
};

pub fn cases(world: &World) -> Vec<Case> {
    let unset = || Expect::pass(Pass::NotConfigured);
    vec![
        Case::new("without settings every packet to a VIP passes", world)
            .with(|world| world.settings = Settings::default())
            .sends(&WEB.packet().syn(), unset())
            .sends(&DNS6.packet(), unset()),
        Case::new(
            "without settings nothing is dropped either: what is wrong passes, too",
            world,
        )
        .with(|world| world.settings = Settings::default())
        .sends(&WEB.packet().raw_length(9999), unset())
        .sends(&DNS6.packet().raw_udp_length(0), unset())
        .sends(&WEB.packet().fragment(0, true), unset())
        .sends(
            &(0..9).fold(DNS6.packet(), |packet, _| packet.hop_by_hop()),
            unset(),
        ),
        Case::new("settings of another version are no settings", world)
            .with(|world| world.settings.layout_version += 1)
            .sends(&WEB.packet().syn(), unset()),
        Case::new("settings that are written start the balancer", world)
            .with(|world| world.settings.layout_version = 0)
            .sends(&WEB.packet().syn(), unset())
            .then(|world| world.settings.layout_version = lb_common::settings::LAYOUT_VERSION)
            .sends(&WEB.packet().syn(), Expect::dsr(WEB.id).new_flow()),
        Case::new("maps as the kernel makes them, all zero, pass everything", world)
            .with(|world| {
                *world = World::empty(world.cpu, 0);
                world.settings = Settings::default();
                world.seeds.fill(Seed::default());
            })
            .sends(&WEB.packet().syn(), Expect::pass(Pass::NotVip))
            .sends(&Packet::tcp_v4().to(FOREIGN, 80), Expect::pass(Pass::NotVip)),
    ]
}

//! The flow table: states, what keeps a flow at its backend and what does not, expiry.

use lb_common::{backend, counters::Event, flow::state};

use super::eviction::two_buckets;
use crate::{
    headers::tcp_flag,
    testing::{
        case::{Case, Expect},
        packet::Packet,
        world::{
            World,
            standard::{DNS, DNS6, SPREAD, TUNNEL_4IN4, WEB, WEB6},
        },
    },
    verdict::Pass,
};

pub fn cases(world: &World) -> Vec<Case> {
    [
        states(world),
        places(world),
        retransmission(world),
        expiry(world),
        backends(world),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn to(id: u32) -> Expect {
    Expect::dsr(id)
}

fn opens(id: u32) -> Expect {
    to(id).new_flow()
}

fn again(id: u32) -> Expect {
    to(id).picked_and(Event::FlowStored)
}

fn states(world: &World) -> Vec<Case> {
    let packet = WEB.packet();
    let id = WEB.id;
    let flags = |flags| packet.clone().flags(flags);
    vec![
        Case::new("a connection goes from new to established to closing", world)
            .sends(&packet.clone().syn(), opens(id).flow(state::NEW, id))
            .sends(&packet, to(id).flow(state::ESTABLISHED, id))
            .sends(
                &packet.clone().payload(b"GET /"),
                to(id).flow(state::ESTABLISHED, id),
            )
            .sends(&packet.clone().fin(), to(id).flow(state::CLOSING, id))
            .sends(&packet, to(id).flow(state::CLOSING, id)),
        Case::new("a reset closes at once", world)
            .sends(&packet.clone().syn(), opens(id))
            .sends(&packet.clone().rst(), to(id).flow(state::CLOSING, id)),
        Case::new(
            "a segment without SYN of an unknown flow is picked and established",
            world,
        )
        .sends(&packet, opens(id).flow(state::ESTABLISHED, id)),
        Case::new("a FIN of an unknown flow is picked and closing", world)
            .sends(&packet.clone().fin(), opens(id).flow(state::CLOSING, id)),
        Case::new("a reset of an unknown flow is picked and closing", world)
            .sends(&packet.clone().rst(), opens(id).flow(state::CLOSING, id)),
        Case::new("a SYN with ACK opens nothing: it is established", world).sends(
            &flags(tcp_flag::SYN | tcp_flag::ACK),
            opens(id).flow(state::ESTABLISHED, id),
        ),
        Case::new("a SYN with FIN or RST closes", world)
            .sends(
                &flags(tcp_flag::SYN | tcp_flag::FIN),
                opens(id).flow(state::CLOSING, id),
            )
            .sends(
                &flags(tcp_flag::SYN | tcp_flag::RST),
                to(id).flow(state::CLOSING, id),
            ),
        Case::new("a SYN with ECN's flags (RFC 3168) opens", world)
            .sends(&flags(tcp_flag::SYN | 0xc0), opens(id).flow(state::NEW, id)),
        Case::new("a segment without any flag is established", world)
            .sends(&flags(0), opens(id).flow(state::ESTABLISHED, id)),
        Case::new("datagrams are one flow", world)
            .sends(&DNS.packet(), opens(DNS.id).flow(state::DATAGRAM, DNS.id))
            .sends(
                &DNS.packet().payload(b"query"),
                to(DNS.id).flow(state::DATAGRAM, DNS.id),
            ),
        Case::new("an IPv6 connection has the same states", world)
            .sends(&WEB6.packet().syn(), opens(WEB6.id).flow(state::NEW, WEB6.id))
            .sends(&WEB6.packet(), to(WEB6.id).flow(state::ESTABLISHED, WEB6.id))
            .sends(&WEB6.packet().rst(), to(WEB6.id).flow(state::CLOSING, WEB6.id)),
        Case::new("another source port is another flow", world)
            .sends(&packet.clone().syn(), opens(id))
            .sends(&packet.clone().from_port(40001).syn(), opens(id)),
        Case::new(
            "the same ports over another protocol or family are another flow",
            world,
        )
        .sends(&DNS.packet(), opens(DNS.id))
        .sends(&DNS6.packet(), opens(DNS6.id)),
    ]
}

/// A flow is found wherever it may lie among others, and where two CPUs stored it twice the first is the flow.
fn places(world: &World) -> Vec<Case> {
    let packet = two_buckets(world, SPREAD);
    let (first, second) = two_backends(world, &packet);
    let among_others = |sentence: String| {
        let flow = packet.clone();
        Case::new(sentence, world)
            .with(move |world| world.fill_buckets(&flow, WEB.id, |_| (state::ESTABLISHED, 1)))
    };
    let one = (0..8).map(|way| {
        let flow = packet.clone();
        among_others(format!("a flow is found at way {way} of its two full buckets"))
            .with(move |world| world.put_flow_at(&flow, way, first, state::ESTABLISHED))
            .sends(&packet, to(first).flow(state::ESTABLISHED, first))
    });
    let pairs = (0..8).flat_map(|low| (low + 1..8).map(move |high| (low, high)));
    let twice = pairs.map(|(low, high)| {
        let flow = packet.clone();
        among_others(format!(
            "of a flow stored at ways {low} and {high} the first counts"
        ))
        .with(move |world| {
            world.put_flow_at(&flow, low, first, state::ESTABLISHED);
            world.put_flow_at(&flow, high, second, state::ESTABLISHED);
        })
        .sends(&packet, to(first))
    });
    one.chain(twice).collect()
}

/// Two backends of the service, the first of which is not the one that would be picked.
fn two_backends(world: &World, packet: &Packet) -> (u32, u32) {
    let picked = world.pick(packet, &SPREAD.key());
    let other = if picked == SPREAD.id {
        SPREAD.id + 1
    } else {
        SPREAD.id
    };
    (other, picked)
}

fn retransmission(world: &World) -> Vec<Case> {
    let packet = WEB.packet();
    let id = WEB.id;
    let syn = SPREAD.packet().syn();
    let (other, _) = two_backends(world, &syn);
    vec![
        Case::new("a SYN again on a new flow is a retransmission", world)
            .sends(&packet.clone().syn(), opens(id))
            .sends(&packet.clone().syn(), to(id).flow(state::NEW, id)),
        Case::new("a SYN on an established flow keeps backend and state", world)
            .with(move |world| world.put_flow(&SPREAD.packet(), other, state::ESTABLISHED, 5))
            .sends(&syn, to(other).flow(state::ESTABLISHED, other)),
        Case::new(
            "a SYN on a new flow keeps the backend, whatever the slots say now",
            world,
        )
        .with(move |world| world.put_flow(&SPREAD.packet(), other, state::NEW, 5))
        .sends(&syn, to(other).flow(state::NEW, other)),
        Case::new("a SYN on a closing flow is a new flow", world)
            .with(move |world| world.put_flow(&SPREAD.packet(), other, state::CLOSING, 5))
            .sends(
                &syn,
                opens(world.pick(&syn, &SPREAD.key())).flow(state::NEW, world.pick(&syn, &SPREAD.key())),
            ),
        Case::new("a segment on a closing flow stays there", world)
            .with(move |world| world.put_flow(&SPREAD.packet(), other, state::CLOSING, 5))
            .sends(&SPREAD.packet(), to(other).flow(state::CLOSING, other)),
    ]
}

fn expiry(world: &World) -> Vec<Case> {
    let packet = WEB.packet();
    let id = WEB.id;
    let idle = |state, seconds, alive: bool, packet: Packet, id: u32| {
        let word = lb_common::flow::state::NAMES[state as usize];
        let end = if alive { "is still there" } else { "is gone" };
        let expect = if alive { to(id) } else { opens(id) };
        let flow = packet.clone();
        Case::new(
            format!("a flow that is {word} and idle for {seconds} s {end}"),
            world,
        )
        .with(move |world| world.put_flow(&flow, id, state, seconds))
        .sends(&packet, expect)
    };
    vec![
        idle(state::NEW, 30, true, packet.clone().syn(), id),
        idle(state::NEW, 31, false, packet.clone().syn(), id),
        idle(state::ESTABLISHED, 21_600, true, packet.clone(), id),
        idle(state::ESTABLISHED, 21_601, false, packet.clone(), id),
        idle(state::CLOSING, 10, true, packet.clone(), id),
        idle(state::CLOSING, 11, false, packet.clone(), id),
        idle(state::DATAGRAM, 60, true, DNS.packet(), DNS.id),
        idle(state::DATAGRAM, 61, false, DNS.packet(), DNS.id),
        Case::new("each packet starts the idle time again", world)
            .sends(&packet.clone().syn(), opens(id))
            .waits(30)
            .sends(&packet.clone().syn(), to(id))
            .waits(30)
            .sends(&packet, to(id))
            .waits(21_600)
            .sends(&packet, to(id)),
        Case::new("a flow another CPU saw a second later is not idle", world)
            .with(|world| {
                world.put_flow(&WEB.packet(), WEB.id, state::ESTABLISHED, 0);
                world.now -= 1;
            })
            .sends(&packet, to(id)),
        Case::new("an expired flow makes room for its own return", world)
            .sends(&packet.clone().syn(), opens(id))
            .waits(31)
            .sends(&packet.clone().syn(), again(id).flow(state::NEW, id)),
    ]
}

fn backends(world: &World) -> Vec<Case> {
    let packet = SPREAD.packet();
    let syn = packet.clone().syn();
    let id = world.pick(&syn, &SPREAD.key());
    let after = |change: &dyn Fn(&mut World)| {
        let mut world = world.clone();
        change(&mut world);
        world.pick(&syn, &SPREAD.key())
    };
    let drained = after(&|world| world.drain(id));
    let down = move |world: &mut World| {
        world.drain(id);
        world.backends[id as usize].state = backend::state::DOWN;
    };
    vec![
        Case::new("an established flow stays with a backend that drains", world)
            .sends(&packet, opens(id))
            .then(move |world| world.drain(id))
            .sends(&packet, to(id).flow(state::ESTABLISHED, id)),
        Case::new(
            "a SYN on a flow of a draining backend is a new flow for another one",
            world,
        )
        .sends(&packet, opens(id))
        .then(move |world| world.drain(id))
        .sends(&syn, again(drained).flow(state::NEW, drained)),
        Case::new("a flow of a backend that is down is picked anew", world)
            .sends(&packet, opens(id))
            .then(down)
            .sends(
                &packet,
                again(drained)
                    .event(Event::FlowRepicked, 1)
                    .flow(state::ESTABLISHED, drained),
            ),
        Case::new(
            "a flow of a backend whose id has another owner now is picked anew",
            world,
        )
        .sends(&packet, opens(id))
        .then(move |world| world.replace(id))
        .sends(&packet, again(id).event(Event::FlowRepicked, 1)),
        Case::new("a flow of an id that was removed is picked anew", world)
            .with(|world| world.put_flow(&WEB.packet(), 60, state::ESTABLISHED, 1))
            .sends(&WEB.packet(), opens(WEB.id).event(Event::FlowRepicked, 1)),
        Case::new("a flow stays where it is when its service is gone", world)
            .sends(&WEB.packet().syn(), opens(WEB.id))
            .then(|world| {
                world.services.remove(&WEB.key());
            })
            .sends(&WEB.packet(), to(WEB.id))
            .sends(
                &WEB.packet().from_port(40001).syn(),
                Expect::pass(Pass::NoService).no_flow(),
            ),
        Case::new(
            "a flow follows its backend's new next hop, mode and interface",
            world,
        )
        .sends(&WEB.packet().syn(), opens(WEB.id))
        .then(|world| world.set_interface(WEB.id, 7))
        .sends(&WEB.packet(), to(WEB.id)),
        Case::new("a flow of a tunnel that drains keeps its outer header", world)
            .sends(&TUNNEL_4IN4.packet(), tunnelled(world).new_flow())
            .then(|world| world.drain(TUNNEL_4IN4.id))
            .sends(&TUNNEL_4IN4.packet(), tunnelled(world)),
        Case::new("flows stay through a rotation of the seeds", world)
            .sends(&packet, opens(id))
            .then(|world| world.rotate(0xfeed))
            .sends(&packet, to(id))
            .then(|world| world.rotate(0xbeef))
            .sends(&packet, to(id)),
    ]
}

fn tunnelled(world: &World) -> Expect {
    Expect::ipip(
        TUNNEL_4IN4.id,
        super::outer(world, TUNNEL_4IN4.id, &TUNNEL_4IN4.packet(), 0),
    )
}

//! Sampled packets: which flows have most of them, and most octets.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use lb_common::{flow_hash::FlowTuple, ids::BackendRef, sample::Sample};

use super::heavy::Heavy;

/// Flows in view over all services.
const FLOWS: usize = 256;

/// A flow of a service, and the backend it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct FlowOf {
    service: u32,
    words: [u64; 4],
    ports: u32,
    protocol: u8,
    family: u8,
    backend: BackendRef,
}

/// A flow with many packets or octets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeavyFlow {
    /// `None` in a replay: records hold no client's address.
    pub tuple: Option<FlowTuple>,
    pub backend: BackendRef,
    /// Part of the service's packets, 0 to 1.
    pub packets: f64,
    /// Part of the octets of the service's IP packets, 0 to 1.
    pub octets: f64,
}

/// Packets by flow, as far as samples show them.
#[derive(Debug)]
pub struct FlowPackets {
    packets: Sketch,
    octets: Sketch,
    /// Packets that one sample stands for.
    weight: u64,
}

impl Default for FlowPackets {
    fn default() -> Self {
        Self::of(FLOWS)
    }
}

/// Amounts of the heaviest flows.
#[derive(Debug)]
struct Sketch {
    flows: Heavy<FlowOf>,
    /// Of all flows, by service id.
    totals: BTreeMap<u32, u64>,
}

impl Sketch {
    fn new(room: usize) -> Self {
        Self {
            flows: Heavy::new(room),
            totals: BTreeMap::new(),
        }
    }

    fn count(&mut self, flow: FlowOf, amount: u64) {
        self.flows.count(flow, amount);
        let total = self.totals.entry(flow.service).or_default();
        *total = total.saturating_add(amount);
    }

    fn fade(&mut self) {
        self.flows.fade();
        self.totals.retain(|_, total| {
            *total /= 2;
            *total > 0
        });
    }

    /// Parts of a service's flows, largest first.
    fn parts(&self, service: u32) -> Vec<(FlowOf, f64)> {
        let total = self.totals.get(&service).copied().unwrap_or(0).max(1);
        let flows = self.flows.heaviest().into_iter();
        // What a flow inherited from those that gave way to it may be more than there was in all.
        let part = |amount: u64| (amount as f64 / total as f64).min(1.0);
        flows
            .filter(|(flow, _)| flow.service == service)
            .map(|(flow, amount)| (flow, part(amount)))
            .collect()
    }
}

impl FlowPackets {
    /// A sampled packet.
    pub fn take(&mut self, sample: &Sample) {
        let flow = FlowOf {
            service: sample.service,
            words: sample.words,
            ports: sample.ports,
            protocol: sample.protocol,
            family: sample.family,
            backend: sample.backend,
        };
        self.packets.count(flow, self.weight);
        let octets = self.weight.saturating_mul(sample.octets.into());
        self.octets.count(flow, octets);
    }

    fn of(room: usize) -> Self {
        Self {
            packets: Sketch::new(room),
            octets: Sketch::new(room),
            weight: 1,
        }
    }

    /// One packet in 2^`bits` is sampled from now on.
    pub fn set_bits(&mut self, bits: u32) {
        self.weight = 1 << bits.min(63);
    }

    /// Halves every count, so that what was long ago weighs less.
    pub fn fade(&mut self) {
        self.packets.fade();
        self.octets.fade();
    }

    /// The flows of a service with the most packets, most first. Flows with many octets in few packets are among them
    /// so far as they have packets.
    pub fn heaviest(&self, service: u32, most: usize) -> Vec<HeavyFlow> {
        let octets: BTreeMap<FlowOf, f64> = self.octets.parts(service).into_iter().collect();
        let flows = self.packets.parts(service).into_iter().take(most);
        flows
            .map(|(flow, packets)| HeavyFlow {
                tuple: flow.tuple(),
                backend: flow.backend,
                packets,
                octets: octets.get(&flow).copied().unwrap_or(0.0),
            })
            .collect()
    }

    /// Takes what a record says in place of samples: service id, part of the packets, backend.
    pub fn recorded(&mut self, flows: impl Iterator<Item = (u32, f64, BackendRef)>) {
        const WHOLE: f64 = 1e9;
        *self = Self::of(usize::MAX);
        for (place, (service, part, backend)) in (0u64..).zip(flows) {
            // The flow itself is not recorded; its place keeps it apart from the others.
            let flow = FlowOf {
                service,
                words: [place, 0, 0, 0],
                ports: 0,
                protocol: 0,
                family: 0,
                backend,
            };
            self.packets.count(flow, (part * WHOLE) as u64);
            self.packets.totals.insert(service, WHOLE as u64);
        }
    }
}

impl HeavyFlow {
    /// The client's address and port.
    pub fn client(&self) -> Option<SocketAddr> {
        let tuple = self.tuple?;
        let address = if tuple.v6 {
            let mut octets = [0; 16];
            octets[..8].copy_from_slice(&tuple.words[0].to_le_bytes());
            octets[8..].copy_from_slice(&tuple.words[1].to_le_bytes());
            IpAddr::from(octets)
        } else {
            IpAddr::from((tuple.words[0] as u32).to_le_bytes())
        };
        Some(SocketAddr::new(address, u16::from_be(tuple.ports as u16)))
    }
}

impl FlowOf {
    fn tuple(&self) -> Option<FlowTuple> {
        (self.family != 0).then_some(FlowTuple {
            v6: self.family == 6,
            words: self.words,
            ports: self.ports,
            protocol: self.protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use lb_common::sample::kind;

    use super::*;

    fn packet(service: u32, port: u32) -> Sample {
        Sample {
            words: [1, 0, 0, 0],
            ports: port,
            service,
            backend: BackendRef::new(1 + port % 3, 1),
            protocol: 6,
            family: 4,
            kind: kind::PACKET,
            octets: if port == 1 { 1500 } else { 100 },
            ..Sample::default()
        }
    }

    #[test]
    fn parts_are_of_the_service_and_outlast_another_rate_and_time() {
        let mut packets = FlowPackets::default();
        packets.set_bits(3);
        for number in 0..1000 {
            packets.take(&packet(7, if number % 2 == 0 { 1 } else { 100 + number }));
            packets.take(&packet(8, number));
        }
        let part = |packets: &FlowPackets| packets.heaviest(7, 1)[0].packets;
        assert!((part(&packets) - 0.5).abs() < 0.01, "{}", part(&packets));
        packets.fade();
        packets.set_bits(10);
        for number in 0..1000 {
            packets.take(&packet(7, if number % 2 == 0 { 1 } else { 100 + number }));
        }
        assert!((part(&packets) - 0.5).abs() < 0.01, "{}", part(&packets));
        let heaviest = packets.heaviest(7, 1)[0];
        assert!((heaviest.octets - 1500.0 / 1600.0).abs() < 0.01, "{heaviest:?}");
        assert_eq!(heaviest.backend, BackendRef::new(2, 1));
        assert_eq!(
            heaviest.tuple.map(|tuple| (tuple.v6, tuple.ports)),
            Some((false, 1))
        );
        assert_eq!(packets.heaviest(9, 1), []);
    }

    #[test]
    fn clients_are_shown_as_they_are_written() {
        let flow = |tuple| HeavyFlow {
            tuple: Some(tuple),
            backend: BackendRef::new(1, 1),
            packets: 0.5,
            octets: 0.5,
        };
        let ports = u32::from_le_bytes([0x9c, 0x40, 0x01, 0xbb]);
        let v4 = FlowTuple::v4(u32::from_le_bytes([192, 0, 2, 1]), 7, ports, 6);
        assert_eq!(flow(v4).client(), "192.0.2.1:40000".parse().ok());
        let source = [0xb80d_0120, u64::from_le_bytes([0, 0, 0, 0, 0, 0, 0, 9])];
        let v6 = FlowTuple::v6(source, [1, 2], ports, 17);
        assert_eq!(flow(v6).client(), "[2001:db8::9]:40000".parse().ok());
    }

    #[test]
    fn what_was_recorded_comes_back() {
        let mut packets = FlowPackets::default();
        let backend = BackendRef::new(4, 2);
        packets.recorded([(3, 0.75, backend), (3, 0.125, backend)].into_iter());
        let parts: Vec<f64> = packets.heaviest(3, 9).iter().map(|flow| flow.packets).collect();
        assert_eq!(parts, [0.75, 0.125]);
        assert_eq!(packets.heaviest(3, 9)[0].tuple, None);
    }
}

//! Sources of flows: as they come, or chosen by someone who knows a CPU's seed, so that its hash seems to have collapsed.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
};

use anyhow::{Context, Result};
use lb_common::{
    flow_hash::{FlowTuple, Key},
    seed::{Seed, of_cpu},
    slot_table::{bucket_of, bucket_scale, slot_of},
};
use lb_user::{
    maps::{MapWriter, PinnedMaps},
    state::desired::{Protocol, service_key},
};

const UDP: u8 = 17;
const FIRST_PORT: u64 = 1024;
const PORTS: u64 = 60_000;

/// Sources in 10.9.0.0/16, each once.
#[derive(Clone, Debug)]
pub struct Sources {
    lane: u8,
    count: u64,
}

impl Sources {
    /// Those of one lane of 256 differ from those of all others.
    pub fn of(lane: u8) -> Self {
        Self { lane, count: 0 }
    }

    /// The next one: port by port, then address by address.
    pub fn draw(&mut self) -> SocketAddrV4 {
        let (turn, port) = (self.count / PORTS, FIRST_PORT + self.count % PORTS);
        self.count += 1;
        SocketAddrV4::new(Ipv4Addr::new(10, 9, self.lane, turn as u8), port as u16)
    }

    /// A new port of one of `clients` addresses, which have their turns one after the other; at most 65,536 of them.
    pub fn draw_of(&mut self, clients: u64) -> SocketAddrV4 {
        let [.., high, low] = (self.count % clients).to_be_bytes();
        let port = FIRST_PORT + (self.count / clients * 256 + u64::from(self.lane)) % PORTS;
        self.count += 1;
        SocketAddrV4::new(Ipv4Addr::new(10, 9, high, low), port as u16)
    }
}

/// Knows the seed that a CPU picks with, and which sources it sends into the first few of the 256 buckets.
pub struct Aim {
    maps: PinnedMaps,
    to: SocketAddrV4,
    cpu: u32,
    slots: u32,
    buckets: u32,
    known: Option<Seed>,
}

impl Aim {
    /// Learns the seed as it is now, and never another. Flows are those to a UDP service.
    pub fn once(pins: &Path, to: SocketAddrV4, cpu: u32, buckets: u32) -> Result<Self> {
        let mut aim = Self::always(pins, to, cpu, buckets)?;
        aim.known = Some(aim.maps.read_seed(of_cpu(cpu))?);
        Ok(aim)
    }

    /// Learns each new seed as soon as it is there.
    pub fn always(pins: &Path, to: SocketAddrV4, cpu: u32, buckets: u32) -> Result<Self> {
        let maps = PinnedMaps::open_read_only(pins)?;
        let key = service_key((*to.ip()).into(), Some(to.port()), Protocol::Udp);
        let service = maps
            .read_service(&key)?
            .with_context(|| format!("no service at {to}"))?;
        Ok(Self {
            maps,
            to,
            cpu,
            slots: service.slots_count,
            buckets,
            known: None,
        })
    }

    /// The next source that hits.
    pub fn draw(&self, sources: &mut Sources) -> Result<SocketAddrV4> {
        let seed = match self.known {
            Some(seed) => seed,
            None => self.maps.read_seed(of_cpu(self.cpu))?,
        };
        loop {
            let source = sources.draw();
            if self.bucket(source, seed) < self.buckets {
                return Ok(source);
            }
        }
    }

    fn bucket(&self, source: SocketAddrV4, seed: Seed) -> u32 {
        let address = |socket: SocketAddrV4| u32::from_ne_bytes(socket.ip().octets());
        let [a, b] = source.port().to_be_bytes();
        let [c, d] = self.to.port().to_be_bytes();
        let ports = u32::from_ne_bytes([a, b, c, d]);
        let tuple = FlowTuple::v4(address(source), address(self.to), ports, UDP);
        let hash = tuple.hash(Key {
            k0: seed.k0,
            k1: seed.k1,
        });
        bucket_of(slot_of(hash, self.slots), bucket_scale(self.slots))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_source_comes_twice() {
        let mut seen = BTreeSet::new();
        let mut lanes = [Sources::of(0), Sources::of(1)];
        for _ in 0..100_000 {
            for lane in &mut lanes {
                assert!(seen.insert(lane.draw()));
            }
        }
        let mut clients = [Sources::of(0), Sources::of(1)];
        let drawn: BTreeSet<_> = (0..6000).map(|turn| clients[turn % 2].draw_of(1000)).collect();
        let addresses: BTreeSet<_> = drawn.iter().map(|source| *source.ip()).collect();
        assert_eq!((drawn.len(), addresses.len()), (6000, 1000));
    }
}

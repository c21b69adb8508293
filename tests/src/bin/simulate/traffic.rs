//! Whose flows come: distinct 5-tuples, tuples that come again, clients of which a few have most.

use lb_common::flow_hash::FlowTuple;
use rand::{Rng as _, RngExt, distr::Distribution};

use crate::chance::{Choice, Rng, choice};

/// The service's address and port as a packet has them.
const VIP: u32 = u32::from_le_bytes([192, 0, 2, 10]);
const PORT: u32 = (443u16.to_be() as u32) << 16;

/// A kind of traffic.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// Every flow has a tuple of its own.
    Unique,
    /// Such, and a part of tuples from a small pool: a flow table that forgets them.
    Again { pool: u32, part: f64 },
    /// Clients of which the k-th has a share that falls with k to the power of `exponent`. The service keeps clients
    /// together.
    Clients { count: u32, exponent: f64 },
    /// One client has a part, and every other flow a client of its own. The service keeps clients together.
    OneClient { part: f64 },
}

impl Traffic {
    /// Whether the service picks by the client.
    pub fn by_client(&self) -> bool {
        match self {
            Self::Clients { .. } | Self::OneClient { .. } => true,
            Self::Unique | Self::Again { .. } => false,
        }
    }
}

/// A flow that comes.
#[derive(Clone, Copy)]
pub struct Arrival {
    pub tuple: FlowTuple,
    /// Number of its key among those that may come again.
    pub key: Option<u32>,
}

/// Flows of one kind of traffic.
pub struct Source {
    traffic: Traffic,
    /// The keys that may come again, by how often.
    known: Option<Choice>,
    /// Sets addresses of one source apart from those of another.
    salt: u32,
}

impl Source {
    pub fn new(traffic: Traffic, rng: &mut Rng) -> Self {
        let known = match &traffic {
            Traffic::Clients { count, exponent } => {
                let share = |rank: u32| f64::from(rank).powf(-exponent);
                Some(choice(&(1..=*count).map(share).collect::<Vec<_>>()))
            }
            Traffic::Unique | Traffic::Again { .. } | Traffic::OneClient { .. } => None,
        };
        Self {
            traffic,
            known,
            salt: rng.next_u32(),
        }
    }

    pub fn next(&self, rng: &mut Rng) -> Arrival {
        let key = match (&self.traffic, &self.known) {
            (Traffic::Clients { .. }, Some(known)) => Some(known.sample(rng) as u32),
            (Traffic::Again { pool, part }, _) if rng.random::<f64>() < *part => {
                Some(rng.random_range(0..*pool))
            }
            (Traffic::OneClient { part }, _) if rng.random::<f64>() < *part => Some(0),
            _ => None,
        };
        // A key's address is its own; multiplication by an odd number keeps keys apart.
        let address = key.map_or_else(|| rng.next_u32(), |key| key.wrapping_mul(0x9e37_79b1) ^ self.salt);
        let port = match key {
            Some(key) if !self.traffic.by_client() => key & 0xffff,
            _ => rng.next_u32() & 0xffff,
        };
        let tuple = FlowTuple::v4(address, VIP, port | PORT, 6);
        Arrival { tuple, key }
    }
}

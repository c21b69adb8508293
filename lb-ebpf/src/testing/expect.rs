//! What one packet of a case must do, and how an engine's deed is held against it.

use std::collections::BTreeMap;

use lb_common::{counters::Event, flow};

use super::{
    case::hex,
    engine::{Action, Ran, State},
    packet::Packet,
    world::{
        INGRESS, World,
        edit::{host_mac, next_hop_mac},
        sizes,
    },
};
use crate::verdict::{Answer, Drop, Forward, Pass, Verdict};

/// What one packet must do.
#[derive(Clone, Debug)]
pub struct Expect {
    way: Way,
    /// The backend that was chosen: a pick counts there, and what is forwarded to it.
    chosen: Option<u32>,
    picked: bool,
    fresh: bool,
    events: BTreeMap<Event, u64>,
    flow: Option<Option<(u8, u32)>>,
    /// Bucket and way the flow must be in.
    place: Option<(usize, usize)>,
    /// Fingerprints that must be gone, and that must still be there.
    displaced: Vec<(u64, bool)>,
}

#[derive(Clone, Debug)]
enum Way {
    Pass(Pass),
    Drop(Drop),
    Dsr(u32),
    Ipip(u32, Box<Packet>),
    Answer(Answer, Box<Packet>),
}

impl Expect {
    fn new(way: Way, chosen: Option<u32>) -> Self {
        Self {
            way,
            chosen,
            picked: false,
            fresh: false,
            events: BTreeMap::new(),
            flow: None,
            place: None,
            displaced: Vec::new(),
        }
    }

    pub fn pass(reason: Pass) -> Self {
        Self::new(Way::Pass(reason), None)
    }

    pub fn drop(reason: Drop) -> Self {
        Self::new(Way::Drop(reason), None)
    }

    /// A drop after the choice of a backend.
    pub fn drop_for(id: u32, reason: Drop) -> Self {
        Self::new(Way::Drop(reason), Some(id))
    }

    /// The frame with other MAC addresses, to this backend.
    pub fn dsr(id: u32) -> Self {
        Self::new(Way::Dsr(id), Some(id))
    }

    /// The frame `outer`, to this backend.
    pub fn ipip(id: u32, outer: Packet) -> Self {
        Self::new(Way::Ipip(id, Box::new(outer)), Some(id))
    }

    /// The frame `reply`, back to where the frame came from.
    pub fn answer(answer: Answer, reply: Packet) -> Self {
        Self::new(Way::Answer(answer, Box::new(reply)), None)
    }

    /// An answer after the choice of a backend.
    pub fn answer_for(id: u32, answer: Answer, reply: Packet) -> Self {
        Self::new(Way::Answer(answer, Box::new(reply)), Some(id))
    }

    /// A new flow: picked, stored in a free entry, its key never seen before.
    pub fn new_flow(self) -> Self {
        self.picked_and(Event::FlowStored).fresh()
    }

    /// A new flow that meets this when it is stored, its key seen before.
    pub fn picked_and(mut self, stored: Event) -> Self {
        self.picked = true;
        self.event(stored, 1)
    }

    /// The flow's key was never seen before.
    pub fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    pub fn event(mut self, event: Event, times: u64) -> Self {
        *self.events.entry(event).or_default() += times;
        self
    }

    /// Afterwards the flow table holds the packet's flow like this.
    pub fn flow(mut self, state: u8, id: u32) -> Self {
        self.flow = Some(Some((state, id)));
        self
    }

    /// Afterwards the flow table does not hold the packet's flow.
    pub fn no_flow(mut self) -> Self {
        self.flow = Some(None);
        self
    }

    /// Afterwards the flow is in this bucket and way.
    pub fn at(mut self, bucket: usize, way: usize) -> Self {
        self.place = Some((bucket, way));
        self
    }

    /// Afterwards the entry with this fingerprint is gone and the others are there.
    pub fn displaces(mut self, gone: u64, others: impl Iterator<Item = u64>) -> Self {
        self.displaced = others.map(|other| (other, true)).chain([(gone, false)]).collect();
        self
    }

    /// The verdict, without its interface.
    pub fn verdict(&self) -> Verdict {
        let forward = |how| Verdict::Forward { how, interface: 0 };
        match &self.way {
            Way::Pass(reason) => Verdict::Pass(*reason),
            Way::Drop(reason) => Verdict::Drop(*reason),
            Way::Dsr(_) => forward(Forward::Dsr),
            Way::Ipip(..) => forward(Forward::Ipip),
            Way::Answer(answer, _) => Verdict::Answer(*answer),
        }
    }

    pub fn events(&self) -> &BTreeMap<Event, u64> {
        &self.events
    }

    fn ran(&self, frame: &[u8], world: &World) -> Ran {
        let interface_of = |id: u32| world.backends[id as usize].interface;
        let action_of = |id| {
            if interface_of(id) == INGRESS {
                Action::Transmit
            } else {
                Action::Redirect
            }
        };
        let macs_of = |id| [next_hop_mac(id), host_mac(interface_of(id))];
        match &self.way {
            Way::Pass(_) => Ran {
                action: Action::Pass,
                bytes: frame.to_vec(),
            },
            Way::Drop(_) => Ran {
                action: Action::Drop,
                bytes: frame.to_vec(),
            },
            Way::Dsr(id) => Ran {
                action: action_of(*id),
                bytes: [&macs_of(*id).concat(), &frame[12..]].concat(),
            },
            Way::Ipip(id, outer) => {
                let [next_hop, host] = macs_of(*id);
                Ran {
                    action: action_of(*id),
                    bytes: outer.clone().macs(next_hop, host).bytes(),
                }
            }
            Way::Answer(_, reply) => Ran {
                action: Action::Transmit,
                bytes: reply.bytes(),
            },
        }
    }

    /// What the counters must show afterwards.
    fn after(&self, before: &State, frame: &[u8]) -> Counted {
        let mut counted = Counted::of(before);
        counted.verdicts[self.verdict().counter() as usize] += 1;
        for (event, times) in &self.events {
            counted.events[*event as usize] += times;
        }
        counted.picks[0] += u64::from(self.picked);
        counted.picks[1] += u64::from(self.fresh);
        if let Some(id) = self.chosen {
            let backend = &mut counted.backends[id as usize];
            backend[0] += u64::from(self.picked);
            if matches!(self.way, Way::Dsr(_) | Way::Ipip(..)) {
                backend[1] += 1;
                backend[2] += frame.len() as u64;
            }
            backend[3] += u64::from(self.fresh);
        }
        counted
    }
}

/// Counters in a shape that prints well.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    verdicts: Vec<u64>,
    events: Vec<u64>,
    picks: [u64; 2],
    backends: Vec<[u64; 4]>,
}

impl Counted {
    fn of(state: &State) -> Self {
        Self {
            verdicts: state.verdicts().to_vec(),
            events: Event::ALL.map(|event| state.event(event)).to_vec(),
            picks: state.picks(),
            backends: (0..sizes(0).backends as u32)
                .map(|id| state.backend(id))
                .collect(),
        }
    }

    fn differences(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for verdict in Verdict::all() {
            let at = verdict.counter() as usize;
            if self.verdicts[at] != other.verdicts[at] {
                let (word, reason) = verdict.names();
                lines.push(format!(
                    "verdict {word} {reason}: {}, expected {}",
                    self.verdicts[at], other.verdicts[at]
                ));
            }
        }
        for event in Event::ALL {
            let (is, should) = (self.events[event as usize], other.events[event as usize]);
            if is != should {
                lines.push(format!("event {}: {is}, expected {should}", event.name()));
            }
        }
        if self.picks != other.picks {
            lines.push(format!(
                "picks and fresh picks: {:?}, expected {:?}",
                self.picks, other.picks
            ));
        }
        for (id, (is, should)) in self.backends.iter().zip(&other.backends).enumerate() {
            if is != should {
                lines.push(format!(
                    "backend {id} flows, packets, bytes, fresh flows: {is:?}, expected {should:?}"
                ));
            }
        }
        lines
    }
}

impl Expect {
    /// What is not as expected, one line each.
    pub(super) fn unmet(
        &self,
        packet: &Packet,
        frame: &[u8],
        did: &Ran,
        before: &State,
        after: &State,
        world: &World,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let should = self.ran(frame, world);
        if did.action != should.action {
            lines.push(format!("{:?}, expected {:?}", did.action, should.action));
        }
        if did.bytes != should.bytes {
            lines.push(format!(
                "frame {}\n    became   {}\n    expected {}",
                hex(frame),
                hex(&did.bytes),
                hex(&should.bytes)
            ));
        }
        lines.extend(Counted::of(after).differences(&self.after(before, frame)));
        for (fingerprint, there) in &self.displaced {
            if after.flow(*fingerprint).is_some() != *there {
                lines.push(format!(
                    "entry {fingerprint:#x} should {}be there",
                    if *there { "" } else { "not " }
                ));
            }
        }
        if let Some((bucket, way)) = self.place {
            let there = after.flows[bucket * 8 + way * 2];
            if Some(there) != packet.fingerprint(&world.settings.table_key) {
                lines.push(format!("bucket {bucket}, way {way} holds {there:#x}"));
            }
        }
        if let Some(wanted) = self.flow {
            let fingerprint = packet
                .fingerprint(&world.settings.table_key)
                .expect("an IP packet");
            let found = after.flow(fingerprint);
            if found.map(|value| (value.state, value.backend.id())) != wanted {
                lines.push(format!("flow {found:?}, expected {}", named(wanted)));
            }
        }
        lines
    }
}

fn named(flow: Option<(u8, u32)>) -> String {
    match flow {
        None => "none".to_owned(),
        Some((state, id)) => format!("{} at backend {id}", flow::state::NAMES[state as usize]),
    }
}

//! What the balancer leaves to programs of their own, so that the packets of flows do not pay for it: ICMP, fragments, and
//! packets too big for the way to their backend.
//!
//! A frame comes here as it arrived, and is read anew: what the maps say may have changed meanwhile.

mod echo;
mod errors;
mod fragments;
mod owner;
mod packet;
mod too_big;

use lb_common::{
    backend::Backend,
    counters::{BackendCounters, Event},
    map_names::Rare,
    settings::Settings,
};

use crate::{
    forward,
    frame::Frame,
    parse::Packet,
    pick::counter_index,
    tables::{Tables, Tally, configured},
    verdict::{Drop, Pass, Verdict},
};

use packet::Parts;

/// Decides about an ICMP message that [`crate::datapath::handle`] leaves, rewrites the frame if it goes anywhere, and counts
/// the verdict: exactly one a frame.
#[inline(always)]
pub fn icmp(frame: &mut impl Frame, tables: &impl Tables) -> Verdict {
    let Some(tally) = Tally::of(tables) else {
        return Verdict::Pass(Pass::NotConfigured);
    };
    let onward = read(frame, tables, tally)
        .and_then(|(parts, context)| Ok((errors::onward(frame, &parts, &context)?, context)));
    let verdict = match onward {
        Ok((onward, context)) => send(frame, &onward, &context),
        Err(verdict) => verdict,
    };
    tally.verdict(verdict);
    verdict
}

/// The same of a fragment. One that is too big is left to `rare`, as [`crate::datapath::handle`] does.
#[inline(always)]
pub fn fragment<F: Frame, T: Tables>(
    frame: &mut F,
    tables: &T,
    rare: impl FnOnce(Rare, &mut F, &T) -> Option<Verdict>,
) -> Verdict {
    let Some(tally) = Tally::of(tables) else {
        return Verdict::Pass(Pass::NotConfigured);
    };
    let onward = read(frame, tables, tally)
        .and_then(|(parts, context)| Ok((fragments::onward(frame, &parts, &context)?, context)));
    let verdict = match onward {
        Ok((onward, context)) => send(frame, &onward, &context),
        Err(verdict) => verdict,
    };
    if verdict == Verdict::Drop(Drop::TooBig)
        && let Some(done) = rare(Rare::TooBig, frame, tables)
    {
        return done;
    }
    tally.verdict(verdict);
    verdict
}

/// The same of a packet or fragment that is too big for the way to its backend.
#[inline(always)]
pub fn too_big(frame: &mut impl Frame, tables: &impl Tables) -> Verdict {
    let Some(tally) = Tally::of(tables) else {
        return Verdict::Pass(Pass::NotConfigured);
    };
    let verdict = match read(frame, tables, tally) {
        Ok((parts, context)) => too_big::tell(frame, &parts, &context),
        Err(verdict) => verdict,
    };
    tally.verdict(verdict);
    verdict
}

/// All of them, where nothing keeps them apart.
pub fn handle(kind: Rare, frame: &mut impl Frame, tables: &impl Tables) -> Verdict {
    match kind {
        Rare::Icmp => icmp(frame, tables),
        Rare::Fragment => fragment(frame, tables, |_, frame, tables| Some(too_big(frame, tables))),
        Rare::TooBig => too_big(frame, tables),
    }
}

/// What every stage here needs besides the frame.
struct Context<'a, T> {
    tables: &'a T,
    tally: Tally<'a>,
    settings: &'a Settings,
    now: u32,
}

/// A frame on its way to a backend.
struct Onward<'a> {
    backend: &'a Backend,
    id: u32,
    packet: Packet,
    /// What spreads tunnels over paths: the flow's fingerprint, or that of all fragments of a packet.
    fingerprint: u64,
    /// What else is counted once the frame is on its way.
    event: Option<Event>,
}

#[inline(always)]
fn read<'a, T: Tables>(
    frame: &impl Frame,
    tables: &'a T,
    tally: Tally<'a>,
) -> Result<(Parts, Context<'a, T>), Verdict> {
    let Some(settings) = configured(tables) else {
        return Err(Verdict::Pass(Pass::NotConfigured));
    };
    let parts = packet::read(frame, settings, tables).map_err(Verdict::from)?;
    let context = Context {
        tables,
        tally,
        settings,
        now: settings.seconds(tables.jiffies()),
    };
    Ok((parts, context))
}

/// Forwards the frame as a packet of its backend.
#[inline(always)]
fn send<T: Tables>(frame: &mut impl Frame, onward: &Onward<'_>, context: &Context<'_, T>) -> Verdict {
    let arrived = frame.length() as u64;
    let verdict = forward::forward(frame, &onward.packet, onward.fingerprint, onward.backend);
    if let Verdict::Forward { .. } = verdict {
        count(onward, arrived, context);
    }
    verdict
}

#[inline(always)]
fn count<T: Tables>(onward: &Onward<'_>, octets: u64, context: &Context<'_, T>) {
    let index = counter_index(onward.id, context.settings, context.tables);
    if let Some(BackendCounters { packets, bytes, .. }) = context.tables.backend_counters(index) {
        packets.add(1);
        bytes.add(octets);
    }
    if let Some(event) = onward.event {
        context.tally.event(event);
    }
}

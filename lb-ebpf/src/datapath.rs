//! The stages in order: parse, flow table, service, pick, store, forward.

use lb_common::{
    backend::Backend, flow::FlowValue, settings::{LAYOUT_VERSION, Settings},
};

use crate::{
    flow,
    forward,
    frame::Frame,
    parse::{self, Packet},
    pick::{self, counter_index},
    service,
    tables::Tables,
    verdict::{Exit, Pass, Verdict},
};

/// Decides about a frame, rewrites it if it is to be forwarded, and counts the verdict: exactly one a frame.
#[inline(always)]
pub fn handle(frame: &mut impl Frame, tables: &impl Tables) -> Verdict {
    let verdict = decide(frame, tables);
    if let Some(counters) = tables.cpu_counters()
        && let Some(counter) = counters.verdicts.get(verdict.counter() as usize)
    {
        counter.add(1);
    }
    verdict
}

#[inline(always)]
fn decide(frame: &mut impl Frame, tables: &impl Tables) -> Verdict {
    let packet = match parse::parse(frame, tables) {
        Ok(packet) => packet,
        // Maps that are being filled may say "VIP" already; nothing is dropped before they are whole.
        Err(Exit::Drop(_)) if configured(tables).is_none() => return Verdict::Pass(Pass::NotConfigured),
        Err(exit) => return exit.into(),
    };
    let Some(settings) = configured(tables) else {
        return Verdict::Pass(Pass::NotConfigured);
    };
    let now = settings.seconds(tables.jiffies());
    let fingerprint = packet.tuple.fingerprint(pick::table_key(settings));
    let (backend, id) = match known(fingerprint, &packet, settings, now, tables) {
        Some(known) => known,
        None => match new(fingerprint, &packet, settings, now, tables) {
            Ok(picked) => picked,
            Err(exit) => return exit.into(),
        },
    };
    let arrived = frame.length() as u64;
    let verdict = forward::forward(frame, &packet, fingerprint, backend);
    if let Verdict::Forward { .. } = verdict
        && let Some(counters) = tables.backend_counters(counter_index(id, settings, tables))
    {
        counters.packets.add(1);
        counters.bytes.add(arrived);
    }
    verdict
}

/// The settings, once the daemon has written them.
#[inline(always)]
fn configured(tables: &impl Tables) -> Option<&Settings> {
    tables.settings().filter(|settings| settings.layout_version == LAYOUT_VERSION)
}

/// The backend of a flow that is in the table and may stay there.
#[inline(always)]
fn known<'a, T: Tables>(
    fingerprint: u64,
    packet: &Packet,
    settings: &Settings,
    now: u32,
    tables: &'a T,
) -> Option<(&'a Backend, u32)> {
    let entry = flow::find(fingerprint, settings, tables)?;
    let value = FlowValue::unpack(entry.value.load());
    match flow::keeps(&value, packet, settings, now, tables) {
        Some(backend) => {
            flow::refresh(entry, value, packet, now);
            Some((backend, value.backend.id()))
        }
        None => {
            flow::forget(entry);
            None
        }
    }
}

/// Picks a backend for a flow that is not in the table, and puts it there.
#[inline(always)]
fn new<'a, T: Tables>(
    fingerprint: u64,
    packet: &Packet,
    settings: &Settings,
    now: u32,
    tables: &'a T,
) -> Result<(&'a Backend, u32), Exit> {
    let service = service::find(packet, tables).ok_or(Exit::Pass(Pass::NoService))?;
    let picked =
        pick::pick(packet, fingerprint, service, settings, now, tables).map_err(Exit::Drop)?;
    flow::store(fingerprint, picked.reference, packet, settings, now, tables);
    Ok((picked.backend, picked.reference.id()))
}

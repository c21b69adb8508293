//! The stages in order: parse, flow table, service, pick, store, forward.

use lb_common::{flow::FlowValue, map_names::Rare, settings::Settings};

use crate::{
    flow, forward,
    frame::Frame,
    parse::{self, Packet},
    pick::{self, Chosen, counter_index},
    service,
    tables::{Tables, Tally, configured},
    verdict::{Exit, Pass, Verdict},
};

/// Decides about a frame, rewrites it if it is to be forwarded, and counts the verdict: exactly one a frame.
///
/// What [`Verdict::left_to`] says is left to `rare`, untouched: [`crate::rare::handle`], which then has counted; or
/// nothing, which answers `None`.
#[inline(always)]
pub fn handle<F: Frame, T: Tables>(
    frame: &mut F,
    tables: &T,
    rare: impl FnOnce(Rare, &mut F, &T) -> Option<Verdict>,
) -> Verdict {
    // A CPU beyond the maps has nothing to count with: it is as if the datapath were not set up.
    let Some(tally) = Tally::of(tables) else {
        return Verdict::Pass(Pass::NotConfigured);
    };
    let verdict = decide(frame, tables, tally);
    if let Some(to) = verdict.left_to()
        && let Some(done) = rare(to, frame, tables)
    {
        return done;
    }
    tally.verdict(verdict);
    verdict
}

#[inline(always)]
fn decide(frame: &mut impl Frame, tables: &impl Tables, tally: Tally<'_>) -> Verdict {
    let packet = match parse::parse(frame, tables) {
        Ok(packet) => packet,
        Err(exit) => return exit.into(),
    };
    let Some(settings) = configured(tables) else {
        return Verdict::Pass(Pass::NotConfigured);
    };
    let fingerprint = settings.table_key.of_flow(&packet.tuple);
    let now = settings.seconds(tables.jiffies());
    let chosen = match choose(fingerprint, &packet, settings, now, tables, tally) {
        Ok(chosen) => chosen,
        Err(exit) => return exit.into(),
    };
    let arrived = frame.length() as u64;
    let verdict = forward::forward(frame, &packet, fingerprint, chosen.backend);
    if let Verdict::Forward { .. } = verdict
        && let Some(counters) = chosen.counters
    {
        counters.bytes.add(arrived);
        if counters.packets.add(1) & settings.packet_sample_mask == 0 {
            pick::send_packet_sample(&packet, &chosen, tables, tally);
        }
    }
    verdict
}

/// The backend the flow has, or a new one.
#[inline(always)]
pub(crate) fn choose<'a, T: Tables>(
    fingerprint: u64,
    packet: &Packet,
    settings: &Settings,
    now: u32,
    tables: &'a T,
    tally: Tally<'_>,
) -> Result<Chosen<'a>, Exit> {
    let place = flow::find(fingerprint, settings, tables);
    if let Some(entry) = place.entry {
        let value = FlowValue::unpack(entry.value.load());
        if let Some(backend) = flow::keeps(&value, packet, settings, now, tables, tally) {
            flow::refresh(entry, value, packet, now);
            let reference = value.backend;
            return Ok(Chosen {
                backend,
                reference,
                counters: tables.backend_counters(counter_index(reference.id(), settings, tables)),
            });
        }
        flow::forget(entry);
    }
    let service = service::find(packet, settings, tables).ok_or(Exit::Pass(Pass::NoService))?;
    let picked =
        pick::pick(packet, fingerprint, service, settings, now, tables, tally).map_err(Exit::Drop)?;
    let stored = flow::store(
        place,
        fingerprint,
        picked.reference,
        packet,
        settings,
        now,
        tables,
    );
    tally.event(stored);
    Ok(picked)
}

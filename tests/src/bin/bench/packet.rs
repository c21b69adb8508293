//! Nanoseconds a packet: established, SYN, both families, few flows and many, and traffic that is not for a VIP.

use anyhow::Result;
use lb_common::counters::Event;

use crate::{
    program::{Bench, Objects, Target, VIP4, VIP6},
    report::{PacketFigures, Report},
};

const TX: u32 = 3;
const PASS: u32 = 2;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// Entries of both tables in the rows of few flows, and how many of them are promised to flows.
const FEW_ENTRIES: u32 = 1 << 14;
const FEW_PROMISED: u32 = FEW_ENTRIES / 2;
/// Packets timed at a stretch: short, so that a stretch disturbed by other work is an outlier and not the rule.
const STRETCH: u32 = 50_000;
/// Stretches of one sample in which tables start empty.
const FILLINGS: u32 = STRETCH / FEW_PROMISED;
const MANY: u32 = 700_000;
const PROMISED: u32 = 1_000_000;

/// One row of the table.
struct Case {
    name: &'static str,
    v6: bool,
    flags: u8,
    flows: u32,
    /// Repetitions of one timed stretch.
    runs: u32,
    table: Table,
    expect: u32,
}

/// What a packet finds in the flow table.
#[derive(Clone, Copy, PartialEq)]
enum Table {
    /// Its flow.
    Holds,
    /// Room: the table is empty before each stretch, and the stretch is what the table promises to hold.
    Room,
    /// Flows of others everywhere, of which one has to give way: a SYN flood.
    Full,
}

const fn established(name: &'static str, v6: bool, flows: u32, runs: u32) -> Case {
    Case {
        name,
        v6,
        flags: ACK,
        flows,
        runs,
        table: Table::Holds,
        expect: TX,
    }
}

impl Case {
    /// Packets of one sample.
    fn packets(&self) -> u32 {
        match self.table {
            Table::Room => self.runs * FILLINGS,
            Table::Holds | Table::Full => self.runs,
        }
    }
}

/// Every packet opens a flow not seen before.
const fn opening(name: &'static str, v6: bool, flows: u32, table: Table) -> Case {
    Case {
        name,
        v6,
        flags: SYN,
        flows,
        runs: flows,
        table,
        expect: TX,
    }
}

pub fn run(objects: &Objects, rounds: usize, report: &mut Report) -> Result<()> {
    println!("packets: nanoseconds each, medians of {rounds} rounds; one core, L2 mode");
    println!("{}", PacketFigures::header());
    let mut small = Bench::load(objects, FEW_ENTRIES, FEW_ENTRIES)?;
    let floor = median(
        (0..rounds)
            .map(|_| small.floor_alone(&frame(false, ACK)))
            .collect::<Result<_>>()?,
    );
    let not_a_vip = Case {
        expect: PASS,
        ..established("not_a_vip", false, 1, STRETCH)
    };
    let few = [
        established("established_v4", false, 1, STRETCH),
        established("established_v4_1k", false, 1000, STRETCH),
        opening("syn_v4", false, FEW_PROMISED, Table::Room),
        opening("syn_v4_full", false, STRETCH, Table::Full),
        established("established_v6", true, 1, STRETCH),
        opening("syn_v6", true, FEW_PROMISED, Table::Room),
        opening("syn_v6_full", true, STRETCH, Table::Full),
        not_a_vip,
    ];
    for case in &few {
        measure(&mut small, case, rounds, floor, report)?;
    }
    drop(small);
    let entries = (2 * PROMISED).next_power_of_two();
    let mut large = Bench::load(objects, entries, PROMISED.next_power_of_two())?;
    let many = [
        established("established_v4_100k", false, 100_000, 100_000),
        established("established_v4_700k", false, MANY, MANY),
        opening("syn_v4_700k", false, MANY, Table::Full),
    ];
    for case in &many {
        measure(&mut large, case, rounds, floor, report)?;
    }
    report.flow_table_bytes = f64::from(entries * 16) / f64::from(PROMISED);
    println!("flow table: {:.1} bytes a promised flow", report.flow_table_bytes);
    Ok(())
}

fn measure(bench: &mut Bench, case: &Case, rounds: usize, floor: f64, report: &mut Report) -> Result<()> {
    let packet = packet_of(case);
    let mut samples: [Vec<f64>; 3] = Default::default();
    bench.clear_flows(Target::Evenkeel)?;
    if case.table == Table::Holds {
        for target in Target::ALL {
            bench.time(target, &packet, case.flows, FIRST, case.flows.max(2), case.expect)?;
        }
    }
    let before = counts(bench);
    for round in 0..rounds {
        for turn in 0..Target::ALL.len() {
            // A B C, B C A, …: no target always runs after the same one.
            let index = (round + turn) % Target::ALL.len();
            samples[index].push(sample(bench, case, Target::ALL[index], &packet, round as u32)?);
        }
    }
    let after = counts(bench);
    let [own, lru, wrapped_floor] = samples.map(median);
    let figures = PacketFigures {
        name: case.name,
        ns: floor + own - wrapped_floor,
        floor_ns: floor,
        lru_ns: floor + lru - wrapped_floor,
        stored: after.stored - before.stored,
        lost: after.lost - before.lost,
        packets: rounds as u64 * u64::from(case.packets()),
    };
    println!("{}", figures.line());
    report.packets.push(figures);
    Ok(())
}

/// Nanoseconds a packet, once; a round opens flows that no round before it opened.
fn sample(bench: &mut Bench, case: &Case, target: Target, packet: &[u8], round: u32) -> Result<f64> {
    let first = FIRST + (round + 1) * (1 << 12);
    match case.table {
        Table::Holds => bench.time(target, packet, case.flows, FIRST, case.runs, case.expect),
        Table::Full => bench.time(target, packet, case.flows, first, case.runs, case.expect),
        Table::Room => {
            // The median here too: one interrupt weighs much in so short a stretch.
            let times = (0..FILLINGS).map(|filling| {
                bench.clear_flows(target)?;
                bench.time(
                    target,
                    packet,
                    case.flows,
                    first + filling,
                    case.runs,
                    case.expect,
                )
            });
            Ok(median(times.collect::<Result<_>>()?))
        }
    }
}

/// First source address of stepped flows; each /20 gives 4096 flows an address times 4096 ports.
const FIRST: u32 = 0x0a00_0000;

struct Counts {
    stored: u64,
    lost: u64,
}

fn counts(bench: &Bench) -> Counts {
    let displaced = [Event::EvictedExpired, Event::EvictedClosing, Event::EvictedNew];
    let lost = [
        Event::FlowNotStored,
        Event::EvictedDatagram,
        Event::EvictedEstablished,
    ];
    let sum = |events: &[Event]| events.iter().map(|event| bench.event(*event)).sum::<u64>();
    Counts {
        stored: bench.event(Event::FlowStored) + sum(&displaced),
        lost: sum(&lost),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn packet_of(case: &Case) -> Vec<u8> {
    let mut packet = frame(case.v6, case.flags);
    if case.expect == PASS {
        // Some other host of the VIP's network.
        packet[33] ^= 1;
    }
    packet
}

/// An Ethernet frame with a TCP segment for the VIP; checksums are not looked at in L2 mode and left 0.
fn frame(v6: bool, flags: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend(VIP6);
    } else {
        frame.extend([
            0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1,
        ]);
        frame.extend(&VIP4[..4]);
    }
    frame.extend([
        0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0,
    ]);
    // The smallest frame on a wire.
    frame.resize(frame.len().max(60), 0);
    frame
}

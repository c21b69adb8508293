//! Self-checks without traffic: seeds and slots as they stand in the datapath against what was written.

use std::{collections::BTreeMap, sync::Arc};

use lb_common::{
    ids::BackendRef,
    service::{Service, ServiceKey},
};

use super::{
    published::{Board, Published, Table},
    source::{Entry, Source},
};
use crate::skew::attribution::{SeedFinding, TableRead, seed_findings};

/// How often a look is taken again when the controller wrote meanwhile.
const TRIES: usize = 3;

/// What one look found. Empty: all is as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    pub seeds: Vec<SeedFinding>,
    pub tables: BTreeMap<ServiceKey, WrongTable>,
    /// What was looked at.
    pub seeds_read: usize,
    pub tables_read: usize,
    pub slots_read: u64,
}

/// A table that is not the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongTable {
    pub read: TableRead,
    /// Slots that name another backend than they should.
    pub wrong: u32,
    pub slots: u32,
}

impl Findings {
    pub fn is_clean(&self) -> bool {
        self.seeds.is_empty() && self.tables.is_empty()
    }

    /// Adds what another look found, which may have been put right since.
    pub fn merge(&mut self, other: Self) {
        if self.seeds.is_empty() {
            self.seeds = other.seeds;
        }
        for (key, table) in other.tables {
            self.tables.entry(key).or_insert(table);
        }
    }
}

/// Looks at everything; `None` while the controller writes the maps.
pub fn look(board: &Board, source: &impl Source) -> Option<(Arc<Published>, Findings)> {
    (0..TRIES).find_map(|_| {
        let before = board.epoch()?;
        let published = board.read();
        let findings = compare(&published, source);
        // What was found while somebody wrote is no finding.
        (board.epoch() == Some(before)).then_some((published, findings))
    })
}

/// Compares seeds and slots with what was published.
pub fn compare(published: &Published, source: &impl Source) -> Findings {
    let seeds = source.seeds();
    let mut findings = Findings {
        // Before the first state there is nothing to compare with.
        seeds: match published.seeds.is_empty() {
            true => Vec::new(),
            false => seed_findings(&seeds, &published.seeds),
        },
        seeds_read: seeds.len(),
        ..Findings::default()
    };
    for (key, table) in &published.services {
        findings.tables_read += 1;
        findings.slots_read += table.slots.len() as u64;
        findings
            .tables
            .extend(wrong(key, table, source).map(|wrong| (*key, wrong)));
    }
    findings
}

fn wrong(key: &ServiceKey, table: &Table, source: &impl Source) -> Option<WrongTable> {
    let count = table.slots.len() as u32;
    if let Entry::Read(entry) = source.service(key)
        && entry != Some(table.service)
    {
        // The datapath looks into another table, or into none: no slot is the right one.
        return Some(WrongTable {
            read: TableRead {
                cpu: None,
                wanted: checksum(words(Some(table.service))),
                found: checksum(words(entry)),
            },
            wrong: count,
            slots: count,
        });
    }
    let offset = table.service.slots_offset;
    let found = |place: u32| {
        source
            .slot(offset.wrapping_add(place))
            .unwrap_or(BackendRef::UNSET)
    };
    let differs = |(place, wanted): &(u32, &BackendRef)| found(*place) != **wanted;
    let wrong = (0u32..).zip(&*table.slots).filter(differs).count() as u32;
    (wrong > 0).then(|| WrongTable {
        read: TableRead {
            cpu: None,
            wanted: checksum(table.slots.iter().map(|slot| slot.bits())),
            found: checksum((0..count).map(|place| found(place).bits())),
        },
        wrong,
        slots: count,
    })
}

/// An entry as words; none for no entry.
fn words(entry: Option<Service>) -> impl Iterator<Item = u32> {
    entry.into_iter().flat_map(|entry| {
        [
            entry.id,
            entry.slots_offset,
            entry.slots_count,
            entry.table_generation,
            entry.flags,
            entry.reserved,
            entry.bucket_scale as u32,
            (entry.bucket_scale >> 32) as u32,
        ]
    })
}

/// FNV-1a, 64 bits (Fowler, Noll and Vo, draft-eastlake-fnv).
fn checksum(words: impl Iterator<Item = u32>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        let bytes = word.to_le_bytes();
        bytes.iter().fold(sum, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    })
}

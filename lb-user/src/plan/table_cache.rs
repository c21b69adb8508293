//! Slot tables that were built before, so that an unchanged service costs a comparison and not a table.

use std::{collections::BTreeMap, sync::Arc};

use lb_common::service::ServiceKey;

use super::slot_table::{self, Member, SlotTableError};

/// The last table of each service with the input it came from: a memo, never the truth. Four bytes a slot.
#[derive(Debug, Default)]
pub struct SlotTableCache {
    tables: BTreeMap<ServiceKey, Memo>,
}

#[derive(Debug)]
struct Memo {
    members: Vec<Member>,
    size: u32,
    table: Arc<[u32]>,
}

impl SlotTableCache {
    /// As [`slot_table::build`].
    pub fn table(
        &mut self,
        key: &ServiceKey,
        members: &[Member],
        size: u32,
    ) -> Result<Arc<[u32]>, SlotTableError> {
        if let Some(memo) = self.tables.get(key)
            && memo.size == size
            && memo.members == members
        {
            return Ok(Arc::clone(&memo.table));
        }
        let table: Arc<[u32]> = slot_table::build(members, size)?.into();
        let memo = Memo {
            members: members.to_vec(),
            size,
            table: Arc::clone(&table),
        };
        self.tables.insert(*key, memo);
        Ok(table)
    }

    pub fn forget(&mut self, key: &ServiceKey) {
        self.tables.remove(key);
    }
}

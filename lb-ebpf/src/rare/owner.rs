//! Who has a flow, asked without a trace: what is rare neither begins a flow nor keeps one alive.

use lb_common::{backend::Backend, flow::FlowValue, ids::BackendRef, settings::Settings};

use crate::{flow, tables::Tables};

/// The backend that a flow has, whatever of it came, without a trace that it was asked for.
#[inline(always)]
pub(super) fn owner<'a, T: Tables>(
    fingerprint: u64,
    settings: &Settings,
    now: u32,
    tables: &'a T,
) -> Option<(&'a Backend, u32)> {
    let value = FlowValue::unpack(flow::find(fingerprint, settings, tables).entry?.value.load());
    let backend = living(value.backend, tables)?;
    (flow::age(&value, now) <= flow::timeout(&value, backend, settings))
        .then_some((backend, value.backend.id()))
}

/// The backend that a reference names, as long as flows may stay there.
#[inline(always)]
pub(super) fn living<T: Tables>(reference: BackendRef, tables: &T) -> Option<&Backend> {
    tables
        .backend(reference.id())
        .filter(|backend| backend.is_named_by(reference) && backend.keeps_flows())
}

//! Edits as they come in, carried over to the overlay that keeps them.

use std::{collections::BTreeSet, num::NonZeroU16};

use crate::{
    api::{
        server::{Refusal, RefusalKind},
        types::Edit,
    },
    config::spec::{BackendSpec, Port, ServiceSpec},
    state::overlay::{ErrorKind, Overlay, OverlayError},
};

/// Carries out edits on a copy of the overlay; the first that does not fit refuses all.
pub fn edited(overlay: &Overlay, file: &[ServiceSpec], edits: &[Edit]) -> Result<Overlay, Refusal> {
    let mut edited = overlay.clone();
    for edit in edits {
        carry_out(&mut edited, file, edit)?;
    }
    Ok(edited)
}

/// The services that edits are about.
pub fn services_of(edits: &[Edit]) -> BTreeSet<String> {
    edits.iter().map(|edit| service_of(edit).to_owned()).collect()
}

fn service_of(edit: &Edit) -> &str {
    match edit {
        Edit::ServiceAdd { name, .. } | Edit::ServiceSet { name, .. } | Edit::ServiceRemove { name } => name,
        Edit::BackendAdd { service, .. }
        | Edit::BackendSet { service, .. }
        | Edit::BackendDrain { service, .. }
        | Edit::BackendUndrain { service, .. }
        | Edit::BackendRemove { service, .. } => service,
    }
}

/// What was done, in words.
pub fn describe(edits: &[Edit]) -> String {
    let words: Vec<String> = edits.iter().map(describe_one).collect();
    words.join("; ")
}

fn describe_one(edit: &Edit) -> String {
    match edit {
        Edit::ServiceAdd { name, .. } => format!("service {name} added"),
        Edit::ServiceSet { name, .. } => format!("service {name} changed"),
        Edit::ServiceRemove { name } => format!("service {name} removed"),
        Edit::BackendAdd { service, address, .. } => format!("backend {service}/{address} added"),
        Edit::BackendSet { service, address, .. } => format!("backend {service}/{address} changed"),
        Edit::BackendDrain { service, address } => format!("backend {service}/{address} drains"),
        Edit::BackendUndrain { service, address } => format!("backend {service}/{address} serves again"),
        Edit::BackendRemove { service, address } => format!("backend {service}/{address} removed"),
    }
}

fn carry_out(overlay: &mut Overlay, file: &[ServiceSpec], edit: &Edit) -> Result<(), Refusal> {
    match edit {
        Edit::ServiceAdd {
            name,
            vip,
            port,
            protocol,
            settings,
        } => {
            let mut spec = ServiceSpec::new(name, *vip, port_of(name, *port)?, *protocol);
            settings.apply(&mut spec);
            overlay.add_service(file, spec)?;
        }
        Edit::ServiceSet { name, settings } => overlay.set_service(file, name, *settings)?,
        Edit::ServiceRemove { name } => overlay.remove_service(file, name)?,
        Edit::BackendAdd {
            service,
            address,
            settings,
        } => {
            let mut spec = BackendSpec::new(*address);
            settings.apply(&mut spec);
            overlay.add_backend(file, service, spec)?;
        }
        Edit::BackendSet {
            service,
            address,
            settings,
        } => {
            overlay.set_backend(file, service, *address, *settings)?;
        }
        Edit::BackendDrain { service, address } => overlay.drain(file, service, *address)?,
        Edit::BackendUndrain { service, address } => overlay.undrain(file, service, *address)?,
        Edit::BackendRemove { service, address } => overlay.remove_backend(file, service, *address)?,
    }
    Ok(())
}

fn port_of(name: &str, port: Option<u16>) -> Result<Port, Refusal> {
    let Some(number) = port else {
        return Ok(Port::All);
    };
    NonZeroU16::new(number).map(Port::Number).ok_or_else(|| {
        Refusal::new(
            RefusalKind::Invalid,
            format!("service {name}: port 0 cannot be"),
            "give a port from 1 to 65535, or `all`",
        )
    })
}

impl From<OverlayError> for Refusal {
    fn from(error: OverlayError) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound => RefusalKind::NotFound,
            ErrorKind::Exists => RefusalKind::Exists,
            ErrorKind::Conflict => RefusalKind::Conflict,
            ErrorKind::Invalid => RefusalKind::Invalid,
        };
        Self::new(kind, error.to_string(), error.next_step())
    }
}

/// An error and its causes in one line.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

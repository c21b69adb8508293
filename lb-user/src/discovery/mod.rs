//! Backends from elsewhere: sources yield endpoints, the guard decides what of it to believe.
//!
//! A source is one file in [`sources`] and implements [`Source`]. It follows its server until something fails and says
//! what it saw through its [`Sink`]; the [`driver`] calls it again after a pause. Sources know nothing of services,
//! guards or maps, and nothing that a source says or fails to say removes a backend by itself.

pub mod admission;
pub mod backoff;
pub mod driver;
pub mod endpoint;
pub mod guard;
pub mod registry;
pub mod sources;
pub mod spec;

pub use driver::{Follower, Report, Seen, Sink, Source, SourceError, follow};
pub use endpoint::{Endpoint, Refused, Update};
pub use spec::{GuardSpec, Hold, SourceKind, SourceSpec};

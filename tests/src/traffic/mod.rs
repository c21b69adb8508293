//! Real connections: servers that answer with their name, clients, downloads, and a web server with a web client.

pub mod aim;
pub mod client;
pub mod echo;
pub mod flood;
pub mod held;
pub mod metrics;
pub mod ping;
pub mod rush;
pub mod server;
pub mod ticking;
pub mod web;

pub use aim::{Aim, Sources};
pub use client::{Client, Kind, Spread, pin};
pub use echo::{Download, LongLived};
pub use flood::{Ends, Flood, Wire};
pub use held::Held;
pub use rush::{Rush, Rushed};
pub use server::{Server, Servers};
pub use ticking::Ticking;
pub use web::{WebServer, curl};

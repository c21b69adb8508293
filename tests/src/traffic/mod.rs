//! Real connections: servers that answer with their name, clients, downloads, and a web server with a web client.

pub mod client;
pub mod echo;
pub mod metrics;
pub mod server;
pub mod ticking;
pub mod web;

pub use client::{Client, Kind, Spread};
pub use echo::{Download, LongLived};
pub use server::{Server, Servers};
pub use ticking::Ticking;
pub use web::{WebServer, curl};

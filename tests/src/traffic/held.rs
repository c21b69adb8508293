//! Flows that are open already and go on all the while: each must keep the backend that it has.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{Client, LongLived, Ticking};
use crate::lab::Lab;

const PAUSE: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(5);

/// Open TCP connections and UDP flows, all of them asked in turn in the background.
pub struct Held(Ticking);

impl Held {
    /// Opens so many of each kind.
    pub fn open(lab: &Lab, tcp: SocketAddr, udp: SocketAddr, count: usize) -> Result<Self> {
        let connections = LongLived::open(&Client::new(lab), tcp, count)?;
        let talks: Vec<Talk> = lab
            .client
            .run(|| (0..count).map(|_| Talk::begin(udp)).collect::<Result<_>>())?;
        Ok(Self(Ticking::start("the open flows", move || {
            connections.check("all that happens")?;
            talks.iter().try_for_each(Talk::go_on)?;
            thread::sleep(PAUSE);
            Ok(String::new())
        })))
    }

    /// Ends; every flow was answered by its own backend every time. How many rounds that were.
    pub fn finish(self) -> Result<u64> {
        let rounds = self.0.finish()?;
        ensure!(rounds > 0, "no round of the open flows came to its end");
        Ok(rounds)
    }
}

/// A UDP flow.
struct Talk {
    socket: UdpSocket,
    backend: String,
}

impl Talk {
    fn begin(to: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let backend = ask(&socket)?;
        Ok(Self { socket, backend })
    }

    fn go_on(&self) -> Result<()> {
        let (from, backend) = (self.socket.local_addr()?, ask(&self.socket)?);
        ensure!(
            backend == self.backend,
            "the UDP flow of {from}: {} became {backend}",
            self.backend
        );
        Ok(())
    }
}

fn ask(socket: &UdpSocket) -> Result<String> {
    const QUESTION: &str = " talk";
    socket.send(&QUESTION.as_bytes()[1..])?;
    let mut buffer = [0; 64];
    let length = socket
        .recv(&mut buffer)
        .with_context(|| format!("no answer to {:?}", socket.local_addr()))?;
    let answer = String::from_utf8_lossy(&buffer[..length]);
    let name = answer.strip_suffix(QUESTION);
    Ok(name
        .with_context(|| format!("{answer:?} is no answer"))?
        .to_owned())
}

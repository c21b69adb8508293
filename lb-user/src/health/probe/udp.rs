//! `udp`: a datagram and its answer.

use super::{Failure, Stage, Target, Waiting, contains};

/// Largest datagram.
const LARGEST: usize = 65_535;

/// What is sent, and what must come.
pub struct Asking {
    payload: Vec<u8>,
    expect: Option<String>,
}

impl Asking {
    pub fn new(payload: &str, expect: Option<&str>) -> Self {
        Self {
            payload: payload.as_bytes().to_vec(),
            expect: expect.map(str::to_owned),
        }
    }

    /// What is wrong when only other answers came.
    pub fn wrong(&self) -> String {
        format!(
            "answers came, but none that contains {:?}",
            self.expect.as_deref().unwrap_or_default()
        )
    }
}

pub async fn probe(asking: &Asking, target: &Target, waiting: &Waiting) -> Result<(), Failure> {
    let mut datagrams = target.datagrams().await?;
    let sent = datagrams.send(&asking.payload).await;
    sent.map_err(|error| failure(&error))?;
    waiting.at(Stage::Answer);
    let expect = asking.expect.as_deref().unwrap_or_default().as_bytes();
    let mut answer = Vec::with_capacity(LARGEST);
    loop {
        answer.clear();
        let received = datagrams.receive(&mut answer).await;
        received.map_err(|error| failure(&error))?;
        if contains(&answer, expect) {
            return datagrams.settle();
        }
        // Another may follow, as in a protocol that first says hello.
        waiting.at(Stage::RightAnswer);
    }
}

fn failure(error: &std::io::Error) -> Failure {
    // On a connected socket this is an ICMP port unreachable (udp(7)).
    if error.kind() == std::io::ErrorKind::ConnectionRefused {
        return Failure::backend("port unreachable");
    }
    Failure::from_io(error)
}

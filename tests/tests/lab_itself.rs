//! Promise: the lab's wires carry plain traffic, so that a failure elsewhere is the balancer's.

use std::{net::SocketAddr, path::Path, thread};

use tests::{
    Proof,
    capture::{RawSocket, Witness},
    lab::{Lab, Place, Xdp, eventually, topology::BALANCER_PORT},
    traffic::{WebServer, curl},
};

#[test]
fn every_backend_answers_on_its_own_address() -> Proof {
    let lab = Lab::new(&[Place::Front, Place::Side, Place::Far])?;
    let witness = Witness::watch(&lab.router, "client")?;
    for backend in &lab.backends {
        let _server = WebServer::start(backend, 80)?;
        for v6 in [false, true] {
            let page = curl(&lab, SocketAddr::new(backend.address(v6), 80), "name")?;
            assert_eq!(page, backend.name.as_bytes());
        }
    }
    assert_eq!(
        witness
            .tally()
            .0
            .keys()
            .filter(|(_, port, _)| *port == 80)
            .count(),
        6
    );
    witness.verify()?;
    Ok(())
}

#[test]
fn the_witness_sees_every_frame_that_xdp_sends_one_by_one() -> Proof {
    const SEGMENTS: u32 = 500;
    let lab = Lab::new(&[])?;
    let _bounce = Xdp::bounce(&lab.balancer, "eth0")?;
    let witness = Witness::watch(&lab.fabric, BALANCER_PORT)?;
    let port = RawSocket::open(&lab.fabric, BALANCER_PORT)?;
    for segment in 0..SEGMENTS {
        // Neighbours in one stream: what GRO likes to merge.
        let mut frame = Vec::new();
        etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ipv4([10, 9, 0, 1], [10, 9, 0, 2], 64)
            .tcp(7, 9, segment * 100, 1000)
            .ack(1)
            .write(&mut frame, &[b'.'; 100])?;
        port.send(&frame)?;
    }
    let came_back = || witness.tally().of([10, 9, 0, 2].into(), 9, 6).packets;
    eventually("all come back", || came_back() >= u64::from(SEGMENTS))?;
    assert_eq!(came_back(), u64::from(SEGMENTS));
    witness.verify()?;
    Ok(())
}

#[test]
fn nothing_is_left_after_a_panic() -> Proof {
    let name = thread::spawn(|| {
        let lab = Lab::new(&[]).expect("a lab");
        let name = lab.balancer.name().to_owned();
        std::panic::panic_any(name);
    })
    .join()
    .expect_err("it panicked");
    let name = name.downcast_ref::<String>().expect("the name");
    assert!(!Path::new("/run/netns").join(name).exists(), "{name}");
    Ok(())
}

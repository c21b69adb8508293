//! `tcp`: a connection, closed again as soon as it stands.

use super::{Failure, Target};

pub async fn probe(target: &Target) -> Result<(), Failure> {
    // Closing with nothing sent or unread ends a direct connection in order, by FIN.
    target.connect().await.map(drop)
}

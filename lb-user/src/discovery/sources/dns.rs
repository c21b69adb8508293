//! A, AAAA and SRV records, asked again when their time to live is over.
//!
//! Names are absolute; neither `/etc/hosts` nor search domains nor a cache of our own come in between. A name that does
//! not exist and a name without records are states (RFC 2308, section 2); SERVFAIL, REFUSED, a referral or no answer are
//! none. Answers that do not fit into a datagram are fetched by TCP (RFC 7766).

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig},
    lookup::Lookup,
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::ResponseCode,
        rr::{Name, RData, RecordType, rdata::SRV},
    },
};
use tokio::time::{Instant, sleep};

use super::{address, listing::Listing};
use crate::{
    config::Seconds,
    discovery::{Endpoint, Refused, Sink, Source, SourceError, spec::Record},
};

/// Of one question to one server; it is asked twice.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Targets of SRV records that are resolved at a time.
const AT_ONCE: usize = 16;

/// Asks for one name.
#[derive(Debug)]
pub struct DnsSource {
    pub host: String,
    pub record: Record,
    pub server: Option<SocketAddr>,
    /// Least and most time between two rounds.
    pub between: (Seconds, Seconds),
}

/// Records of one type, or why there are none.
struct Answer {
    records: Vec<RData>,
    /// Of the records, or of there being none.
    lives: Duration,
    /// `NXDOMAIN`, or `NOERROR without A records`.
    none: Option<String>,
}

/// What one round found.
struct Round {
    listing: Listing,
    lives: Duration,
    /// Why there is nothing, by type.
    none: Vec<String>,
}

impl DnsSource {
    fn resolver(&self) -> Result<TokioResolver, SourceError> {
        let mut builder = match self.server {
            Some(server) => {
                let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
                    connection.port = server.port();
                    connection
                });
                let server = NameServerConfig::new(server.ip(), true, connections.into());
                let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
            None => TokioResolver::builder_tokio()
                .map_err(|error| SourceError::Unreachable(format!("/etc/resolv.conf: {error}")))?,
        };
        let options = builder.options_mut();
        options.timeout = TIMEOUT;
        options.attempts = 1;
        options.edns0 = true;
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        builder
            .build()
            .map_err(|error| SourceError::Unreachable(format!("no resolver: {error}")))
    }

    fn name(&self) -> Result<Name, SourceError> {
        let mut name = Name::from_utf8(&self.host)
            .map_err(|error| SourceError::Unreachable(format!("{:?} is no name: {error}", self.host)))?;
        name.set_fqdn(true);
        Ok(name)
    }

    async fn round(&self, resolver: &TokioResolver, name: &Name, most: u32) -> Result<Round, SourceError> {
        let mut round = Round {
            listing: Listing::new(most),
            lives: Duration::MAX,
            none: Vec::new(),
        };
        let types: &[_] = match self.record {
            Record::A => &[RecordType::A],
            Record::Aaaa => &[RecordType::AAAA],
            Record::Both => &[RecordType::A, RecordType::AAAA],
            Record::Srv => return self.services(resolver, name, round).await,
        };
        for kind in types {
            let answer = ask(resolver, name, *kind).await?;
            round.add(&answer);
            for record in &answer.records {
                round.listing.push(endpoint(record, None));
            }
        }
        round.listing.check()?;
        Ok(round)
    }

    async fn services(
        &self,
        resolver: &TokioResolver,
        name: &Name,
        mut round: Round,
    ) -> Result<Round, SourceError> {
        let answer = ask(resolver, name, RecordType::SRV).await?;
        round.add(&answer);
        let chosen = lowest(&answer.records);
        let resolved: Vec<_> = stream::iter(chosen)
            .map(|service| async move {
                let addresses = target(resolver, &service.target).await?;
                Ok::<_, SourceError>((service, addresses))
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        for (service, answers) in &resolved {
            let mut found = false;
            for answer in answers {
                round.lives = round.lives.min(answer.lives);
                for record in &answer.records {
                    found = true;
                    round.listing.push(endpoint(record, Some(service)));
                }
            }
            if !found {
                let why = answers.iter().filter_map(|answer| answer.none.as_deref());
                let why = why.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
                let entry = format!("{} {}", service.port, service.target);
                round.listing.push(Err(Refused::new(
                    entry,
                    format!("the target: {}", why.join(", ")),
                )));
            }
        }
        round.listing.check()?;
        Ok(round)
    }
}

impl Round {
    fn add(&mut self, answer: &Answer) {
        self.lives = self.lives.min(answer.lives);
        self.none.extend(answer.none.clone());
    }

    /// What the state is called: only an empty one has something to say.
    fn revision(&self, types: usize) -> Option<String> {
        (self.none.len() == types).then(|| {
            let reasons: BTreeSet<_> = self.none.iter().map(String::as_str).collect();
            reasons.into_iter().collect::<Vec<_>>().join(", ")
        })
    }
}

impl Source for DnsSource {
    fn describe(&self) -> String {
        let record = match self.record {
            Record::A => "A",
            Record::Aaaa => "AAAA",
            Record::Both => "A and AAAA",
            Record::Srv => "SRV",
        };
        match self.server {
            Some(server) => format!("dns {} ({record}) at {server}", self.host),
            None => format!("dns {} ({record})", self.host),
        }
    }

    async fn follow(&mut self, sink: &mut Sink) -> Result<Infallible, SourceError> {
        let name = self.name()?;
        let types = if self.record == Record::Both { 2 } else { 1 };
        loop {
            let began = Instant::now();
            // Made anew each time: /etc/resolv.conf may have changed, and a TCP connection that is kept open may go on
            // telling the past. dnsmasq answers each from a process of its own that never reads its files again.
            let resolver = self.resolver()?;
            let round = self.round(&resolver, &name, sink.most()).await?;
            let revision = round.revision(types);
            let lives = round.lives;
            sink.send(round.listing.snapshot(revision)?).await?;
            let pause = within(lives, self.between);
            sleep(pause.saturating_sub(began.elapsed())).await;
        }
    }
}

/// A time to live, within the bounds for asking again.
fn within(lives: Duration, (least, most): (Seconds, Seconds)) -> Duration {
    lives.min(most.duration()).max(least.duration())
}

async fn ask(resolver: &TokioResolver, name: &Name, kind: RecordType) -> Result<Answer, SourceError> {
    match resolver.lookup(name.clone(), kind).await {
        Ok(lookup) => Ok(records(&lookup, kind)),
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            // Not the answer, but whom else to ask: the server does not do so for us.
            if none.soa.is_none() && none.ns.is_some() && none.response_code == ResponseCode::NoError {
                return Err(SourceError::Unreachable(format!(
                    "{name} {kind}: the server only refers to other servers; it must resolve for its clients"
                )));
            }
            let why = match none.response_code {
                ResponseCode::NXDomain => "NXDOMAIN".to_owned(),
                _ => format!("NOERROR without {kind} records"),
            };
            Ok(Answer {
                records: Vec::new(),
                lives: Duration::from_secs(none.negative_ttl.unwrap_or(0).into()),
                none: Some(why),
            })
        }
        Err(NetError::Dns(DnsError::ResponseCode(code))) => Err(SourceError::Unreachable(format!(
            "{name} {kind}: the server answers {code}"
        ))),
        Err(error @ NetError::Proto(_)) => Err(SourceError::Unreadable(format!("{name} {kind}: {error}"))),
        Err(error) => Err(SourceError::Unreachable(format!("{name} {kind}: {error}"))),
    }
}

fn records(lookup: &Lookup, kind: RecordType) -> Answer {
    let records: Vec<_> = lookup
        .answers()
        .iter()
        .filter(|record| record.record_type() == kind)
        .map(|record| record.data.clone())
        .collect();
    let now = Instant::now().into_std();
    Answer {
        lives: lookup.valid_until().saturating_duration_since(now),
        none: records
            .is_empty()
            .then(|| format!("NOERROR without {kind} records")),
        records,
    }
}

/// The records of the lowest priority that there is (RFC 2782); a target of `.` says that the service is not offered.
fn lowest(records: &[RData]) -> Vec<SRV> {
    let services = || {
        records.iter().filter_map(|record| match record {
            RData::SRV(service) if !service.target.is_root() => Some(service),
            _ => None,
        })
    };
    let lowest = services().map(|service| service.priority).min();
    services()
        .filter(|service| Some(service.priority) == lowest)
        .cloned()
        .collect()
}

/// Both families of a target.
async fn target(resolver: &TokioResolver, name: &Name) -> Result<[Answer; 2], SourceError> {
    Ok([
        ask(resolver, name, RecordType::A).await?,
        ask(resolver, name, RecordType::AAAA).await?,
    ])
}

fn endpoint(record: &RData, service: Option<&SRV>) -> Result<Endpoint, Refused> {
    let ip: IpAddr = match record {
        RData::A(address) => address.0.into(),
        RData::AAAA(address) => address.0.into(),
        other => return Err(Refused::new(other.to_string(), "it is no address")),
    };
    let refuse = |reason| Refused::new(ip.to_string(), reason);
    let mut endpoint = address::endpoint(ip, service.map(|service| service.port)).map_err(refuse)?;
    if let Some(service) = service {
        // "In the presence of records containing weights greater than 0, records with weight 0 should have a very small
        // chance of being selected."
        endpoint.weight = u32::from(service.weight).max(1);
    }
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(priority: u16, weight: u16, target: &str) -> RData {
        RData::SRV(SRV::new(priority, weight, 80, Name::from_ascii(target).unwrap()))
    }

    #[test]
    fn only_the_lowest_priority_counts() {
        let records = [
            service(20, 1, "c.example."),
            service(10, 0, "a.example."),
            service(10, 5, "b.example."),
            service(0, 5, "."),
        ];
        let chosen: Vec<_> = lowest(&records)
            .iter()
            .map(|service| service.target.to_string())
            .collect();
        assert_eq!(chosen, ["a.example.", "b.example."]);
        assert!(lowest(&[service(0, 0, ".")]).is_empty());
    }

    #[test]
    fn a_service_gives_port_and_weight() {
        let record = RData::A("192.0.2.1".parse().unwrap());
        for (weight, expected) in [(0, 1), (1, 1), (65_535, 65_535)] {
            let RData::SRV(service) = service(0, weight, "a.example.") else {
                panic!("a service is one");
            };
            let endpoint = endpoint(&record, Some(&service)).unwrap();
            assert_eq!((endpoint.weight, endpoint.port), (expected, Some(80)));
        }
        assert!(endpoint(&RData::A("127.0.0.1".parse().unwrap()), None).is_err());
    }

    #[test]
    fn the_time_to_live_is_kept_within_bounds() {
        let between = (Seconds(2), Seconds(30));
        for (lives, expected) in [(0, 2), (7, 7), (3_600, 30)] {
            assert_eq!(
                within(Duration::from_secs(lives), between),
                Duration::from_secs(expected)
            );
        }
    }
}

//! Weighted Maglev: which backend owns which slot (Eisenbud et al., "Maglev", NSDI 2016, section 3.4).
//!
//! Every backend walks its own permutation of the slots and claims the next free one when it is its turn. The
//! paper gives every backend one turn a round; here a backend of weight w has its k-th turn at time (2k + 1) / w,
//! and claims until it owns its exact share (largest remainder), so that weights are met within one slot. A turn's
//! time depends on the backend's own weight only, so that a change of one backend moves few slots of others.
//!
//! A permutation comes from SipHash-1-3 of the address's 4 or 16 bytes under `OFFSET_KEY` and `SKIP_KEY`. Two
//! nodes agree on a flow only if they agree on these, so they never change.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::IpAddr,
};

use lb_common::{
    flow_hash::{FlowTuple, Key},
    slot_table::{MAX_SLOTS, MIN_SLOTS},
};

/// "evenkeel slot offset" and "evenkeel slot skip", cut and padded: fixed numbers that nobody chose for their effect.
const OFFSET_KEY: Key = Key {
    k0: u64::from_le_bytes(*b"evenkeel"),
    k1: u64::from_le_bytes(*b"  offset"),
};
const SKIP_KEY: Key = Key {
    k0: u64::from_le_bytes(*b"evenkeel"),
    k1: u64::from_le_bytes(*b"    skip"),
};

/// Slots a backend has on average at the default size: weights are then met within 1 %.
const SLOTS_PER_BACKEND: u64 = 100;

/// A backend that is to own slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    pub address: IpAddr,
    /// 1..=65535.
    pub weight: u32,
}

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotTableError {
    #[error("weight {weight} of {address} is too small a share to own one of {size} slots")]
    NoSlot {
        address: IpAddr,
        weight: u32,
        size: u32,
        needed: u32,
    },
    #[error(
        "weight {weight} of {address} is too small a share to own a slot even of the largest table ({MAX_SLOTS} slots)"
    )]
    NeverASlot { address: IpAddr, weight: u32 },
    #[error("slots = {wanted} is out of range")]
    Size { wanted: u32 },
    #[error("{backends} backends are more than a slot table spreads evenly")]
    Backends { backends: usize },
}

impl SlotTableError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::NoSlot { needed, .. } => {
                format!("set slots = {needed} or more, or bring the weights closer together")
            }
            Self::NeverASlot { .. } => "bring the weights closer together".to_owned(),
            Self::Size { .. } => format!("use {MIN_SLOTS} to {MAX_SLOTS}"),
            Self::Backends { .. } => {
                let most = u64::from(MAX_SLOTS) / SLOTS_PER_BACKEND;
                format!("use at most {most} backends a service")
            }
        }
    }
}

/// The size of a service's table: `slots` rounded up to a prime, or by default the next prime that gives 100 slots to
/// each of `backends` rounded up to a power of two, and at least [`MIN_SLOTS`].
///
/// Another size moves nearly every slot, so it should change rarely: hence the power of two, and hence `backends`
/// counts every backend the service has, whether it may take flows now or not. Fix `slots` to never change it.
pub fn size_for(backends: usize, slots: Option<u32>) -> Result<u32, SlotTableError> {
    if let Some(wanted) = slots {
        return match wanted {
            MIN_SLOTS..=MAX_SLOTS => Ok(next_prime(wanted)),
            _ => Err(SlotTableError::Size { wanted }),
        };
    }
    let largest = u64::from(MAX_SLOTS);
    if (backends as u64).saturating_mul(SLOTS_PER_BACKEND) > largest {
        return Err(SlotTableError::Backends { backends });
    }
    let wanted = backends.next_power_of_two() as u64 * SLOTS_PER_BACKEND;
    Ok(next_prime(wanted.clamp(u64::from(MIN_SLOTS), largest) as u32))
}

/// Refuses weights of which one has less than a whole slot as its share.
pub fn check_weights(members: &[Member], size: u32) -> Result<(), SlotTableError> {
    let Some(least) = members
        .iter()
        .min_by_key(|member| (member.weight, member.address))
    else {
        return Ok(());
    };
    let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    if u64::from(least.weight) * u64::from(size) >= total {
        return Ok(());
    }
    let Member { address, weight } = *least;
    match u32::try_from(total.div_ceil(u64::from(weight).max(1))) {
        Ok(needed) if needed <= MAX_SLOTS && weight > 0 => Err(SlotTableError::NoSlot {
            address,
            weight,
            size,
            needed: next_prime(needed),
        }),
        _ => Err(SlotTableError::NeverASlot { address, weight }),
    }
}

/// Builds the table: for each of `size` slots (a prime) the index of its owner in `members`.
///
/// The same members give the same owners whatever their order. No members give an empty table.
pub fn build(members: &[Member], size: u32) -> Result<Vec<u32>, SlotTableError> {
    check_weights(members, size)?;
    if members.is_empty() {
        return Ok(Vec::new());
    }
    let mut claimants = claimants(members, size);
    let mut table = vec![0; size as usize];
    let mut taken = Taken::new(size);
    let mut unclaimed = size;
    let mut turns = Turns::new(&claimants);
    while unclaimed > 0 {
        // Shares sum up to `size`, so somebody has a turn left as long as a slot is free.
        let Some(group) = turns.next() else { break };
        group.retain(|&claimant| {
            let claimant = &mut claimants[claimant as usize];
            let slot = claimant.claim(size, &mut taken);
            table[slot as usize] = claimant.index;
            unclaimed -= 1;
            claimant.share > 0
        });
    }
    Ok(table)
}

/// A backend on its walk through the slots.
struct Claimant {
    /// In the caller's order.
    index: u32,
    weight: u32,
    /// Slots still to claim.
    share: u32,
    position: u32,
    skip: u32,
}

impl Claimant {
    fn claim(&mut self, size: u32, taken: &mut Taken) -> u32 {
        loop {
            let slot = self.position;
            let next = slot + self.skip;
            self.position = if next >= size { next - size } else { next };
            if taken.take(slot) {
                self.share -= 1;
                return slot;
            }
        }
    }
}

/// The members by address, with their shares by largest remainder.
fn claimants(members: &[Member], size: u32) -> Vec<Claimant> {
    let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    let mut order: Vec<u32> = (0..members.len() as u32).collect();
    order.sort_by_key(|&index| members[index as usize]);
    let mut claimants = Vec::with_capacity(members.len());
    let mut remainders = Vec::with_capacity(members.len());
    let mut left = size;
    for (place, &index) in order.iter().enumerate() {
        let member = members[index as usize];
        let exact = u64::from(member.weight) * u64::from(size);
        let share = (exact / total) as u32;
        left -= share;
        remainders.push((Reverse(exact % total), place));
        let (offset, skip) = permutation(member.address, size);
        claimants.push(Claimant {
            index,
            weight: member.weight,
            share,
            position: offset,
            skip,
        });
    }
    remainders.sort_unstable();
    for (_, place) in remainders.into_iter().take(left as usize) {
        claimants[place].share += 1;
    }
    claimants
}

/// Start and step of an address's walk; with a prime size every step visits every slot.
fn permutation(address: IpAddr, size: u32) -> (u32, u32) {
    let tuple = match address.to_canonical() {
        IpAddr::V4(v4) => FlowTuple::v4(u32::from_le_bytes(v4.octets()), 0, 0, 0),
        IpAddr::V6(v6) => {
            let bits = u128::from_le_bytes(v6.octets());
            FlowTuple::v6([bits as u64, (bits >> 64) as u64], [0; 2], 0, 0)
        }
    };
    let offset = tuple.hash_client(OFFSET_KEY) % u64::from(size);
    let skip = tuple.hash_client(SKIP_KEY) % (u64::from(size) - 1) + 1;
    (offset as u32, skip as u32)
}

/// Whose turn it is: claimants of equal weight have theirs together, in the order of their addresses.
struct Turns {
    groups: Vec<Vec<u32>>,
    /// (time of the next turn, the group's place, ticks between two turns).
    queue: BinaryHeap<Reverse<(u64, usize, u64)>>,
    /// The group that was given out last and comes back unless it is empty.
    given: Option<(u64, usize, u64)>,
}

impl Turns {
    fn new(claimants: &[Claimant]) -> Self {
        let mut by_weight = BTreeMap::<Reverse<u32>, Vec<u32>>::new();
        for (place, claimant) in claimants.iter().enumerate() {
            if claimant.share > 0 {
                by_weight
                    .entry(Reverse(claimant.weight))
                    .or_default()
                    .push(place as u32);
            }
        }
        let queue = by_weight
            .keys()
            .enumerate()
            .map(|(group, Reverse(weight))| {
                // 2^38 / w leaves room for 2 · 2^24 turns of weight 1 in 64 bits.
                let tick = (1u64 << 38) / u64::from(*weight);
                Reverse((tick, group, 2 * tick))
            })
            .collect();
        Self {
            groups: by_weight.into_values().collect(),
            queue,
            given: None,
        }
    }

    fn next(&mut self) -> Option<&mut Vec<u32>> {
        if let Some((time, group, period)) = self.given.take()
            && !self.groups[group].is_empty()
        {
            self.queue.push(Reverse((time + period, group, period)));
        }
        let Reverse(turn) = self.queue.pop()?;
        self.given = Some(turn);
        Some(&mut self.groups[turn.1])
    }
}

/// One bit a slot: an eighth of a byte a probe keeps large tables in the cache.
struct Taken(Vec<u64>);

impl Taken {
    fn new(size: u32) -> Self {
        Self(vec![0; size.div_ceil(64) as usize])
    }

    fn take(&mut self, slot: u32) -> bool {
        let word = &mut self.0[(slot / 64) as usize];
        let bit = 1u64 << (slot % 64);
        let free = *word & bit == 0;
        *word |= bit;
        free
    }
}

/// The smallest prime that is not below `from`, which is at most [`MAX_SLOTS`], itself a prime.
pub fn next_prime(from: u32) -> u32 {
    (from.max(2)..)
        .find(|&number| is_prime(number))
        .unwrap_or(MAX_SLOTS)
}

fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::{prelude::*, sample::subsequence};

    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0001 + number).to_be_bytes())
    }

    fn equal(count: u32) -> Vec<Member> {
        (0..count)
            .map(|number| Member {
                address: address(number),
                weight: 1,
            })
            .collect()
    }

    fn owners(members: &[Member], size: u32) -> Vec<IpAddr> {
        let table = build(members, size).unwrap();
        table
            .into_iter()
            .map(|index| members[index as usize].address)
            .collect()
    }

    fn counts(table: &[u32], members: usize) -> Vec<u32> {
        let mut counts = vec![0; members];
        table.iter().for_each(|&index| counts[index as usize] += 1);
        counts
    }

    fn moved(before: &[IpAddr], after: &[IpAddr]) -> usize {
        before
            .iter()
            .zip(after)
            .filter(|(before, after)| before != after)
            .count()
    }

    #[test]
    fn primes() {
        assert_eq!(next_prime(0), 2);
        assert_eq!(next_prime(1021), 1021);
        assert_eq!(next_prime(1022), 1031);
        assert_eq!(next_prime(100_000), 100_003);
        assert_eq!(next_prime(1_000_000), 1_000_003);
        assert_eq!(next_prime(16_777_212), MAX_SLOTS);
        assert!(is_prime(MAX_SLOTS));
    }

    #[test]
    fn sizes() {
        assert_eq!(size_for(0, None), Ok(1021));
        assert_eq!(size_for(8, None), Ok(1021));
        assert_eq!(size_for(9, None), Ok(1601));
        assert_eq!(size_for(16, None), Ok(1601));
        assert_eq!(size_for(1000, None), Ok(102_407));
        assert_eq!(size_for(10_000, None), Ok(1_638_431));
        assert_eq!(size_for(167_772, None), Ok(16_777_213));
        assert_eq!(
            size_for(167_773, None),
            Err(SlotTableError::Backends { backends: 167_773 })
        );
        assert_eq!(size_for(3, Some(10_000)), Ok(10_007));
        assert_eq!(size_for(3, Some(MAX_SLOTS)), Ok(MAX_SLOTS));
        assert_eq!(size_for(3, Some(7)), Err(SlotTableError::Size { wanted: 7 }));
        assert_eq!(
            size_for(3, Some(MAX_SLOTS + 1)),
            Err(SlotTableError::Size {
                wanted: MAX_SLOTS + 1
            })
        );
    }

    #[test]
    fn tiny_tables() {
        assert_eq!(build(&[], 1021), Ok(vec![]));
        assert_eq!(build(&equal(1), 2), Ok(vec![0, 0]));
        assert_eq!(counts(&build(&equal(2), 2).unwrap(), 2), [1, 1]);
        assert_eq!(counts(&build(&equal(3), 7).unwrap(), 3).iter().sum::<u32>(), 7);
        let weighted = [
            Member {
                address: address(0),
                weight: 2,
            },
            Member {
                address: address(1),
                weight: 1,
            },
        ];
        assert_eq!(counts(&build(&weighted, 3).unwrap(), 2), [2, 1]);
    }

    /// Fixed, so that a change of the permutation, which would set nodes of two versions apart, cannot pass unseen.
    #[test]
    fn known_table() {
        let v6 = Member {
            address: "2001:db8::1".parse().unwrap(),
            weight: 1,
        };
        let members = [equal(2), vec![v6]].concat();
        assert_eq!(build(&members, 13).unwrap(), KNOWN);
    }
    const KNOWN: [u32; 13] = [0, 2, 0, 2, 1, 2, 1, 1, 1, 0, 2, 0, 0];

    #[test]
    fn a_weight_without_a_slot_is_refused_with_the_size_needed() {
        let members = [
            Member {
                address: address(0),
                weight: 65_535,
            },
            Member {
                address: address(1),
                weight: 1,
            },
        ];
        let error = build(&members, 1021).unwrap_err();
        assert_eq!(
            error,
            SlotTableError::NoSlot {
                address: address(1),
                weight: 1,
                size: 1021,
                needed: 65_537
            }
        );
        assert_eq!(counts(&build(&members, 65_537).unwrap(), 2)[1], 1);
        let crowd: Vec<Member> = (0..300)
            .map(|number| Member {
                address: address(number),
                weight: if number == 0 { 1 } else { 65_535 },
            })
            .collect();
        assert!(matches!(
            build(&crowd, 30_011),
            Err(SlotTableError::NeverASlot { weight: 1, .. })
        ));
    }

    /// Removing one of n backends must move about 1/n of the slots; those that had to move are the minimum.
    #[test]
    fn disruption_is_near_the_minimum() {
        for (count, size) in [(3, 1021), (10, 1021), (50, 5003), (100, 10_007), (500, 50_021)] {
            let members = equal(count);
            let before = owners(&members, size);
            let (mut total, mut least) = (0, 0);
            let removals = 10.min(count);
            for removed in 0..removals {
                let gone = address(removed * count / removals);
                let rest: Vec<Member> = members
                    .iter()
                    .copied()
                    .filter(|member| member.address != gone)
                    .collect();
                let after = owners(&rest, size);
                total += moved(&before, &after);
                least += before.iter().filter(|owner| **owner == gone).count();
            }
            let ratio = total as f64 / least as f64;
            let percent = 100.0 * total as f64 / f64::from(removals) / f64::from(size);
            println!(
                "{count} backends, {size} slots: removing one moves {percent:.2} %, {ratio:.2} x the minimum"
            );
            // The walks' last turns find few free slots and shift each other: a few slots in a thousand, whatever n.
            assert!(
                percent < 100.0 / f64::from(count) + 3.0 && (count > 100 || ratio < 3.0),
                "{count}: {ratio}"
            );
        }
    }

    #[test]
    fn a_weight_change_moves_little() {
        let members = equal(100);
        let mut heavier = members.clone();
        heavier[17].weight = 2;
        let before = owners(&members, 10_007);
        let percent = 100.0 * moved(&before, &owners(&heavier, 10_007)) as f64 / 10_007.0;
        println!("doubling the weight of 1 of 100 moves {percent:.2} % of the slots (0.98 % at least)");
        assert!(percent < 3.0);
    }

    #[test]
    fn one_more_backend_at_a_fixed_size_moves_little() {
        let before = owners(&equal(50), 10_007);
        let percent = 100.0 * moved(&before, &owners(&equal(51), 10_007)) as f64 / 10_007.0;
        println!("a 51st backend moves {percent:.2} % of the slots (1.96 % at least)");
        assert!(percent < 6.0);
    }

    /// Why `slots` is worth setting for a pool that grows and shrinks: another size is another table.
    #[test]
    fn one_more_backend_at_the_default_size_moves_nearly_all() {
        let owner = |table: &[IpAddr], place: usize| table[place * table.len() / 100_000];
        let [before, after] =
            [50, 51].map(|count| owners(&equal(count), size_for(count as usize, None).unwrap()));
        let moved = (0..100_000)
            .filter(|place| owner(&before, *place) != owner(&after, *place))
            .count();
        println!(
            "a 51st backend at the default size moves {:.1} % of all new flows",
            moved as f64 / 1000.0
        );
    }

    #[test]
    fn large_tables_are_built() {
        for count in [1000, 10_000] {
            let members = equal(count);
            let size = size_for(count as usize, None).unwrap();
            let started = Instant::now();
            build(&members, size).unwrap();
            println!("{count} backends, {size} slots: {:?}", started.elapsed());
        }
    }

    fn members(weights: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = Vec<Member>> {
        let address = any::<IpAddr>().prop_map(|address| address.to_canonical());
        prop::collection::btree_map(address, weights, 1..40).prop_map(|members| {
            members
                .into_iter()
                .map(|(address, weight)| Member { address, weight })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn order_of_input_does_not_matter(
            (members, shuffled) in members(1..=20)
                .prop_flat_map(|members| (Just(members.clone()), Just(members).prop_shuffle())),
        ) {
            prop_assert_eq!(owners(&members, 4001), owners(&shuffled, 4001));
        }

        #[test]
        fn weights_are_met_within_one_slot_and_one_percent(members in members(1..=4)) {
            let size = size_for(members.len(), None).unwrap();
            let total: u32 = members.iter().map(|member| member.weight).sum();
            let counts = counts(&build(&members, size).unwrap(), members.len());
            for (member, count) in members.iter().zip(counts) {
                let ideal = f64::from(member.weight) * f64::from(size) / f64::from(total);
                prop_assert!((f64::from(count) - ideal).abs() < 1.0);
                prop_assert!(ideal < 100.0 || (f64::from(count) - ideal).abs() <= 0.01 * ideal);
            }
        }

        #[test]
        fn removing_one_moves_at_most_thrice_the_minimum(
            (all, rest) in members(1..=1).prop_filter("two", |members| members.len() > 1).prop_flat_map(|members| {
                let keep = members.len() - 1;
                (Just(members.clone()), subsequence(members, keep))
            }),
        ) {
            let size = 4001;
            let (before, after) = (owners(&all, size), owners(&rest, size));
            let least = before.iter().filter(|owner| rest.iter().all(|member| member.address != **owner)).count();
            prop_assert!(moved(&before, &after) <= 3 * least, "{} of {least}", moved(&before, &after));
        }
    }
}

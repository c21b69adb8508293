//! The index of services in mapped memory: found, listed and changed, one word at a time.
//!
//! [`lb_common::service_index`] says how it is laid out and why a walk finds the old service or the new one. There is one
//! writer; what it has in its own memory is only which entries are free, and that is read from the chains at start.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use lb_common::{
    service::{Service, ServiceKey},
    service_index::{
        ENTRY_WORDS, MAX_CHAIN, NEXT_WORD, entry_of, entry_words, head_of, head_shift, services_in,
    },
    shared::Word,
};

use super::{MapError, MappedArray};

/// An entry as words that may be read while the kernel or the writer has them.
pub type ServiceWords = [Word; ENTRY_WORDS];

/// The two maps of the index.
pub struct ServiceIndex {
    heads: MappedArray<Word>,
    entries: MappedArray<ServiceWords>,
    /// Entries that no chain leads to, those free for longest first.
    free: VecDeque<Free>,
    rest: Duration,
    #[cfg(test)]
    after_store: Option<Box<dyn Fn() + Send + Sync>>,
}

/// A free entry, and since when if a walk may still be in it.
#[derive(Clone, Copy, Debug)]
struct Free {
    entry: u32,
    since: Option<Instant>,
}

/// The word that leads to an entry.
#[derive(Clone, Copy, Debug)]
enum Link {
    Head(u32),
    Next(u32),
}

impl ServiceIndex {
    /// Reads which entries are free. Those that were used before rest for `rest` from now on: another writer may have
    /// freed them a moment ago. Chains that something else broke are mended, unless the maps are read-only.
    pub fn open(heads: MappedArray<Word>, entries: MappedArray<ServiceWords>, rest: Duration) -> Self {
        let mut index = Self {
            heads,
            entries,
            free: VecDeque::new(),
            rest,
            #[cfg(test)]
            after_store: None,
        };
        let used = index.mend();
        let now = Instant::now();
        let (rested, resting): (Vec<u32>, Vec<u32>) = (1..index.entries.len())
            .filter(|entry| !used[*entry as usize])
            .partition(|entry| index.words(*entry).iter().all(|word| word.load() == 0));
        let rested = rested.into_iter().map(|entry| Free { entry, since: None });
        let resting = resting.into_iter().map(|entry| Free {
            entry,
            since: Some(now),
        });
        index.free = rested.chain(resting).collect();
        index
    }

    /// Services and VIP marks the index is made for.
    pub fn services(&self) -> u32 {
        services_in(self.entries.len())
    }

    pub fn get(&self, key: &ServiceKey) -> Option<Service> {
        let chain = self.chain(self.head_of(key));
        chain
            .map(|(_, entry)| self.read(entry))
            .find(|(known, _)| known == key)
            .map(|(_, service)| service)
    }

    /// Every service and VIP mark.
    pub fn list(&self) -> BTreeMap<ServiceKey, Service> {
        let chains = (0..self.heads.len()).flat_map(|head| self.chain(head));
        chains.map(|(_, entry)| self.read(entry)).collect()
    }

    /// Puts a service in, or in the place of the one with its key. Sleeps when every free entry was in use a moment ago.
    pub fn set(&mut self, key: &ServiceKey, service: &Service) -> Result<(), MapError> {
        let head = self.head_of(key);
        let chain: Vec<_> = self.chain(head).collect();
        let old = chain
            .iter()
            .find(|(_, entry)| self.read(*entry).0 == *key)
            .copied();
        let (link, next) = match old {
            Some((_, entry)) if self.read(entry).1 == *service => return Ok(()),
            Some((link, entry)) => (link, self.words(entry)[NEXT_WORD].load()),
            None if chain.len() >= MAX_CHAIN => return Err(MapError::CrowdedServices { key: *key }),
            None => (Link::Head(head), self.link(Link::Head(head)).load()),
        };
        let fresh = self.take(key)?;
        let words = entry_words(key, service).into_iter().chain([next]);
        for (at, word) in words.enumerate() {
            self.store(&self.words(fresh)[at], word)?;
        }
        fence(Ordering::Release);
        self.store(self.link(link), u64::from(fresh))?;
        if let Some((_, entry)) = old {
            self.release(entry);
        }
        Ok(())
    }

    /// Takes a service out; what is not there is no error.
    pub fn remove(&mut self, key: &ServiceKey) -> Result<(), MapError> {
        let old = self
            .chain(self.head_of(key))
            .find(|(_, entry)| self.read(*entry).0 == *key);
        if let Some((link, entry)) = old {
            self.store(self.link(link), self.words(entry)[NEXT_WORD].load())?;
            self.release(entry);
        }
        Ok(())
    }

    fn head_of(&self, key: &ServiceKey) -> u32 {
        head_of(key, head_shift(self.heads.len()))
    }

    /// The entries that a walk from this head finds, each with the word that leads to it.
    fn chain(&self, head: u32) -> impl Iterator<Item = (Link, u32)> {
        let mut link = Link::Head(head);
        let entries = std::iter::from_fn(move || {
            let entry = u32::try_from(self.link(link).load()).ok()?;
            let found = (entry != 0 && entry < self.entries.len()).then_some((link, entry));
            link = Link::Next(entry);
            found
        });
        entries.take(MAX_CHAIN)
    }

    fn words(&self, entry: u32) -> &ServiceWords {
        &self.entries.as_slice()[entry as usize]
    }

    fn read(&self, entry: u32) -> (ServiceKey, Service) {
        let words = self.words(entry);
        entry_of(std::array::from_fn(|at| words[at].load()))
    }

    fn link(&self, link: Link) -> &Word {
        match link {
            Link::Head(head) => &self.heads.as_slice()[head as usize],
            Link::Next(entry) => &self.words(entry)[NEXT_WORD],
        }
    }

    /// Every write to the maps.
    fn store(&self, word: &Word, value: u64) -> Result<(), MapError> {
        self.heads.as_writable()?;
        word.store(value);
        #[cfg(test)]
        if let Some(look) = &self.after_store {
            look();
        }
        Ok(())
    }

    /// A free entry in which no walk is any more.
    fn take(&mut self, key: &ServiceKey) -> Result<u32, MapError> {
        self.heads.as_writable()?;
        let Some(free) = self.free.pop_front() else {
            return Err(MapError::NoServiceEntry {
                key: *key,
                services: self.services(),
            });
        };
        if let Some(since) = free.since {
            std::thread::sleep(self.rest.saturating_sub(since.elapsed()));
        }
        Ok(free.entry)
    }

    fn release(&mut self, entry: u32) {
        self.free.push_back(Free {
            entry,
            since: Some(Instant::now()),
        });
    }

    /// Which entries a chain leads to. Links that no writer of ours leaves are cut out: beyond the map, into another
    /// chain or a circle, to a key of another chain or one that stands before.
    fn mend(&self) -> Vec<bool> {
        let mut used = vec![false; self.entries.len() as usize];
        let mut met = used.clone();
        for head in 0..self.heads.len() {
            let mut link = Link::Head(head);
            let mut keys = Vec::new();
            while let value @ 1.. = self.link(link).load() {
                let entry = usize::try_from(value).unwrap_or(usize::MAX);
                if met.get(entry).copied().unwrap_or(true) || keys.len() == MAX_CHAIN {
                    self.cut(link, 0);
                    break;
                }
                met[entry] = true;
                let (key, _) = self.read(entry as u32);
                if self.head_of(&key) != head || keys.contains(&key) {
                    self.cut(link, self.words(entry as u32)[NEXT_WORD].load());
                } else {
                    used[entry] = true;
                    keys.push(key);
                    link = Link::Next(entry as u32);
                }
            }
        }
        used
    }

    fn cut(&self, link: Link, next: u64) {
        if self.store(self.link(link), next).is_ok() {
            tracing::warn!(
                ?link,
                "the index of services led to an entry that is none of its own; something else wrote it; taken out"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use lb_common::{
        service_index::{ServiceEntry, entries_for, heads_for},
        settings::Settings,
    };
    use lb_ebpf::service::walk;
    use proptest::prelude::*;

    use super::*;

    const SERVICES: u32 = 4;

    struct Maps {
        heads: MappedArray<Word>,
        entries: MappedArray<ServiceWords>,
    }

    impl Maps {
        fn new(heads: u32) -> Self {
            Self {
                heads: MappedArray::in_memory(heads),
                entries: MappedArray::in_memory(entries_for(SERVICES)),
            }
        }

        fn index(&self, rest: Duration) -> ServiceIndex {
            ServiceIndex::open(self.heads.clone(), self.entries.clone(), rest)
        }

        /// What the datapath finds: its own walk on the memory as it is.
        fn look_up(&self, key: &ServiceKey) -> Option<Service> {
            let copy = |words: &ServiceWords| {
                let [a, b, c, ..] = words.each_ref().map(Word::load);
                let (_, service) = entry_of(std::array::from_fn(|at| words[at].load()));
                ServiceEntry {
                    key: [a, b, c],
                    service,
                    next: Word::new(words[NEXT_WORD].load()),
                }
            };
            let entries: Vec<ServiceEntry> = self.entries.as_slice().iter().map(copy).collect();
            let head = |at: u32| self.heads.as_slice().get(at as usize).map(Word::load);
            let settings = Settings {
                service_shift: head_shift(self.heads.len()),
                ..Settings::default()
            };
            let found = walk(key, &settings, head, |at| entries.get(at as usize));
            found.copied()
        }
    }

    /// Keys of both families, marks and all ports, so few that they meet again.
    fn key(number: u8) -> ServiceKey {
        let mut address = [0; 16];
        address[3] = number % 3;
        let family = if number.is_multiple_of(2) { 4 } else { 6 };
        ServiceKey {
            port: [0, number % 4],
            protocol: [0, 6, 17][usize::from(number % 3)],
            ..ServiceKey::vip_mark(address, family)
        }
    }

    /// No two words alike, so that a mixture of two services is none.
    fn service(id: u32) -> Service {
        Service::from_words(std::array::from_fn(|at| (u64::from(id) << 32) + at as u64 + 1))
    }

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Set(u8, u32),
        Remove(u8),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            3 => (0u8..24, 1u32..1000).prop_map(|(key, id)| Change::Set(key, id)),
            1 => (0u8..24).prop_map(Change::Remove),
        ];
        prop::collection::vec(change, 1..40)
    }

    type Model = BTreeMap<ServiceKey, Service>;

    /// What the model says afterwards, with no more services than there is room for.
    fn carried_out(model: &Model, change: Change) -> Model {
        let mut after = model.clone();
        match change {
            Change::Set(number, id) => {
                let full = after.len() >= 2 * SERVICES as usize;
                if !full || after.contains_key(&key(number)) {
                    after.insert(key(number), service(id));
                }
            }
            Change::Remove(number) => {
                after.remove(&key(number));
            }
        }
        after
    }

    fn carry_out(index: &mut ServiceIndex, model: &Model, change: Change) {
        match change {
            Change::Set(number, id) => {
                let full = model.len() >= 2 * SERVICES as usize;
                if !full || model.contains_key(&key(number)) {
                    index.set(&key(number), &service(id)).unwrap();
                }
            }
            Change::Remove(number) => index.remove(&key(number)).unwrap(),
        }
    }

    fn every_key() -> BTreeSet<ServiceKey> {
        (0..24).map(key).collect()
    }

    /// At every word a walk finds each key's service as it was before the change or as it is after, and nothing else.
    fn assert_between(maps: &Maps, before: &Model, after: &Model) {
        for key in every_key() {
            let found = maps.look_up(&key);
            assert!(
                found.as_ref() == before.get(&key) || found.as_ref() == after.get(&key),
                "{key:?}: {found:?}"
            );
        }
    }

    fn watched(maps: &Arc<Maps>, between: &Arc<Mutex<(Model, Model)>>) -> ServiceIndex {
        let mut index = maps.index(Duration::ZERO);
        let (maps, between) = (Arc::clone(maps), Arc::clone(between));
        index.after_store = Some(Box::new(move || {
            let between = between.lock().unwrap();
            assert_between(&maps, &between.0, &between.1);
        }));
        index
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_walk_finds_the_old_or_the_new_at_every_word(bits in 1u32..5, changes in changes()) {
            let maps = Arc::new(Maps::new(1 << bits));
            let between = Arc::default();
            let mut index = watched(&maps, &between);
            let mut model = Model::new();
            for change in changes {
                let after = carried_out(&model, change);
                *between.lock().unwrap() = (model.clone(), after.clone());
                carry_out(&mut index, &model, change);
                prop_assert_eq!(&index.list(), &after);
                for key in every_key() {
                    prop_assert_eq!(index.get(&key), after.get(&key).copied());
                    prop_assert_eq!(maps.look_up(&key), after.get(&key).copied());
                }
                prop_assert_eq!(index.free.len() + after.len(), maps.entries.len() as usize - 1);
                model = after;
            }
        }

        #[test]
        fn whatever_word_the_writer_dies_at_the_next_goes_on(changes in changes(), seed: u64) {
            let maps = Arc::new(Maps::new(heads_for(SERVICES)));
            let mut model = Model::new();
            let mut random = seed;
            for change in changes {
                let after = carried_out(&model, change);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let left = AtomicUsize::new((random >> 60) as usize);
                let mut index = maps.index(Duration::ZERO);
                index.after_store = Some(Box::new(move || {
                    if left.fetch_sub(1, Ordering::Relaxed) == 0 {
                        std::panic::resume_unwind(Box::new("killed"));
                    }
                }));
                let died = catch_unwind(AssertUnwindSafe(|| carry_out(&mut index, &model, change))).is_err();
                let next = maps.index(Duration::ZERO);
                let found = next.list();
                prop_assert!(found == after || died && found == model);
                assert_between(&maps, &model, &after);
                prop_assert_eq!(next.free.len() + found.len(), maps.entries.len() as usize - 1);
                model = found;
            }
        }

        #[test]
        fn whatever_something_else_writes_is_mended(words: Vec<(u8, u8)>, numbers: Vec<u8>) {
            let maps = Maps::new(8);
            let mut index = maps.index(Duration::ZERO);
            for number in numbers.iter().take(8) {
                index.set(&key(*number), &service(u32::from(*number))).unwrap();
            }
            for (at, value) in words {
                let word = match usize::from(at) {
                    at if at < 8 => &maps.heads.as_slice()[at],
                    at => &maps.entries.as_slice()[at % maps.entries.len() as usize][NEXT_WORD],
                };
                word.store(u64::from(value % 16));
            }
            let mut mended = maps.index(Duration::ZERO);
            let listed = mended.list();
            for key in every_key() {
                prop_assert_eq!(maps.look_up(&key), listed.get(&key).copied());
            }
            for key in listed.keys() {
                mended.remove(key).unwrap();
            }
            prop_assert!(maps.heads.as_slice().iter().all(|head| head.load() == 0));
            prop_assert_eq!(maps.index(Duration::ZERO).free.len() + 1, maps.entries.len() as usize);
        }
    }

    #[test]
    fn a_full_index_and_a_full_chain_are_refused() {
        let maps = Maps::new(1024);
        let mut index = maps.index(Duration::ZERO);
        let room = maps.entries.len() - 1;
        let numbered = |number: u32| ServiceKey::from_words([u64::from(number), 0, 6 << 16]);
        for number in 0..room {
            index.set(&numbered(number), &service(number)).unwrap();
        }
        let error = index.set(&numbered(room), &service(1)).unwrap_err();
        assert!(error.to_string().contains("made for 4 services"), "{error}");
        index.remove(&numbered(0)).unwrap();
        index.set(&numbered(room), &service(1)).unwrap();
        assert_eq!(index.list().len(), room as usize);

        let maps = Maps::new(2);
        let mut index = maps.index(Duration::ZERO);
        let alike: Vec<_> = (0..)
            .map(numbered)
            .filter(|key| head_of(key, head_shift(2)) == 0)
            .take(MAX_CHAIN + 1)
            .collect();
        for key in &alike[..MAX_CHAIN] {
            index.set(key, &service(1)).unwrap();
        }
        let error = index.set(&alike[MAX_CHAIN], &service(1)).unwrap_err();
        assert!(matches!(error, MapError::CrowdedServices { .. }), "{error}");
        index.set(&alike[3], &service(77)).unwrap();
        assert_eq!(maps.look_up(&alike[3]), Some(service(77)));
        index.remove(&alike[0]).unwrap();
        index.set(&alike[MAX_CHAIN], &service(78)).unwrap();
        assert_eq!(maps.look_up(&alike[MAX_CHAIN]), Some(service(78)));
    }

    #[test]
    fn an_entry_rests_before_it_is_filled_again() {
        let rest = Duration::from_millis(20);
        let maps = Maps::new(16);
        let mut index = maps.index(rest);
        let entries = maps.entries.len() - 1;
        let start = Instant::now();
        // The first takes a new entry each; all that were given up are younger than the rest.
        for number in 0..=entries {
            index.set(&key(0), &service(number + 1)).unwrap();
        }
        assert!(start.elapsed() >= rest);
        let start = Instant::now();
        let mut next = maps.index(rest);
        next.set(&key(0), &service(1000)).unwrap();
        assert!(start.elapsed() >= rest, "another writer may have freed them");
    }

    #[test]
    fn a_read_only_index_is_read() {
        let maps = Maps::new(16);
        maps.index(Duration::ZERO).set(&key(1), &service(1)).unwrap();
        let mut index = ServiceIndex::open(
            maps.heads.clone().read_only(),
            maps.entries.clone(),
            Duration::ZERO,
        );
        assert_eq!(index.get(&key(1)), Some(service(1)));
        assert!(matches!(
            index.set(&key(1), &service(2)),
            Err(MapError::ReadOnly { .. })
        ));
        assert!(matches!(index.remove(&key(1)), Err(MapError::ReadOnly { .. })));
    }
}

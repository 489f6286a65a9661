use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use super::entry::{Entries, Entry, Kind};
use super::{Access, Key};
use crate::anchor::Anchor;
use crate::limits::KEY_CACHE_LINES;
use crate::segment::Segment;
use crate::span::{Bytes, Span};

/// What one user of a table remembers of it: regions by key, with the memory they lie in.
///
/// Whether an entry is still what it was takes one load: each has a version, which moves before anything else does when it is
/// revoked or published. As with a lookup in the table itself, a user announces itself before it looks (see
/// [`Busy`](crate::Busy)), and may then use what it finds until it says that it is done.
///
/// It only ever answers for what is allowed. Whatever it does not find, the table is to be asked: windows are never here, nor is
/// any reason why something is refused.
#[derive(Debug)]
pub struct KeyCache {
    entries: Entries,
    lines: Box<[Option<Line>]>,
}

/// One remembered region. The span is the registered range, so that staying inside the one is staying inside the other.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    key: Key,
    pd: u32,
    version: u32,
    access: Access,
    base: u64,
    region: u32,
    entry: Anchor<Entry>,
    span: Span,
}

impl Line {
    /// Whether it says what the table does of this key.
    #[inline(always)]
    fn is_of(&self, key: Key) -> bool {
        self.key.0 == key.0 && self.entry.version.load(Ordering::Acquire) == self.version
    }
}

impl KeyCache {
    pub(super) fn new(entries: Entries) -> Self {
        Self { entries, lines: (0..KEY_CACHE_LINES).map(|_| None).collect() }
    }

    /// The line of a key.
    #[inline(always)]
    const fn line_of(key: Key) -> usize {
        key.index() as usize % KEY_CACHE_LINES
    }

    /// Where `len` bytes at `va` lie, if it is known that `key` gives all of `rights` on them to a queue pair of `pd`.
    #[inline(always)]
    pub fn find(&self, key: Key, pd: u32, va: u64, len: u64, rights: Access) -> Option<Bytes<'_>> {
        let line = self.lines.get(Self::line_of(key))?.as_ref()?;
        let at = va.wrapping_sub(line.base);
        if line.is_of(key) && line.pd == pd && line.access.contains(rights) {
            // An address below the base has become a large offset.
            line.span.get(at, len)
        } else {
            None
        }
    }

    /// The region of a key that a queue pair of `pd` may use, if it is remembered: for access after access, as long as its user has
    /// announced itself.
    #[inline(always)]
    pub fn known(&self, key: Key, pd: u32) -> Option<Known<'_>> {
        let line = self.lines.get(Self::line_of(key))?.as_ref()?;
        if !line.is_of(key) || line.pd != pd {
            return None;
        }
        let bytes = line.span.get(0, line.span.len())?;
        Some(Known { key, access: line.access, base: line.base, region: line.region, bytes })
    }

    /// The number of a key's region, if it is remembered.
    #[inline]
    pub fn region(&self, key: Key) -> Option<u32> {
        let line = self.lines.get(Self::line_of(key))?.as_ref()?;
        line.is_of(key).then_some(line.region)
    }

    /// Remembers the region of a key, if it is one; `segment` says where the table's numbered regions lie. What was in its place
    /// waits in the line beside, so that two keys can take turns there without a look at anything shared.
    pub fn remember<'a>(
        &mut self,
        key: Key,
        segment: impl FnOnce(u32) -> Option<&'a Arc<Segment>>,
    ) {
        let (line, beside) = (Self::line_of(key), Self::line_of(key) ^ 1);
        let is_in = |at: usize| self.lines[at].as_ref().is_some_and(|line| line.is_of(key));
        if is_in(line) {
            return;
        }
        if is_in(beside) {
            self.lines.swap(line, beside);
        } else if let Some(new) = self.look_up(key, segment) {
            self.lines.swap(line, beside);
            self.lines[line] = Some(new);
        }
    }

    fn look_up<'a>(
        &self,
        key: Key,
        segment: impl FnOnce(u32) -> Option<&'a Arc<Segment>>,
    ) -> Option<Line> {
        let entry = self.entries.anchor(key)?;
        let version = entry.version.load(Ordering::Acquire);
        let record = entry.read(key).ok().filter(|record| record.is(Kind::Region))?;
        // Whoever changed what was read has changed this before.
        fence(Ordering::Acquire);
        if entry.version.load(Ordering::Relaxed) != version {
            return None;
        }
        // The bounds that a peer's table claims are checked against what is mapped.
        let span = Span::new(segment(record.region)?, record.offset, record.length).ok()?;
        let mut access = record.access;
        if !span.is_writable() {
            access.remove(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        }
        Some(Line {
            key,
            pd: record.pd,
            version,
            access,
            base: record.base,
            region: record.region,
            entry,
            span,
        })
    }

    /// Forgets everything, and holds no memory any more: to be called whenever a region comes or goes.
    pub fn clear(&mut self) {
        self.lines.fill_with(|| None);
    }
}

/// A region found by its key. Whoever revokes the key waits for those who had announced themselves before, so that one look at the
/// table does for all accesses until they say that they are done: what is left is the bounds of each.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    key: Key,
    access: Access,
    base: u64,
    region: u32,
    bytes: Bytes<'a>,
}

impl<'a> Known<'a> {
    /// No region, of no key.
    pub const NONE: Self =
        Self { key: Key(0), access: Access::empty(), base: 0, region: 0, bytes: Bytes::NONE };

    /// Whether it is the region of this key.
    #[inline(always)]
    pub const fn is_of(&self, key: Key) -> bool {
        self.key.0 == key.0
    }

    /// Whether its key gives all of these rights.
    #[inline]
    pub const fn allows(&self, rights: Access) -> bool {
        self.access.contains(rights)
    }

    /// Its number.
    #[inline]
    pub const fn region(&self) -> u32 {
        self.region
    }

    /// Where `len` bytes at `va` lie, if the key gives all of `rights` on them.
    #[inline(always)]
    pub fn find(&self, va: u64, len: u64, rights: Access) -> Option<Bytes<'a>> {
        if !self.access.contains(rights) {
            return None;
        }
        // An address below the base has become a large offset.
        self.bytes.part(va.wrapping_sub(self.base), len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemoryTable, PeerTable, Registration, WindowBind, WindowType};
    use super::*;

    const PD: u32 = 7;
    const VA: u64 = 0x7000_0000;

    fn table() -> (MemoryTable, Arc<Segment>) {
        let segment = Arc::new(Segment::private(MemoryTable::bytes(64)).unwrap());
        (MemoryTable::new(&segment, 64, None, crate::os_entropy).unwrap(), segment)
    }

    fn register(table: &MemoryTable, offset: u64, length: u64, access: Access) -> Key {
        let what =
            Registration { region: 3, region_len: 8192, offset, length, va: VA, pd: PD, access };
        table.register(&what).unwrap()
    }

    /// The table's own answer and that of a cache, for every way to ask that differs in one thing.
    #[test]
    fn what_is_remembered_is_what_the_table_says() {
        let (table, shared) = table();
        let peer = PeerTable::import(&shared).unwrap();
        let memory = Arc::new(Segment::private(8192).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let key = register(&table, 4096, 1000, access);
        let (mut own, mut theirs) = (table.cache(), peer.cache());
        assert!(own.find(key, PD, VA, 8, Access::empty()).is_none(), "nobody has looked yet");
        own.remember(key, |id| (id == 3).then_some(&memory));
        theirs.remember(key, |id| (id == 3).then_some(&memory));
        assert_eq!((own.region(key), own.region(Key(key.0 ^ 1))), (Some(3), None));
        let known = own.known(key, PD).unwrap();
        assert_eq!(
            (known.is_of(key), known.is_of(Key(key.0 ^ 1)), known.region()),
            (true, false, 3)
        );

        let start = memory.address();
        for (key, pd) in
            [(key, PD), (key, PD + 1), (Key(key.0 ^ 1), PD), (Key(key.0 ^ 1 << 31), PD)]
        {
            for va in [VA - 1, VA, VA + 1, VA + 999, VA + 1000, VA + 1001, 0, u64::MAX] {
                for len in [1, 8, 999, 1000, 1001, u64::MAX] {
                    for rights in [Access::empty(), Access::REMOTE_READ, Access::REMOTE_WRITE] {
                        let said = peer.check_remote(key, pd, 0, va, len, rights).ok().flatten();
                        let said = said.map(|place| start + place.offset);
                        let found = theirs.find(key, pd, va, len, rights);
                        assert_eq!(found.map(Bytes::address), said);
                        let known = theirs.known(key, pd).unwrap_or(Known::NONE);
                        let found = known.find(va, len, rights);
                        assert_eq!(found.map(Bytes::address), said);
                    }
                    for (write, rights) in [(false, Access::empty()), (true, Access::LOCAL_WRITE)] {
                        let said = table.check_local(key, pd, va, len, write).ok().flatten();
                        let found = own.find(key, pd, va, len, rights);
                        assert_eq!(
                            found.map(Bytes::address),
                            said.map(|place| start + place.offset)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_revoked_key_is_not_found_nor_is_its_successor() {
        let (table, _shared) = table();
        let memory = Arc::new(Segment::private(8192).unwrap());
        let key = register(&table, 0, 64, Access::empty());
        let mut cache = table.cache();
        cache.remember(key, |_| Some(&memory));
        assert!(cache.find(key, PD, VA, 64, Access::empty()).is_some());
        let retired = table.deregister(key).unwrap();
        assert!(cache.find(key, PD, VA, 64, Access::empty()).is_none());
        assert!(cache.known(key, PD).is_none());
        cache.remember(key, |_| Some(&memory));
        assert!(cache.find(key, PD, VA, 64, Access::empty()).is_none());

        // The very same key in the very same place, for something shorter.
        table.reclaim(retired);
        let entry = cache.entries.of(key);
        let record = super::super::entry::Record {
            kind_bits: 0,
            access: Access::empty(),
            pd: PD,
            region: 3,
            qpn: 0,
            offset: 0,
            base: VA,
            length: 8,
        };
        entry.publish(key, Kind::Region, &record);
        assert!(cache.find(key, PD, VA, 64, Access::empty()).is_none());
        assert!(cache.find(key, PD, VA, 8, Access::empty()).is_none(), "the table is to be asked");
        cache.remember(key, |_| Some(&memory));
        assert!(cache.find(key, PD, VA, 8, Access::empty()).is_some());
        assert!(cache.find(key, PD, VA, 9, Access::empty()).is_none());
    }

    #[test]
    fn memory_is_let_go_and_read_only_memory_is_never_written() {
        let (table, _shared) = table();
        let memory = Arc::new(Segment::private(8192).unwrap());
        let key = register(&table, 0, 64, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let mut cache = table.cache();
        cache.remember(key, |_| None);
        assert!(cache.find(key, PD, VA, 8, Access::empty()).is_none());
        cache.remember(key, |_| Some(&memory));
        assert!(cache.find(key, PD, VA, 8, Access::REMOTE_WRITE).is_some());
        cache.remember(key, |_| panic!("known already"));
        assert_eq!(Arc::strong_count(&memory), 2);
        cache.clear();
        assert!(cache.find(key, PD, VA, 8, Access::empty()).is_none());
        assert_eq!(Arc::strong_count(&memory), 1);

        let mut bytes = vec![0_u8; 8192];
        let base = core::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives what is reached through it, and nobody else uses it.
        let fixed = Arc::new(unsafe { Segment::foreign(base, 8192, false) }.unwrap());
        cache.remember(key, |_| Some(&fixed));
        assert!(cache.find(key, PD, VA, 8, Access::empty()).is_some());
        assert!(cache.find(key, PD, VA, 8, Access::REMOTE_WRITE).is_none());
        assert!(cache.find(key, PD, VA, 8, Access::LOCAL_WRITE).is_none());
        // A registration beyond what is mapped is a lie of the table.
        let short = Arc::new(Segment::private(32).unwrap());
        let far = register(&table, 4096, 64, Access::empty());
        cache.remember(far, |_| Some(&short));
        assert!(cache.find(far, PD, VA, 8, Access::empty()).is_none());
        drop((cache, fixed, bytes));
    }

    /// The newest key of a place is found; the one before it is, once it is asked for again; a third one is forgotten.
    #[test]
    fn two_keys_can_take_turns_in_one_place() {
        let segment = Arc::new(Segment::private(MemoryTable::bytes(4096)).unwrap());
        let table = MemoryTable::new(&segment, 4096, None, crate::os_entropy).unwrap();
        let memory = Arc::new(Segment::private(8192).unwrap());
        let keys: Vec<Key> =
            (0..4 * KEY_CACHE_LINES).map(|_| register(&table, 0, 64, Access::empty())).collect();
        let mut same = (0..KEY_CACHE_LINES)
            .map(|line| keys.iter().filter(move |key| KeyCache::line_of(**key) == line))
            .find(|keys| keys.clone().count() >= 3)
            .expect("four keys per line on average")
            .copied();
        let (a, b, c) = (same.next().unwrap(), same.next().unwrap(), same.next().unwrap());
        let mut cache = table.cache();
        let found = |cache: &KeyCache| {
            [a, b, c].map(|key| cache.find(key, PD, VA, 8, Access::empty()).is_some())
        };
        cache.remember(a, |_| Some(&memory));
        assert_eq!(found(&cache), [true, false, false]);
        cache.remember(b, |_| Some(&memory));
        assert_eq!(found(&cache), [false, true, false]);
        for _ in 0..2 {
            cache.remember(a, |_| panic!("known already"));
            assert_eq!(found(&cache), [true, false, false]);
            cache.remember(b, |_| panic!("known already"));
            assert_eq!(found(&cache), [false, true, false]);
        }
        cache.remember(c, |_| Some(&memory));
        assert_eq!(found(&cache), [false, false, true]);
        cache.remember(b, |_| panic!("known already"));
        cache.remember(a, |_| None);
        assert_eq!(found(&cache), [false, true, false], "forgotten");
    }

    #[test]
    fn windows_are_left_to_the_table() {
        let (table, _shared) = table();
        let memory = Arc::new(Segment::private(8192).unwrap());
        let region = register(&table, 0, 64, Access::LOCAL_WRITE | Access::MW_BIND);
        let window = table.alloc_window(PD, WindowType::Type1).unwrap();
        let what = WindowBind { region, va: VA, length: 8, access: Access::REMOTE_WRITE };
        table.bind(window, PD, 1, &what).unwrap();
        assert!(table.check_remote(window, PD, 1, VA, 8, Access::REMOTE_WRITE).is_ok());
        let mut cache = table.cache();
        cache.remember(window, |_| Some(&memory));
        assert!(cache.find(window, PD, VA, 8, Access::REMOTE_WRITE).is_none());
    }
}

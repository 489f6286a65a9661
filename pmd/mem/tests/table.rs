//! The memory table: registration rules, lookups by owner and peer, windows, garbage.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use pmd_mem::table::{
    BindError, DeregisterError, ForeignTable, InvalidateError, Outstanding, PdUse, RegisterError,
    Registration, TableError, WindowBind, WindowType,
};
use pmd_mem::{
    Access, Hugepages, Key, LookupError, MapAccess, Mapping, MemoryTable, Numa, PeerTable, Place,
    Region, RegionSpec, Seal, Segment, page_size,
};
use proptest::prelude::*;

/// splitmix64: keys in tests are as a seed says.
fn seeded(mut state: u64) -> impl FnMut() -> u64 + Send {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn table(capacity: u32) -> MemoryTable {
    let segment = Arc::new(Segment::private(MemoryTable::bytes(capacity)).unwrap());
    MemoryTable::new(&segment, capacity, None, seeded(1)).unwrap()
}

const ALL: Access = Access::all().difference(Access::ZERO_BASED);

/// 4096 bytes at 0x10000, from byte 512 of region 7, in domain 3.
fn registration(access: Access) -> Registration {
    Registration {
        region: 7,
        region_len: 8192,
        offset: 512,
        length: 4096,
        va: 0x10000,
        pd: 3,
        access,
    }
}

#[test]
fn a_registered_range_is_found_and_nothing_beside_it() {
    let table = table(16);
    let key = table.register(&registration(ALL)).unwrap();
    let local = |va, len| table.check_local(key, 3, va, len, true);
    assert_eq!(local(0x10000, 4096), Ok(Some(Place { region: 7, offset: 512 })));
    assert_eq!(local(0x10fff, 1), Ok(Some(Place { region: 7, offset: 512 + 4095 })));
    for (va, len) in [
        (0xffff, 1),
        (0x11000, 1),
        (0x10001, 4096),
        (0, u64::MAX),
        (u64::MAX, 2),
        (0x10000, u64::MAX),
    ] {
        assert_eq!(local(va, len), Err(LookupError::OutOfBounds), "{va:#x} + {len:#x}");
        assert_eq!(
            table.check_remote(key, 3, 0, va, len, Access::REMOTE_READ),
            Err(LookupError::OutOfBounds)
        );
    }
}

#[test]
fn zero_bytes_check_nothing() {
    let table = table(16);
    assert_eq!(table.check_local(Key(0), 99, 5, 0, true), Ok(None));
    assert_eq!(table.check_remote(Key(0xffff_ffff), 99, 5, 5, 0, Access::all()), Ok(None));
}

#[test]
fn rights_and_domains_are_enforced() {
    let table = table(16);
    let read_only = table.register(&registration(Access::REMOTE_READ)).unwrap();
    let remote = |pd, rights| table.check_remote(read_only, pd, 0, 0x10000, 8, rights);
    assert!(remote(3, Access::REMOTE_READ).is_ok());
    assert_eq!(remote(4, Access::REMOTE_READ), Err(LookupError::WrongPd));
    assert_eq!(
        remote(3, Access::REMOTE_WRITE),
        Err(LookupError::NoPermission(Access::REMOTE_WRITE))
    );
    assert_eq!(
        remote(3, Access::REMOTE_READ | Access::REMOTE_ATOMIC),
        Err(LookupError::NoPermission(Access::REMOTE_ATOMIC))
    );
    assert!(table.check_local(read_only, 3, 0x10000, 8, false).is_ok());
    assert_eq!(table.check_local(read_only, 4, 0x10000, 8, false), Err(LookupError::WrongPd));
    assert_eq!(
        table.check_local(read_only, 3, 0x10000, 8, true),
        Err(LookupError::NoPermission(Access::LOCAL_WRITE))
    );
}

#[test]
fn zero_based_regions_count_from_zero() {
    let table = table(16);
    let key = table.register(&registration(Access::LOCAL_WRITE | Access::ZERO_BASED)).unwrap();
    assert_eq!(
        table.check_local(key, 3, 4095, 1, true),
        Ok(Some(Place { region: 7, offset: 512 + 4095 }))
    );
    assert_eq!(table.check_local(key, 3, 0x10000, 1, true), Err(LookupError::OutOfBounds));
}

#[test]
fn bad_registrations_are_refused() {
    let table = table(2);
    let with = |change: fn(&mut Registration)| {
        let mut what = registration(ALL);
        change(&mut what);
        table.register(&what).unwrap_err()
    };
    assert_eq!(with(|r| r.length = 0), RegisterError::Empty);
    let outside: [fn(&mut Registration); 4] = [
        |r| r.length = 7681,
        |r| r.offset = 8193,
        |r| r.length = u64::MAX,
        |r| r.va = u64::MAX - 9,
    ];
    for change in outside {
        assert!(matches!(with(change), RegisterError::OutOfBounds { region_len: 8192, .. }));
    }
    assert_eq!(with(|r| r.access = Access::REMOTE_WRITE), RegisterError::NeedsLocalWrite);
    assert_eq!(with(|r| r.access = Access::REMOTE_ATOMIC), RegisterError::NeedsLocalWrite);
    for _ in 0..2 {
        table.register(&registration(ALL)).unwrap();
    }
    assert_eq!(table.register(&registration(ALL)), Err(RegisterError::TableFull(2)));
    // The last byte of the address space can be registered.
    let one = self::table(2);
    one.register(&Registration { length: 10, va: u64::MAX - 9, ..registration(ALL) }).unwrap();
}

#[test]
fn revoked_keys_stay_dead() {
    let table = table(2);
    let first = table.register(&registration(ALL)).unwrap();
    let retired = table.deregister(first).unwrap();
    assert_eq!(table.check_local(first, 3, 0x10000, 8, true), Err(LookupError::Revoked));
    assert_eq!(
        table.check_local(Key(first.0 ^ 0x8000_0000), 3, 0x10000, 8, true),
        Err(LookupError::UnknownKey)
    );
    assert_eq!(table.deregister(first).unwrap_err(), DeregisterError::UnknownKey);
    table.reclaim(retired);
    let again = table.register(&registration(ALL)).unwrap();
    assert!(table.check_local(first, 3, 0x10000, 8, true).is_err());
    assert!(table.check_local(again, 3, 0x10000, 8, true).is_ok());
}

/// Even if randomness says the same twice, a slot's next key has another index; and index 0 is never issued.
#[test]
fn a_reused_slot_gets_another_index() {
    for constant in [0, 5, u64::MAX] {
        let segment = Arc::new(Segment::private(MemoryTable::bytes(1)).unwrap());
        let table = MemoryTable::new(&segment, 1, None, move || constant).unwrap();
        let mut before = Key(0);
        for _ in 0..20 {
            let key = table.register(&registration(ALL)).unwrap();
            assert_ne!(key.index(), before.index());
            assert_ne!(key.index(), 0);
            table.reclaim(table.deregister(key).unwrap());
            before = key;
        }
    }
}

/// A retired entry is not reused before it is reclaimed.
#[test]
fn retired_entries_wait() {
    let table = table(1);
    let key = table.register(&registration(ALL)).unwrap();
    let retired = table.deregister(key).unwrap();
    assert_eq!(table.register(&registration(ALL)), Err(RegisterError::TableFull(1)));
    table.reclaim(retired);
    table.register(&registration(ALL)).unwrap();
}

/// Keys look random whatever the slot: over 4096 registrations of one table every index bit is set about half the time.
#[test]
fn keys_are_unpredictable_and_never_zero() {
    let table = table(4096);
    let keys: Vec<Key> = (0..4096).map(|_| table.register(&registration(ALL)).unwrap()).collect();
    assert!(keys.iter().all(|key| key.index() != 0));
    for bit in 0..32 {
        let ones = keys.iter().filter(|key| key.0 >> bit & 1 == 1).count();
        // Slot bits are exactly half; for the others eight standard deviations.
        assert!((1792..=2304).contains(&ones), "bit {bit}: {ones} of 4096");
    }
    let ascending =
        keys.windows(2).filter(|pair| pair[0].index() % 4096 + 1 == pair[1].index() % 4096).count();
    assert!(ascending < 20, "slots are not taken in order");
}

#[test]
fn uses_are_accounted_per_domain() {
    let table = table(16);
    let registered = page_size() * (4096_u64 + 512).div_ceil(page_size());
    let mr = table.register(&registration(ALL)).unwrap();
    let other = table.register(&Registration { pd: 4, ..registration(ALL) }).unwrap();
    let mw = table.alloc_window(3, WindowType::Type1).unwrap();
    assert_eq!(table.pd_use(3), PdUse { regions: 1, windows: 1 });
    assert_eq!(table.pd_use(4), PdUse { regions: 1, windows: 0 });
    assert_eq!(table.pd_use(5), PdUse::default());
    assert_eq!(
        table.outstanding(),
        Outstanding { regions: 2, windows: 1, registered_bytes: 2 * registered, free_entries: 13 }
    );
    let retired = table.deregister(mr).unwrap();
    assert_eq!(table.outstanding().registered_bytes, 2 * registered, "pinned until reclaimed");
    table.reclaim(retired);
    table.reclaim(table.free_window(mw.next()).unwrap());
    table.reclaim(table.deregister(other).unwrap());
    assert_eq!(table.outstanding(), Outstanding { free_entries: 16, ..Outstanding::default() });
    assert_eq!(table.pd_use(3), PdUse::default());
}

/// P10: in strict mode the limit is enforced on what is registered, and the error says what to do.
#[test]
fn p10_registering_beyond_memlock_names_limit_request_and_fix() {
    const MIB: u64 = 1 << 20;
    let segment = Arc::new(Segment::private(MemoryTable::bytes(4)).unwrap());
    let bound = pmd_mem::Memlock::Strict.bound(Some(8 * MIB));
    let table = MemoryTable::new(&segment, 4, bound, seeded(1)).unwrap();
    let of = |length| Registration { region_len: 64 * MIB, offset: 0, length, ..registration(ALL) };
    let error = table.register(&of(64 * MIB)).unwrap_err().to_string();
    assert!(error.contains("locked memory limit 8 MiB < 64 MiB requested"), "{error}");
    for fix in
        ["ulimit -l 65536", "LimitMEMLOCK=67108864", "--ulimit memlock=67108864 --cap-add IPC_LOCK"]
    {
        assert!(error.contains(fix), "{error}");
    }
    // What is registered counts; what is given back does not.
    let key = table.register(&of(6 * MIB)).unwrap();
    let error = table.register(&of(4 * MIB)).unwrap_err().to_string();
    assert!(
        error.contains("8 MiB < 10 MiB requested (4 MiB more than the 6 MiB registered)"),
        "{error}"
    );
    table.register(&of(2 * MIB)).unwrap();
    table.reclaim(table.deregister(key).unwrap());
    table.register(&of(6 * MIB)).unwrap();
    assert_eq!(pmd_mem::Memlock::Check.bound(Some(8 * MIB)), None);
}

#[test]
fn impossible_tables_are_refused() {
    let segment = Arc::new(Segment::private(4096).unwrap());
    let new = |capacity| MemoryTable::new(&segment, capacity, None, seeded(1)).unwrap_err();
    assert_eq!(new(0), TableError::Capacity(0));
    assert_eq!(new(12), TableError::Capacity(12));
    assert_eq!(new(1 << 21), TableError::Capacity(1 << 21));
    assert!(matches!(new(64), TableError::Segment(_)));
}

struct Windows {
    table: MemoryTable,
    region: Key,
}

impl Windows {
    fn new(access: Access) -> Self {
        let table = table(16);
        let region = table.register(&registration(access)).unwrap();
        Self { table, region }
    }

    fn part(&self, access: Access) -> WindowBind {
        WindowBind { region: self.region, va: 0x10100, length: 256, access }
    }

    fn write(&self, rkey: Key, qpn: u32, va: u64) -> Result<Option<Place>, LookupError> {
        self.table.check_remote(rkey, 3, qpn, va, 16, Access::REMOTE_WRITE)
    }
}

#[test]
fn a_type_1_window_reaches_its_part_for_every_queue_pair_of_the_domain() {
    let w = Windows::new(ALL);
    let window = w.table.alloc_window(3, WindowType::Type1).unwrap();
    assert_eq!(w.write(window, 1, 0x10100), Err(LookupError::UnknownKey));
    let rkey = window.next();
    w.table.bind(rkey, 3, 1, &w.part(Access::REMOTE_WRITE)).unwrap();
    assert_eq!(w.write(rkey, 1, 0x10100), Ok(Some(Place { region: 7, offset: 512 + 0x100 })));
    assert!(w.write(rkey, 2, 0x101f0).is_ok());
    assert_eq!(w.write(rkey, 1, 0x101f1), Err(LookupError::OutOfBounds));
    assert_eq!(w.write(rkey, 1, 0x100ff), Err(LookupError::OutOfBounds));
    assert_eq!(
        w.table.check_remote(rkey, 4, 1, 0x10100, 16, Access::REMOTE_WRITE),
        Err(LookupError::WrongPd)
    );
    assert!(matches!(
        w.table.check_remote(rkey, 3, 1, 0x10100, 16, Access::REMOTE_READ),
        Err(LookupError::NoPermission(_))
    ));
    // A window gives no local access.
    assert_eq!(w.table.check_local(rkey, 3, 0x10100, 16, false), Err(LookupError::UnknownKey));
    // Bound anew, the old key is dead; bound to nothing, so is the new one.
    w.table.bind(rkey.next(), 3, 1, &w.part(Access::REMOTE_WRITE)).unwrap();
    assert_eq!(w.write(rkey, 1, 0x10100), Err(LookupError::Revoked));
    assert!(w.write(rkey.next(), 1, 0x10100).is_ok());
    w.table.bind(rkey.next(), 3, 1, &WindowBind { length: 0, ..w.part(Access::empty()) }).unwrap();
    assert_eq!(w.write(rkey.next(), 1, 0x10100), Err(LookupError::Revoked));
    assert_eq!(w.table.invalidate(rkey, 3, 1), Err(InvalidateError::Key(LookupError::UnknownKey)));
}

#[test]
fn a_type_2_window_belongs_to_its_queue_pair_until_invalidated() {
    let w = Windows::new(ALL);
    let window = w.table.alloc_window(3, WindowType::Type2).unwrap();
    let rkey = window.with_consumer_byte(0x42);
    assert_eq!(rkey.consumer_byte(), 0x42);
    let zero_based = Access::REMOTE_WRITE | Access::ZERO_BASED;
    w.table.bind(rkey, 3, 9, &w.part(zero_based)).unwrap();
    assert_eq!(w.write(rkey, 9, 0), Ok(Some(Place { region: 7, offset: 512 + 0x100 })));
    assert_eq!(w.write(rkey, 8, 0), Err(LookupError::WrongQp));
    assert_eq!(w.table.bind(rkey.next(), 3, 9, &w.part(zero_based)), Err(BindError::Bound));
    assert_eq!(w.table.invalidate(rkey, 3, 8), Err(InvalidateError::Key(LookupError::WrongQp)));
    assert_eq!(w.table.invalidate(rkey, 4, 9), Err(InvalidateError::Key(LookupError::WrongPd)));
    assert_eq!(w.table.invalidate(w.region, 3, 9), Err(InvalidateError::NotInvalidatable));
    w.table.invalidate(rkey, 3, 9).unwrap();
    assert_eq!(w.write(rkey, 9, 0), Err(LookupError::Revoked));
    assert_eq!(w.table.invalidate(rkey, 3, 9), Err(InvalidateError::Key(LookupError::Revoked)));
    w.table.bind(rkey.next(), 3, 8, &w.part(Access::REMOTE_WRITE)).unwrap();
    assert!(w.write(rkey.next(), 8, 0x10100).is_ok());
    assert_eq!(
        w.table.bind(
            w.table.alloc_window(3, WindowType::Type2).unwrap(),
            3,
            8,
            &WindowBind { length: 0, ..w.part(ALL) }
        ),
        Err(BindError::Empty)
    );
}

#[test]
fn a_region_outlives_the_windows_bound_to_it() {
    let w = Windows::new(ALL);
    let [one, two] =
        [WindowType::Type1, WindowType::Type2].map(|kind| w.table.alloc_window(3, kind).unwrap());
    w.table.bind(one, 3, 1, &w.part(Access::REMOTE_READ)).unwrap();
    w.table.bind(two, 3, 1, &w.part(Access::REMOTE_READ)).unwrap();
    assert_eq!(w.table.deregister(w.region).unwrap_err(), DeregisterError::WindowsBound(2));
    assert!(
        w.table.check_local(w.region, 3, 0x10000, 8, true).is_ok(),
        "a refused deregistration changes nothing"
    );
    w.table.invalidate(two, 3, 1).unwrap();
    assert_eq!(w.table.deregister(w.region).unwrap_err(), DeregisterError::WindowsBound(1));
    w.table.reclaim(w.table.free_window(one).unwrap());
    assert_eq!(
        w.table.check_remote(one, 3, 1, 0x10100, 1, Access::REMOTE_READ),
        Err(LookupError::Revoked)
    );
    w.table.reclaim(w.table.deregister(w.region).unwrap());
    assert_eq!(
        w.table.bind(two, 3, 1, &w.part(Access::REMOTE_READ)),
        Err(BindError::Region(LookupError::Revoked))
    );
    assert_eq!(w.table.free_window(one).unwrap_err(), DeregisterError::UnknownKey);
    assert_eq!(w.table.deregister(two).unwrap_err(), DeregisterError::UnknownKey);
    assert_eq!(w.table.free_window(w.region).unwrap_err(), DeregisterError::UnknownKey);
}

#[test]
fn bad_binds_are_refused_and_change_nothing() {
    let w = Windows::new(ALL);
    let window = w.table.alloc_window(3, WindowType::Type1).unwrap();
    w.table.bind(window, 3, 1, &w.part(Access::REMOTE_WRITE)).unwrap();
    let read = w.part(Access::REMOTE_READ);
    let try_bind = |what: WindowBind| w.table.bind(window.next(), 3, 1, &what).unwrap_err();
    let register =
        |access, pd| w.table.register(&Registration { pd, ..registration(access) }).unwrap();
    assert_eq!(
        try_bind(WindowBind { region: Key(5), ..read }),
        BindError::Region(LookupError::UnknownKey)
    );
    assert_eq!(
        try_bind(WindowBind { region: window, ..read }),
        BindError::Region(LookupError::UnknownKey)
    );
    assert_eq!(try_bind(WindowBind { region: register(ALL, 4), ..read }), BindError::WrongPd);
    assert_eq!(
        try_bind(WindowBind { region: register(Access::LOCAL_WRITE, 3), ..read }),
        BindError::NotBindable
    );
    let zero_based = register(Access::MW_BIND | Access::ZERO_BASED, 3);
    assert_eq!(try_bind(WindowBind { region: zero_based, ..read }), BindError::ZeroBasedRegion);
    let no_write = register(Access::MW_BIND, 3);
    assert_eq!(
        try_bind(WindowBind { region: no_write, access: Access::REMOTE_WRITE, ..read }),
        BindError::Access(Access::REMOTE_WRITE)
    );
    assert_eq!(
        try_bind(WindowBind { access: Access::LOCAL_WRITE, ..read }),
        BindError::Access(Access::LOCAL_WRITE)
    );
    assert_eq!(
        try_bind(WindowBind { va: 0x10f01, ..read }),
        BindError::Region(LookupError::OutOfBounds)
    );
    assert_eq!(w.table.bind(window, 4, 1, &read), Err(BindError::WrongPd));
    assert_eq!(w.table.bind(w.region, 3, 1, &read), Err(BindError::UnknownWindow));
    assert_eq!(
        w.table.bind(Key(window.0 ^ 0x8000_0000), 3, 1, &read),
        Err(BindError::UnknownWindow)
    );
    assert!(w.write(window, 1, 0x10100).is_ok(), "still bound as it was");
    assert_eq!(w.table.deregister(w.region).unwrap_err(), DeregisterError::WindowsBound(1));
}

fn shared(capacity: u32) -> Region {
    let anywhere = Numa::default();
    Region::create(&RegionSpec {
        name: "table",
        len: MemoryTable::bytes(capacity),
        hugepages: Hugepages::None,
        numa: &anywhere,
        seal: Seal::OwnerWritten,
    })
    .unwrap()
}

#[test]
fn a_peer_sees_registrations_and_revocations_through_its_read_only_mapping() {
    let region = shared(64);
    let table = MemoryTable::new(region.segment(), 64, None, seeded(3)).unwrap();
    let mapping =
        Mapping::import(region.read_only_fd().unwrap(), MapAccess::Read, region.len()).unwrap();
    let peer = PeerTable::import(mapping.segment()).unwrap();
    assert!(!peer.needs_full_fence());
    let key = table.register(&registration(ALL)).unwrap();
    let seen = || peer.check_remote(key, 3, 0, 0x10008, 8, Access::REMOTE_READ);
    assert_eq!(seen(), Ok(Some(Place { region: 7, offset: 520 })));
    assert_eq!(peer.check_local(key, 3, 0x10008, 8, false), seen());
    let retired = table.deregister(key).unwrap();
    assert_eq!(seen(), Err(LookupError::Revoked));
    table.reclaim(retired);
    table.require_full_fence();
    assert!(PeerTable::import(mapping.segment()).unwrap().needs_full_fence());
}

#[test]
fn foreign_headers_are_refused() {
    let segment = Arc::new(Segment::private(4096).unwrap());
    let import = || PeerTable::import(&segment).unwrap_err();
    assert_eq!(import(), ForeignTable::Magic);
    drop(MemoryTable::new(&segment, 32, None, seeded(1)).unwrap());
    assert!(PeerTable::import(&segment).is_ok());
    for (capacity, error) in
        [(0, "0 entries"), (33, "33 entries"), (1 << 21, "2097152 entries"), (1 << 20, "cut short")]
    {
        segment.write_at(8, &u32::to_ne_bytes(capacity)).unwrap();
        assert!(import().to_string().contains(error), "{}", import());
    }
    let tiny = Arc::new(Segment::private(8).unwrap());
    assert!(matches!(PeerTable::import(&tiny), Err(ForeignTable::Short(_))));
}

proptest! {
    /// A table full of random bytes answers with an error, or with a place that the segment's own bounds check contains.
    #[test]
    fn garbage_in_a_peers_table_is_contained(
        bytes in proptest::collection::vec(any::<u8>(), 16 * 64),
        asked in any::<u32>(),
        (pd, qpn, va, len) in any::<(u32, u32, u64, u64)>(),
        rights in any::<u32>(),
    ) {
        let segment = Arc::new(Segment::private(MemoryTable::bytes(16)).unwrap());
        drop(MemoryTable::new(&segment, 16, None, seeded(1)).unwrap());
        segment.write_at(64, &bytes).unwrap();
        let peer = PeerTable::import(&segment).unwrap();
        let target = Segment::private(4096).unwrap();
        // The key as asked, and the one that the slot really holds, with its own domain and queue pair.
        let slot = usize::try_from(asked >> 8).unwrap() % 16;
        let field = |at: usize| u32::from_ne_bytes(bytes[slot * 64 + at..][..4].try_into().unwrap());
        let held = Key(field(0) & !0xf00 | u32::try_from(slot).unwrap() << 8);
        segment.write_at(64 + slot as u64 * 64, &held.0.to_ne_bytes()).unwrap();
        for (key, pd, qpn) in [(Key(asked), pd, qpn), (held, field(12), field(20))] {
            for answer in [
                peer.check_remote(key, pd, qpn, va, len, Access::from_bits_truncate(rights)),
                peer.check_remote(key, pd, qpn, va, len, Access::empty()),
                peer.check_local(key, pd, va, len, false),
            ] {
                if let Ok(Some(place)) = answer {
                    let fits = place.offset < 4096 && len <= 4096 - place.offset;
                    prop_assert_eq!(target.fill(place.offset, len, 1).is_ok(), fits);
                }
            }
        }
    }

    /// Register, deregister, bind and look up in any order, against a plain list of what is live.
    #[test]
    fn the_table_agrees_with_a_list(steps in proptest::collection::vec(any::<(u8, u8, u16)>(), 1..80)) {
        let table = table(8);
        let mut live: Vec<(Key, u64)> = Vec::new();
        let mut dead: Vec<Key> = Vec::new();
        for (what, which, length) in steps {
            let length = u64::from(length) % 4096 + 1;
            let which = usize::from(which);
            if what % 3 > 0 {
                match table.register(&Registration { length, ..registration(ALL) }) {
                    Ok(key) => live.push((key, length)),
                    Err(e) => {
                        prop_assert_eq!(e, RegisterError::TableFull(8));
                        prop_assert_eq!(live.len(), 8);
                    }
                }
            } else if !live.is_empty() {
                let (key, _) = live.swap_remove(which % live.len());
                table.reclaim(table.deregister(key).unwrap());
                dead.push(key);
            }
            for &(key, length) in &live {
                prop_assert!(table.check_local(key, 3, 0x10000, length, true).is_ok());
                prop_assert_eq!(table.check_local(key, 3, 0x10000, length + 1, true), Err(LookupError::OutOfBounds));
            }
            for &key in &dead {
                let reissued = live.iter().any(|(live, _)| *live == key);
                prop_assert_eq!(table.check_local(key, 3, 0x10000, 1, true).is_ok(), reissued);
            }
            prop_assert_eq!(table.outstanding().regions as usize, live.len());
        }
    }
}

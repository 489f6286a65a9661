//! A store in real files: on a disk, in memory, cut, full, and where the kernel allows no ring.

#![expect(clippy::unwrap_used, reason = "tests: a panic is a failure")]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_block::{
    Backend, Direct, Done, FileBackend, FileSpec, IoError, Kind, Layout, OpenError, Place, Request,
    SubmitError, Submitted,
};
use pmd_mem::Segment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// A block, aligned for any device.
const BLOCK: u32 = 4096;
const MIB: u64 = 1 << 20;
/// Set in the process that a test starts from itself, to where it may write.
const CHILD: &str = "PMD_BLOCK_TEST_CHILD";

/// A folder on a disk, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("store")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the folder is ours");
    }
}

fn memory() -> Arc<Segment> {
    Arc::new(Segment::private(MIB).unwrap())
}

fn spec(place: Place<'_>) -> FileSpec<'_> {
    FileSpec { place, size: Some(4 * MIB), overwrite: false, direct: Direct::Auto, depth: 32 }
}

fn open(spec: &FileSpec<'_>, memory: &Arc<Segment>) -> Result<FileBackend, OpenError> {
    FileBackend::open(spec, memory, 0..memory.len())
}

/// A store that is opened again is the same one; another file of the same name is not, and one without a name ends.
#[test]
fn a_store_is_known_again() {
    let (folder, memory) = (Folder::new("identity"), memory());
    let (path, other) = (folder.file(), folder.0.join("other"));
    let identity = |place| open(&spec(place), &memory).unwrap().identity();
    let first = identity(Place::Path(&path));
    assert!(first.is_some());
    assert_eq!(identity(Place::Path(&path)), first);
    assert_ne!(identity(Place::Path(&other)), first);
    fs::remove_file(&path).unwrap();
    assert_ne!(identity(Place::Path(&path)), first, "made anew, it holds nothing");
    assert_eq!(identity(Place::Unnamed(&folder.0)), None);
    assert_eq!(pmd_block::Memory::new(MIB).identity(), None);
}

fn request(kind: Kind, offset: u64, len: u32, buffer: u64, token: u64) -> Request {
    Request { kind, offset, len, buffer, token }
}

/// Waits for so many requests to end.
fn drain(file: &mut FileBackend, count: usize) -> Vec<Done> {
    let deadline = Instant::now() + PATIENCE;
    let mut ended = Vec::new();
    while ended.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} ended", ended.len());
        file.start().unwrap();
        file.poll(&mut |done| ended.push(done)).unwrap();
    }
    ended.sort_by_key(|done| done.token);
    ended
}

fn one(file: &mut FileBackend, request: &Request) -> Result<(), IoError> {
    assert_eq!(file.submit(request), Ok(Submitted::Pending));
    let ended = drain(file, 1);
    assert_eq!(ended[0].token, request.token);
    ended[0].result
}

/// Writes blocks, flushes, reads them back elsewhere in memory, and finds them in the file.
fn goes_round(spec: &FileSpec<'_>) {
    let memory = memory();
    let mut file = open(spec, &memory).unwrap();
    assert_eq!((file.len(), file.layout()), (4 * MIB, Layout::Buffers));
    let place = |number: u64| number * u64::from(BLOCK);
    for number in 0..16 {
        let byte = u8::try_from(number + 1).unwrap();
        memory.fill(place(number), u64::from(BLOCK), byte).unwrap();
        // Blocks land in the file in the opposite order.
        let write = request(Kind::Write, place(15 - number), BLOCK, place(number), number);
        assert_eq!(file.submit(&write), Ok(Submitted::Pending));
    }
    assert_eq!(file.in_flight(), 16);
    let ended = drain(&mut file, 16);
    assert!(ended.iter().enumerate().all(|(at, done)| done.token == at as u64), "{ended:?}");
    assert!(ended.iter().all(|done| done.result == Ok(())), "{ended:?}");
    assert_eq!(one(&mut file, &request(Kind::Flush, 0, 0, 0, 99)), Ok(()));
    for number in 0..16 {
        let read = request(Kind::Read, place(number), BLOCK, place(32 + number), number);
        assert_eq!(file.submit(&read), Ok(Submitted::Pending));
    }
    assert!(drain(&mut file, 16).iter().all(|done| done.result == Ok(())));
    for number in 0..16 {
        let byte = u8::try_from(16 - number).unwrap();
        assert!(memory.eq_at(place(32 + number), &[byte; BLOCK as usize]).unwrap());
    }
    assert_eq!(file.in_flight(), 0);
}

#[test]
fn on_a_disk_without_the_page_cache() {
    let folder = Folder::new("direct");
    let path = folder.file();
    goes_round(&FileSpec { direct: Direct::Require, ..spec(Place::Path(&path)) });
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, 4 * MIB);
    assert_eq!((bytes[0], bytes[15 * BLOCK as usize], bytes[16 * BLOCK as usize]), (16, 1, 0));
}

#[test]
fn on_a_disk_with_the_page_cache() {
    let folder = Folder::new("buffered");
    goes_round(&FileSpec { direct: Direct::Off, ..spec(Place::Path(&folder.file())) });
}

#[test]
fn in_a_file_system_in_memory() {
    let path = Path::new("/dev/shm");
    let unnamed = spec(Place::Unnamed(path));
    goes_round(&unnamed);
    let memory = memory();
    assert_eq!(open(&unnamed, &memory).unwrap().direct_align(), None);
    let strict = FileSpec { direct: Direct::Require, ..unnamed };
    let error = open(&strict, &memory).unwrap_err();
    assert!(matches!(error, OpenError::NoDirect { .. }), "{error}");
    assert!(error.to_string().contains("set direct = \"auto\" or \"off\""), "{error}");
}

#[test]
fn a_file_without_a_name_leaves_nothing() {
    let folder = Folder::new("unnamed");
    goes_round(&spec(Place::Unnamed(&folder.0)));
    let memory = memory();
    let file = open(&spec(Place::Unnamed(&folder.0)), &memory).unwrap();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "while it is open");
    assert_eq!(file.path(), folder.0);
}

#[test]
fn what_is_not_aligned_goes_through_the_page_cache_or_is_refused() {
    let folder = Folder::new("unaligned");
    let (path, memory) = (folder.file(), memory());
    let auto = spec(Place::Path(&path));
    let unaligned = [
        request(Kind::Write, 1, 100, 0, 1),
        request(Kind::Write, 0, 100, 0, 1),
        request(Kind::Write, 0, BLOCK, 1, 1),
    ];
    memory.fill(0, MIB, 7).unwrap();
    {
        let mut file = open(&auto, &memory).unwrap();
        assert!(file.direct_align().is_some_and(|align| align <= BLOCK), "a disk");
        for write in &unaligned {
            assert_eq!(one(&mut file, write), Ok(()));
            let read = Request { kind: Kind::Read, buffer: 65_537, ..*write };
            assert_eq!(one(&mut file, &read), Ok(()));
            assert!(memory.eq_at(65_537, &vec![7; write.len as usize]).unwrap());
        }
        // What the page cache took is seen without it.
        assert_eq!(one(&mut file, &request(Kind::Read, 0, BLOCK, 8192, 1)), Ok(()));
        assert!(memory.eq_at(8192, &[7; BLOCK as usize]).unwrap());
    }
    let mut strict = open(&FileSpec { direct: Direct::Require, ..auto }, &memory).unwrap();
    let align = strict.direct_align().unwrap();
    for write in &unaligned {
        assert_eq!(strict.submit(write), Err(SubmitError::Misaligned { align }));
    }
    assert_eq!(strict.in_flight(), 0);
}

#[test]
fn ranges_outside_and_more_than_the_depth_are_refused() {
    let (memory, folder) = (memory(), Folder::new("refused"));
    let path = folder.file();
    let mut file = open(&FileSpec { depth: 2, ..spec(Place::Path(&path)) }, &memory).unwrap();
    for (offset, buffer) in [(4 * MIB - 1, 0), (u64::MAX, 0), (0, MIB - 1), (0, u64::MAX)] {
        let outside = request(Kind::Read, offset, BLOCK, buffer, 1);
        assert_eq!(file.submit(&outside), Err(SubmitError::OutOfRange), "{outside:?}");
    }
    for token in 0..2 {
        let read = request(Kind::Read, 0, BLOCK, 0, token);
        assert_eq!(file.submit(&read), Ok(Submitted::Pending));
    }
    assert_eq!(file.submit(&request(Kind::Flush, 0, 0, 0, 3)), Err(SubmitError::Full));
    assert_eq!(drain(&mut file, 2).len(), 2);
    assert_eq!(one(&mut file, &request(Kind::Flush, 0, 0, 0, 3)), Ok(()));
}

/// Requests use the bytes that were named at the start, and no others of the segment.
#[test]
fn buffers_are_a_part_of_their_segment() {
    let (memory, folder) = (memory(), Folder::new("part"));
    let path = folder.file();
    let part = 65_536..131_072;
    let mut file = FileBackend::open(&spec(Place::Path(&path)), &memory, part).unwrap();
    assert!(file.has_registered_buffers());
    memory.fill(0, MIB, 9).unwrap();
    assert_eq!(one(&mut file, &request(Kind::Read, 0, BLOCK, 61_440, 1)), Ok(()));
    assert!(memory.eq_at(65_536 + 61_440, &[0; BLOCK as usize]).unwrap());
    assert!(memory.eq_at(61_440, &[9; BLOCK as usize]).unwrap());
    let outside = request(Kind::Read, 0, BLOCK, 65_536 - 1, 1);
    assert_eq!(file.submit(&outside), Err(SubmitError::OutOfRange));
}

/// Who naps is woken: the descriptor is readable when, and only when, something has ended.
#[test]
fn a_nap_ends_with_what_is_done() {
    let (memory, folder) = (memory(), Folder::new("nap"));
    let path = folder.file();
    let mut file = open(&spec(Place::Path(&path)), &memory).unwrap();
    assert!(file.fd().is_none(), "nothing to wait for");
    for token in 0..3 {
        let read = request(Kind::Read, 0, BLOCK, 0, token);
        assert_eq!(file.submit(&read), Ok(Submitted::Pending));
        file.start().unwrap();
        let mut waits = [PollFd::from_borrowed_fd(file.fd().unwrap(), PollFlags::IN)];
        let patience = Timespec::try_from(PATIENCE).unwrap();
        assert_eq!(poll(&mut waits, Some(&patience)).unwrap(), 1, "it becomes readable");
        assert_eq!(drain(&mut file, 1)[0].token, token);
        assert!(file.fd().is_none());
    }
}

/// Closing with requests in flight waits for them.
#[test]
fn closing_ends_what_is_in_flight() {
    let (memory, folder) = (memory(), Folder::new("closing"));
    let path = folder.file();
    let mut file = open(&spec(Place::Path(&path)), &memory).unwrap();
    memory.fill(0, MIB, 3).unwrap();
    for number in 0..32_u64 {
        let place = number * u64::from(BLOCK);
        let write = request(Kind::Write, place, BLOCK, place, number);
        assert_eq!(file.submit(&write), Ok(Submitted::Pending));
    }
    file.start().unwrap();
    drop(file);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes[..32 * BLOCK as usize].iter().all(|byte| *byte == 3));
}

/// Nothing to submit and nothing to reap costs no system call, and a file that is idle says so.
#[test]
fn an_idle_file_does_nothing() {
    let (memory, folder) = (memory(), Folder::new("idle"));
    let path = folder.file();
    let mut file = open(&spec(Place::Path(&path)), &memory).unwrap();
    file.start().unwrap();
    assert_eq!(file.poll(&mut |done| panic!("{done:?}")).unwrap(), 0);
    assert_eq!(file.in_flight(), 0);
}

#[test]
fn a_file_that_is_cut_meanwhile() {
    let (memory, folder) = (memory(), Folder::new("cut"));
    let path = folder.file();
    let mut file = open(&spec(Place::Path(&path)), &memory).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(MIB + 512).unwrap();
    let read = |offset| request(Kind::Read, offset, BLOCK, 0, 1);
    assert_eq!(one(&mut file, &read(MIB - u64::from(BLOCK))), Ok(()));
    assert_eq!(one(&mut file, &read(MIB)), Err(IoError::Short { done: 512 }));
    assert_eq!(one(&mut file, &read(2 * MIB)), Err(IoError::Short { done: 0 }));
    // A file that vanishes from its folder is still there for who has it open.
    fs::remove_file(&path).unwrap();
    assert_eq!(one(&mut file, &request(Kind::Write, 0, BLOCK, 0, 1)), Ok(()));
}

#[test]
fn files_that_cannot_be_a_store() {
    let (memory, folder) = (memory(), Folder::new("bad"));
    let path = folder.file();
    let refused = |spec: &FileSpec<'_>| open(spec, &memory).unwrap_err();
    let error = refused(&spec(Place::Path(Path::new("/nonexistent/store"))));
    assert!(error.to_string().contains("cannot open `/nonexistent/store`: No such file"));
    assert!(matches!(refused(&spec(Place::Path(&folder.0))), OpenError::Open { .. }));
    assert!(matches!(refused(&spec(Place::Path(Path::new("/dev/null")))), OpenError::Kind { .. }));
    let empty = FileSpec { size: None, ..spec(Place::Path(&path)) };
    assert!(matches!(refused(&empty), OpenError::Empty { .. }));
    let first = open(&spec(Place::Path(&path)), &memory).unwrap();
    let error = refused(&spec(Place::Path(&path)));
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    drop(first);
    // What is there is kept, and its length is that of the store.
    let again = FileSpec { size: None, ..spec(Place::Path(&path)) };
    assert_eq!(open(&again, &memory).unwrap().len(), 4 * MIB);
    let smaller = FileSpec { size: Some(MIB), ..spec(Place::Path(&path)) };
    assert_eq!(open(&smaller, &memory).unwrap().len(), MIB);
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 * MIB);
}

/// What a file holds is lost only where somebody says so: neither changed nor grown otherwise.
#[test]
fn a_file_that_is_no_store_is_left_alone() {
    let (memory, folder) = (memory(), Folder::new("foreign"));
    let path = folder.file();
    let words = b"root:x:0:0:root:/root:/bin/bash\n";
    fs::write(&path, words).unwrap();
    for size in [None, Some(4 * MIB), Some(1)] {
        let error = open(&FileSpec { size, ..spec(Place::Path(&path)) }, &memory).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
        assert!(
            error.to_string().contains("set overwrite = true to lose what it holds"),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), words);
    }
    let told = FileSpec { overwrite: true, ..spec(Place::Path(&path)) };
    assert_eq!(open(&told, &memory).unwrap().len(), 4 * MIB);
    // From now on it is a store.
    let mut store = open(&spec(Place::Path(&path)), &memory).unwrap();
    assert_eq!(one(&mut store, &request(Kind::Write, 0, BLOCK, 0, 1)), Ok(()));
    drop(store);
    assert_eq!(open(&spec(Place::Path(&path)), &memory).unwrap().len(), 4 * MIB);
    // A copy of it is not known to be one.
    let copy = folder.0.join("copy");
    fs::write(&copy, fs::read(&path).unwrap()).unwrap();
    let error = open(&spec(Place::Path(&copy)), &memory).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
}

/// Runs this test again in a process of its own, by way of `command`.
fn again(test: &str, command: &[&str], folder: &Path) {
    let mut words: Vec<OsString> = command.iter().map(OsString::from).collect();
    words.push(env::current_exe().unwrap().into());
    words.extend(["--exact", test, "--nocapture"].map(OsString::from));
    let mut child = Command::new(&words[0]);
    let output = child.args(&words[1..]).env(CHILD, folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{error}");
}

/// A disk of 1 MiB: what cannot be reserved is refused at the start, what cannot be written fails its request alone.
#[test]
fn a_full_disk() {
    let Some(disk) = env::var_os(CHILD).map(PathBuf::from) else {
        let folder = Folder::new("full");
        let mount = "mount -t tmpfs -o size=1m none \"$0\" && exec \"$@\"";
        let disk = folder.0.display().to_string();
        return again("a_full_disk", &["unshare", "--mount", "sh", "-c", mount, &disk], &folder.0);
    };
    let memory = memory();
    let path = disk.join("store");
    let error = open(&spec(Place::Path(&path)), &memory).unwrap_err();
    assert!(matches!(error, OpenError::Size { .. }), "{error}");
    assert!(error.to_string().contains("4194304 bytes large: No space left"), "{error}");
    // A file with holes takes no room until it is written.
    fs::File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let holes = FileSpec { size: None, ..spec(Place::Path(&path)) };
    let mut file = open(&holes, &memory).unwrap();
    let half = u32::try_from(MIB / 2).unwrap();
    assert_eq!(one(&mut file, &request(Kind::Write, 0, half, 0, 1)), Ok(()));
    let mut write = |offset| one(&mut file, &request(Kind::Write, offset, half, 0, 1));
    let errno = libc::ENOSPC;
    let refused: Vec<_> = [MIB, 2 * MIB].map(&mut write).into_iter().collect();
    assert!(refused.contains(&Err(IoError::NoSpace { errno })), "{refused:?}");
    assert_eq!(one(&mut file, &request(Kind::Read, 0, half, 0, 1)), Ok(()));
}

/// A process that may not write beyond 2 MiB of a file.
#[test]
fn a_limit_of_file_size() {
    if env::var_os(CHILD).is_none() {
        return again("a_limit_of_file_size", &["env"], Path::new("/"));
    }
    let (memory, folder) = (memory(), Folder::new("limit"));
    let path = folder.file();
    let mut file = open(&spec(Place::Path(&path)), &memory).unwrap();
    // SAFETY: ignoring a signal runs no code; it would end the process otherwise.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = rustix::process::Rlimit { current: Some(2 * MIB), maximum: Some(2 * MIB) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let write = |offset| request(Kind::Write, offset, BLOCK, 0, 1);
    assert_eq!(one(&mut file, &write(0)), Ok(()));
    let errno = libc::EFBIG;
    assert_eq!(one(&mut file, &write(2 * MIB)), Err(IoError::NoSpace { errno }));
}

/// A container whose seccomp profile refuses io_uring: an answer at the start that says what to do.
#[test]
fn a_kernel_that_allows_no_ring() {
    let word = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    for (errno, fix) in
        [(libc::EPERM, "kernel.io_uring_disabled=0"), (libc::ENOSYS, "use backend = \"memory\"")]
    {
        let number = u32::try_from(libc::SYS_io_uring_setup).unwrap();
        let answer = libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap();
        let mut filter = [
            word(LOAD, 0, 0, 0),
            word(JUMP_EQUAL, 0, 1, number),
            word(RETURN, 0, 0, answer),
            word(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        // A thread's filter ends with the thread.
        let error = std::thread::spawn(move || {
            let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            // SAFETY: it only gives up privileges of this thread.
            let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(given_up, 0);
            // SAFETY: the program and its four words live until the call returns, which copies them.
            let filtered = unsafe {
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
            };
            assert_eq!(filtered, 0, "{}", std::io::Error::last_os_error());
            let (memory, folder) = (memory(), Folder::new(&format!("seccomp{errno}")));
            open(&spec(Place::Path(&folder.file())), &memory).unwrap_err().to_string()
        });
        let error = error.join().unwrap();
        assert!(error.starts_with("the kernel makes no io_uring: "), "{error}");
        assert!(error.contains(fix), "{error}");
    }
}

//! The locked-memory limit, as a NIC's driver would enforce it.

use std::process::Command;

use pmd_mem::Memlock;
use pmd_verbs::{Access, Device, DeviceConfig, WireChoice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::region;

const CHILD: &str = "PMD_VERBS_MEMLOCK_CHILD";
const MIB: u64 = 1 << 20;

/// P10: in a process that may lock 8 MiB, registering 64 MiB fails, and the text has both numbers
/// and what raises the limit; what fits is registered, and without `strict` nothing is limited.
#[test]
fn p10_registering_beyond_the_limit_names_both_numbers_and_the_fix() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let itself = std::env::current_exe().unwrap();
    let name = "memlock::p10_registering_beyond_the_limit_names_both_numbers_and_the_fix";
    let output = Command::new(itself)
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("locked memory limit 8 MiB < 64 MiB requested"), "{text}");
}

/// Lowers the limit of this whole process, which is why it has one of its own.
fn child() {
    let limit = Rlimit { current: Some(8 * MIB), ..getrlimit(Resource::Memlock) };
    setrlimit(Resource::Memlock, limit).unwrap();
    let open = |memlock| {
        let config = DeviceConfig { wire: WireChoice::Udp, memlock, ..DeviceConfig::default() };
        Device::open(&config).unwrap().context(0).unwrap().alloc_pd()
    };
    let (strict, lenient) = (open(Memlock::Strict), open(Memlock::Check));
    let memory = region(64 * MIB);
    let error = strict.register(&memory, 0, 64 * MIB, Access::LOCAL_WRITE).unwrap_err().to_string();
    eprintln!("{error}");
    assert!(error.contains("ulimit -l") && error.contains("LimitMEMLOCK="), "{error}");
    assert!(error.contains("--cap-add"), "{error}");
    let first = strict.register(&memory, 0, 6 * MIB, Access::LOCAL_WRITE).unwrap();
    let error = strict.register(&memory, 0, 3 * MIB, Access::LOCAL_WRITE).unwrap_err().to_string();
    assert!(error.contains("8 MiB < 9 MiB"), "{error}");
    drop(first);
    strict.register(&memory, 0, 8 * MIB, Access::LOCAL_WRITE).unwrap();
    lenient.register(&memory, 0, 64 * MIB, Access::LOCAL_WRITE).unwrap();
}

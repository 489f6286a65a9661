//! Transports without acknowledgements, where nothing may be lost all the same.

use std::fs;
use std::path::Path;

use crate::bench::{node, report, spinwire, stderr};

const CONFIG: &str = r#"
[memory]
size = "16MiB"
[device.soft0]
kind = "soft"
wire = "shm"
[[lcore]]
name = "lc0"
[[lcore]]
name = "lc1"
[[node]]
name = "pong"
kind = "pingpong"
lcore = "lc0"
device = "soft0"
[[node]]
name = "ping"
kind = "pingpong"
lcore = "lc1"
device = "soft0"
peer = "pong"
transport = "uc"
iters = 20000
"#;

/// Shared memory loses nothing, so what is sent into a receive arrives: no message waits for its time to be over.
#[test]
fn shared_memory_loses_no_message_of_a_pingpong() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unreliable.toml");
    fs::write(&path, CONFIG).expect("the target folder takes files");
    let output = spinwire(&["run", &path.display().to_string(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = report(&output);
    let ping = node(&report, "ping");
    assert_eq!((&ping["messages"], &ping["errors"]), (&20_000.into(), &0.into()), "{ping}");
    fs::remove_file(&path).expect("it is ours");
}

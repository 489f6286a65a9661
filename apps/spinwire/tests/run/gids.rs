//! Which addresses the ends of a connection use, and how they are chosen.

use serde_json::Value;

use crate::bench::{Input, Running, config, free_address, node, report, spinwire, stderr};

/// The table that `spinwire devices` prints.
fn table() -> Vec<Value> {
    let listed = spinwire(&["devices", "--json"]);
    report(&listed)["devices"][0]["ports"][0]["gids"].as_array().expect("a table").clone()
}

/// An end's address: index, address and type are there.
fn is_told(end: &Value) {
    assert!(end["index"].is_u64() && end["address"].is_string(), "{end}");
    assert_eq!(end["type"], "RoCE v2");
}

/// S0-47, P05: reports of both ends say which GID index and which version of RoCE each of them used, whichever way they
/// connected.
#[test]
fn s0_47_reports_name_the_gids_of_both_ends() {
    for connect in ["oob", "cm"] {
        let perf = ["perf", "send-bw", "--wire", "udp", "-n", "9", "--connect", connect, "--json"];
        let output = spinwire(&perf);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let gids = &report(&output)["gids"];
        is_told(&gids["local"]);
        is_told(&gids["remote"]);
        assert_ne!(gids["local"]["address"], gids["remote"]["address"]);
    }
    let input = Input::new("gids", 10_000);
    let address = free_address();
    let (listen, peer) =
        (format!("node.target.listen={address}"), format!("node.client.peer={address}"));
    let server =
        Running::start(&["run", &config("quickstart-server.toml"), "--set", &listen, "--json"]);
    let args =
        ["run", &config("quickstart-client.toml"), "--set", &peer, "--set", &input.set(), "--json"];
    let sent = report(&spinwire(&args));
    let served = report(&server.end());
    let (client, target) = (&node(&sent, "client")["gids"][0], &node(&served, "target")["gids"][0]);
    is_told(&client["local"]);
    assert_eq!((&client["local"], &client["remote"]), (&target["remote"], &target["local"]));
}

/// P05: an index that was asked for wins, is checked against the table, and is what the report says.
#[test]
fn p05_an_index_that_is_asked_for_wins() {
    let table = table();
    let beyond = (table.len() + 99).to_string();
    let shm = ["perf", "send-bw", "--wire", "shm", "-n", "9", "--processes", "1", "--json"];
    let refused = spinwire(&[&shm[..], &["-x", &beyond]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("the GID table has"), "{}", stderr(&refused));
    let run = ["run", &config("quickstart.toml"), "--json"];
    let set = |index: &str| format!("device.soft0.gid_index={index}");
    let refused = spinwire(&[&run[..], &["--set", &set(&beyond)]].concat());
    let told = format!("gid_index = {beyond}: the GID table has");
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    assert!(
        refused.stdout.is_empty() || report(&refused).to_string().contains(&told),
        "{}",
        stderr(&refused)
    );
    assert!(
        format!("{}{}", stderr(&refused), String::from_utf8_lossy(&refused.stdout)).contains(&told)
    );
    // Shared memory needs no socket, so that nobody else's can be in the way.
    let input = Input::new("gid-index", 10_000);
    let one = ["--set", &set("0"), "--set", "device.soft0.wire=shm", "--set", &input.set()]
        .map(str::to_owned);
    let one: Vec<&str> = one.iter().map(String::as_str).collect();
    let ran = spinwire(&[&run[..], &one].concat());
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    let ran = report(&ran);
    let gid = &node(&ran, "client")["gids"][0]["local"];
    assert_eq!((&gid["index"], &gid["address"]), (&Value::from(0), &table[0]["address"]));
}

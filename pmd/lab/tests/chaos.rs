//! Faults at random: whatever happens, and for as long as it is over one day, every request ends, what arrives is what was
//! sent, and the connections come back.

use pmd_lab::{Report, Scenario};
use pmd_sim::Rng;

/// Scenarios of a usual run; more in a run of their own: `SEEDS=10000 cargo test --release -p pmd-lab --test chaos`.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("SEEDS").ok();
    0..asked.map_or(150, |count| count.parse().expect("SEEDS is a number"))
}

fn pick<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.index(words.len())]
}

/// A scenario of two hosts, up to three connections that reconnect, and up to five faults that end.
fn scenario(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let path = pick(&mut rng, &["packets", "packets", "shared"]);
    let mut text = format!("seed = {seed}\nlimit = \"60s\"\n");
    text += "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";
    for qp in 0..rng.between(1, 3) {
        let (timeout, retries) = (rng.between(5, 10), rng.between(0, 7));
        let (depth, rnr) = (rng.between(1, 32), rng.between(0, 6));
        text += &format!(
            "[[qp]]\nname = \"q{qp}\"\nfrom = \"a\"\nto = \"b\"\npath = \"{path}\"\npolicy = \"reconnect\"\n\
             timeout = {timeout}\nretry_cnt = {retries}\nrnr_retry = {rnr}\nmin_rnr_timer = 1\ndepth = {depth}\n"
        );
        for _ in 0..rng.between(1, 3) {
            let op = pick(
                &mut rng,
                &["write", "write", "read", "send", "send-imm", "write-imm", "fetch-add"],
            );
            let size = if op == "fetch-add" { 8 } else { 8 + rng.below(20_000) };
            let (count, every, at) = (rng.between(1, 60), rng.between(1, 500), rng.below(20_000));
            text += &format!(
                "[[work]]\nqp = \"q{qp}\"\nop = \"{op}\"\nsize = {size}\ncount = {count}\nevery = \"{every}us\"\nat = \"{at}us\"\n"
            );
        }
    }
    for _ in 0..rng.between(0, 5) {
        let at = rng.below(25_000);
        let until = at + rng.between(1, 40_000);
        let side = pick(&mut rng, &["a", "b"]);
        let frames =
            |deed: &str, filter: &str| format!("match = {{ {filter} }}\ndo = \"{deed}\"\n");
        let (part, nth) = (rng.between(1, 300_000), rng.between(1, 9));
        let mut what = match rng.below(if path == "shared" { 3 } else { 9 }) {
            0 | 1 => format!("to = \"{side}\"\ndo = \"pause\"\n"),
            2 => "to = \"b\"\ndo = \"stop-recv\"\n".to_owned(),
            3 => "from = \"a\"\nto = \"b\"\ndo = \"partition\"\n".to_owned(),
            4 => format!("to = \"{side}\"\ndo = \"port-down\"\n"),
            5 => frames("drop", "opcode = \"acks\""),
            6 => frames("drop", &format!("per_million = {part}")),
            7 => frames("reorder", &format!("every = {nth}")),
            _ => frames(
                pick(&mut rng, &["dup", "corrupt", "delay 2ms"]),
                &format!("per_million = {part}"),
            ),
        };
        what += &format!("at = \"{at}us\"\nuntil = \"{until}us\"\n");
        text += &format!("[[fault]]\n{what}");
    }
    text
}

/// Runs one, and says how often a connection came back.
fn check(seed: u64) -> usize {
    let text = scenario(seed);
    let parsed =
        Scenario::parse("chaos", &text).unwrap_or_else(|report| panic!("{text}\n{report}"));
    let report: Report = pmd_lab::run(&parsed, seed).expect("a world");
    assert!(report.ok, "seed {seed}:\n{text}\n{report}");
    for qp in &report.qps {
        let whole = format!("seed {seed}:\n{text}\n{report}\n{qp:#?}");
        assert!(!qp.statuses.contains_key("open"), "a request never ended; {whole}");
        assert_eq!(qp.states, ["RTS", "RTS"], "it did not come back; {whole}");
    }
    report.qps.iter().map(|qp| qp.recoveries_s.len()).sum()
}

/// P19, P22, S2-16 to S2-20, S4-06, S4-21: 150 scenarios of random faults, work and depths, on both paths.
#[test]
fn p19_random_faults_end_every_request_and_every_connection_comes_back() {
    let middle = seeds().end / 2;
    let recoveries: usize = std::thread::scope(|scope| {
        let parts = [0..middle, middle..seeds().end];
        let threads = parts.map(|part| scope.spawn(|| part.map(check).sum::<usize>()));
        threads.into_iter().map(|thread| thread.join().expect("a scenario holds")).sum()
    });
    // Faults that break nothing would prove nothing.
    assert!(recoveries as u64 > seeds().end / 2, "{recoveries} recoveries");
}

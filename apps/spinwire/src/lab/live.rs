//! `lab replay` of a live run: what its engines were told is told to new ones.

use std::fmt::Write as _;
use std::io::{BufReader, Read};
use std::path::Path;

use pmd_graph::app::{self, Exit, say};
use pmd_graph::regular;
use pmd_verbs::record::{self, Ending, EngineReplay, Replay};
use serde_json::{Value, json};

/// Whether the file begins as the record of a live run does.
pub(super) fn is_record(path: &Path) -> bool {
    let mut magic = [0; record::MAGIC.len()];
    let begins = regular::open(path).and_then(|(mut file, _)| file.read_exact(&mut magic));
    begins.is_ok() && magic == record::MAGIC
}

/// Replays it, and says what differs first.
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn replay(path: &Path, json: bool) -> anyhow::Result<Exit> {
    let played = regular::open(path).map_err(Into::into);
    let played = match played.and_then(|(file, _)| record::replay(BufReader::new(file))) {
        Ok(played) => played,
        Err(error) => {
            say(format_args!("error: {}: {error}", path.display()));
            // What is damaged has been told from what cannot be read.
            let is_damaged = matches!(error, record::ReplayError::Damaged { .. });
            return Ok(if is_damaged { Exit::Failed } else { Exit::Usage });
        }
    };
    if json {
        app::print(&format!("{}\n", to_json(&played)))?;
    } else {
        app::print(&to_text(&played))?;
    }
    Ok(if is_proof(&played) { Exit::Done } else { Exit::Failed })
}

/// Whether the replay says that the run would come out the same again: a record that is damaged or has lost its end, or in
/// which nothing happens, says nothing.
fn is_proof(played: &Replay) -> bool {
    let has_lost_its_end = played.is_torn && matches!(played.ending, Ending::Complete);
    let tells = played.engines.iter().any(|engine| engine.inputs > 0);
    played.is_equal() && tells && !has_lost_its_end && played.damaged.is_none()
}

/// How the record ended, in words; nothing where it ended with its run.
fn ending(played: &Replay) -> Option<String> {
    let torn = if played.is_torn { ", in the middle of a part" } else { "" };
    match &played.ending {
        Ending::Complete if played.is_torn => Some("the rest of it is missing".to_owned()),
        Ending::Complete => None,
        Ending::Open => Some(format!("it has no end: its process was killed, or still runs{torn}")),
        Ending::Cut(reason) => Some(format!("it was cut, and the run went on: {reason}")),
    }
}

fn to_text(played: &Replay) -> String {
    let mut text = String::new();
    for note in &played.notes {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{note}");
    }
    for engine in &played.engines {
        let EngineReplay { name, inputs, outputs, hash, frames_in, frames_out, .. } = engine;
        let equal = if engine.difference.is_some() { "differs" } else { "equal" };
        let seconds = seconds(engine.elapsed_ns);
        let _ = writeln!(
            text,
            "{name}: {equal}: {inputs} inputs, {outputs} outputs, hash {hash:016x}, {seconds:.6} s"
        );
        let counted = |(what, count): (String, &u64)| format!("{count} x {what}");
        let statuses = engine
            .statuses
            .iter()
            .map(|(status, count)| counted((format!("status {status}"), count)));
        let events = engine.events.iter().map(|(name, count)| counted(((*name).to_owned(), count)));
        let came: Vec<String> = statuses.chain(events).collect();
        let came = if came.is_empty() { "no completions".to_owned() } else { came.join(", ") };
        let _ = writeln!(text, "  frames {frames_in} in, {frames_out} out; {came}");
        if let Some(difference) = &engine.difference {
            let _ = writeln!(text, "  {}", difference.to_string().replace('\n', "\n  "));
        }
    }
    if let Some(ending) = ending(played) {
        let _ = writeln!(text, "the record: {ending}");
    }
    if let Some(at) = played.damaged {
        let _ = writeln!(
            text,
            "the record is damaged at byte {at}: the checksum of that part is another one, so what differs from there on may \
             have happened to the file and not to the run"
        );
    }
    text.push_str(match (is_proof(played), played.is_equal()) {
        (true, _) => "replayed exactly: every output is as it was\n",
        (false, true) if played.damaged.is_some() => {
            "no proof: the record is not what was written\n"
        }
        (false, true) => "no proof: what is left of the record is not the whole of it\n",
        (false, false) => "not replayed: see the first difference of each lcore\n",
    });
    text
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

fn to_json(played: &Replay) -> Value {
    let engines = played.engines.iter().map(|engine| {
        let statuses = engine.statuses.iter().map(|(status, count)| (status.to_string(), *count));
        json!({
            "name": engine.name,
            "equal": engine.difference.is_none(),
            "ended": engine.has_ended,
            "inputs": engine.inputs,
            "outputs": engine.outputs,
            "hash": format!("{:016x}", engine.hash),
            "elapsed_s": seconds(engine.elapsed_ns),
            "frames": { "in": engine.frames_in, "out": engine.frames_out },
            "statuses": statuses.collect::<std::collections::BTreeMap<_, _>>(),
            "events": engine.events,
            "difference": engine.difference.as_ref().map(|difference| json!({
                "number": difference.number,
                "at_s": seconds(difference.at_ns),
                "input": difference.input,
                "recorded": difference.recorded,
                "now": difference.now,
            })),
        })
    });
    json!({
        "ok": is_proof(played),
        "ending": ending(played),
        "damaged_at": played.damaged,
        "notes": played.notes,
        "engines": engines.collect::<Vec<_>>(),
    })
}

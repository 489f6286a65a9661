//! Several pipelines, a process each.

use std::env;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::preflight::Keys;
use super::refusal::Refusal;
use super::{App, Exit, RunArgs, of_part, overwrite, pipeline, preflight, signals, single};
use crate::limits::{CONFIG_BYTES_MAX, DRAIN, PART_GRACE, WATCH};
use crate::regular;
use crate::run_dir::{self, Mark, RunDir};

/// One process of the run.
struct Part {
    config: PathBuf,
    child: Child,
    stdout: JoinHandle<std::io::Result<String>>,
    /// How it ended, once it has.
    exit: Option<Option<i32>>,
}

/// Checks every config, then starts a process for each, waits for all, and prints what they print.
pub(super) fn run(app: &App<'_>, args: &RunArgs, configs: &[PathBuf]) -> Result<Exit, Refusal> {
    let interrupt = signals::interrupt()?;
    let tables: Vec<Option<toml::Table>> = configs.iter().map(|path| read(path)).collect();
    let mut commands = Vec::with_capacity(configs.len());
    let (mut outputs, mut inputs, mut owns) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (config, table)) in configs.iter().zip(&tables).enumerate() {
        let sets = addressed(&args.sets.sets, set_target, table.as_ref(), &tables);
        let pipeline = pipeline::open(app.registry, config, &sets, Keys::Later)?;
        let pipeline = pipeline.ok_or_else(Refusal::config)?;
        let fit = pipeline.plan.fit(&pipeline.machine);
        if !fit.fits() {
            return Err(Refusal::unfit(&pipeline.plan, &fit));
        }
        preflight::look(&pipeline.plan)?;
        let faults = addressed(&args.faults, fault_target, table.as_ref(), &tables);
        let asked = args.capture.as_ref().map(|capture| of_part(capture, index));
        let capture = asked.or_else(|| pipeline.plan.observe.capture.clone());
        outputs.extend(capture.map(|capture| ("capture", capture)));
        outputs.extend(args.record.part(index).record.map(|record| ("record", record)));
        inputs.extend(overwrite::inputs(Some(config), &pipeline.plan));
        owns.push(pipeline.plan.observe.run_dir.is_some());
        commands.push(arguments(app, args, index, config, &sets, &faults));
    }
    for (what, output) in &outputs {
        overwrite::refuse(what, Some(output), &inputs)?;
    }
    let run_dir = run_dir(args, configs)?;
    for (index, (arguments, own)) in commands.iter_mut().zip(owns).enumerate() {
        // One that its config gives a directory has that.
        if let Some(run_dir) = run_dir.as_ref().filter(|_| args.run_dir.is_some() || !own) {
            let part = run_dir.path().join(index.to_string());
            arguments.extend(["--run-dir".into(), part.into()]);
            if !run_dir.is_asked() {
                arguments.push("--run-dir-unasked".into());
            }
        }
    }
    let program = env::current_exe().context("cannot find the running executable")?;
    let mut parts = Vec::with_capacity(configs.len());
    for (config, arguments) in configs.iter().zip(commands) {
        parts.push(start(&program, config, &arguments)?);
    }
    wait(&mut parts, &interrupt)?;
    Ok(report(parts, args.json, run_dir.as_ref())?)
}

/// The directory that holds those of the processes.
fn run_dir(args: &RunArgs, configs: &[PathBuf]) -> anyhow::Result<Option<RunDir>> {
    let configs: Vec<String> = configs.iter().map(|config| config.display().to_string()).collect();
    RunDir::open(args.run_dir.as_deref(), &Mark::of_this_process("run", &configs))
}

/// The arguments of one process.
fn arguments(
    app: &App<'_>,
    args: &RunArgs,
    index: usize,
    config: &Path,
    sets: &[String],
    faults: &[String],
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = app.command.iter().map(Into::into).collect();
    arguments.push(config.into());
    arguments.push("--part".into());
    if args.json {
        arguments.push("--json".into());
    }
    if let Some(duration) = args.duration {
        arguments.extend(["--duration".into(), format!("{}ns", duration.as_nanos()).into()]);
    }
    for set in sets {
        arguments.extend(["--set".into(), set.into()]);
    }
    for fault in faults {
        arguments.extend(["--fault".into(), fault.into()]);
    }
    if let Some(capture) = &args.capture {
        arguments.extend(["--capture".into(), of_part(capture, index).into()]);
    }
    if let Some(record) = args.record.part(index).record {
        arguments.extend(["--record".into(), record.into()]);
    }
    if let Some(limit) = args.record.record_limit {
        arguments.extend(["--record-limit".into(), format!("{limit}B").into()]);
    }
    arguments
}

fn start(program: &Path, config: &Path, arguments: &[OsString]) -> anyhow::Result<Part> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Ctrl-C reaches a whole process group: together with what this process passes on it would count as the second.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start a process for {}", config.display()))?;
    let mut out = child.stdout.take().context("a process without output")?;
    // A process whose output nobody reads would wait for ever.
    let stdout = thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    Ok(Part { config: config.to_owned(), child, stdout, exit: None })
}

/// Waits until all have ended. Once one has failed, or the run is to end, the others have a while to notice, then they
/// are told.
fn wait(parts: &mut [Part], interrupt: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut since: Option<Instant> = None;
    let mut told = 0;
    while parts.iter().any(|part| part.exit.is_none()) {
        for part in parts.iter_mut().filter(|part| part.exit.is_none()) {
            if let Some(status) = part.child.try_wait()? {
                part.exit = Some(status.code());
            }
        }
        let failed = parts.iter().any(|part| part.exit.is_some_and(|exit| exit != Some(0)));
        let interrupted = interrupt.load(Ordering::Relaxed);
        if failed || interrupted {
            let since = since.get_or_insert_with(Instant::now).elapsed();
            let patience = if interrupted { Duration::ZERO } else { DRAIN };
            let signals = [(patience, Signal::TERM), (patience + PART_GRACE, Signal::KILL)];
            if let Some((_, signal)) = signals.get(told).filter(|(due, _)| since >= *due) {
                told += 1;
                tell(parts, *signal);
            }
        }
        thread::sleep(WATCH);
    }
    Ok(())
}

fn tell(parts: &[Part], signal: Signal) {
    for part in parts.iter().filter(|part| part.exit.is_none()) {
        let pid = i32::try_from(part.child.id()).ok().and_then(Pid::from_raw);
        // One that has just ended needs no signal.
        pid.map(|pid| kill_process(pid, signal).ok());
    }
}

fn report(parts: Vec<Part>, as_json: bool, run_dir: Option<&RunDir>) -> anyhow::Result<Exit> {
    let exits: Vec<Option<i32>> = parts.iter().map(|part| part.exit.flatten()).collect();
    let worst = [Exit::Usage, Exit::Unfit, Exit::Failed].into_iter();
    let mut worst = worst.filter(|exit| exits.contains(&Some(i32::from(*exit as u8))));
    let all_done = exits.iter().all(|exit| *exit == Some(0));
    let exit = if all_done { Exit::Done } else { worst.next().unwrap_or(Exit::Failed) };
    if let Some(run_dir) = run_dir {
        let of = |(part, exit): (&Part, &Option<i32>)| json!({ "config": part.config.display().to_string(), "exit": exit });
        let runs: Vec<Value> = parts.iter().zip(&exits).map(of).collect();
        let text = json!({ "ok": all_done, "runs": runs }).to_string();
        if let Err(error) = run_dir.replace(run_dir::REPORT, &text) {
            tracing::warn!("cannot write to {}: {error}", run_dir.path().display());
        }
    }
    match show(parts, all_done, as_json)? {
        Ok(()) => Ok(exit),
        Err(error) => Ok(pipeline::unwritten(&error)),
    }
}

/// Prints what the processes have printed.
fn show(parts: Vec<Part>, ok: bool, as_json: bool) -> anyhow::Result<std::io::Result<()>> {
    let mut runs = Vec::with_capacity(parts.len());
    for part in parts {
        let text =
            part.stdout.join().map_err(|_| anyhow::anyhow!("reading an output panicked"))??;
        if !as_json {
            let printed = pipeline::print(&format!("{}:\n{text}\n", part.config.display()));
            if printed.is_err() {
                return Ok(printed);
            }
            continue;
        }
        runs.push(match serde_json::from_str::<Value>(&text) {
            Ok(Value::Object(mut run)) => {
                run.insert("config".to_owned(), json!(part.config.display().to_string()));
                Value::Object(run)
            }
            _ => single::failed(&part.config, part.exit.flatten()),
        });
    }
    if !as_json {
        return Ok(Ok(()));
    }
    Ok(pipeline::print(&format!("{}\n", json!({ "ok": ok, "runs": runs }))))
}

fn read(path: &Path) -> Option<toml::Table> {
    // What cannot be read or parsed is complained about where it is opened.
    let (file, _) = regular::open(path).ok()?;
    std::io::read_to_string(file.take(CONFIG_BYTES_MAX)).ok()?.parse().ok()
}

/// Of `texts`, those that concern the config of `table`: they name something of it, or nothing, or something that no
/// config has, which each of them then complains about.
fn addressed(
    texts: &[String],
    target: fn(&str) -> Option<(&'static str, String)>,
    table: Option<&toml::Table>,
    all: &[Option<toml::Table>],
) -> Vec<String> {
    let has = |table: Option<&toml::Table>, (what, name): &(&str, String)| {
        table.is_some_and(|table| declares(table, what, name))
    };
    let concerns = |text: &&String| {
        target(text).is_none_or(|target| {
            has(table, &target) || !all.iter().any(|other| has(other.as_ref(), &target))
        })
    };
    texts.iter().filter(concerns).cloned().collect()
}

/// Whether a config declares a node, lcore or device of this name.
fn declares(table: &toml::Table, what: &str, name: &str) -> bool {
    match table.get(what) {
        Some(toml::Value::Table(named)) => named.contains_key(name),
        Some(toml::Value::Array(list)) => {
            list.iter().any(|entry| entry.get("name").and_then(toml::Value::as_str) == Some(name))
        }
        _ => false,
    }
}

/// What a `--set` names: `node.NAME.key=V`.
fn set_target(text: &str) -> Option<(&'static str, String)> {
    let (path, _) = text.split_once('=')?;
    let mut words = path.split('.');
    let what = words.next()?;
    let what = ["node", "lcore", "device"].into_iter().find(|known| *known == what)?;
    Some((what, words.next()?.to_owned()))
}

/// Which node a fault names: `flip NODE OFFSET`, `hang NODE`, `… to NODE`, `… from NODE`.
fn fault_target(text: &str) -> Option<(&'static str, String)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let behind = |word: &str| words.iter().position(|other| *other == word);
    let at = match words.first() {
        Some(&("flip" | "hang")) => 1,
        _ => behind("to").or_else(|| behind("from"))? + 1,
    };
    words.get(at).map(|name| ("node", (*name).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "[device.soft0]\nkind = \"soft\"\n[[node]]\nname = \"target\"\n";
    const CLIENT: &str = "[device.soft0]\nkind = \"soft\"\n[[node]]\nname = \"client\"\n";

    #[test]
    fn settings_and_faults_go_where_their_names_are() {
        let tables = [SERVER, CLIENT].map(|text| text.parse::<toml::Table>().ok());
        let sets =
            ["node.client.depth=8", "device.soft0.wire=udp", "memory.size=1GiB", "node.x.y=1"]
                .map(str::to_owned);
        let of = |index: usize| addressed(&sets, set_target, tables[index].as_ref(), &tables);
        assert_eq!(of(0), ["device.soft0.wire=udp", "memory.size=1GiB", "node.x.y=1"]);
        assert_eq!(of(1), sets);
        let faults =
            ["flip target 7", "drop acks", "dup all from client", "hang target"].map(str::to_owned);
        let of = |index: usize| addressed(&faults, fault_target, tables[index].as_ref(), &tables);
        assert_eq!(of(0), ["flip target 7", "drop acks", "hang target"]);
        assert_eq!(of(1), ["drop acks", "dup all from client"]);
    }
}

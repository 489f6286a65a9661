//! The usual place of run directories: a directory per run, a link to the newest, and no more of them than a number.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, anyhow};

use super::{FILES, Mark, SERVER};
use crate::limits::RUNS_KEPT;

/// `$XDG_STATE_HOME/spinwire`, as the XDG base directory specification has it.
fn state() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("spinwire"))
}

/// Where the newest run of this user left its directory: `$XDG_STATE_HOME/spinwire/last`.
pub fn last() -> Option<PathBuf> {
    state().map(|state| state.join("last"))
}

/// A directory for this run alone; the oldest ones beyond [`RUNS_KEPT`] go.
pub(super) fn fresh() -> anyhow::Result<PathBuf> {
    let state = state().ok_or_else(|| anyhow!("neither XDG_STATE_HOME nor HOME is set"))?;
    let runs = state.join("runs");
    fs::create_dir_all(&runs).with_context(|| format!("cannot make {}", runs.display()))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = format!("{}-{}", stamp(now.as_secs()), std::process::id());
    prune(&runs, RUNS_KEPT - 1);
    // Two runs of one process in one second.
    let names =
        (0..100).map(|again| if again == 0 { name.clone() } else { format!("{name}-{again}") });
    for name in names {
        let path = runs.join(name);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        }
    }
    Err(anyhow!("a hundred runs of this process in one second"))
}

/// Has `last` lead to a run, in one step.
pub(super) fn lead_to(run: &Path) {
    let (Some(last), Some(name)) = (last(), run.file_name()) else { return };
    let led = replace_link(&last, &Path::new("runs").join(name));
    if let Err(error) = led {
        tracing::warn!("cannot have {} lead to this run: {error}", last.display());
    }
}

fn replace_link(link: &Path, to: &Path) -> io::Result<()> {
    let draft = link.with_file_name(format!(".last.{}", std::process::id()));
    // One of a process of this number that was killed.
    drop(fs::remove_file(&draft));
    // What stood here when runs had one directory for all of them becomes the oldest run.
    if fs::symlink_metadata(link).is_ok_and(|old| old.is_dir()) {
        fs::rename(link, link.with_file_name("runs").join(format!("{}-0", stamp(0))))?;
    }
    symlink(to, &draft)?;
    fs::rename(&draft, link).inspect_err(|_| drop(fs::remove_file(&draft)))
}

/// Removes the oldest runs beyond `keep`, those that live apart.
fn prune(runs: &Path, keep: usize) {
    let Ok(entries) = fs::read_dir(runs) else { return };
    let is_run =
        |name: &str| name.len() > 16 && name.as_bytes()[15] == b'Z' && name.as_bytes()[16] == b'-';
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_run(name)).collect();
    // Stamps are in order of time.
    names.sort_unstable();
    let many = names.len().saturating_sub(keep);
    for name in names.iter().take(many) {
        let path = runs.join(name);
        if Mark::read(&path).is_some_and(|mark| mark.process.is_alive()) {
            continue;
        }
        sweep(&path);
        // One that holds files of somebody else stays.
        drop(fs::remove_dir(&path));
    }
}

/// Removes what runs leave in a directory, and nothing else: a directory that no run has marked is somebody's own. What
/// cannot be removed is complained about by whoever wants to replace it.
pub(super) fn sweep(dir: &Path) {
    if Mark::read(dir).is_none() {
        return;
    }
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        let is_part = name == SERVER || name.bytes().all(|byte| byte.is_ascii_digit());
        // A draft of a process that was killed.
        let is_draft = FILES.iter().any(|file| {
            let process = name.strip_prefix('.').and_then(|name| name.strip_prefix(file));
            process
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|pid| pid.parse::<u32>().is_ok())
        });
        // The entry itself: what a link leads to is not ours.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && is_part => {
                sweep(&path);
                drop(fs::remove_dir(&path));
            }
            Ok(kind) if kind.is_file() && (is_draft || FILES.contains(&name)) => {
                drop(fs::remove_file(&path));
            }
            _ => {}
        }
    }
}

/// A time as `20261130T083353Z` (ISO 8601, UTC).
fn stamp(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day comes last; day 0 is 1 March of year 0.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_dates() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_782_400 + 86_399), "20000229T235959Z");
        assert_eq!(stamp(1_764_491_633), "20251130T083353Z");
        assert_eq!(stamp(4_107_542_400), "21000301T000000Z");
    }

    #[test]
    fn the_oldest_go_and_what_is_not_ours_stays() {
        let runs = env::temp_dir().join(format!("spinwire-prune-{}", std::process::id()));
        drop(fs::remove_dir_all(&runs));
        let mut mark = Mark::of_this_process("run", &[]);
        let alive = serde_json::to_string(&mark).unwrap();
        mark.process.started += 1;
        let over = serde_json::to_string(&mark).unwrap();
        let dir = |name: &str| {
            let path = runs.join(name);
            fs::create_dir_all(path.join("0")).unwrap();
            fs::write(path.join("report.json"), "{}").unwrap();
            fs::write(path.join("run.json"), &over).unwrap();
            fs::write(path.join("0/run.json"), &over).unwrap();
            fs::write(path.join("0/journal.jsonl"), "").unwrap();
            fs::write(path.join("0/.status.json.77"), "").unwrap();
        };
        for number in 1..=5 {
            dir(&format!("{}-77", stamp(number)));
        }
        fs::write(runs.join(format!("{}-77/mine", stamp(2))), "").unwrap();
        symlink("/etc", runs.join(format!("{}-77/0/link", stamp(2)))).unwrap();
        fs::write(runs.join(format!("{}-77/run.json", stamp(3))), alive).unwrap();
        dir("someones-directory");
        prune(&runs, 1);
        let mut left: Vec<_> = fs::read_dir(&runs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let named = [2, 3, 5].map(|number| format!("{}-77", stamp(number)));
        assert_eq!(left[..3], named);
        assert_eq!(left[3..], ["someones-directory"]);
        assert!(
            runs.join(&named[1]).join("report.json").exists(),
            "one that lives keeps its files"
        );
        assert!(!runs.join(&named[0]).join("report.json").exists());
        assert!(Path::new("/etc/passwd").exists());
        fs::remove_dir_all(&runs).unwrap();
    }
}

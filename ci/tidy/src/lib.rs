//! The repository's rules, as a test: `cargo test -p tidy`.
//!
//! What a reviewer would otherwise have to say again and again is checked here, over every file
//! that git tracks.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file over this many lines holds more than one idea.
pub const MAX_LINES: usize = 700;

/// Names that say nothing about what lives there.
pub const NAMELESS: [&str; 6] = ["utils", "util", "helpers", "helper", "misc", "manager"];

/// Folders in which `unsafe` may stand, each block with its reason.
pub const UNSAFE_ROOMS: [&str; 5] =
    ["pmd/mem/", "pmd/wire/", "pmd/block/", "pmd/lcore/src/clock", "pmd/verbs/src/rdma_core/"];

/// Words of unfinished or switched-off work.
pub const UNFINISHED: [&str; 6] = ["todo!(", "unimplemented!(", "#[ignore", "FIXME", "XXX", "HACK"];

/// A tracked file and its text.
#[derive(Debug)]
pub struct Tracked {
    /// Path from the repository's root.
    pub path: String,
    /// Content; empty for binary files.
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file that git tracks.
///
/// # Panics
/// Outside a git checkout: there is nothing to check then.
pub fn tracked() -> Vec<Tracked> {
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(listed.status.success(), "this is a git checkout");
    String::from_utf8_lossy(&listed.stdout)
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(|path| {
            // A file deleted but not committed yet has no text.
            let text =
                fs::read(root().join(path)).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            Tracked { path: path.into(), text: text.unwrap_or_default() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(files: &[Tracked]) -> impl Iterator<Item = &Tracked> {
        files.iter().filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("ci/tidy/"))
    }

    fn none(found: &[String], rule: &str) {
        assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
    }

    #[test]
    fn files_hold_one_idea() {
        let files = tracked();
        let long = rust(&files).filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > MAX_LINES).then(|| format!("{}: {lines} lines", file.path))
        });
        none(&long.collect::<Vec<_>>(), "files over the limit want splitting by idea");
    }

    #[test]
    fn rooms_have_names() {
        let files = tracked();
        let nameless = files.iter().filter(|file| {
            file.path.split('/').any(|part| NAMELESS.contains(&part.trim_end_matches(".rs")))
        });
        none(
            &nameless.map(|file| file.path.clone()).collect::<Vec<_>>(),
            "a name must say what lives there",
        );
    }

    #[test]
    fn unsafe_stays_in_its_rooms() {
        let files = tracked();
        let loose = rust(&files).filter(|file| {
            let code = file.text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let uses =
                code.filter(|line| line.contains("unsafe ") || line.contains("unsafe{")).count();
            uses > 0 && !UNSAFE_ROOMS.iter().any(|room| file.path.starts_with(room))
        });
        none(
            &loose.map(|file| file.path.clone()).collect::<Vec<_>>(),
            "unsafe code outside the listed crates",
        );
    }

    #[test]
    fn crates_without_unsafe_say_so() {
        let files = tracked();
        let silent = files.iter().filter(|file| {
            let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
            is_root
                && !UNSAFE_ROOMS
                    .iter()
                    .any(|room| file.path.starts_with(room.split("src").next().unwrap_or(room)))
                && !file.text.contains("#![forbid(unsafe_code)]")
        });
        none(
            &silent.map(|file| file.path.clone()).collect::<Vec<_>>(),
            "crate roots lack #![forbid(unsafe_code)]",
        );
    }

    #[test]
    fn nothing_is_unfinished_or_switched_off() {
        let files = tracked();
        let mut found = Vec::new();
        for file in rust(&files) {
            for (number, line) in file.text.lines().enumerate() {
                if UNFINISHED.iter().any(|word| line.contains(word)) {
                    found.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
                }
            }
        }
        none(&found, "finish it, or say in the docs that it is missing");
    }

    #[test]
    fn no_path_of_one_machine() {
        let files = tracked();
        let mut found = Vec::new();
        for file in rust(&files) {
            for (number, line) in file.text.lines().enumerate() {
                if ["/work/", "/root/"].iter().any(|path| line.contains(path)) {
                    found.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
                }
            }
        }
        none(&found, "paths of one machine do not exist on another");
    }

    /// Dependencies point one way: the engine and the leaf crates depend on no workspace crate, and
    /// engine and wire meet only above both.
    #[test]
    fn dependencies_point_one_way() {
        let allowed: [(&str, &[&str]); 12] = [
            ("pmd/roce", &[]),
            ("pmd/observe", &[]),
            ("pmd/ledger", &["pmd-mem"]),
            ("pmd/mem", &[]),
            ("pmd/wire", &["pmd-mem"]),
            ("pmd/record", &["pmd-roce"]),
            ("pmd/sim", &["pmd-record", "pmd-roce"]),
            ("pmd/lab", &["pmd-graph", "pmd-ledger", "pmd-observe", "pmd-roce", "pmd-sim"]),
            ("pmd/lcore", &["pmd-mem", "pmd-observe"]),
            (
                "pmd/verbs",
                &["pmd-roce", "pmd-record", "pmd-mem", "pmd-wire", "pmd-ledger", "pmd-observe"],
            ),
            ("pmd/block", &["pmd-mem"]),
            (
                "pmd/graph",
                &["pmd-roce", "pmd-mem", "pmd-block", "pmd-verbs", "pmd-lcore", "pmd-observe"],
            ),
        ];
        let mut found = Vec::new();
        for (folder, may) in allowed {
            let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml"))
                .expect("every crate has a manifest");
            let manifest: toml::Table = manifest.parse().expect("the manifest is TOML");
            let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
            for name in dependencies.into_iter().flat_map(toml::Table::keys) {
                if name.starts_with("pmd-") && !may.contains(&name.as_str()) {
                    found.push(format!("{folder} depends on {name}"));
                }
            }
        }
        none(&found, "against the direction of the layers");
    }

    #[test]
    fn scripts_are_executable_and_careful() {
        let files = tracked();
        let mut found = Vec::new();
        for file in files.iter().filter(|file| file.text.starts_with("#!/usr/bin/env bash")) {
            if !file
                .text
                .lines()
                .take(12)
                .any(|line| line.starts_with("set -") || line.contains("lib.sh"))
            {
                found.push(format!("{}: no `set -eu` near the top", file.path));
            }
        }
        none(&found, "a script that goes on after an error hides it");
    }
}

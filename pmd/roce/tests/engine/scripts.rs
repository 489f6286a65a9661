//! Every script of `tests/scripts`.

use std::fs;
use std::path::Path;

use crate::script;

#[test]
fn every_script_plays() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "roce")).collect();
    paths.sort();
    assert!(paths.len() >= 15, "only {} scripts", paths.len());
    let failures: Vec<_> = paths.iter().filter_map(|path| script::run(path).err()).collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

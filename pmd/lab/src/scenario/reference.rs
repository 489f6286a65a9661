//! The reference of all keys of a scenario, written from the same data that checks them.

use pmd_graph::config::reference::Page;

use super::keys;

/// Every table of a scenario, as Markdown.
pub fn reference() -> String {
    let mut page = Page::new(
        "# Keys of a scenario\n\n\
         One TOML file is one closed world. `spinwire lab run FILE` runs it in virtual time and says which of its\n\
         expectations were met. This page is written by a test from the data that checks the files.\n",
    );
    for (title, about, keys) in keys::sections() {
        page.section(title, about, &keys);
    }
    page.into_text()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `UPDATE_REFERENCE=1 cargo test -p pmd-lab reference` writes the page anew.
    #[test]
    fn the_page_beside_the_scenarios_is_this_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab/README.md");
        let page = reference();
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap();
        assert!(
            there == page,
            "configs/lab/README.md is out of date: UPDATE_REFERENCE=1 cargo test -p pmd-lab reference"
        );
    }
}

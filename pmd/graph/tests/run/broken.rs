//! What fails, and what the verdict says.

use pmd_graph::run::{Progress, RunOptions};
use pmd_observe::Code;

use crate::double::{Input, play, play_with};
use crate::verified::{node, pipeline};

/// The connection breaks at every moment of a short transfer: the run ends, and says that it failed.
#[test]
fn a_connection_that_breaks_at_any_moment() {
    let input = Input::new("breaks", 20_000);
    for after in [1, 2, 3, 5, 8, 13, 15, 16] {
        let device = format!("break_after = {after}");
        let text = pipeline(&input, &device, "block = 4096", "depth = 2", "");
        let report = play(&text);
        assert!(!report.ok, "broken at submission {after}: {report}");
        let summary = &report.verdict.summary;
        assert!(summary.contains("the connection to `"), "{after}: {summary}");
        let evidence = report.verdict.evidence.join("; ");
        assert!(evidence.contains("broken by the test"), "{after}: {evidence}");
        // The last submission is the goodbye, after everything was verified.
        let verified = node(&report, "client").verified_bytes;
        assert_eq!(verified == input.len, after == 16, "{after}: {verified}");
    }
}

#[test]
fn an_unreadable_file_is_named() {
    let input = Input::new("unreadable", 10);
    let text = pipeline(&input, "", "", "", "");
    for (path, reason) in [("/nonexistent/file", "No such file"), ("/tmp", "a directory")] {
        let text = text.replace(&input.path.display().to_string(), path);
        let report = play(&text);
        assert!(!report.ok);
        let summary = &report.verdict.summary;
        assert!(summary.starts_with(&format!("`source` cannot read `{path}`: ")), "{summary}");
        assert!(summary.contains(reason), "{summary}");
        assert_eq!(report.verdict.knob.as_deref(), Some("node.source.path"));
    }
}

/// A file that was larger when it was opened: what is missing is not made up.
#[test]
fn a_file_that_is_cut_meanwhile() {
    let input = Input::new("cut", 1 << 20);
    let text = pipeline(&input, "", "repeat = 1000000", "", "");
    let mut cut = |progress: &Progress| {
        if progress.bytes > 0 {
            let file = std::fs::File::options().write(true).open(&input.path).unwrap();
            file.set_len(70_000).unwrap();
        }
    };
    let options = RunOptions { watcher: Some(&mut cut), ..RunOptions::default() };
    let report = play_with(&text, options);
    assert!(!report.ok, "{report}");
    assert_eq!(report.verdict.code, Code::Unknown);
    assert!(report.verdict.summary.contains("it was cut to less"), "{}", report.verdict);
}

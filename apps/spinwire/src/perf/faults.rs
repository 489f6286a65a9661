//! Faults of a measurement: which end disturbs its frames, and which stored byte changes.

use pmd_verbs::{FaultText, PlacedFault};

use super::params::Flip;

/// The ends, as faults name them.
const ENDS: [&str; 2] = ["client", "server"];

/// What the command line says, taken apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) flips: Vec<Flip>,
    /// Texts of those that disturb frames.
    pub(super) frames: Vec<String>,
}

impl Faults {
    /// Reads the rules.
    ///
    /// # Errors
    /// What is no rule, and what would be one.
    pub(super) fn of(texts: &[String]) -> Result<Self, String> {
        let mut faults = Self::default();
        for text in texts {
            let wrong = |reason: &str| format!("`{text}` is no fault: {reason}");
            let mut words = text.split_whitespace();
            if words.next() == Some("flip") {
                let (Some(end), Some(offset), None) = (words.next(), words.next(), words.next())
                else {
                    return Err(wrong("write `flip client|server OFFSET`"));
                };
                let side = side(end).map_err(|reason| wrong(&reason))?;
                let offset =
                    offset.parse().map_err(|_| wrong("the offset is a number of bytes"))?;
                faults.flips.push(Flip { side, offset });
            } else {
                let rule = FaultText::parse(text).map_err(|error| wrong(&error.to_string()))?;
                for end in [&rule.to, &rule.from].into_iter().flatten() {
                    side(end).map_err(|reason| wrong(&reason))?;
                }
                faults.frames.push(text.clone());
            }
        }
        Ok(faults)
    }

    /// The faults that act at one end, or at a device that has both: what names an end acts at the other one, what
    /// names none at the client. `alone`: this process has this end only, and nobody told the other one.
    pub(super) fn at(&self, server: bool, both: bool) -> Vec<PlacedFault> {
        let rules = self.frames.iter().filter_map(|text| FaultText::parse(text).ok());
        let here = |rule: &FaultText| match (&rule.to, &rule.from) {
            (Some(end), _) | (None, Some(end)) => (end == ENDS[1]) != server,
            (None, None) => !server,
        };
        rules.filter(|rule| both || here(rule)).map(|rule| rule.place(None, None)).collect()
    }
}

fn side(end: &str) -> Result<u8, String> {
    match ENDS.iter().position(|known| *known == end) {
        Some(0) => Ok(0),
        Some(_) => Ok(1),
        None => Err(format!("no end is called `{end}`: client and server are")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Result<Faults, String> {
        Faults::of(&[text.to_owned()])
    }

    #[test]
    fn rules_act_at_the_end_that_they_do_not_name() {
        for (text, at_client, at_server) in [
            ("drop all every 9", 1, 0),
            ("drop acks to client", 0, 1),
            ("drop acks from client", 0, 1),
            ("delay 1ms all to server", 1, 0),
        ] {
            let faults = faults(text).unwrap();
            assert_eq!(
                (faults.at(false, false).len(), faults.at(true, false).len()),
                (at_client, at_server),
                "{text}"
            );
            assert_eq!(faults.at(false, true).len(), 1);
        }
    }

    #[test]
    fn flips_name_an_end() {
        assert_eq!(faults("flip server 7").unwrap().flips, [Flip { side: 1, offset: 7 }]);
        for (text, reason) in [
            ("flip target 7", "client and server are"),
            ("flip server", "OFFSET"),
            ("flip server x", "a number of bytes"),
            ("explode all", "is no fault"),
            ("drop all to nobody", "client and server are"),
        ] {
            let error = faults(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}

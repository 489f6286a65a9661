//! The retry budget: four fields of a QP, who decides them, and how long they wait.
//!
//! Precedence, highest first: `--set` on the node, `--set` on `[retry]`, `SPINWIRE_<NODE>_QP_*`, `SPINWIRE_QP_*`, the key
//! of the node, `[retry]`, the default. A bad value is refused where a person wrote it for this run (file, `--set`), and
//! warned about and ignored in the environment, which may have been set for something else.

use std::fmt;
use std::time::Duration;

use pmd_roce::ids::Gid;
use pmd_roce::qp::attr::AddressVector;
use pmd_roce::wire::RnrTimer;

use super::schema::{Key, Settings};
use super::units::show_time;
use crate::diagnostic::{Diagnostic, Report, SourceKind, Sources, Span};
use crate::limits::{RETRY_BUDGET_MAX, STALL_DEFAULT};

/// Looks up an environment variable. The library never reads the environment itself.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One of the four fields; the range is the width of the field on the wire.
#[derive(Clone, Copy, Debug)]
struct Field {
    key: &'static str,
    environment: &'static str,
    max: u8,
    default: u8,
    doc: &'static str,
}

const FIELDS: [Field; 4] = [
    Field {
        key: "timeout",
        environment: "TIMEOUT",
        max: 31,
        default: 14,
        doc: "wait for an ACK, as an exponent: 4.096 us x 2^timeout; 0 waits for ever",
    },
    Field {
        key: "retry_cnt",
        environment: "RETRY_CNT",
        max: 7,
        default: 7,
        doc: "how often a request without an ACK is sent again",
    },
    Field {
        key: "rnr_retry",
        environment: "RNR_RETRY",
        max: 7,
        default: 7,
        doc: "how often a request is sent again after \"receiver not ready\"; 7 is for ever",
    },
    Field {
        key: "min_rnr_timer",
        environment: "MIN_RNR_TIMER",
        max: 31,
        default: 12,
        doc: "code of the pause that this side asks for when it has no receive posted; 12 is 0.64 ms",
    },
];

/// Who decided a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody: it is the default.
    Default,
    /// The file, at this line.
    File {
        /// The line, from 1.
        line: usize,
    },
    /// A `--set`, with its text.
    Set(String),
    /// An environment variable, with its name.
    Environment(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { line } => write!(f, "line {line}"),
            Self::Set(text) => write!(f, "--set {text}"),
            Self::Environment(name) => f.write_str(name),
        }
    }
}

/// A field and who decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// The value of the field.
    pub value: u8,
    /// Who decided it.
    pub origin: Origin,
    span: Option<Span>,
}

/// The four fields of a reliable QP. They exist for RC only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Exponent of the ACK timeout, 0 to 31: 4.096 us x 2^timeout; 0 waits for ever.
    pub timeout: Knob,
    /// Retransmissions before a request fails with status 12, 0 to 7.
    pub retry_cnt: Knob,
    /// Retransmissions after RNR NAKs before a request fails with status 13, 0 to 7; 7 is for ever.
    pub rnr_retry: Knob,
    /// Code of the pause that this side's RNR NAKs ask for, 0 to 31.
    pub min_rnr_timer: Knob,
}

impl Retry {
    /// Wait for one ACK before the request is sent again; `None`: for ever.
    pub fn ack_timeout(&self) -> Option<Duration> {
        (self.timeout.value != 0).then(|| Duration::from_nanos(4096 << self.timeout.value))
    }

    /// Time from the first transmission to status 12 when nobody answers: (retry_cnt + 1) ACK timeouts; `None`: never.
    pub fn budget(&self) -> Option<Duration> {
        Some(self.ack_timeout()? * (u32::from(self.retry_cnt.value) + 1))
    }

    /// The pause that this side's RNR NAKs ask for, 10 us to 655.36 ms.
    pub fn rnr_pause(&self) -> Duration {
        RnrTimer::new(self.min_rnr_timer.value).map_or(Duration::ZERO, RnrTimer::duration)
    }

    /// What is applied to the queue pairs of a node, in one line for a log. Service level and traffic class are those of
    /// every address vector that is made here.
    pub fn applied(&self) -> String {
        let AddressVector { sl, traffic_class, .. } = AddressVector::to(Gid::default());
        let knobs =
            self.knobs().map(|(name, knob)| format!("{name} {} ({})", knob.value, knob.origin));
        let budget = self.budget().map_or_else(|| "no limit".to_owned(), milliseconds);
        let knobs = knobs.join(", ");
        format!("sl {sl}, traffic_class {traffic_class}, {knobs}; retry budget {budget}")
    }

    /// The four values in the order timeout, retry_cnt, rnr_retry, min_rnr_timer, with their names.
    pub fn knobs(&self) -> [(&'static str, &Knob); 4] {
        [
            ("timeout", &self.timeout),
            ("retry_cnt", &self.retry_cnt),
            ("rnr_retry", &self.rnr_retry),
            ("min_rnr_timer", &self.min_rnr_timer),
        ]
    }
}

/// A duration in milliseconds with one decimal, as budgets are compared: 536.9 ms.
pub fn milliseconds(time: Duration) -> String {
    let tenths = (time.as_nanos() + 50_000) / 100_000;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}

/// The key of a node's own deadline for requests that get nowhere.
pub(crate) const STALL: &str = "stall_timeout";

/// How long requests of a node may be under way without one that ends; `None`: for ever. `retry` is `None` where a transport
/// has no retries.
pub fn stall(settings: &Settings, retry: Option<&Retry>) -> Option<Duration> {
    match settings.value(STALL).and_then(|_| settings.time_opt(STALL)) {
        Some(given) => (given > Duration::ZERO).then_some(given),
        None => match retry.map(Retry::budget) {
            Some(budget) => Some(STALL_DEFAULT.max(budget? * 2)),
            None => Some(STALL_DEFAULT),
        },
    }
}

/// A node's own deadline must leave its retries the time that they take.
pub(super) fn check_stall(name: &str, settings: &Settings, retry: &Retry, report: &mut Report) {
    let given = settings.value(STALL).and_then(|_| settings.time_opt(STALL));
    // Where nothing is sent again, there is no budget.
    let reliable = settings.value("transport").is_none() || settings.text("transport") == "rc";
    let given = given.filter(|given| *given > Duration::ZERO && reliable);
    let Some((given, budget)) = given.zip(retry.budget()).filter(|(given, budget)| given <= budget)
    else {
        return;
    };
    let mut diagnostic =
        Diagnostic::error(format!("the deadline of `{name}` is no longer than its retry budget"))
            .note(format!(
                "a silent peer is retried for {}: before that, nobody can tell a standstill from a lost packet",
                milliseconds(budget)
            ))
            .help(format!("raise {STALL}, or lower timeout or retry_cnt"));
    if let Some(span) = settings.span(STALL) {
        diagnostic = diagnostic.at(span, format!("gives up after {}", milliseconds(given)));
    }
    report.push(diagnostic);
}

/// The four keys, for `[retry]` and for every node with QPs.
pub(crate) fn keys() -> impl Iterator<Item = Key> {
    FIELDS.into_iter().map(|field| Key::count(field.key, 0..=u64::from(field.max), field.doc))
}

/// Where the four keys of `settings` were given.
pub(super) fn given(settings: &Settings) -> impl Iterator<Item = (&'static str, Span)> {
    FIELDS.into_iter().filter_map(|field| Some((field.key, settings.span(field.key)?)))
}

/// Decides the four fields for the node of this `name`, whose own keys are in `node` and the pipeline's in `retry`.
/// `seen` are the variables already complained about.
pub(super) fn resolve(
    name: &str,
    node: &Settings,
    retry: &Settings,
    environment: Environment<'_>,
    seen: &mut Vec<String>,
    report: &mut Report,
) -> Retry {
    let [timeout, retry_cnt, rnr_retry, min_rnr_timer] = FIELDS.map(|field| {
        let set = [node, retry]
            .iter()
            .find_map(|settings| given_as(field, settings, SourceKind::Set, report));
        set.or_else(|| from_environment(field, name, environment, seen, report))
            .or_else(|| {
                [node, retry]
                    .iter()
                    .find_map(|settings| given_as(field, settings, SourceKind::File, report))
            })
            .unwrap_or(Knob { value: field.default, origin: Origin::Default, span: None })
    });
    let decided = Retry { timeout, retry_cnt, rnr_retry, min_rnr_timer };
    if decided.budget().is_some_and(|budget| budget > RETRY_BUDGET_MAX) {
        let from_environment = |knob: &Knob| matches!(knob.origin, Origin::Environment(_));
        let culprit =
            [&decided.timeout, &decided.retry_cnt].into_iter().find(|knob| from_environment(knob));
        match culprit.and_then(|knob| knob.span) {
            Some(span) => {
                report.push(
                    impossible(Diagnostic::warning, name, &decided, Some(span))
                        .help("the variable is ignored"),
                );
                return resolve(name, node, retry, &|_| None, seen, report);
            }
            None => {
                report.push(impossible(Diagnostic::error, name, &decided, decided.timeout.span));
            }
        }
    }
    if decided.timeout.value == 0 {
        let mut warning = Diagnostic::warning(format!("timeout = 0 turns the ACK timeout of `{name}` off"))
            .note("a peer that is alive and does not answer stalls it for ever; only the peer's death ends it")
            .help("timeout = 14 waits 67.1 ms for each ACK");
        if let Some(span) = decided.timeout.span {
            warning = warning.at(span, "no ACK timeout");
        }
        report.push(warning);
    }
    decided
}

fn given_as(field: Field, settings: &Settings, kind: SourceKind, report: &Report) -> Option<Knob> {
    let span = settings.span(field.key).filter(|span| report.sources.kind(*span) == kind)?;
    let value = settings.count_opt(field.key).and_then(|count| u8::try_from(count).ok())?;
    Some(Knob { value, origin: origin(span, &report.sources), span: Some(span) })
}

fn origin(span: Span, sources: &Sources) -> Origin {
    match sources.kind(span) {
        SourceKind::File => Origin::File { line: sources.line(span) },
        SourceKind::Set => Origin::Set(sources.whole(span).to_owned()),
        SourceKind::Environment => Origin::Environment(sources.name(span).to_owned()),
    }
}

fn from_environment(
    field: Field,
    node: &str,
    environment: Environment<'_>,
    seen: &mut Vec<String>,
    report: &mut Report,
) -> Option<Knob> {
    let node = node.to_uppercase().replace('-', "_");
    let names = [
        format!("SPINWIRE_{node}_QP_{}", field.environment),
        format!("SPINWIRE_QP_{}", field.environment),
    ];
    for name in names {
        let Some(text) = environment(&name) else { continue };
        let assignment = format!("{name}={text}");
        let value = text.trim().parse::<u8>().ok().filter(|value| *value <= field.max);
        let span = report.sources.add(SourceKind::Environment, name.as_str(), assignment.as_str());
        let span = span.part(name.len() + 1, assignment.len());
        if let Some(value) = value {
            return Some(Knob { value, origin: Origin::Environment(name), span: Some(span) });
        }
        if !seen.contains(&name) {
            report.push(
                Diagnostic::warning(format!("{name} is ignored"))
                    .at(span, format!("expected a whole number from 0 to {}", field.max))
                    .note(format!("{}: {}", field.key, field.doc)),
            );
            seen.push(name);
        }
    }
    None
}

fn impossible(
    level: impl Fn(String) -> Diagnostic,
    name: &str,
    retry: &Retry,
    span: Option<Span>,
) -> Diagnostic {
    let (timeout, retry_cnt) = (retry.timeout.value, retry.retry_cnt.value);
    let minutes = retry.budget().unwrap_or_default().as_secs() / 60;
    let mut diagnostic = level(format!("the retry budget of `{name}` is impossible"))
        .note(format!(
            "({retry_cnt} + 1) x 4.096 us x 2^{timeout} is {minutes} min until a dead peer is noticed; the limit is {}",
            show_time(RETRY_BUDGET_MAX)
        ))
        .help("lower timeout: 14 with retry_cnt = 7 gives up after 536.9 ms, 20 after 34 s");
    if let Some(span) = span {
        diagnostic = diagnostic.at(span, format!("waits {minutes} min"));
    }
    diagnostic
}

/// One line for the log: the values, and when it gives up.
impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let infinite = if self.rnr_retry.value == 7 { " (infinite)" } else { "" };
        write!(
            f,
            "timeout {}, retry_cnt {}, rnr_retry {}{infinite}, min_rnr_timer {}; a silent peer is given up after {}",
            self.timeout.value,
            self.retry_cnt.value,
            self.rnr_retry.value,
            self.min_rnr_timer.value,
            self.budget().map_or_else(|| "no time: never".to_owned(), milliseconds)
        )
    }
}

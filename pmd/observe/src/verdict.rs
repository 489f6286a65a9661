//! What went wrong, who owns it, and what to turn.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Declares [`Code`] once: variant, name on the command line and in JSON, meaning.
macro_rules! codes {
    ($($variant:ident $name:literal $meaning:literal,)*) => {
        /// The diagnosis, as a name that scripts can compare.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Code {
            $(
                #[doc = concat!("`", $name, "`: ", $meaning, ".")]
                #[serde(rename = $name)]
                $variant,
            )*
        }

        impl Code {
            /// Every code, in the order of the manual.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name, in kebab case.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One phrase that explains the code.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

codes! {
    Ok "ok" "everything asked for was done and verified",
    PeerDead "peer-dead" "the peer's process or host is gone",
    LinkDead "link-dead" "nothing passes in either direction",
    AckPathLost "ack-path-lost" "requests arrive, but their acknowledgements do not come back",
    PeerNotReady "peer-not-ready" "the peer's queue pair cannot receive yet, or no longer",
    PsnMismatch "psn-mismatch" "the two ends started from different packet sequence numbers",
    ResponderSlow "responder-slow" "the peer is alive, but answers later than the retry budget allows",
    RnrExhausted "rnr-exhausted" "the peer had no receive posted for as long as the RNR retries lasted",
    RnrStall "rnr-stall" "the peer has no receive posted, and the sender waits without limit",
    NoReceives "no-receives" "a message arrived where no receive was ever posted",
    SrqDry "srq-dry" "the shared receive queue ran empty",
    MtuMismatch "mtu-mismatch" "the path MTUs of the two ends, or of the network between them, differ",
    RoceVersionMismatch "roce-version-mismatch" "the two ends use different RoCE versions or GID types",
    QkeyMismatch "qkey-mismatch" "datagrams carry another Q_Key than the receiver expects",
    AccessQp "access-qp" "the peer's queue pair does not allow this operation",
    AccessMr "access-mr" "the peer's memory region does not allow this access",
    RdAtomic "rd-atomic" "more READs or atomics in flight than the responder has resources for",
    AtomicMisaligned "atomic-misaligned" "an atomic's address is not a multiple of 8",
    InvalidRequest "invalid-request" "the responder refused the request as malformed or unsupported",
    Length "length" "a message is longer than the buffer or the limit at its destination",
    LocalProtection "local-protection" "a local buffer is not covered by its memory region",
    RemoteOperation "remote-operation" "the responder failed while it executed the request",
    CqOverrun "cq-overrun" "a completion queue was too small for what completed",
    SrqError "srq-error" "a shared receive queue failed",
    DeviceGone "device-gone" "the device was removed or failed as a whole",
    DataMismatch "data-mismatch" "bytes read back differ from the bytes written",
    StoreStall "store-stall" "the store of a target took a request and does not answer it",
    Unknown "unknown" "the evidence fits no known cause",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is not one of [`Code::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCode(String);

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no verdict is called `{}`; the codes are", self.0)?;
        Code::ALL.iter().try_for_each(|code| write!(f, " {code}"))
    }
}

impl std::error::Error for UnknownCode {}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(name: &str) -> Result<Self, UnknownCode> {
        let found = Self::ALL.iter().find(|code| code.as_str() == name);
        found.copied().ok_or_else(|| UnknownCode(name.to_owned()))
    }
}

/// Who has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// This process, its host or its device.
    Local,
    /// The peer.
    Remote,
    /// The network between them.
    Fabric,
    /// Whoever wrote the configuration of either end.
    Config,
}

impl Owner {
    /// The name, in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::Fabric => "fabric",
            Self::Config => "config",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A diagnosis with its reasons.
///
/// As JSON: `{code, owner, summary, evidence[], knob}`, where `knob` is null if nothing is there to turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The diagnosis.
    pub code: Code,
    /// Who has to act.
    pub owner: Owner,
    /// One sentence for the person who reads it, with names and numbers.
    pub summary: String,
    /// What was observed: one fact each, with its source.
    pub evidence: Vec<String>,
    /// The setting that applies, such as `node.client.timeout`.
    pub knob: Option<String>,
}

impl Verdict {
    /// A verdict without evidence or knob as yet.
    pub fn new(code: Code, owner: Owner, summary: impl Into<String>) -> Self {
        Self { code, owner, summary: summary.into(), evidence: Vec::new(), knob: None }
    }

    /// All is well.
    pub fn ok(summary: impl Into<String>) -> Self {
        Self::new(Code::Ok, Owner::Local, summary)
    }

    /// Adds one fact.
    #[must_use]
    pub fn because(mut self, fact: impl Into<String>) -> Self {
        self.evidence.push(fact.into());
        self
    }

    /// Names the setting that applies.
    #[must_use]
    pub fn turn(mut self, knob: impl Into<String>) -> Self {
        self.knob = Some(knob.into());
        self
    }

    /// Whether nothing went wrong.
    pub fn is_ok(&self) -> bool {
        self.code == Code::Ok
    }
}

/// A few lines for a terminal, without a final newline.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verdict: {}", self.code)?;
        if !self.is_ok() {
            write!(f, " (owner: {})", self.owner)?;
        }
        // Words of a peer may have lines, and none of them begins as ours do.
        let inner = |text: &str| text.replace('\n', "\n    ");
        write!(f, "\n  {}", inner(&self.summary))?;
        for fact in &self.evidence {
            write!(f, "\n  - {}", inner(fact))?;
        }
        self.knob.iter().try_for_each(|knob| write!(f, "\n  turn: {}", inner(knob)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_dead() -> Verdict {
        Verdict::new(Code::PeerDead, Owner::Remote, "process 4711 (`target`) is gone")
            .because("its socket hung up at 1.250 s")
            .because("12 work requests flushed")
            .turn("node.client.timeout")
    }

    #[test]
    fn codes_are_exactly_the_contract() {
        let contract = "ok peer-dead link-dead ack-path-lost peer-not-ready psn-mismatch responder-slow rnr-exhausted \
                        rnr-stall no-receives srq-dry mtu-mismatch roce-version-mismatch qkey-mismatch access-qp \
                        access-mr rd-atomic atomic-misaligned invalid-request length local-protection \
                        remote-operation cq-overrun srq-error device-gone data-mismatch store-stall unknown";
        let ours: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(ours, contract.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn a_code_reads_back_from_text_and_from_json() {
        for &code in Code::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(json, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), code);
        }
        let error = "peer_dead".parse::<Code>().unwrap_err().to_string();
        assert!(
            error.starts_with("no verdict is called `peer_dead`; the codes are ok peer-dead"),
            "{error}"
        );
    }

    #[test]
    fn json_has_the_contract_keys_in_order() {
        assert_eq!(
            serde_json::to_string(&peer_dead()).unwrap(),
            "{\"code\":\"peer-dead\",\"owner\":\"remote\",\"summary\":\"process 4711 (`target`) is gone\",\
             \"evidence\":[\"its socket hung up at 1.250 s\",\"12 work requests flushed\"],\
             \"knob\":\"node.client.timeout\"}"
        );
        assert_eq!(
            serde_json::to_string(&Verdict::ok("done")).unwrap(),
            r#"{"code":"ok","owner":"local","summary":"done","evidence":[],"knob":null}"#
        );
    }

    #[test]
    fn json_reads_back() {
        let json = serde_json::to_string(&peer_dead()).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), peer_dead());
    }

    #[test]
    fn terminal_text_names_owner_evidence_and_knob() {
        assert_eq!(
            peer_dead().to_string(),
            "verdict: peer-dead (owner: remote)\n  process 4711 (`target`) is gone\n  \
             - its socket hung up at 1.250 s\n  - 12 work requests flushed\n  turn: node.client.timeout"
        );
        assert_eq!(
            Verdict::ok("65536 bytes verified").to_string(),
            "verdict: ok\n  65536 bytes verified"
        );
    }
}

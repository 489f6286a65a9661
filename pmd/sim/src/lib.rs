//! Deterministic world of RoCEv2 engines.

//! Verdicts, histograms and counters as a reader sees them.

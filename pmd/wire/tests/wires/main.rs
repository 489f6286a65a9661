//! Wires and wrappers without privilege: real sockets on loopback, and pairs in memory.

mod roce;
mod tap;
mod udp;

//! Wires and wrappers without privilege: real sockets on loopback, and pairs in memory.

mod fault;
mod roce;
mod tap;
mod udp;

//! Wires under the engine: shared memory, UDP, and the wrappers Tap and Fault.

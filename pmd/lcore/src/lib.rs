//! Pinned poll loops: topology, clock, mailboxes, idle policy.

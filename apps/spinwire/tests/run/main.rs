//! `spinwire run` and `spinwire perf` from outside: one process and two, faults, signals and kills.

mod bench;
mod cores;
mod discovery;
mod files;
mod gids;
mod keys;
mod killed;
mod lab;
mod measured;
mod monitor;
mod one;
mod outage;
mod output;
mod perf;
mod perf_broken;
mod reconnect;
mod record;
mod recorded;
mod resume;
mod sealed;
mod storage;
mod two;
mod unreliable;
mod verbs;
mod why;

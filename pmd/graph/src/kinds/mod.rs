//! What the built-in kinds of node take and need. One file per protocol or group of stages.

mod block;
mod discovery;
mod kv;
mod pingpong;
mod stages;

use std::sync::Arc;

use crate::registry::NodeFactory;

/// Every built-in kind.
pub(crate) fn nodes() -> Vec<Arc<dyn NodeFactory>> {
    vec![
        Arc::new(stages::FileSource::new()),
        Arc::new(stages::Generator::new()),
        Arc::new(stages::Crc32c::new()),
        Arc::new(stages::Sink::new()),
        Arc::new(block::Client::new()),
        Arc::new(block::Load::new()),
        Arc::new(block::Target::new()),
        Arc::new(kv::Client::new()),
        Arc::new(kv::Server::new()),
        Arc::new(pingpong::PingPong::new()),
        Arc::new(discovery::Discovery::new()),
    ]
}

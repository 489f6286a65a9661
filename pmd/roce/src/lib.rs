//! Sans-IO RoCEv2 engine.

//! How the control channels of a node are protected, as its config says.

use std::path::Path;

use pmd_verbs::connect::{Guard, Psk, PskError};

use crate::config::schema::Settings;

/// By the keys of the node: `psk_file` and `plaintext`.
///
/// # Errors
/// When the file holds no key, or others can reach it.
pub(crate) fn guard(settings: &Settings) -> Result<Guard, PskError> {
    if settings.value("psk_file").is_some() {
        return Psk::read(Path::new(settings.text("psk_file"))).map(Guard::Sealed);
    }
    let plaintext = settings.value("plaintext").is_some() && settings.flag("plaintext");
    Ok(if plaintext { Guard::Plaintext } else { Guard::Loopback })
}

//! The key that both ends of a sealed channel have, and the file that it is kept in.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Bytes of a key.
const LEN: usize = 32;
/// Longest file that is read as a key: both forms are far shorter.
const FILE_MAX: usize = 256;
/// How a file with a new key is made.
const MAKE: &str = "(umask 077; head -c 32 /dev/urandom | base64 > FILE)";

/// A pre-shared key: 32 random bytes that both ends have and nobody else. Never shown, and wiped when dropped.
#[derive(Clone)]
pub struct Psk(Zeroizing<[u8; LEN]>);

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(secret)")
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum PskError {
    /// The file cannot be read.
    #[error("cannot read the key in {}: {error}; make one with {MAKE}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The key itself stands where the name of its file is asked for; it is not said again.
    #[error(
        "this is a key, not the name of a file with one: a key on a command line or in a config is seen by others; give a file, not the key, and make a new one with {MAKE}"
    )]
    Inline,
    /// It is no regular file.
    #[error("{} is no file: the key is kept in a regular file", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// Others can read or change it.
    #[error("other users can reach the key in {} (mode {mode:03o}): chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else owns it, who can read and change it.
    #[error("the key in {} belongs to user {owner}, this process runs as {user}: chown {user} {}", path.display(), path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who reads it.
        user: u32,
    },
    /// What it holds is no key.
    #[error("{} holds no key: {format}; make one with {MAKE}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        format: PskFormat,
    },
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PskFormat {
    /// Neither base64 nor hexadecimal digits.
    #[error("it is neither base64 nor hexadecimal")]
    NoText,
    /// Another number of bytes.
    #[error("it has {0} bytes, a key has 32")]
    Length(usize),
    /// All bytes are the same.
    #[error("all its bytes are the same, so that anybody guesses it")]
    Trivial,
}

impl Psk {
    /// A key from its bytes.
    pub fn new(bytes: [u8; LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The key in a file that only its owner can reach, as [`Psk::parse`] reads it.
    ///
    /// # Errors
    /// [`PskError`] says what to do.
    pub fn read(path: &Path) -> Result<Self, PskError> {
        let path = || path.to_owned();
        let unreadable = |error| PskError::Unreadable { path: path(), error };
        // The open of a FIFO waits for somebody at its other end, unless told not to.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path());
        // Only where there is no such file: a long name may happen to read as a key.
        let file = file.map_err(|error| match Self::parse(path().as_os_str().as_bytes()) {
            Ok(_) => PskError::Inline,
            Err(_) => unreadable(error),
        })?;
        // Of what was opened, so that nobody exchanges it in between.
        let meta = file.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(PskError::NoFile { path: path() });
        }
        let mode = meta.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(PskError::Exposed { path: path(), mode });
        }
        let user = rustix::process::geteuid().as_raw();
        if meta.uid() != user && meta.uid() != 0 {
            return Err(PskError::Foreign { path: path(), owner: meta.uid(), user });
        }
        // Room for all of it at once: a buffer that grows leaves copies behind.
        let mut text = Zeroizing::new(Vec::with_capacity(2 * FILE_MAX));
        file.take(FILE_MAX as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
        Self::parse(&text).map_err(|format| PskError::Format { path: path(), format })
    }

    /// A key from its text: base64, as `base64(1)` writes it, or 64 hexadecimal digits; white space around it does not
    /// matter.
    ///
    /// # Errors
    /// [`PskFormat`].
    pub fn parse(text: &[u8]) -> Result<Self, PskFormat> {
        let text = text.trim_ascii();
        let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_MAX));
        let is_hex = text.len() == 2 * LEN && text.iter().all(u8::is_ascii_hexdigit);
        let (digits, bits) = if is_hex { (text, 4) } else { (unpadded(text), 6) };
        let (mut held, mut count) = (0_u32, 0);
        for digit in digits {
            let value = if is_hex { hex(*digit) } else { base64(*digit) };
            held = (held << bits | value.ok_or(PskFormat::NoText)?) & 0xffff;
            count += bits;
            if count >= 8 {
                count -= 8;
                bytes.push((held >> count).to_le_bytes()[0]);
            }
        }
        let key: &[u8; LEN] =
            bytes.as_slice().try_into().map_err(|_| PskFormat::Length(bytes.len()))?;
        if key.iter().all(|byte| *byte == key[0]) {
            return Err(PskFormat::Trivial);
        }
        Ok(Self::new(*key))
    }

    pub(super) fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

/// Base64 without the signs that fill its last group.
fn unpadded(text: &[u8]) -> &[u8] {
    let filled = text.len().is_multiple_of(4);
    let fill = text.iter().rev().take(2).take_while(|byte| **byte == b'=' && filled).count();
    &text[..text.len() - fill]
}

fn hex(digit: u8) -> Option<u32> {
    char::from(digit).to_digit(16)
}

fn base64(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Of the 32 bytes 0x00, 0x07, 0x0e, and so on, as `base64(1)` writes them.
    const TEXT: &str = "AAcOFRwjKjE4P0ZNVFtiaXB3foWMk5qhqK+2vcTL0tk=\n";

    fn key() -> [u8; LEN] {
        std::array::from_fn(|at| 7 * u8::try_from(at).unwrap())
    }

    struct Kept(PathBuf);

    impl Kept {
        fn new(name: &str, text: &str, mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("psk-{name}-{}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            Self(path)
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }

    #[test]
    fn both_texts_are_read() {
        let hex: String = key().iter().map(|byte| format!("{byte:02X}")).collect();
        for text in [TEXT, TEXT.trim_end_matches("=\n"), &hex, &format!("  {hex}\r\n")] {
            assert_eq!(Psk::parse(text.as_bytes()).unwrap().bytes(), &key(), "{text}");
        }
    }

    #[test]
    fn what_is_no_key_is_named() {
        let wrong = |text: &str| Psk::parse(text.as_bytes()).unwrap_err();
        assert_eq!(wrong(""), PskFormat::Length(0));
        assert_eq!(wrong("AAAAAAAAAAAAAAAAAAAAAA=="), PskFormat::Length(16));
        assert_eq!(wrong("correct horse battery staple"), PskFormat::NoText);
        assert_eq!(wrong(&"a5".repeat(32)), PskFormat::Trivial);
        assert_eq!(wrong(&"a".repeat(65)), PskFormat::Length(48));
        assert_eq!(Psk::parse(&[0xff; 44]).unwrap_err(), PskFormat::NoText);
    }

    /// S0-43: a key that others can read, or that is none, is refused with the way out; no message shows it.
    #[test]
    fn s0_43_a_file_is_checked_before_it_is_trusted() {
        let good = Kept::new("good", TEXT, 0o600);
        assert_eq!(Psk::read(&good.0).unwrap().bytes(), &key());
        let says = |path: &Path| {
            let text = Psk::read(path).unwrap_err().to_string();
            assert!(!text.contains("AAcOFRwj"), "{text}");
            text
        };
        let shared = Kept::new("shared", TEXT, 0o640);
        let fix = format!("chmod 600 {}", shared.0.display());
        assert!(says(&shared.0).ends_with(&fix), "{}", says(&shared.0));
        let short = Kept::new("short", "AAcOFRwjKjE4P0ZNVFtiaQ==", 0o400);
        let text = says(&short.0);
        assert!(text.contains("it has 16 bytes, a key has 32"), "{text}");
        assert!(text.contains("head -c 32 /dev/urandom | base64"), "{text}");
        let long = Kept::new("long", &"A".repeat(10_000), 0o600);
        assert!(says(&long.0).contains("a key has 32"));
        assert!(says(Path::new("/nonexistent/key")).contains("make one with"));
        assert!(says(&std::env::temp_dir()).contains("is no file"));
    }

    /// The open of a FIFO that nobody writes to waits for ever, unless told not to.
    #[test]
    fn what_may_never_open_is_refused_at_once() {
        let fifo = std::env::temp_dir().join(format!("psk-fifo-{}", std::process::id()));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = Psk::read(&fifo).unwrap_err();
        std::fs::remove_file(&fifo).unwrap();
        assert!(matches!(&error, PskError::NoFile { path } if *path == fifo), "{error}");
        assert!(matches!(Psk::read(Path::new("/dev/zero")), Err(PskError::NoFile { .. })));
    }

    /// S0-43: nor one that stands where the name of its file is asked for.
    #[test]
    fn s0_43_a_key_in_place_of_its_file_is_not_said_again() {
        let hex: String = key().iter().map(|byte| format!("{byte:02x}")).collect();
        for name in [TEXT, TEXT.trim_end(), &hex] {
            let error = Psk::read(Path::new(name)).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(matches!(error, PskError::Inline), "{text}");
            assert!(text.contains("give a file, not the key") && !text.contains(name), "{text}");
        }
    }

    /// S0-43.
    #[test]
    fn s0_43_a_key_is_never_shown() {
        assert_eq!(format!("{:?}", Psk::new(key())), "Psk(secret)");
    }
}

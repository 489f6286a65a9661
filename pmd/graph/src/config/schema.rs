//! Keys as data: what a table may hold, and how a value that passed is read.
//!
//! Every table of the file (`[memory]`, a device, a node of any kind) is a list of [`Key`]s. One decoder serves them all,
//! so an unknown key, a wrong type or a value out of range is refused in the same words everywhere, and a kind that some
//! other crate adds gets the same care as a built-in one.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::units::{Size, show_time};
use crate::diagnostic::Span;

/// What a key takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A string that is not empty.
    Text,
    /// One of some words. Those in `absent` are known, and not available in this build.
    Word {
        /// The words that can be used.
        words: Vec<&'static str>,
        /// The words that this build refuses.
        absent: Vec<&'static str>,
    },
    /// `true` or `false`.
    Flag,
    /// A whole number in a range.
    Count {
        /// The range, both ends included.
        range: RangeInclusive<u64>,
        /// Whether `"auto"` will do as well.
        auto: bool,
    },
    /// One of some numbers.
    Pick {
        /// The numbers, in ascending order.
        values: &'static [u64],
        /// Whether `"auto"` will do as well.
        auto: bool,
    },
    /// A number of bytes, as `"64KiB"` or as a plain number.
    Size {
        /// The range, both ends included.
        range: RangeInclusive<Size>,
        /// Whether `"auto"` will do as well.
        auto: bool,
    },
    /// A duration, as `"5s"`.
    Time {
        /// The range, both ends included.
        range: RangeInclusive<Duration>,
    },
    /// An IP address, or `"auto"`.
    Address,
    /// An IP address and a port, as `"127.0.0.1:7471"`.
    Socket,
    /// The name of an lcore, a device or a node of the same file.
    Name,
    /// The far end of an RDMA edge: the name of a node of the same file, or an IP address and a port.
    Peer,
    /// Any 64 bits, as a whole number that is not negative.
    Bits,
    /// A list of strings that are not empty.
    List,
    /// Numbers by name, as `{ "12" = 1, "5" = 53 }`.
    Tally,
    /// A table of its own within the value, as `{ psn = 3, every = 2 }`.
    Group(Vec<Key>),
}

/// A value that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Form::Text`], [`Form::Word`], [`Form::Name`] and a [`Form::Peer`] of the same file.
    Text(String),
    /// Of [`Form::Flag`].
    Flag(bool),
    /// Of [`Form::Count`], [`Form::Pick`] and [`Form::Bits`].
    Count(u64),
    /// Of [`Form::Size`].
    Size(Size),
    /// Of [`Form::Time`].
    Time(Duration),
    /// Of [`Form::Address`].
    Address(IpAddr),
    /// Of [`Form::Socket`] and a [`Form::Peer`] elsewhere.
    Socket(SocketAddr),
    /// Of [`Form::List`].
    List(Vec<String>),
    /// Of [`Form::Tally`], in the order of the names.
    Tally(Vec<(String, u64)>),
    /// Of [`Form::Group`].
    Group(Settings),
    /// `"auto"`, where it may be given.
    Auto,
}

/// One key of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) presence: Presence,
    pub(super) when: Option<(&'static str, &'static str)>,
    pub(super) doc: &'static str,
}

/// What happens when a key is not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    Optional,
    Default(Value),
}

impl Key {
    /// A key that may be left out. `doc` is one line for the reference.
    pub fn new(name: &'static str, form: Form, doc: &'static str) -> Self {
        Self { name, form, presence: Presence::Optional, when: None, doc }
    }

    /// A string.
    pub fn text(name: &'static str, doc: &'static str) -> Self {
        Self::new(name, Form::Text, doc)
    }

    /// One of `words`.
    pub fn word(name: &'static str, words: &[&'static str], doc: &'static str) -> Self {
        Self::new(name, Form::Word { words: words.to_vec(), absent: Vec::new() }, doc)
    }

    /// `true` or `false`.
    pub fn flag(name: &'static str, doc: &'static str) -> Self {
        Self::new(name, Form::Flag, doc)
    }

    /// A whole number.
    pub fn count(name: &'static str, range: RangeInclusive<u64>, doc: &'static str) -> Self {
        Self::new(name, Form::Count { range, auto: false }, doc)
    }

    /// A number of bytes.
    pub fn size(name: &'static str, range: RangeInclusive<Size>, doc: &'static str) -> Self {
        Self::new(name, Form::Size { range, auto: false }, doc)
    }

    /// A duration.
    pub fn time(name: &'static str, range: RangeInclusive<Duration>, doc: &'static str) -> Self {
        Self::new(name, Form::Time { range }, doc)
    }

    /// The key must be given.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.presence = Presence::Required;
        self
    }

    /// What holds when the key is not given.
    ///
    /// # Panics
    /// When the value is not of the key's form: the schema is wrong, whatever the file says.
    #[must_use]
    pub fn default(mut self, value: impl Into<Value>) -> Self {
        let value = value.into();
        assert!(self.form.admits(&value), "`{value:?}` is no default for the key `{}`", self.name);
        self.presence = Presence::Default(value);
        self
    }

    /// `"auto"` will do as well, and holds when the key is not given.
    ///
    /// # Panics
    /// When the form of the key has no `"auto"`.
    #[must_use]
    pub fn or_auto(mut self) -> Self {
        match &mut self.form {
            Form::Count { auto, .. } | Form::Pick { auto, .. } | Form::Size { auto, .. } => {
                *auto = true;
            }
            Form::Address => {}
            form => panic!("`{}` of form {form:?} has no auto", self.name),
        }
        self.default(Value::Auto)
    }

    /// Words that are known, and refused because this build lacks what they ask for.
    ///
    /// # Panics
    /// When the key is not one of words.
    #[must_use]
    pub fn not_in_this_build(mut self, more: &[&'static str]) -> Self {
        match &mut self.form {
            Form::Word { absent, .. } => absent.extend(more),
            form => panic!("`{}` of form {form:?} has no words", self.name),
        }
        self
    }

    /// Leaves the words out that are not wanted, where it takes words.
    pub(super) fn keep_words(&mut self, wanted: impl Fn(&&'static str) -> bool) {
        if let Form::Word { words, .. } = &mut self.form {
            words.retain(wanted);
        }
    }

    /// The key says something only while `key`, which stands before it, is `word`; given otherwise, it is refused, and its
    /// default holds only then.
    #[must_use]
    pub fn only_when(mut self, key: &'static str, word: &'static str) -> Self {
        self.when = Some((key, word));
        self
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it takes.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// What it does, in one line.
    pub fn doc(&self) -> &'static str {
        self.doc
    }

    /// What holds when it is not given; `None` for a key that is required or simply absent.
    pub fn default_value(&self) -> Option<&Value> {
        match &self.presence {
            Presence::Default(value) => Some(value),
            _ => None,
        }
    }

    /// The key and the word that it is only read with.
    pub fn condition(&self) -> Option<(&'static str, &'static str)> {
        self.when
    }

    /// Whether it must be given.
    pub fn is_required(&self) -> bool {
        matches!(self.presence, Presence::Required)
    }
}

impl Form {
    fn admits(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Text | Self::Name | Self::Peer, Value::Text(_))
            | (Self::Flag, Value::Flag(_))
            | (Self::Bits, Value::Count(_))
            | (Self::List, Value::List(_))
            | (Self::Address, Value::Address(_) | Value::Auto)
            | (Self::Socket | Self::Peer, Value::Socket(_)) => true,
            (Self::Word { words, .. }, Value::Text(word)) => words.contains(&word.as_str()),
            (Self::Count { range, .. }, Value::Count(count)) => range.contains(count),
            (Self::Pick { values, .. }, Value::Count(count)) => values.contains(count),
            (Self::Size { range, .. }, Value::Size(size)) => range.contains(size),
            (Self::Time { range }, Value::Time(time)) => range.contains(time),
            (
                Self::Count { auto, .. } | Self::Pick { auto, .. } | Self::Size { auto, .. },
                Value::Auto,
            ) => *auto,
            _ => false,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Flag(flag) => flag.fmt(f),
            Self::Count(count) => count.fmt(f),
            Self::Size(size) => size.fmt(f),
            Self::Time(time) => f.write_str(&show_time(*time)),
            Self::Address(address) => address.fmt(f),
            Self::Socket(socket) => socket.fmt(f),
            Self::List(list) => f.write_str(&list.join(", ")),
            Self::Tally(tally) => {
                let pairs: Vec<String> =
                    tally.iter().map(|(name, count)| format!("{name} = {count}")).collect();
                f.write_str(&pairs.join(", "))
            }
            Self::Group(settings) => {
                let pairs: Vec<String> =
                    settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
                f.write_str(&pairs.join(", "))
            }
            Self::Auto => f.write_str("auto"),
        }
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

value_from!(&str => Text, bool => Flag, u64 => Count, Size => Size, Duration => Time, IpAddr => Address, SocketAddr => Socket);

/// One key that was decided: by the file, a `--set`, the environment, or its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: Value,
    pub(super) span: Option<Span>,
}

/// The keys of one table, all decided and in range.
///
/// The getters cannot fail on anything a user wrote: they panic only where the program asks for a key that its own schema
/// does not have, or has with another form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) settings: Vec<Setting>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $get:ident, $get_opt:ident, $variant:ident, $type:ty, |$value:ident| $read:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// When the schema has no such key, or the key may be absent or `"auto"`: use the `_opt` form for those.
        pub fn $get(&self, key: &str) -> $type {
            match self.value(key) {
                Some(Value::$variant($value)) => $read,
                other => panic!("the schema gives `{key}` as {other:?}"),
            }
        }

        $(#[$doc])*
        /// `None` when it is not given, or `"auto"`.
        ///
        /// # Panics
        /// When the schema has a key of that name with another form.
        pub fn $get_opt(&self, key: &str) -> Option<$type> {
            match self.value(key) {
                Some(Value::$variant($value)) => Some($read),
                None | Some(Value::Auto) => None,
                other => panic!("the schema gives `{key}` as {other:?}"),
            }
        }
    )*};
}

impl Settings {
    getters! {
        /// A string, word or name.
        text, text_opt, Text, &str, |text| text;
        /// A flag.
        flag, flag_opt, Flag, bool, |flag| *flag;
        /// A whole number.
        count, count_opt, Count, u64, |count| *count;
        /// A number of bytes.
        size, size_opt, Size, Size, |size| *size;
        /// A duration.
        time, time_opt, Time, Duration, |time| *time;
        /// An IP address.
        address, address_opt, Address, IpAddr, |address| *address;
        /// An IP address and a port.
        socket, socket_opt, Socket, SocketAddr, |socket| *socket;
        /// A list of strings.
        list, list_opt, List, &[String], |list| list;
        /// Numbers by name.
        tally, tally_opt, Tally, &[(String, u64)], |tally| tally;
        /// A table within the value.
        group, group_opt, Group, &Settings, |group| group;
    }

    /// Those of a table that says nothing but that there is a peer: the defaults.
    pub(super) fn of_defaults(keys: &[Key]) -> Self {
        let default = |key: &Key| {
            let value = match (key.default_value(), &key.form) {
                (Some(value), _) => value.clone(),
                (None, Form::Peer) => Value::Socket(SocketAddr::from(([127, 0, 0, 1], 7471))),
                (None, _) => return None,
            };
            Some(Setting { name: key.name, value, span: None })
        };
        Self { settings: keys.iter().filter_map(default).collect() }
    }

    /// The value of `key`, whatever its form; `None` when it is not given and has no default.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.settings.iter().find(|setting| setting.name == key).map(|setting| &setting.value)
    }

    /// Where `key` was given; `None` for a default.
    pub fn span(&self, key: &str) -> Option<Span> {
        self.settings.iter().find(|setting| setting.name == key)?.span
    }

    /// Every key that has a value, in the order of the schema.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.settings.iter().map(|setting| (setting.name, &setting.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no default for the key `depth`")]
    fn a_default_out_of_range_is_a_mistake_of_the_schema() {
        let _key = Key::count("depth", 1..=8, "").default(9_u64);
    }

    #[test]
    #[should_panic(expected = "the schema gives `depth`")]
    fn a_getter_of_another_form_is_a_mistake_of_the_program() {
        let setting = Setting { name: "depth", value: Value::Count(1), span: None };
        Settings { settings: vec![setting] }.size("depth");
    }
}

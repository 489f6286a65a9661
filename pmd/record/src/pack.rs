//! Values as bytes and back: numbers in groups of seven bits, least first; fields in their order; a byte
//! before what can be of several kinds.

/// The bytes make no sense where this was to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {0} where one belongs")]
pub(crate) struct Damaged(pub(crate) &'static str);

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Damaged> {
        let (first, rest) = self.0.split_first().ok_or(Damaged("byte"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn slice(&mut self, len: usize) -> Result<&'a [u8], Damaged> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(Damaged("run of bytes"))?;
        self.0 = rest;
        Ok(front)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damaged> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let group = u64::from(byte & 0x7f);
            number |= group << shift;
            // The tenth byte has room for one bit.
            if shift == 63 && byte > 1 {
                return Err(Damaged("number"));
            }
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Damaged("number"))
    }

    /// A length of what follows: never more than there is.
    pub(crate) fn length(&mut self) -> Result<usize, Damaged> {
        let length = usize::try_from(self.number()?).map_err(|_| Damaged("length"))?;
        if length > self.0.len() { Err(Damaged("length")) } else { Ok(length) }
    }
}

/// Appends a number.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// What can be written and read again.
pub(crate) trait Pack: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it.
    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged>;
}

/// Bytes with their count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob(pub(crate) Vec<u8>);

impl Pack for Blob {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(out, self.0.len() as u64);
        out.extend_from_slice(&self.0);
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        let len = from.length()?;
        Ok(Self(from.slice(len)?.to_vec()))
    }
}

impl Pack for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(out, self.len() as u64);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        Self::from_utf8(Blob::take(from)?.0).map_err(|_| Damaged("text"))
    }
}

impl Pack for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        from.byte()
    }
}

impl Pack for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged("yes or no")),
        }
    }
}

impl Pack for () {
    fn put(&self, _: &mut Vec<u8>) {}

    fn take(_: &mut Cursor<'_>) -> Result<Self, Damaged> {
        Ok(())
    }
}

macro_rules! pack_integers {
    ($($integer:ty),*) => {$(
        impl Pack for $integer {
            fn put(&self, out: &mut Vec<u8>) {
                put_number(out, *self as u64);
            }

            fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
                Self::try_from(from.number()?).map_err(|_| Damaged(stringify!($integer)))
            }
        }
    )*};
}
pack_integers!(u16, u32, u64, usize);

impl<const N: usize> Pack for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        from.slice(N)?.try_into().map_err(|_| Damaged("run of bytes"))
    }
}

impl<T: Pack> Pack for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        Ok(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<T: Pack, E: Pack> Pack for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        Ok(if bool::take(from)? { Ok(T::take(from)?) } else { Err(E::take(from)?) })
    }
}

impl<A: Pack, B: Pack> Pack for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(out, self.len() as u64);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        // Each value has a byte at least, so that the count is believed no further than there are bytes.
        let len = from.length()?;
        let mut values = Self::new();
        for _ in 0..len {
            values.push(T::take(from)?);
        }
        Ok(values)
    }
}

/// A structure, field by field.
macro_rules! pack_struct {
    ($name:ty { $($field:ident),+ $(,)? }) => {
        impl crate::pack::Pack for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)+
            }

            fn take(
                from: &mut crate::pack::Cursor<'_>,
            ) -> Result<Self, crate::pack::Damaged> {
                Ok(Self { $($field: crate::pack::Pack::take(from)?),+ })
            }
        }
    };
}
pub(crate) use pack_struct;

/// A number that names something.
macro_rules! pack_number {
    ($($name:ident),+ $(,)?) => {$(
        impl crate::pack::Pack for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn take(
                from: &mut crate::pack::Cursor<'_>,
            ) -> Result<Self, crate::pack::Damaged> {
                Ok(Self(crate::pack::Pack::take(from)?))
            }
        }
    )+};
}
pub(crate) use pack_number;

/// One of several kinds, each with the byte that stands before it.
macro_rules! pack_enum {
    ($name:ident { $(
        $tag:literal => $variant:ident
        $(($($place:ident),+))?
        $({$($field:ident),+ $(,)?})?
    ),+ $(,)? }) => {
        impl crate::pack::Pack for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {$(
                    Self::$variant $(($($place),+))? $({$($field),+})? => {
                        out.push($tag);
                        $($($place.put(out);)+)?
                        $($($field.put(out);)+)?
                    }
                )+}
            }

            fn take(
                from: &mut crate::pack::Cursor<'_>,
            ) -> Result<Self, crate::pack::Damaged> {
                Ok(match from.byte()? {
                    $($tag => {
                        $($(let $place = crate::pack::Pack::take(from)?;)+)?
                        $($(let $field = crate::pack::Pack::take(from)?;)+)?
                        Self::$variant $(($($place),+))? $({$($field),+})?
                    })+
                    _ => return Err(crate::pack::Damaged(stringify!($name))),
                })
            }
        }
    };
}
pub(crate) use pack_enum;

#[cfg(test)]
mod tests {
    use super::*;

    fn again<T: Pack + PartialEq + core::fmt::Debug>(value: &T) -> usize {
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        let mut cursor = Cursor(&bytes);
        assert_eq!(T::take(&mut cursor).as_ref(), Ok(value));
        assert!(cursor.0.is_empty());
        for len in 0..bytes.len() {
            assert!(T::take(&mut Cursor(&bytes[..len])).is_err(), "{value:?} from {len} bytes");
        }
        bytes.len()
    }

    #[test]
    fn what_is_written_is_read_and_nothing_less() {
        for (number, len) in [(0, 1), (127, 1), (128, 2), (u64::from(u32::MAX), 5), (u64::MAX, 10)]
        {
            assert_eq!(again(&number), len);
        }
        assert_eq!(again(&Blob(vec![200; 3])), 4);
        assert_eq!(again(&vec![Some(7u32), None]), 4);
        assert_eq!(again(&Err::<(), String>("ä".into())), 4);
        assert_eq!(again(&[1u8, 2, 3]), 3);
    }

    #[test]
    fn lengths_and_numbers_are_not_believed() {
        let long = [0xff; 11];
        assert_eq!(Cursor(&long).number(), Err(Damaged("number")));
        let mut too_big = [0xff; 10];
        too_big[9] = 2;
        assert_eq!(Cursor(&too_big).number(), Err(Damaged("number")));
        assert_eq!(Blob::take(&mut Cursor(&[9, 1])), Err(Damaged("length")));
        assert_eq!(Vec::<u64>::take(&mut Cursor(&[0xff, 0x7f, 1])), Err(Damaged("length")));
        assert_eq!(u16::take(&mut Cursor(&[0x80, 0x80, 4])), Err(Damaged("u16")));
        assert_eq!(bool::take(&mut Cursor(&[2])), Err(Damaged("yes or no")));
    }
}

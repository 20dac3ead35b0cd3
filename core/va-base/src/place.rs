//! An optional value whose empty form is all zeros.
//!
//! [`Option`] marks "none" by a value that its content never has, and that value need not be zeros. A static that is
//! not all zeros takes as much space in the image of a kernel as in memory. A table that is not all zeros cannot be
//! supplied as zeroed pages. So a [`Place`] has a byte for the mark.

/// Nothing, or a value that is created in place and stays until it is dropped in place.
#[derive(Debug)]
#[repr(u8)]
pub enum Place<T> {
    /// Nothing: every byte is zero.
    Empty = 0,
    /// The value.
    Full(T) = 1,
}

impl<T> Place<T> {
    /// Puts a value here, drops the one that was here, and returns the new one.
    ///
    /// A large value takes less stack as a constant, `*place = const { Place::Full(..) }`: the compiler copies it from
    /// the constant data.
    #[inline(always)]
    pub fn put(&mut self, value: T) -> &mut T {
        *self = Self::Full(value);
        match self {
            Self::Full(value) => value,
            Self::Empty => unreachable!("a value was put here"),
        }
    }

    /// Returns the value, if there is one.
    #[inline(always)]
    pub const fn get(&self) -> Option<&T> {
        match self {
            Self::Full(value) => Some(value),
            Self::Empty => None,
        }
    }

    /// Returns the value for mutation.
    #[inline(always)]
    pub const fn get_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Full(value) => Some(value),
            Self::Empty => None,
        }
    }
}

//! A place for one value, whose empty form is all zeros.
//!
//! [`Option`] says that it is empty by a value that its content never has, which need not be zeros. A static that is not all
//! zeros is as long in the file of a kernel as in memory, and a table that is not all zeros cannot be supplied as zeroed
//! pages. A [`Place`] has a byte for that.

/// Nothing, or a value that is made here and stays until it is dropped here.
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
    /// What is large takes less stack as a constant, `*place = const { Place::Full(..) }`, which is copied from where
    /// constants are.
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

    /// Returns the value, to change it.
    #[inline(always)]
    pub const fn get_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Full(value) => Some(value),
            Self::Empty => None,
        }
    }
}

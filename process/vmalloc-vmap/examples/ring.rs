//! A ring buffer mapped twice in a row: a message that wraps around is contiguous.
//!
//! ```text
//!   addresses  | frame 0 | frame 1 | frame 0 | frame 1 | guard
//!                      ^ a message of two pages may begin anywhere
//! ```
//! `cargo run -p vmalloc-vmap --example ring` sends messages of all sizes through it and prints the number of bytes sent.

use vmalloc_vmap::{Frames, Mapping, Mappings, Protection, VmapError};

/// A FIFO of bytes, for a single thread that writes and reads.
pub(crate) struct Ring<'f> {
    view: Mapping<'f>,
    bytes: usize,
    /// All bytes that were ever put, and got.
    put: usize,
    got: usize,
}

impl<'f> Ring<'f> {
    /// Creates a ring of all of `frames`.
    ///
    /// # Errors
    /// As those of `vmap`.
    pub(crate) fn new(frames: &'f Frames<'_>) -> Result<Self, VmapError> {
        let twice: Vec<usize> = (0..frames.len()).chain(0..frames.len()).collect();
        let view = frames.vmap(&twice, Protection::ReadWrite)?;
        Ok(Self { bytes: view.len() / 2, view, put: 0, got: 0 })
    }

    /// Returns the free bytes.
    pub(crate) fn room(&self) -> usize {
        self.bytes - (self.put - self.got)
    }

    /// Puts a whole message by one copy, wherever it begins. Returns `false` if it does not fit.
    ///
    /// # Errors
    /// As those of `write`.
    pub(crate) fn put(&mut self, message: &[u8]) -> Result<bool, VmapError> {
        if message.len() > self.room() {
            return Ok(false);
        }
        self.view.write(self.put % self.bytes, message)?;
        self.put += message.len();
        Ok(true)
    }

    /// Gets `to.len()` bytes by one copy. Returns `false` if there are fewer.
    ///
    /// # Errors
    /// As those of `read`.
    pub(crate) fn get(&mut self, to: &mut [u8]) -> Result<bool, VmapError> {
        if to.len() > self.put - self.got {
            return Ok(false);
        }
        self.view.read(self.got % self.bytes, to)?;
        self.got += to.len();
        Ok(true)
    }
}

/// Sends `count` messages of varying sizes, and checks each. Returns the bytes sent.
///
/// # Errors
/// As those of the ring; a message that differs after the transfer.
pub(crate) fn send(count: usize) -> Result<usize, Box<dyn std::error::Error>> {
    let frames = Mappings::global()?.frames(3)?;
    let mut ring = Ring::new(&frames)?;
    let mut sent = 0;
    for number in 0..count {
        let len = 1 + number * 977 % ring.bytes;
        let message: Vec<u8> = (0..len).map(|at| (at * 31 + number) as u8).collect();
        let mut back = vec![0; len];
        if !ring.put(&message)? || !ring.get(&mut back)? {
            return Err(format!("message {number} of {len} bytes does not fit").into());
        }
        if back != message {
            return Err(format!("message {number} of {len} bytes came out another").into());
        }
        sent += len;
    }
    // A full ring takes nothing, and an empty one returns nothing.
    let whole = vec![1; ring.bytes];
    if !ring.put(&whole)? || ring.put(&[1])? || ring.room() != 0 || ring.get(&mut vec![0; ring.bytes + 1])? {
        return Err("a ring that is full took more, or gave more than it has".into());
    }
    Ok(sent)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sent = send(1000)?;
    println!("1000 messages, {sent} bytes, each in one piece");
    Ok(())
}

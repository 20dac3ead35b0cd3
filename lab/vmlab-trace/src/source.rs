//! Sources of a trace's text: a file or standard input; plain, gzip or zstd.

use super::LINE_MAX;
use super::jsonl::{VERSION, version_of};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

const BUFFER_BYTES: usize = 1 << 16;

/// Opens a trace for reading, compressed or not; `-` is standard input.
///
/// # Errors
/// If the file cannot be opened or read, or begins with a broken frame, or is of a later version
/// ([`of_known_version`]).
pub fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    of_known_version(if path == Path::new("-") {
        decompress(io::stdin())?
    } else {
        decompress(File::open(path)?)?
    })
}

/// Passes an input on, but for a recording whose first line says a version that is not known here.
///
/// # Errors
/// With both versions, if that is greater than [`VERSION`].
pub fn of_known_version<'a>(input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut rest = BufReader::with_capacity(BUFFER_BYTES, input);
    // Only a line of JSON is waited for.
    let (mut head, begins) = (Vec::new(), rest.fill_buf().map(|bytes| bytes.first() == Some(&b'{')));
    let failed = match begins {
        Ok(true) => rest.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut head).err(),
        begins => begins.err(),
    };
    if let Some(version) = version_of(&String::from_utf8_lossy(&head)).filter(|&version| version > VERSION) {
        return Err(invalid(format!(
            "a recording of version {version} of its form, and this vmlab reads version {VERSION}: use a later vmlab"
        )));
    }
    Ok(Box::new(Begun { head: Cursor::new(head), failed, rest, ended: false }))
}

/// An input whose beginning was read before. It has all of the input, and an error that ended the beginning occurs again
/// where it did: a decompressor reports it once, and then an end.
pub struct Begun<R> {
    head: Cursor<Vec<u8>>,
    failed: Option<io::Error>,
    rest: R,
    ended: bool,
}

impl<R> std::fmt::Debug for Begun<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl<R: Read> Begun<R> {
    /// Reads a beginning of at most so many bytes.
    pub fn read(mut rest: R, most: u64) -> Self {
        let mut head = Vec::new();
        let read = rest.by_ref().take(most).read_to_end(&mut head);
        let ended = (head.len() as u64) < most;
        Self { head: Cursor::new(head), failed: read.err(), rest, ended }
    }

    /// Returns the beginning.
    pub fn head(&self) -> &[u8] {
        self.head.get_ref()
    }

    /// Returns true if the input ends in its beginning.
    pub fn is_ended(&self) -> bool {
        self.ended
    }
}

impl<R: Read> Read for Begun<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.head.read(buffer)? {
            0 if buffer.is_empty() => Ok(0),
            0 => self.failed.take().map_or_else(|| self.rest.read(buffer), Err),
            count => Ok(count),
        }
    }
}

/// Decompresses gzip or zstd, which it detects by the first bytes, or passes plain text through.
///
/// # Errors
/// If the first bytes cannot be read, or begin a frame that cannot be decoded.
pub fn decompress<'a>(input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
    // A read may return fewer than four bytes: read until all four are there.
    let mut magic = Vec::with_capacity(4);
    input.by_ref().take(4).read_to_end(&mut magic)?;
    let whole = Cursor::new(magic.clone()).chain(input);
    match magic[..] {
        [0x1f, 0x8b, ..] => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(whole))),
        // A zstd frame, or a skippable frame, which may come first.
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Ok(Box::new(Frames::new(whole)?)),
        _ => Ok(Box::new(whole)),
    }
}

/// Reads all frames of a zstd stream in order, and verifies checksums. Parallel compressors write several frames, and
/// so does `cat`. The crate's own streaming reader stops after the first frame.
struct Frames<R> {
    input: R,
    decoder: FrameDecoder,
    /// True if the current frame is not read to its end.
    open: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(input: R) -> io::Result<Self> {
        let mut frames = Self { input, decoder: FrameDecoder::new(), open: false };
        frames.begin()?;
        Ok(frames)
    }

    /// Begins the next frame, if there is one.
    fn begin(&mut self) -> io::Result<()> {
        while !self.open && !self.input.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.input) {
                Ok(()) => self.open = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.input.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(())
    }

    /// Ends the frame that was read.
    fn end(&mut self) -> io::Result<()> {
        self.open = false;
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(stored), Some(seen)) if stored != seen => Err(invalid("the zstd checksum differs")),
            _ => self.begin(),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.open && !buffer.is_empty() {
            if self.decoder.can_collect() == 0 && self.decoder.is_finished() {
                self.end()?;
            } else if self.decoder.can_collect() < buffer.len() && !self.decoder.is_finished() {
                let wanted = BlockDecodingStrategy::UptoBytes(buffer.len());
                self.decoder.decode_blocks(&mut self.input, wanted).map_err(invalid)?;
            } else {
                return self.decoder.read(buffer);
            }
        }
        Ok(0)
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn text() -> Vec<u8> {
        (0..20_000u32)
            .flat_map(|n| format!("line {}\n", n.wrapping_mul(2_654_435_761)).into_bytes())
            .collect()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(bytes).unwrap();
        gz.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        decompress(bytes)?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn plain_gzip_and_zstd_have_the_same_bytes() {
        for bytes in [text(), b"".to_vec(), b"abc".to_vec()] {
            assert!(read(&bytes).unwrap() == bytes);
            assert!(read(&gzip(&bytes)).unwrap() == bytes);
            assert!(read(&zstd(&bytes)).unwrap() == bytes);
        }
    }

    #[test]
    fn a_recording_of_a_later_version_is_an_error_with_both() {
        let passed = |text: &[u8]| {
            let mut all = Vec::new();
            of_known_version(text)?.read_to_end(&mut all)?;
            Ok::<_, io::Error>(all)
        };
        for text in [
            "",
            "{",
            "x-1 [000] 1.0: y: {}\n{\"vmlab\":{\"version\":7}}\n",
            "{\"vmlab\":{}}",
            "{\"vmlab\":1}\n",
            "{\"vmlab\":{\"version\":1}}\n{\"area\":{}}\n",
            "{\"event\":\"x\",\"version\":2}\n",
        ] {
            assert_eq!(passed(text.as_bytes()).unwrap(), text.as_bytes());
        }
        let long = format!("{{{}\n", "x".repeat(2 * LINE_MAX));
        assert_eq!(passed(long.as_bytes()).unwrap(), long.as_bytes());
        for version in ["7", "\"7\"", "\"0x7\""] {
            // Other keys may have another meaning then.
            let text = format!("{{\"vmlab\":{{\"version\":{version},\"cpus\":[]}}}}\n");
            let error = passed(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("version 7 of its form, and this vmlab reads version 1"), "{error}");
        }
        // A damaged input is reported once by its decompressor, and again here.
        let cut = gzip(&[b"{", &text()[..]].concat());
        let mut all = Vec::new();
        let input = decompress(&cut[..cut.len() / 3]).unwrap();
        assert!(of_known_version(input).unwrap().read_to_end(&mut all).is_err());
    }

    #[test]
    fn several_frames_are_one_text() {
        let text = text();
        let (a, b) = text.split_at(text.len() / 3);
        assert!(read(&[gzip(a), gzip(b)].concat()).unwrap() == text);
        // A skippable frame of five bytes may stand between two others, and before them.
        for magic in [0x50, 0x5f] {
            let skipped = [&[magic, 0x2a, 0x4d, 0x18, 5, 0, 0, 0][..], b"12345"].concat();
            assert!(read(&[&zstd(a), &skipped, &zstd(b)[..]].concat()).unwrap() == text);
            assert!(read(&[&skipped, &skipped, &zstd(&text)[..]].concat()).unwrap() == text);
            assert!(read(&skipped).unwrap().is_empty());
            assert!(read(&skipped[..10]).is_err(), "cut in the skipped part");
        }
    }

    #[test]
    fn a_broken_stream_is_an_error_not_an_end() {
        for bytes in [gzip(&text()), zstd(&text())] {
            assert!(read(&bytes[..bytes.len() / 2]).is_err());
            // Also if the error is met in a beginning that was read before.
            let cut = &bytes[..bytes.len() / 2];
            let mut begun = Begun::read(decompress(cut).unwrap(), 1 << 30);
            let mut all = Vec::new();
            let error = begun.read_to_end(&mut all).map_err(|error| error.to_string());
            assert_eq!(error.err(), read(cut).err().map(|error| error.to_string()));
            assert!(begun.is_ended() && begun.head() == all);
            assert!(read(&bytes[..5]).is_err());
            assert!(read(&[&bytes[..], b"more"].concat()).is_err());
            let mut flipped = bytes.clone();
            flipped[bytes.len() - 2] ^= 1;
            assert!(read(&flipped).is_err(), "the checksum");
        }
    }
}

//! Destinations of recordings and conversions: a file or standard output, plain or gzip, by the file name.

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use vmlab_base::file::OutputFile;

const BUFFER_BYTES: usize = 1 << 16;

/// Writes incrementally, in constant memory. Flushed output is readable even if the process is killed.
pub struct Sink {
    path: PathBuf,
    out: Out,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("path", &self.path).finish_non_exhaustive()
    }
}

type Counted = CountingWriter<Box<dyn Write>>;

enum Out {
    Plain(BufWriter<Counted>),
    Gzip(BufWriter<GzEncoder<Counted>>),
}

impl Sink {
    /// Opens `path`, or standard output for `-`. An existing file is replaced.
    ///
    /// # Errors
    /// If it cannot be written, or its name has the extension of a compression that is only read.
    pub fn create(path: &Path) -> Result<Self> {
        let end = path.extension().and_then(|end| end.to_str());
        if end.is_some_and(|end| end.eq_ignore_ascii_case("zst")) {
            bail!("{}: zstd is read, but not written; name it .gz or without an end", path.display());
        }
        let raw: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            Box::new(OutputFile::open(path)?.stream()?)
        };
        let gzip = end.is_some_and(|end| end.eq_ignore_ascii_case("gz"));
        Ok(Self { path: path.to_path_buf(), out: Out::new(raw, gzip) })
    }

    /// Writes to `out`. Error messages call it `name`.
    pub fn to(out: impl Write + 'static, name: &str) -> Self {
        Self { path: PathBuf::from(name), out: Out::new(Box::new(out), false) }
    }

    /// Returns the bytes written so far.
    pub fn bytes(&self) -> u64 {
        match &self.out {
            Out::Plain(out) => out.get_ref().bytes,
            Out::Gzip(out) => out.get_ref().get_ref().bytes,
        }
    }

    /// Writes a line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn line(&mut self, line: &str) -> Result<()> {
        self.write_all(line.as_bytes()).and_then(|()| self.write_all(b"\n")).with_context(|| self.what())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If buffered output cannot be written.
    pub fn finish(self) -> Result<()> {
        let what = self.what();
        let finish = || match self.out {
            Out::Plain(mut out) => out.flush(),
            Out::Gzip(out) => {
                let gzip = out.into_inner().map_err(io::IntoInnerError::into_error)?;
                gzip.finish()?.flush()
            }
        };
        finish().context(what)
    }

    /// Returns the destination for error messages.
    pub fn what(&self) -> String {
        format!("cannot write {}", self.path.display())
    }
}

impl Out {
    fn new(raw: Box<dyn Write>, gzip: bool) -> Self {
        let counted = CountingWriter { inner: raw, bytes: 0 };
        if gzip {
            Self::Gzip(BufWriter::with_capacity(
                BUFFER_BYTES,
                GzEncoder::new(counted, Compression::default()),
            ))
        } else {
            Self::Plain(BufWriter::with_capacity(BUFFER_BYTES, counted))
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            Out::Plain(out) => out.write(bytes),
            Out::Gzip(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            Out::Plain(out) => out.flush(),
            Out::Gzip(out) => out.flush(),
        }
    }
}

struct CountingWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;
    use std::io::Read;
    use tempfile::TempDir;

    #[test]
    fn what_was_flushed_can_be_read_although_the_file_was_not_ended() {
        let dir = TempDir::new().unwrap();
        for name in ["a", "a.gz"] {
            let path = dir.path().join(name);
            let mut sink = Sink::create(&path).unwrap();
            sink.line("one").unwrap();
            sink.flush().unwrap();
            sink.line("two").unwrap();
            // Simulates a process that is killed: the stream is not finished.
            std::mem::forget(sink);
            let mut text = Vec::new();
            let whole = open(&path).unwrap().read_to_end(&mut text);
            assert_eq!((&text[..], whole.is_ok()), (&b"one\n"[..], name == "a"), "{name}");
        }
    }

    #[test]
    fn a_file_is_as_long_as_was_counted() {
        let dir = TempDir::new().unwrap();
        for name in ["a", "a.GZ"] {
            let path = dir.path().join(name);
            let mut sink = Sink::create(&path).unwrap();
            for number in 0..10_000 {
                sink.line(&format!("line {number}")).unwrap();
            }
            sink.flush().unwrap();
            assert_eq!(sink.bytes(), std::fs::metadata(&path).unwrap().len());
            sink.finish().unwrap();
            let mut text = String::new();
            open(&path).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text.lines().count(), 10_000);
        }
        assert!(Sink::create(&dir.path().join("a.zst")).is_err());
    }
}

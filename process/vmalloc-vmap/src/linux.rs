//! The system calls of mappings, made to the running kernel.
//!
//! Those whose functions are cancellation points in a C library are made by their numbers (`vmalloc-os`, `linux.rs`).

use super::os::{File, MapOs, Span};
use core::ffi::{c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use vmalloc_os::os::{Errno, close, done, errno, pointer, raise};

/// The running kernel.
pub(crate) struct Linux;

const NONE_FLAGS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl MapOs for Linux {
    fn reserve(&self, bytes: usize) -> Result<usize, Errno> {
        anywhere(bytes, libc::PROT_NONE)
    }

    fn words(&self, bytes: usize) -> Result<usize, Errno> {
        anywhere(bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    unsafe fn release(&self, span: Span) {
        // SAFETY: this function's contract. The call cannot fail for whole mappings.
        let _gone = unsafe { libc::munmap(pointer(span.at), span.bytes) };
    }

    fn create(&self) -> Result<File, Errno> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let name = c"vmalloc frames";
        // SAFETY: reads the name. Kernels before 6.3 lack the flag `MFD_NOEXEC_SEAL`; later ones may require it.
        let mut file = unsafe { libc::memfd_create(name.as_ptr(), flags | libc::MFD_NOEXEC_SEAL) };
        if file < 0 {
            // SAFETY: as before.
            file = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        }
        if file < 0 {
            return Err(errno());
        }
        // SAFETY: a file of our own. The seal may fail, since only this process has the file.
        let _sealed = unsafe { libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let number = raise(file);
        opened(number).inspect_err(|_| close(number))
    }

    fn close(&self, file: File) {
        if let Ok(number) = ours(file) {
            close(number);
        }
    }

    fn size(&self, file: File, bytes: u64) -> Result<(), Errno> {
        let file = ours(file)?;
        may_reach(bytes)?;
        let bytes = libc::off_t::try_from(bytes).map_err(|_| Errno(libc::EFBIG))?;
        // SAFETY: a file of our own.
        done(unsafe { libc::ftruncate(file, bytes) })
    }

    unsafe fn map(&self, span: Span, file: File, offset: u64, writable: bool) -> Result<(), Errno> {
        let file = ours(file)?;
        let access = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno(libc::EFBIG))?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: a part of the caller's reservation, to which no reference exists.
        fixed(unsafe { libc::mmap(pointer(span.at), span.bytes, access, flags, file, offset) })
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), Errno> {
        let flags = NONE_FLAGS | libc::MAP_FIXED;
        // SAFETY: a part of the caller's reservation, to which no reference exists.
        fixed(unsafe { libc::mmap(pointer(span.at), span.bytes, libc::PROT_NONE, flags, -1, 0) })
    }

    unsafe fn mend(&self, span: Span) {
        let flags = NONE_FLAGS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the call replaces no mapping.
        let mapped = unsafe { libc::mmap(pointer(span.at), span.bytes, libc::PROT_NONE, flags, -1, 0) };
        if mapped != libc::MAP_FAILED && mapped != pointer(span.at) {
            // A kernel without the flag treats the address as a hint.
            // SAFETY: mapped above.
            let _gone = unsafe { libc::munmap(mapped, span.bytes) };
        }
    }

    fn populate(&self, file: File, offset: u64, bytes: u64) -> Result<(), Errno> {
        allocate(file, 0, offset, bytes)
    }

    fn punch(&self, file: File, offset: u64, bytes: u64) -> Result<(), Errno> {
        allocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
    }

    fn read(&self, file: File, offset: u64, mut to: &mut [u8]) -> Result<(), Errno> {
        let file = ours(file)?;
        let mut at = offset as libc::off_t;
        while !to.is_empty() {
            // SAFETY: writes at most as many bytes as `to` has.
            let got = unsafe { libc::syscall(libc::SYS_pread64, file, to.as_mut_ptr(), to.len(), at) };
            let Some(got) = moved(got)? else { continue };
            at += got as libc::off_t;
            to = &mut to[got..];
        }
        Ok(())
    }

    fn write(&self, file: File, offset: u64, mut from: &[u8]) -> Result<(), Errno> {
        let file = ours(file)?;
        may_reach(offset + from.len() as u64)?;
        let mut at = offset as libc::off_t;
        while !from.is_empty() {
            // SAFETY: reads at most as many bytes as `from` has.
            let put = unsafe { libc::syscall(libc::SYS_pwrite64, file, from.as_ptr(), from.len(), at) };
            let Some(put) = moved(put)? else { continue };
            at += put as libc::off_t;
            from = &from[put..];
        }
        Ok(())
    }
}

/// Returns the file of a descriptor.
fn opened(number: c_int) -> Result<File, Errno> {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes the properties of a file.
    done(unsafe { libc::fstat(number, about.as_mut_ptr()) })?;
    // SAFETY: all zeros is a value, and so is what was written.
    let about = unsafe { about.assume_init() };
    Ok(File { number, device: about.st_dev, inode: about.st_ino })
}

/// Returns the descriptor of a file, if it still refers to it: a program may close all descriptors, and open files of
/// its own by their numbers. A call would change or close those.
fn ours(file: File) -> Result<c_int, Errno> {
    if opened(file.number) == Ok(file) { Ok(file.number) } else { Err(Errno(libc::EBADF)) }
}

/// Checks that a file may have that many bytes: a call that exceeds the limit would end the program by a signal.
fn may_reach(bytes: u64) -> Result<(), Errno> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes `limit`. If the call is denied, there is none as far as is known.
    let _known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if bytes > limit.rlim_cur { Err(Errno(libc::EFBIG)) } else { Ok(()) }
}

/// Returns the number of bytes moved, or `None` if a signal interrupted the call.
fn moved(count: c_long) -> Result<Option<usize>, Errno> {
    match usize::try_from(count) {
        // A read or write inside the file never ends with 0 bytes.
        Ok(0) => Err(Errno(libc::EIO)),
        Ok(count) => Ok(Some(count)),
        Err(_) if errno() == Errno(libc::EINTR) => Ok(None),
        Err(_) => Err(errno()),
    }
}

fn anywhere(bytes: usize, access: c_int) -> Result<usize, Errno> {
    // SAFETY: a new mapping, which replaces none.
    let at = unsafe { libc::mmap(null_mut(), bytes, access, NONE_FLAGS, -1, 0) };
    if at == libc::MAP_FAILED { Err(errno()) } else { Ok(at.expose_provenance()) }
}

fn allocate(file: File, mode: c_int, offset: u64, bytes: u64) -> Result<(), Errno> {
    let file = ours(file)?;
    loop {
        // SAFETY: a file of our own.
        let code = unsafe { libc::syscall(libc::SYS_fallocate, file, mode, offset, bytes) };
        match done(code as c_int) {
            Err(Errno(libc::EINTR)) => {}
            other => return other,
        }
    }
}

fn fixed(mapped: *mut c_void) -> Result<(), Errno> {
    if mapped == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
}

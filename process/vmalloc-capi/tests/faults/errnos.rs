//! The errors that the manual names for each system call, the most likely first.
//!
//! An error that reports a program's mistake, such as `EFAULT`, is among them: a filter, a sandbox or another kernel
//! may answer it to a right call. `ENOSYS` and `EPERM`, which profiles answer, are added where a manual lacks them.
//! # Source
//! The pages of `man 2` of Linux man-pages 6.03, by the names of the calls. Errors are omitted that a page gives to other
//! calls, or to operations that nothing here asks for.

use libc::{
    E2BIG, EACCES, EAGAIN, EBADF, EBUSY, ECHILD, EDEADLK, EEXIST, EFAULT, EFBIG, EINTR, EINVAL, EIO, EISDIR,
    ELOOP, EMFILE, ENAMETOOLONG, ENFILE, ENODEV, ENOENT, ENOMEM, ENOSPC, ENOSYS, ENOTDIR, ENOTTY, ENXIO,
    EOPNOTSUPP, EOVERFLOW, EPERM, EROFS, ESPIPE, ESRCH, ETIMEDOUT, ETXTBSY, c_int, c_long,
};

/// A call: its number, its name, and its errors.
pub(super) type Row = (c_long, &'static str, &'static [c_int]);

/// All calls of the entry points. A call that is not here fails the test that meets it.
pub(super) const ROWS: &[Row] = &[
    (
        libc::SYS_mmap,
        "mmap",
        &[ENOMEM, EAGAIN, EPERM, EACCES, EEXIST, EINVAL, ENFILE, ENODEV, EBADF, EOVERFLOW, ETXTBSY, ENOSYS],
    ),
    (libc::SYS_munmap, "munmap", &[ENOMEM, EINVAL]),
    (libc::SYS_mprotect, "mprotect", &[ENOMEM, EACCES, EINVAL, EFAULT, EPERM, ENOSYS]),
    (
        libc::SYS_madvise,
        "madvise",
        &[EINVAL, ENOMEM, EAGAIN, EACCES, EBADF, EBUSY, EFAULT, EIO, EPERM, ENOSYS],
    ),
    (libc::SYS_process_madvise, "process_madvise", &[EPERM, ENOSYS, EBADF, EFAULT, EINVAL, ENOMEM, ESRCH]),
    (libc::SYS_pidfd_open, "pidfd_open", &[EMFILE, ENOSYS, EINVAL, ENFILE, ENODEV, ENOMEM, ESRCH, EPERM]),
    (libc::SYS_mremap, "mremap", &[ENOMEM, EINVAL, EAGAIN, EFAULT, EPERM, ENOSYS]),
    (libc::SYS_mincore, "mincore", &[EAGAIN, ENOMEM, EFAULT, EINVAL, EPERM, ENOSYS]),
    (libc::SYS_brk, "brk", &[ENOMEM]),
    (libc::SYS_mlock, "mlock", &[ENOMEM, EPERM, EAGAIN, EINVAL, ENOSYS]),
    (libc::SYS_munlock, "munlock", &[ENOMEM, EPERM, EAGAIN, EINVAL, ENOSYS]),
    (libc::SYS_rt_sigaction, "rt_sigaction", &[EINVAL, EFAULT]),
    (libc::SYS_userfaultfd, "userfaultfd", &[EPERM, ENOSYS, EINVAL, EMFILE, ENFILE, ENOMEM]),
    // Of userfaultfd: UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_MOVE.
    (
        libc::SYS_ioctl,
        "ioctl",
        &[EBUSY, EAGAIN, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC, ESRCH, EFAULT, EPERM, EBADF, ENOTTY, ENOSYS],
    ),
    (libc::SYS_membarrier, "membarrier", &[EPERM, ENOSYS, EINVAL]),
    (libc::SYS_futex, "futex", &[EAGAIN, EINTR, ETIMEDOUT, EFAULT, EINVAL, EACCES, ENOSYS]),
    (libc::SYS_getrandom, "getrandom", &[ENOSYS, EAGAIN, EINTR, EFAULT, EINVAL, EPERM]),
    (libc::SYS_prlimit64, "getrlimit", &[EPERM, EFAULT, EINVAL, ESRCH, ENOSYS]),
    (libc::SYS_sched_getaffinity, "sched_getaffinity", &[EINVAL, EFAULT, EPERM, ESRCH, ENOSYS]),
    (libc::SYS_getcpu, "getcpu", &[EFAULT, ENOSYS]),
    (libc::SYS_clock_gettime, "clock_gettime", &[EINVAL, EFAULT, EACCES, ENODEV, EOPNOTSUPP, EPERM, ENOSYS]),
    (libc::SYS_get_mempolicy, "get_mempolicy", &[EINVAL, EFAULT, EPERM, ENOSYS]),
    (libc::SYS_mbind, "mbind", &[EINVAL, EFAULT, EIO, ENOMEM, EPERM, ENOSYS]),
    (
        libc::SYS_memfd_create,
        "memfd_create",
        &[EMFILE, EINVAL, ENFILE, ENOMEM, EFAULT, EPERM, EACCES, ENOSYS],
    ),
    (libc::SYS_ftruncate, "ftruncate", &[EFBIG, EINTR, EINVAL, EIO, EPERM, EBADF, ETXTBSY, EROFS]),
    (
        libc::SYS_fallocate,
        "fallocate",
        &[ENOSPC, EOPNOTSUPP, EINTR, EBADF, EFBIG, EINVAL, EIO, ENODEV, ENOSYS, EPERM, ESPIPE, ETXTBSY],
    ),
    (
        libc::SYS_pread64,
        "pread",
        &[EINTR, EIO, EAGAIN, EBADF, EFAULT, EINVAL, EISDIR, ENXIO, EOVERFLOW, ESPIPE],
    ),
    (
        libc::SYS_pwrite64,
        "pwrite",
        &[ENOSPC, EINTR, EIO, EAGAIN, EBADF, EFAULT, EFBIG, EINVAL, EPERM, ESPIPE],
    ),
    (
        libc::SYS_openat,
        "openat",
        &[
            EMFILE,
            ENOENT,
            EACCES,
            ENFILE,
            EINTR,
            EINVAL,
            EISDIR,
            ELOOP,
            ENAMETOOLONG,
            ENODEV,
            ENOMEM,
            ENOTDIR,
            ENXIO,
            EPERM,
            EOVERFLOW,
            EFAULT,
            EBADF,
            EBUSY,
            EAGAIN,
            ENOSYS,
        ],
    ),
    (libc::SYS_read, "read", &[EIO, EINTR, EAGAIN, EBADF, EFAULT, EINVAL, EISDIR]),
    (libc::SYS_write, "write", &[EIO, EINTR, EAGAIN, EBADF, EFAULT, EFBIG, EINVAL, ENOSPC, EPERM]),
    (libc::SYS_pipe2, "pipe2", &[EMFILE, ENFILE, EFAULT, EINVAL, ENOSYS]),
    (libc::SYS_close, "close", &[EINTR, EIO, ENOSPC, EBADF]),
    (libc::SYS_fcntl, "fcntl", &[EMFILE, EINVAL, EBADF, EACCES, EAGAIN, EBUSY, EPERM, EDEADLK, ENOSYS]),
    (libc::SYS_fstat, "fstat", &[EBADF, EFAULT, ENOMEM, EOVERFLOW, EACCES]),
    (
        libc::SYS_newfstatat,
        "fstatat",
        &[EBADF, EACCES, EFAULT, EINVAL, ELOOP, ENOENT, ENOMEM, ENOTDIR, EOVERFLOW],
    ),
    (libc::SYS_getdents64, "getdents", &[EBADF, EFAULT, EINVAL, ENOENT, ENOTDIR]),
    (libc::SYS_process_vm_readv, "process_vm_readv", &[EFAULT, EPERM, EINVAL, ENOMEM, ESRCH, ENOSYS]),
    (libc::SYS_clone3, "clone", &[EAGAIN, ENOMEM, ENOSYS, EPERM, EBUSY, EINVAL, EEXIST, ENOSPC, E2BIG]),
    (libc::SYS_clone, "clone", &[EAGAIN, ENOMEM, ENOSYS, EPERM, EINVAL, ENOSPC, ECHILD]),
    (libc::SYS_rseq, "rseq", &[ENOSYS, EINVAL, EPERM, EFAULT, EBUSY]),
    (libc::SYS_set_robust_list, "set_robust_list", &[EINVAL, EFAULT, EPERM, ESRCH, ENOSYS]),
    (libc::SYS_rt_sigprocmask, "rt_sigprocmask", &[EFAULT, EINVAL]),
    (libc::SYS_gettid, "gettid", &[]),
    (libc::SYS_getpid, "getpid", &[]),
    (libc::SYS_sched_yield, "sched_yield", &[ENOSYS]),
];

/// Returns the row of a call.
pub(super) fn row(number: c_long) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.0 == number)
}

/// Returns the name of an error.
pub(super) fn name(errno: c_int) -> String {
    let names = [
        ("E2BIG", E2BIG),
        ("EACCES", EACCES),
        ("EAGAIN", EAGAIN),
        ("EBADF", EBADF),
        ("EBUSY", EBUSY),
        ("ECHILD", ECHILD),
        ("EDEADLK", EDEADLK),
        ("EEXIST", EEXIST),
        ("EFAULT", EFAULT),
        ("EFBIG", EFBIG),
        ("EINTR", EINTR),
        ("EINVAL", EINVAL),
        ("EIO", EIO),
        ("EISDIR", EISDIR),
        ("ELOOP", ELOOP),
        ("EMFILE", EMFILE),
        ("ENAMETOOLONG", ENAMETOOLONG),
        ("ENFILE", ENFILE),
        ("ENODEV", ENODEV),
        ("ENOENT", ENOENT),
        ("ENOMEM", ENOMEM),
        ("ENOSPC", ENOSPC),
        ("ENOSYS", ENOSYS),
        ("ENOTDIR", ENOTDIR),
        ("ENOTTY", ENOTTY),
        ("ENXIO", ENXIO),
        ("EOPNOTSUPP", EOPNOTSUPP),
        ("EOVERFLOW", EOVERFLOW),
        ("EPERM", EPERM),
        ("EROFS", EROFS),
        ("ESPIPE", ESPIPE),
        ("ESRCH", ESRCH),
        ("ETIMEDOUT", ETIMEDOUT),
        ("ETXTBSY", ETXTBSY),
    ];
    let found = names.iter().find(|(_, number)| *number == errno);
    found.map_or_else(|| errno.to_string(), |(name, _)| (*name).to_string())
}

//! The C library's functions through which std, Rust libraries and C++ libraries reach the disk, defined anew.
//!
//! A symbol that an executable defines is taken before the one of a shared library, so whatever is linked into one
//! program with this crate calls these. The signatures are those of the C library on 64-bit Linux; `open` and its kin take
//! their mode as a third argument that may be missing, and look at it only if the flags say that it is there.
#![expect(
    unsafe_code,
    reason = "symbols of the C library are defined and their pointers read"
)]

use std::ffi::CStr;

use libc::{
    AT_FDCWD, AT_REMOVEDIR, c_char, c_int, c_uint, c_void, iovec, mode_t, off64_t, size_t, ssize_t,
};

use crate::{calls, kernel};

/// # Safety
/// The pointer is a path that ends with a zero, as the callers of these functions promise the C library.
unsafe fn path<'a>(path: *const c_char) -> &'a CStr {
    // SAFETY: as above.
    unsafe { CStr::from_ptr(path) }
}

/// # Safety
/// As for `write`: there are `len` bytes.
unsafe fn bytes<'a>(data: *const c_void, len: size_t) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(data.cast(), len) }
}

/// # Safety
/// As for `writev`: there are `count` vectors, and each has as many bytes as its length.
unsafe fn gather(vectors: *const iovec, count: c_int) -> Vec<u8> {
    let count = usize::try_from(count).unwrap_or_default();
    // SAFETY: as above.
    let vectors = unsafe { std::slice::from_raw_parts(vectors, count) };
    let mut all = Vec::new();
    for vector in vectors {
        // SAFETY: as above.
        all.extend_from_slice(unsafe { bytes(vector.iov_base, vector.iov_len) });
    }
    all
}

/// Defines symbols of the C library. Some have a second name.
macro_rules! symbols {
    ($(fn [$($name:ident),+] $arguments:tt -> $result:ty $body:block)*) => { $( symbols! { @each $($name)+ => $arguments $result, $body } )* };
    (@each $($name:ident)+ => $arguments:tt $result:ty, $body:block) => { $(
        /// # Safety
        /// As for the C library's function of this name.
        // SAFETY: the name is the C library's on purpose; see above.
        #[unsafe(no_mangle)]
        #[allow(clippy::missing_safety_doc, reason = "said above")]
        pub(crate) unsafe extern "C" fn $name $arguments -> $result $body
    )+ };
}

symbols! {
    fn [open, open64] (name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: passed on.
        calls::open(AT_FDCWD, unsafe { path(name) }, flags, mode)
    }

    fn [openat, openat64] (directory: c_int, name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: passed on.
        calls::open(directory, unsafe { path(name) }, flags, mode)
    }

    fn [creat, creat64] (name: *const c_char, mode: mode_t) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        // SAFETY: passed on.
        calls::open(AT_FDCWD, unsafe { path(name) }, flags, mode)
    }

    fn [write] (fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: passed on.
        calls::write(fd, unsafe { bytes(data, len) }, None)
    }

    fn [pwrite, pwrite64] (fd: c_int, data: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
        // SAFETY: passed on.
        calls::write(fd, unsafe { bytes(data, len) }, Some(offset))
    }

    fn [writev] (fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: passed on.
        calls::write(fd, &unsafe { gather(vectors, count) }, None)
    }

    fn [pwritev, pwritev64] (fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
        // SAFETY: passed on.
        calls::write(fd, &unsafe { gather(vectors, count) }, Some(offset))
    }

    fn [read] (fd: c_int, data: *mut c_void, len: size_t) -> ssize_t {
        if calls::unreadable(fd) {
            return kernel::fail(libc::EIO) as ssize_t;
        }
        // SAFETY: passed on to the kernel as it came.
        unsafe { libc::syscall(libc::SYS_read, fd, data, len) as ssize_t }
    }

    fn [readv] (fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
        if calls::unreadable(fd) {
            return kernel::fail(libc::EIO) as ssize_t;
        }
        // SAFETY: passed on to the kernel as it came.
        unsafe { libc::syscall(libc::SYS_readv, fd, vectors, count) as ssize_t }
    }

    fn [pread, pread64] (fd: c_int, data: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
        if calls::unreadable(fd) {
            return kernel::fail(libc::EIO) as ssize_t;
        }
        // SAFETY: passed on to the kernel as it came.
        unsafe { libc::syscall(libc::SYS_pread64, fd, data, len, offset) as ssize_t }
    }

    fn [fsync] (fd: c_int) -> c_int {
        calls::sync(fd, libc::SYS_fsync)
    }

    fn [fdatasync] (fd: c_int) -> c_int {
        calls::sync(fd, libc::SYS_fdatasync)
    }

    fn [ftruncate, ftruncate64] (fd: c_int, len: off64_t) -> c_int {
        calls::set_len(fd, len)
    }

    fn [fallocate, fallocate64] (fd: c_int, mode: c_int, offset: off64_t, len: off64_t) -> c_int {
        calls::allocate(fd, mode, offset, len)
    }

    fn [posix_fallocate, posix_fallocate64] (fd: c_int, offset: off64_t, len: off64_t) -> c_int {
        match calls::allocate(fd, 0, offset, len) {
            0 => 0,
            // Alone among these it returns what is wrong, instead of noting it.
            _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }

    fn [fstatvfs, fstatvfs64] (fd: c_int, answer: *mut libc::statvfs64) -> c_int {
        let Some(mut found) = kernel::statvfs(fd) else {
            return -1;
        };
        if let Some(room) = calls::room(fd) {
            found.f_frsize = 1;
            found.f_blocks = u64::from(u32::MAX).max(room);
            found.f_bfree = room;
            found.f_bavail = room;
        }
        // SAFETY: as for the C library, there is a place for the answer.
        unsafe { answer.write(found) };
        0
    }

    fn [rename] (from: *const c_char, to: *const c_char) -> c_int {
        // SAFETY: passed on.
        let (from, to) = unsafe { (path(from), path(to)) };
        calls::rename((AT_FDCWD, from), (AT_FDCWD, to), 0)
    }

    fn [renameat] (from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char) -> c_int {
        // SAFETY: passed on.
        let (from, to) = unsafe { (path(from), path(to)) };
        calls::rename((from_at, from), (to_at, to), 0)
    }

    fn [renameat2] (
        from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_uint
    ) -> c_int {
        // SAFETY: passed on.
        let (from, to) = unsafe { (path(from), path(to)) };
        calls::rename((from_at, from), (to_at, to), flags)
    }

    fn [unlink] (name: *const c_char) -> c_int {
        // SAFETY: passed on.
        calls::unlink(AT_FDCWD, unsafe { path(name) }, 0)
    }

    fn [unlinkat] (directory: c_int, name: *const c_char, flags: c_int) -> c_int {
        // SAFETY: passed on.
        calls::unlink(directory, unsafe { path(name) }, flags)
    }

    fn [rmdir] (name: *const c_char) -> c_int {
        // SAFETY: passed on.
        calls::unlink(AT_FDCWD, unsafe { path(name) }, AT_REMOVEDIR)
    }

    fn [mkdir] (name: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: passed on.
        calls::mkdir(AT_FDCWD, unsafe { path(name) }, mode)
    }

    fn [mkdirat] (directory: c_int, name: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: passed on.
        calls::mkdir(directory, unsafe { path(name) }, mode)
    }

    fn [link] (from: *const c_char, to: *const c_char) -> c_int {
        // SAFETY: passed on.
        let (from, to) = unsafe { (path(from), path(to)) };
        calls::link((AT_FDCWD, from), (AT_FDCWD, to), 0)
    }

    fn [linkat] (
        from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_int
    ) -> c_int {
        // SAFETY: passed on.
        let (from, to) = unsafe { (path(from), path(to)) };
        calls::link((from_at, from), (to_at, to), flags)
    }
}

/// Does nothing, and is called from where a watch begins: an object file of a library that nothing refers to is left out, and
/// the C library's functions would stay what they are.
pub(crate) fn are_linked() {
    std::hint::black_box(fsync as unsafe extern "C" fn(c_int) -> c_int);
}

//! The kernel's own calls, past the functions of the C library that this crate takes the place of.
//!
//! All `unsafe` of asking the kernel is here: the functions are safe, since the memory they pass is borrowed for as long
//! as the call takes.
#![expect(
    unsafe_code,
    reason = "the kernel is asked without std, which would ask ourselves"
)]

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use libc::{c_int, c_long, mode_t};

/// Opens a file. Returns its descriptor, or -1 with the error in `errno`, which the C library sets.
pub(crate) fn openat(directory: RawFd, path: &CStr, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the path ends with a zero and outlives the call.
    unsafe { libc::syscall(libc::SYS_openat, directory, path.as_ptr(), flags, mode) as c_int }
}

/// Writes where the file's position is.
pub(crate) fn write(fd: RawFd, data: &[u8]) -> isize {
    // SAFETY: pointer and length are of one slice.
    unsafe { libc::syscall(libc::SYS_write, fd, data.as_ptr(), data.len()) as isize }
}

/// Writes at an offset.
pub(crate) fn pwrite(fd: RawFd, data: &[u8], offset: i64) -> isize {
    // SAFETY: pointer and length are of one slice.
    unsafe { libc::syscall(libc::SYS_pwrite64, fd, data.as_ptr(), data.len(), offset) as isize }
}

/// Syncs a file or directory.
pub(crate) fn sync(fd: RawFd, call: c_long) -> c_int {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(call, fd) as c_int }
}

/// Sets the length of a file.
pub(crate) fn ftruncate(fd: RawFd, len: i64) -> c_int {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_ftruncate, fd, len) as c_int }
}

/// Reserves room for a file.
pub(crate) fn fallocate(fd: RawFd, mode: c_int, offset: i64, len: i64) -> c_int {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, len) as c_int }
}

/// Asks about the file system of an open file.
pub(crate) fn statvfs(fd: RawFd) -> Option<libc::statvfs64> {
    // SAFETY: both structures of zeros are valid, and live until they have been filled.
    unsafe {
        let mut found: libc::statfs64 = std::mem::zeroed();
        if libc::syscall(libc::SYS_fstatfs, fd, &raw mut found) != 0 {
            return None;
        }
        let mut answer: libc::statvfs64 = std::mem::zeroed();
        answer.f_bsize = found.f_bsize.unsigned_abs();
        answer.f_frsize = found.f_frsize.unsigned_abs();
        answer.f_blocks = found.f_blocks;
        answer.f_bfree = found.f_bfree;
        answer.f_bavail = found.f_bavail;
        answer.f_files = found.f_files;
        answer.f_ffree = found.f_ffree;
        answer.f_favail = found.f_ffree;
        answer.f_namemax = found.f_namelen.unsigned_abs();
        Some(answer)
    }
}

/// Renames.
pub(crate) fn renameat(from: (RawFd, &CStr), to: (RawFd, &CStr), flags: libc::c_uint) -> c_int {
    let (from_at, from) = (from.0, from.1.as_ptr());
    // SAFETY: both paths end with zeros and outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from_at,
            from,
            to.0,
            to.1.as_ptr(),
            flags,
        ) as c_int
    }
}

/// Takes a name away.
pub(crate) fn unlinkat(directory: RawFd, path: &CStr, flags: c_int) -> c_int {
    // SAFETY: the path ends with a zero and outlives the call.
    unsafe { libc::syscall(libc::SYS_unlinkat, directory, path.as_ptr(), flags) as c_int }
}

/// Makes a directory.
pub(crate) fn mkdirat(directory: RawFd, path: &CStr, mode: mode_t) -> c_int {
    // SAFETY: the path ends with a zero and outlives the call.
    unsafe { libc::syscall(libc::SYS_mkdirat, directory, path.as_ptr(), mode) as c_int }
}

/// Gives a further name.
pub(crate) fn linkat(from: (RawFd, &CStr), to: (RawFd, &CStr), flags: c_int) -> c_int {
    let (from_at, from) = (from.0, from.1.as_ptr());
    // SAFETY: both paths end with zeros and outlive the call.
    unsafe { libc::syscall(libc::SYS_linkat, from_at, from, to.0, to.1.as_ptr(), flags) as c_int }
}

/// Sets what the C library calls `errno`.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The identity of a file in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Inode {
    device: u64,
    number: u64,
}

/// The kernel's answer about a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub(crate) inode: Inode,
    pub(crate) len: u64,
    pub(crate) is_directory: bool,
}

/// Asks about an open file; none if it is not open.
pub(crate) fn fstat(fd: RawFd) -> Option<Stat> {
    // SAFETY: a `stat` of zeros is one, and lives until it has been filled.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut found) == 0).then(|| stat(&found))
    }
}

/// Asks about a path, without following a link; none if there is nothing.
pub(crate) fn lstat(path: &Path) -> Option<Stat> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a `stat` of zeros is one, and lives until it has been filled.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::lstat(path.as_ptr(), &mut found) == 0).then(|| stat(&found))
    }
}

fn stat(found: &libc::stat) -> Stat {
    Stat {
        inode: Inode {
            device: found.st_dev,
            number: found.st_ino,
        },
        len: found.st_size.unsigned_abs(),
        is_directory: found.st_mode & libc::S_IFMT == libc::S_IFDIR,
    }
}

/// Returns where the next `write` to a file goes.
pub(crate) fn position(fd: RawFd) -> Option<u64> {
    // SAFETY: takes numbers only.
    let position = unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
    u64::try_from(position).ok()
}

/// Returns where a file's last bytes end that are no hole; none if the file system cannot say. The position is at the
/// file's beginning afterwards.
pub(crate) fn used(file: &std::fs::File) -> Option<u64> {
    let fd = std::os::fd::AsRawFd::as_raw_fd(file);
    let mut end = 0;
    loop {
        // SAFETY: takes numbers only.
        let data = unsafe { libc::lseek(fd, end, libc::SEEK_DATA) };
        let none = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO);
        if data < 0 {
            // SAFETY: takes numbers only.
            let back = unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
            return (none && back == 0).then(|| end.unsigned_abs());
        }
        // SAFETY: takes numbers only.
        end = unsafe { libc::lseek(fd, data, libc::SEEK_HOLE) };
        if end < 0 {
            return None;
        }
    }
}

/// Returns the flags that a file was opened with.
pub(crate) fn flags(fd: RawFd) -> c_int {
    // SAFETY: takes numbers only. By number, since `fcntl` may be asked of a descriptor that is no file.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) as c_int }
}

/// Returns the path that a name in a directory has; none if the directory has none.
pub(crate) fn resolve(directory: RawFd, path: &CStr) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let base = if directory == libc::AT_FDCWD {
        "/proc/self/cwd".to_owned()
    } else {
        format!("/proc/self/fd/{directory}")
    };
    Some(readlink(&CString::new(base).ok()?)?.join(path))
}

fn readlink(path: &CStr) -> Option<PathBuf> {
    let mut target = vec![0; libc::PATH_MAX as usize];
    // SAFETY: pointer and length are of one vector, and the path ends with a zero.
    let len = unsafe { libc::readlink(path.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    target.truncate(usize::try_from(len).ok()?);
    Some(PathBuf::from(OsString::from_vec(target)))
}

//! The replacements of the C library's functions.
//!
//! One lock guards everything that is known of watched directories. It is held while a call is made and recorded, so that the
//! recording has the order in which things happened; not while a sync waits. Without a watch, calls go straight to
//! the kernel.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{c_int, c_long, mode_t};

use crate::kernel;
use crate::recording::{Content, Node, NodeId, Op};
use crate::watched::Watched;

static WATCHES: AtomicUsize = AtomicUsize::new(0);
static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    watches: BTreeMap::new(),
    next: 0,
});

struct Registry {
    watches: BTreeMap<u64, Watched>,
    next: u64,
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn idle() -> bool {
    WATCHES.load(Ordering::Relaxed) == 0
}

pub(crate) fn register(watched: Watched) -> u64 {
    let mut registry = registry();
    registry.next += 1;
    let id = registry.next;
    for inode in watched.inodes() {
        registry
            .watches
            .values_mut()
            .for_each(|other| other.forget(inode));
    }
    registry.watches.insert(id, watched);
    WATCHES.fetch_add(1, Ordering::Relaxed);
    id
}

pub(crate) fn unregister(id: u64) -> Option<Watched> {
    let watched = registry().watches.remove(&id)?;
    WATCHES.fetch_sub(1, Ordering::Relaxed);
    watched.faults.gate.set_held(false);
    Some(watched)
}

/// Does something with a watched directory.
pub(crate) fn with<T>(id: u64, act: impl FnOnce(&mut Watched) -> T) -> Option<T> {
    registry().watches.get_mut(&id).map(act)
}

impl Registry {
    fn of_path(&mut self, path: &Path) -> Option<&mut Watched> {
        self.watches.values_mut().find(|watch| watch.contains(path))
    }

    fn of_file(&mut self, fd: RawFd) -> Option<(&mut Watched, NodeId)> {
        let inode = kernel::fstat(fd)?.inode;
        let mut watches = self.watches.values_mut();
        watches.find_map(|watch| watch.known(inode).map(|node| (watch, node)))
    }
}

impl Registry {
    /// A file that is new here is the one that its number stands for.
    fn forget_elsewhere(&mut self, path: &Path, inode: kernel::Inode) {
        let others = self.watches.values_mut();
        let others = others.filter(|watch| !watch.contains(path));
        others.for_each(|watch| watch.forget(inode));
    }
}

/// Returns the path of a name, if it may be watched.
fn watched_path(directory: RawFd, path: &CStr) -> Option<PathBuf> {
    if idle() {
        return None;
    }
    kernel::resolve(directory, path)
}

pub(crate) fn open(directory: RawFd, path: &CStr, flags: c_int, mode: mode_t) -> c_int {
    let forward = || kernel::openat(directory, path, flags, mode);
    let Some(full) = watched_path(directory, path) else {
        return forward();
    };
    let mut registry = registry();
    let makes = flags & libc::O_CREAT != 0 && kernel::lstat(&full).is_none();
    let Some(watch) = registry.of_path(&full) else {
        let fd = forward();
        if let (true, Some(stat)) = (makes, kernel::fstat(fd)) {
            registry.forget_elsewhere(&full, stat.inode);
        }
        return fd;
    };
    if makes && watch.is_full() {
        return kernel::fail(libc::ENOSPC);
    }
    let fd = forward();
    let Some(stat) = (fd >= 0).then(|| kernel::fstat(fd)).flatten() else {
        return fd;
    };
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        watch.unseen("a file without a name");
    } else if makes {
        watch.created(&full, Node::File(Content::default()), stat.inode);
        registry.forget_elsewhere(&full, stat.inode);
    } else {
        watch.opened(&full, stat.inode);
        if let (true, Some(node)) = (flags & libc::O_TRUNC != 0, watch.known(stat.inode)) {
            watch.cut_off(node, 0);
            watch.record(Op::SetLen { node, len: 0 });
        }
    }
    fd
}

/// Writes at an offset, or where the file's position is.
pub(crate) fn write(fd: RawFd, data: &[u8], at: Option<i64>) -> isize {
    let forward = |data: &[u8]| match at {
        Some(offset) => kernel::pwrite(fd, data, offset),
        None => kernel::write(fd, data),
    };
    if idle() {
        return forward(data);
    }
    let mut registry = registry();
    let Some((watch, node)) = registry.of_file(fd) else {
        drop(registry); // It may be a pipe, whose reader waits for us.
        return forward(data);
    };
    let flags = kernel::flags(fd);
    let offset = match at {
        _ if flags & libc::O_APPEND != 0 => kernel::fstat(fd).map(|stat| stat.len),
        Some(offset) => u64::try_from(offset).ok(),
        None => kernel::position(fd),
    };
    let admitted = watch.admit(node, offset.unwrap_or_default(), data.len());
    if admitted == 0 && !data.is_empty() {
        return kernel::fail(libc::ENOSPC) as isize;
    }
    let written = forward(&data[..admitted]);
    let (Some(offset), Ok(len)) = (offset, usize::try_from(written)) else {
        return written;
    };
    let data = data[..len].into();
    watch.record(Op::Write { node, offset, data });
    if flags & (libc::O_DSYNC | libc::O_SYNC) != 0 {
        let upto = watch.recording.ops.len();
        watch.record(Op::Sync {
            node,
            upto,
            data_only: true,
        });
    }
    written
}

/// Tells whether reading from a file is to fail.
pub(crate) fn unreadable(fd: RawFd) -> bool {
    if idle() {
        return false;
    }
    let mut registry = registry();
    registry
        .of_file(fd)
        .is_some_and(|(watch, _)| watch.faults.unreadable)
}

/// A sync of a watched file does not reach the disk: whether its bytes are there is decided when the power is cut.
pub(crate) fn sync(fd: RawFd, call: c_long) -> c_int {
    if idle() {
        return kernel::sync(fd, call);
    }
    let mut locked = registry();
    let Some((watch, node)) = locked.of_file(fd) else {
        drop(locked);
        return kernel::sync(fd, call);
    };
    if matches!(watch.recording.nodes.get(node), Some(Node::Directory)) {
        watch.reconcile(node);
    }
    let upto = watch.recording.ops.len();
    let fails = watch.sync_fails();
    let gate = Arc::clone(&watch.faults.gate);
    drop(locked);
    gate.pass();
    if fails {
        return kernel::fail(libc::EIO);
    }
    if let Some((watch, node)) = registry().of_file(fd) {
        watch.record(Op::Sync {
            node,
            upto,
            data_only: call == libc::SYS_fdatasync,
        });
    }
    0
}

pub(crate) fn set_len(fd: RawFd, len: i64) -> c_int {
    if idle() {
        return kernel::ftruncate(fd, len);
    }
    let mut registry = registry();
    let done = kernel::ftruncate(fd, len);
    if let (0, Some((watch, node)), Ok(len)) = (done, registry.of_file(fd), u64::try_from(len)) {
        watch.cut_off(node, len);
        watch.record(Op::SetLen { node, len });
    }
    done
}

/// Returns how much room there is on the disk of a watched file; none if nothing is said about it.
pub(crate) fn room(fd: RawFd) -> Option<u64> {
    if idle() {
        return None;
    }
    registry().of_file(fd)?.0.faults.room
}

pub(crate) fn allocate(fd: RawFd, mode: c_int, offset: i64, len: i64) -> c_int {
    if idle() {
        return kernel::fallocate(fd, mode, offset, len);
    }
    let mut registry = registry();
    let end = u64::try_from(offset.saturating_add(len)).unwrap_or_default();
    if registry
        .of_file(fd)
        .is_some_and(|(watch, node)| !watch.allocate(node, end))
    {
        return kernel::fail(libc::ENOSPC);
    }
    let before = kernel::fstat(fd).map(|stat| stat.len);
    let done = kernel::fallocate(fd, mode, offset, len);
    let after = kernel::fstat(fd).map(|stat| stat.len);
    if let (0, Some((watch, node))) = (done, registry.of_file(fd)) {
        if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            watch.unseen("a hole was made");
        }
        if let Some(len) = after.filter(|_| after != before) {
            watch.record(Op::SetLen { node, len });
        }
    }
    done
}

pub(crate) fn rename(from: (RawFd, &CStr), to: (RawFd, &CStr), flags: libc::c_uint) -> c_int {
    let paths = watched_path(from.0, from.1).zip(watched_path(to.0, to.1));
    let Some((old, new)) = paths else {
        return kernel::renameat(from, to, flags);
    };
    let mut registry = registry();
    let done = kernel::renameat(from, to, flags);
    if let (0, Some(watch)) = (done, registry.of_path(&old)) {
        if flags & libc::RENAME_EXCHANGE != 0 {
            watch.unseen("two names were exchanged");
        }
        watch.renamed(&old, &new);
    }
    done
}

pub(crate) fn unlink(directory: RawFd, path: &CStr, flags: c_int) -> c_int {
    let Some(full) = watched_path(directory, path) else {
        return kernel::unlinkat(directory, path, flags);
    };
    let mut registry = registry();
    let done = kernel::unlinkat(directory, path, flags);
    if let (0, Some(watch)) = (done, registry.of_path(&full)) {
        watch.removed(&full);
    }
    done
}

pub(crate) fn mkdir(directory: RawFd, path: &CStr, mode: mode_t) -> c_int {
    let Some(full) = watched_path(directory, path) else {
        return kernel::mkdirat(directory, path, mode);
    };
    let mut registry = registry();
    if let Some(watch) = registry.of_path(&full)
        && watch.is_full()
        && kernel::lstat(&full).is_none()
    {
        return kernel::fail(libc::ENOSPC);
    }
    let done = kernel::mkdirat(directory, path, mode);
    if let (0, Some(watch), Some(stat)) = (done, registry.of_path(&full), kernel::lstat(&full)) {
        watch.created(&full, Node::Directory, stat.inode);
        registry.forget_elsewhere(&full, stat.inode);
    }
    done
}

pub(crate) fn link(from: (RawFd, &CStr), to: (RawFd, &CStr), flags: c_int) -> c_int {
    let Some(full) = watched_path(to.0, to.1) else {
        return kernel::linkat(from, to, flags);
    };
    let mut registry = registry();
    let done = kernel::linkat(from, to, flags);
    if let (0, Some(watch), Some(stat)) = (done, registry.of_path(&full), kernel::lstat(&full)) {
        watch.linked(&full, stat.inode);
    }
    done
}

//! Assigns each sample to a component by the names of its functions.
//!
//! In the program itself the innermost function decides: the crate at the beginning of its name, or the crate of the type
//! in it. A function of the standard library counts for its caller if the callers are known, which needs frame pointers,
//! and for itself otherwise. In the kernel the whole call chain is known and decides.

use super::perf::{Frame, StackSample};

/// A part of the server, or of the libraries and the kernel beneath it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Component {
    Wire,
    Requests,
    Runtime,
    Tokio,
    Core,
    Store,
    Database,
    Allocator,
    Copies,
    Network,
    Disk,
    Waiting,
    Pages,
    Kernel,
    Standard,
}

impl Component {
    pub(crate) const ALL: [Self; 15] = [
        Self::Wire,
        Self::Requests,
        Self::Runtime,
        Self::Tokio,
        Self::Core,
        Self::Store,
        Self::Database,
        Self::Allocator,
        Self::Copies,
        Self::Standard,
        Self::Network,
        Self::Disk,
        Self::Waiting,
        Self::Pages,
        Self::Kernel,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire: tonic, h2, hyper, prost, bytes",
            Self::Requests => "requests: fila-server, from the wire to commands",
            Self::Runtime => "runtime: threads of fila-server, channels",
            Self::Tokio => "tokio: tasks, timers, polling",
            Self::Core => "core: fila-core, drr, hooks",
            Self::Store => "store: fila-store, records and checksums",
            Self::Database => "database: lsm-tree, or RocksDB",
            Self::Allocator => "allocator",
            Self::Copies => "copying and comparing memory",
            Self::Network => "kernel: sockets",
            Self::Disk => "kernel: files and syncing",
            Self::Waiting => "kernel: sleeping and waking threads",
            Self::Pages => "kernel: memory pages",
            Self::Kernel => "kernel: other",
            Self::Standard => "standard library and the rest",
        }
    }

    /// Returns the component of a sample.
    pub(crate) fn of(sample: &StackSample, has_callers: bool) -> Self {
        let Some(innermost) = sample.frames.first() else {
            return Self::Standard;
        };
        if innermost.is_kernel() {
            return kernel(&sample.frames);
        }
        let own = user(innermost);
        if own != Self::Standard || !has_callers {
            return own;
        }
        let callers = sample.frames.iter().skip(1).map(user);
        let mut known = callers.filter(|component| *component != Self::Standard);
        known.next().unwrap_or(Self::Standard)
    }
}

/// The component of a crate's functions. The name that occurs first in a function's name decides; of two at the same
/// position, the longer one.
const CRATES: &[(&str, Component)] = &[
    ("fila_server::grpc", Component::Requests),
    ("fila_server::message_id", Component::Requests),
    ("fila_server::http", Component::Requests),
    ("fila_server", Component::Runtime),
    ("fila_cli", Component::Runtime),
    ("crossbeam_channel", Component::Runtime),
    ("fila_core", Component::Core),
    ("fila_lua", Component::Core),
    ("drr", Component::Core),
    ("mlua", Component::Core),
    ("fila_store", Component::Store),
    ("crc32c", Component::Store),
    ("lsm_tree", Component::Database),
    ("crossbeam_skiplist", Component::Database),
    ("crossbeam_epoch", Component::Database),
    ("quick_cache", Component::Database),
    ("xxhash_rust", Component::Database),
    ("byteview", Component::Database),
    ("rocksdb", Component::Database),
    ("tokio", Component::Tokio),
    ("mio", Component::Tokio),
    ("parking_lot", Component::Tokio),
    ("fila_proto", Component::Wire),
    ("tonic", Component::Wire),
    ("tonic_prost", Component::Wire),
    ("prost", Component::Wire),
    ("h2", Component::Wire),
    ("hyper", Component::Wire),
    ("hyper_util", Component::Wire),
    ("http", Component::Wire),
    ("http_body", Component::Wire),
    ("http_body_util", Component::Wire),
    ("tower", Component::Wire),
    ("axum", Component::Wire),
    ("bytes", Component::Wire),
    ("tokio_stream", Component::Wire),
    ("futures_util", Component::Wire),
];

fn user(frame: &Frame) -> Component {
    let name = frame.function.as_str();
    let is_one_of = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if is_one_of(&["mi_", "_mi_", "__rust_alloc", "__rust_dealloc", "__rdl_"])
        || is_one_of(&[
            "malloc",
            "free",
            "realloc",
            "calloc",
            "_int_malloc",
            "_int_free",
        ])
    {
        return Component::Allocator;
    }
    if is_one_of(&["__mem", "mem", "bcmp", "__bcmp"]) && !name.contains("::") {
        return Component::Copies;
    }
    if is_one_of(&["rocksdb::"]) || name.contains("crossbeam_skiplist") {
        return Component::Database;
    }
    let places = CRATES.iter().filter_map(|(krate, component)| {
        let place = places(name, krate).next()?;
        Some((place, std::cmp::Reverse(krate.len()), *component))
    });
    places
        .min()
        .map_or(Component::Standard, |(.., component)| component)
}

/// Returns the position at which a path begins with these words.
fn places<'a>(name: &'a str, krate: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.match_indices(krate).filter_map(move |(place, _)| {
        let before = place.checked_sub(1).map(|before| name.as_bytes()[before]);
        // A module with the same name in another crate does not count.
        let begins = before.is_none_or(|byte| !is_word(byte) && byte != b':');
        let ends = name[place + krate.len()..].starts_with("::");
        (begins && ends).then_some(place)
    })
}

fn kernel(frames: &[Frame]) -> Component {
    let frames = || frames.iter().take_while(|frame| frame.is_kernel());
    let has = |words: &[&str]| {
        frames().any(|frame| words.iter().any(|word| frame.function.contains(word)))
    };
    if has(&[
        "tcp_",
        "sock_",
        "__sys_send",
        "__sys_recv",
        "net_rx_action",
        "skb",
    ]) {
        Component::Network
    } else if has(&[
        "ext4",
        "xfs_",
        "btrfs",
        "fsync",
        "jbd2",
        "filemap",
        "blk_",
        "submit_bio",
    ]) || has(&[
        "generic_perform_write",
        "vfs_write",
        "vfs_read",
        "do_sys_open",
    ]) {
        Component::Disk
    } else if has(&[
        "page_fault",
        "mmap",
        "munmap",
        "madvise",
        "mprotect",
        "do_anonymous_page",
    ]) {
        Component::Pages
    } else if has(&[
        "futex",
        "epoll",
        "eventfd",
        "schedule",
        "try_to_wake_up",
        "nanosleep",
    ]) {
        Component::Waiting
    } else {
        Component::Kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(functions: &[&str]) -> StackSample {
        let frame = |function: &&str| {
            let (function, object) = match function.strip_prefix("k:") {
                Some(function) => (function, "[kernel.kallsyms]"),
                None => (*function, "/bin/fila"),
            };
            Frame {
                function: function.to_owned(),
                object: object.to_owned(),
            }
        };
        StackSample {
            thread: "fila-io".to_owned(),
            weight: 1,
            frames: functions.iter().map(frame).collect(),
        }
    }

    #[test]
    fn a_function_belongs_to_the_crate_it_is_of_and_not_to_words_in_its_path() {
        for (function, component) in [
            ("h2::proto::streams::send::Send::poll", Component::Wire),
            ("fila_core::queue::http::deliver", Component::Core),
            (
                "<fila_server::grpc::work::Work as core::ops::drop::Drop>::drop",
                Component::Requests,
            ),
            ("fila_server::runtime::scheduler::run", Component::Runtime),
            (
                "core::ptr::drop_in_place<fila_store::batch::Batch>",
                Component::Store,
            ),
            (
                "<lsm_tree::merge::Merger<I> as core::iter::traits::iterator::Iterator>::next",
                Component::Database,
            ),
            ("tokio_stream::wrappers::poll_next", Component::Wire),
            ("tokio::runtime::park::unpark", Component::Tokio),
            ("mi_page_free_list_extend", Component::Allocator),
            ("__memmove_avx512_unaligned_erms", Component::Copies),
            ("alloc::sync::Arc<T,A>::drop_slow", Component::Standard),
        ] {
            assert_eq!(
                Component::of(&sample(&[function]), false),
                component,
                "{function}"
            );
        }
    }

    #[test]
    fn what_the_standard_library_does_is_its_callers_where_they_are_known() {
        let stack = sample(&[
            "alloc::sync::Arc<T,A>::drop_slow",
            "[unknown]",
            "drr::next_key",
        ]);
        assert_eq!(Component::of(&stack, false), Component::Standard);
        assert_eq!(Component::of(&stack, true), Component::Core);
    }

    #[test]
    fn the_kernel_works_for_what_was_called() {
        for (stack, component) in [
            (["k:_raw_spin_unlock", "k:tcp_sendmsg"], Component::Network),
            (["k:schedule", "k:ext4_sync_file"], Component::Disk),
            (["k:clear_page_erms", "k:exc_page_fault"], Component::Pages),
            (["k:schedule", "k:futex_wait"], Component::Waiting),
            (["k:do_syscall_64", "fila_core::x"], Component::Kernel),
        ] {
            assert_eq!(Component::of(&sample(&stack), true), component, "{stack:?}");
        }
    }
}

//! A disk that fails on purpose, beneath the store.
//!
//! [`Watch`] stands between a program and the files of one directory. It does so for everything that is linked into the program,
//! databases too: the functions of the C library through which files are reached are defined here once more (see
//! `symbols`). So faults are those of files, and a database is under test together with what we build on it. Nothing
//! here knows what the files are called or what is in them.
//!
//! - While a directory is watched, a sync can fail or wait, reads can fail, the disk can be full.
//! - [`Watch::recording`] records all that is done to the directory. Of the [`Recording`] a [`Disk`] makes what may be left
//!   of the directory if the power is cut after any one of the operations.
//! - [`cuts`] plays random work on a real store, cuts the power, opens the store again and compares.
//! - [`damage`] removes, empties, cuts and changes the files of a store at rest, opens it, repairs it and compares.
//!
//! # What always holds
//! Without a watch, calls go to the kernel as they are. A watch that has missed something says so: [`Disk::compare`] finds
//! files that were written through mapped memory or by calls of a library's own.
//!
//! On 64-bit Linux only. Never part of what is shipped.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod calls;
pub mod cuts;
pub mod damage;
mod disk;
mod gate;
mod kernel;
mod recording;
mod symbols;
mod watch;
mod watched;

pub use disk::{Disk, FileSystem};
pub use recording::{Content, Node, NodeId, Op, Place, ROOT, Recording};
pub use watch::{HeldSyncs, Watch};

#![doc = include_str!("../README.md")]

mod tables;

/// Version 1 of the protocol.
#[allow(
    missing_docs,
    clippy::doc_markdown,
    clippy::large_futures,
    clippy::needless_pass_by_value,
    clippy::or_fun_call,
    clippy::use_self,
    reason = "generated; the documentation is in the comments of the .proto files"
)]
pub mod v1 {
    tonic::include_proto!("fila.v1");
}

/// The encoded descriptors of all files, for a reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fila.v1.bin"));

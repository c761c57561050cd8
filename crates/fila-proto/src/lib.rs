#![doc = include_str!("../README.md")]

/// Version 1 of the protocol.
#[allow(
    missing_docs,
    clippy::doc_markdown,
    clippy::large_futures,
    clippy::needless_pass_by_value,
    clippy::or_fun_call,
    clippy::use_self,
    reason = "generated; the comments of the .proto files are what there is to say"
)]
pub mod v1 {
    tonic::include_proto!("fila.v1");
}

/// The descriptors of all files, encoded, as a reflection service wants them.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fila.v1.bin"));

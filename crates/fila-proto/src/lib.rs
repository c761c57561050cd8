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

/// The metadata entry of a status that has the whole [`Error`](v1::Error), if that has more than a code and a text.
pub const ERROR_DETAILS_METADATA: &str = "fila-error-bin";

impl v1::Error {
    /// Encodes it for [`ERROR_DETAILS_METADATA`].
    pub fn to_bytes(&self) -> Vec<u8> {
        prost::Message::encode_to_vec(self)
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote, if it is that.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        prost::Message::decode(bytes).ok()
    }
}

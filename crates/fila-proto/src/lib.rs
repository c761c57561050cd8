#![doc = include_str!("../README.md")]

mod shared;
mod tables;

pub use shared::{SharedFrame, produce_shared};

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

/// How the values of [`ErrorCode`](v1::ErrorCode) begin in the `.proto` files.
const ERROR_CODE_PREFIX: &str = "ERROR_CODE_";

impl v1::ErrorCode {
    /// Returns its name in metadata and documents, as in `QUEUE_NOT_FOUND`.
    pub fn name(self) -> &'static str {
        let name = self.as_str_name();
        name.strip_prefix(ERROR_CODE_PREFIX).unwrap_or(name)
    }

    /// Returns the code of this [name](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::from_str_name(&format!("{ERROR_CODE_PREFIX}{name}"))
    }
}

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

#[cfg(test)]
mod tests {
    use super::v1::ErrorCode;

    #[test]
    fn a_code_is_found_by_its_name() {
        assert_eq!(ErrorCode::QueueNotFound.name(), "QUEUE_NOT_FOUND");
        let codes = (0..100).filter_map(|number| ErrorCode::try_from(number).ok());
        for code in codes {
            assert_eq!(ErrorCode::from_name(code.name()), Some(code));
        }
        assert_eq!(ErrorCode::from_name("NO_SUCH_CODE"), None);
    }
}

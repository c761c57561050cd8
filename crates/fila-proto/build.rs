//! Compiles `fila.v1`.
//!
//! `protox` reads `.proto` files in Rust, so the build needs no `protoc`.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["proto/fila/v1/service.proto", "proto/fila/v1/admin.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // The server answers reflection requests with these.
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out.join("fila.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // A payload stays one buffer from the socket to the store.
        .bytes(".")
        // Headers have an order: the same message is the same bytes.
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}

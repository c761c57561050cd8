//! Compiles the service of the `grpc` example.
//!
//! `protox` reads `.proto` files in Rust, so whoever builds this needs no `protoc` installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/greeter.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

//! The inputs that are kept in `fuzz/corpus`, for the tests that feed them to what the fuzzer feeds: those need no
//! nightly toolchain. Part of every such test by its path.

use std::path::{Path, PathBuf};

use proptest::sample::Index;

/// Returns where the inputs of a target are.
pub(crate) fn directory(target: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../../fuzz/corpus").join(target)
}

/// Returns the inputs of a target by the names of their files.
pub(crate) fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(directory(target)).unwrap();
    files
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read(file.path()).unwrap())
        })
        .collect()
}

/// Puts other bytes in the places of some.
pub(crate) fn change(input: &mut [u8], changes: Vec<(Index, u8)>) {
    if !input.is_empty() {
        for (at, byte) in changes {
            input[at.index(input.len())] = byte;
        }
    }
}

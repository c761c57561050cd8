//! Lines of a file or a pipe, one after the other, in bounded memory.

use std::io::{BufRead, Read};

/// The longest line. It exceeds the largest message that a server can be configured to accept. A longer line ends the
/// input, so that memory stays bounded.
pub const LINE_BYTES_MAX: usize = 65 << 20;

/// Reads one line without its line end. Returns none after the last line.
///
/// # Errors
/// A text for the user. The input must not be read further after it.
pub fn read_line(input: &mut impl BufRead, number: u64) -> Option<Result<Vec<u8>, String>> {
    let mut line = Vec::new();
    let mut limited = input.take(LINE_BYTES_MAX as u64);
    let read = match limited.read_until(b'\n', &mut line) {
        Ok(0) => return None,
        Ok(LINE_BYTES_MAX) if line.last() != Some(&b'\n') => Err(format!(
            "line {number} is longer than any message may be; nothing was read after it"
        )),
        Ok(_) => {
            if line.last() == Some(&b'\n') {
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
            }
            Ok(line)
        }
        Err(error) => Err(format!(
            "line {number} cannot be read ({error}); nothing was read after it"
        )),
    };
    Some(read)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn lines(input: &[u8]) -> Vec<Vec<u8>> {
        let mut input = input;
        let lines = (1..).map_while(|number| read_line(&mut input, number));
        lines.map(Result::unwrap).collect()
    }

    #[test]
    fn lines_end_with_a_newline_or_with_the_input() {
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
        assert_eq!(lines(b"a\nb"), [b"a", b"b"]);
        assert_eq!(lines(b"a\r\n\nb\n"), [&b"a"[..], b"", b"b"]);
        assert_eq!(lines(b"\xff\n"), [b"\xff"]);
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        let wrong = read_line(&mut endless, 7).unwrap().unwrap_err();
        assert!(wrong.contains("line 7"), "{wrong}");
    }
}

//! Records in binary form: fields one after the other, with a checksum behind them.
//!
//! Pure. The log, the witness and the files of views share this form. Numbers of fixed size are big
//! endian.

use simplefeed_core::{digest::Digest, feed::FeedKey, timestamp::Timestamp};
use uuid::Uuid;

/// Returns `body` with its checksum.
pub fn seal(mut body: Vec<u8>) -> Vec<u8> {
    let checksum = crc32fast::hash(&body);
    body.extend_from_slice(&checksum.to_be_bytes());
    body
}

/// Returns the body of a record whose checksum is right.
pub fn unseal(record: &[u8]) -> Option<&[u8]> {
    let (body, checksum) = record.split_last_chunk::<4>()?;
    (crc32fast::hash(body).to_be_bytes() == *checksum).then_some(body)
}

/// A record being written.
#[derive(Debug, Default)]
pub struct RecordWriter(pub Vec<u8>);

impl RecordWriter {
    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes a number in eight bytes.
    pub fn long(&mut self, number: u64) {
        self.bytes(&number.to_be_bytes());
    }

    /// Writes a number in as few bytes as it needs (LEB128).
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            let low = u8::try_from(number & 0x7f).expect("seven bits fit into a byte");
            self.0.push(low | 0x80);
            number >>= 7;
        }
        self.0
            .push(u8::try_from(number).expect("seven bits fit into a byte"));
    }

    /// Writes a length as a [`number`](Self::number).
    pub fn length(&mut self, length: usize) {
        self.number(u64::try_from(length).expect("a length fits into 64 bits"));
    }

    /// Writes an instant in eight bytes.
    pub fn instant(&mut self, instant: Timestamp) {
        self.bytes(&instant.micros().to_be_bytes());
    }

    /// Writes the key of a feed in sixteen bytes.
    pub fn feed(&mut self, feed: FeedKey) {
        self.bytes(feed.0.as_bytes());
    }
}

/// A record being read. Every method returns `None` if the record is too short for the value, or if
/// the value is out of range.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `N` bytes into an array.
    pub fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*chunk)
    }

    /// Reads `length` bytes as a slice of the record.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a number of eight bytes.
    pub fn long(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.chunk()?))
    }

    /// Reads a number of any length (LEB128).
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        // 64 bits take at most ten groups of seven; a longer number is damage.
        for shift in (0..64).step_by(7) {
            let [byte] = self.chunk::<1>()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Reads a [`number`](Self::number) of at most 32 bits.
    pub fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// Reads a [`number`](Self::number) that fits into a `usize`.
    pub fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    /// Reads an instant of eight bytes.
    pub fn instant(&mut self) -> Option<Timestamp> {
        Some(Timestamp::from_micros(i64::from_be_bytes(self.chunk()?)))
    }

    /// Reads the key of a feed.
    pub fn feed(&mut self) -> Option<FeedKey> {
        Some(FeedKey(Uuid::from_bytes(self.chunk()?)))
    }

    /// Reads a digest of 32 bytes.
    pub fn digest(&mut self) -> Option<Digest> {
        Some(Digest(self.chunk()?))
    }
}

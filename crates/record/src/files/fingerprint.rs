//! A digest of content, to detect that weights or questions under the same path have changed, or
//! that a cached file is damaged.

/// A 64-bit FNV-1a digest of named parts, in order.
///
/// It detects accidental changes; it is not cryptographic.
#[derive(Debug, Clone)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Adds one part, e.g. `("questions", file)`.
    ///
    /// Both lengths are also hashed, so moving a byte from one part to the next changes the digest.
    #[must_use]
    pub fn with(mut self, name: &str, content: &[u8]) -> Self {
        for piece in [name.as_bytes(), content] {
            self.update(&(piece.len() as u64).to_le_bytes());
            self.update(piece);
        }
        self
    }

    /// The digest, as 16 hexadecimal digits.
    pub fn finish(&self) -> String {
        format!("{:016x}", self.0)
    }

    fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_and_boundary_counts() {
        let whole = Fingerprint::default().with("a", b"bc").with("d", b"");
        assert_eq!(whole.finish().len(), 16);
        assert_eq!(whole.finish(), Fingerprint::default().with("a", b"bc").with("d", b"").finish());
        for other in [
            Fingerprint::default().with("a", b"bc"),
            Fingerprint::default().with("ab", b"c").with("d", b""),
            Fingerprint::default().with("a", b"b").with("d", b"c"),
            Fingerprint::default().with("d", b"").with("a", b"bc"),
        ] {
            assert_ne!(whole.finish(), other.finish());
        }
    }
}

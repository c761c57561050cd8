//! Numbers that look like chance, and are the same for the same seed.

pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns an independent generator.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.below(u64::from(u32::MAX)) | (self.below(1 << 31) << 32))
    }
}

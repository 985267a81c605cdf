//! Entropy port: the source of random bits.

use std::sync::Mutex;

/// Source of random bits.
pub trait Entropy: Send + Sync {
    /// Fills `buffer` with random bytes.
    fn fill(&self, buffer: &mut [u8]);
}

/// The operating system's generator; suitable for keys.
#[derive(Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "the one source of random bits")]
    fn fill(&self, buffer: &mut [u8]) {
        getrandom::fill(buffer).expect("the kernel's generator never fails once it is seeded");
    }
}

/// A seeded generator (SplitMix64) for simulations; never for keys.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<u64>);

impl SeededEntropy {
    /// Creates a generator; equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        let mut state = self.0.lock().expect("no holder of the seed panics");
        for chunk in buffer.chunks_mut(8) {
            // Constants of Steele, Lea and Flood, "Fast splittable pseudorandom
            // number generators", OOPSLA 2014.
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = *state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

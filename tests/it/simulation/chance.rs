//! Random numbers of a simulation, drawn from its seed.

use std::{sync::Mutex, time::Duration};

/// A seeded generator (SplitMix64); equal seeds give equal runs.
pub struct Chance(Mutex<u64>);

impl Chance {
    pub fn new(seed: u64) -> Self {
        // Adjacent seeds must not start with adjacent states.
        let chance = Self(Mutex::new(seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1)));
        chance.word();
        chance
    }

    fn word(&self) -> u64 {
        let mut state = self.0.lock().expect("no holder panics");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = *state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.word() % end.max(1)
    }

    /// True once in `times` on average, never for 0.
    pub fn one_in(&self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    pub fn pick<T: Copy>(&self, among: &[T]) -> T {
        let at = self.below(among.len() as u64) as usize;
        among[at]
    }

    pub fn millis(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }
}

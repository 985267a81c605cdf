//! Price lists: cost of tokens, sandboxes and turns, in whole micro-USD.
//!
//! One list is bundled with the program (`prices.json`, a versioned snapshot). An operator may
//! override it with another list for an organization. A price that no list contains is unknown,
//! which differs from zero.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{cost::Cost, usage::Usage};
use crate::base::{json, limit::COST_MICROS_MAX};

/// The bundled list.
static BUNDLED: LazyLock<PriceList> = LazyLock::new(|| {
    serde_json::from_str(include_str!("prices.json")).expect("the bundled list is read by a test")
});

/// A versioned list of prices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceList {
    /// Identifies this revision of the list; every step records the version it was priced by.
    pub version: String,
    /// Prices by `provider/model`; a date at the end of a model's name is ignored.
    #[serde(default, deserialize_with = "json::objects_by_name")]
    pub models: BTreeMap<String, Price>,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "json::object_or_null")]
    pub sandbox: Option<SandboxPrice>,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "json::object_or_null")]
    pub fee: Option<Fee>,
}

/// Micro-USD per million tokens of each kind, with optional other rates for long prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input that was not served from a cache.
    pub input: u64,
    pub output: u64,
    /// Input written to the provider's prompt cache.
    pub cache_write: u64,
    /// Input read from the provider's prompt cache.
    pub cache_read: u64,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "json::object_or_null")]
    pub long: Option<LongPrompt>,
}

/// Rates of a whole call whose prompt exceeds `above_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LongPrompt {
    /// Threshold: input tokens of all three kinds.
    pub above_tokens: u64,
    pub input: u64,
    pub output: u64,
    pub cache_write: u64,
    pub cache_read: u64,
}

/// Micro-USD for the resources of a sandbox while a command runs in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxPrice {
    /// One CPU for one hour.
    pub cpu_hour: u64,
    /// One GiB of memory for one hour.
    pub gib_hour: u64,
}

/// Micro-USD that the operator charges in addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fee {
    /// Fee for each turn that starts.
    pub turn: u64,
}

/// Prices of one turn, fixed when a worker starts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tariff {
    /// The model's price and the version of its list; `None` if no list has it.
    pub model: Option<(Price, String)>,
    pub sandbox: SandboxPrice,
    pub fee: Fee,
}

/// Priced resources of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxSize {
    pub cpu_millis: u32,
    pub memory_bytes: u64,
}

impl PriceList {
    /// Returns the bundled list.
    pub fn bundled() -> &'static Self {
        &BUNDLED
    }

    /// Returns a model's price by its full name, or else by its name without the date.
    fn price(&self, model: &str) -> Option<Price> {
        self.models.get(model).or_else(|| self.models.get(undated(model)?)).copied()
    }

    /// Returns the name of the first implausibly high price.
    pub fn implausible_price(&self) -> Option<&str> {
        let models = self.models.iter().find_map(|(name, price)| {
            let rates = [Some(price.short()), price.long_rates()].into_iter().flatten().flatten();
            (rates.max()? > COST_MICROS_MAX).then_some(name.as_str())
        });
        let sandbox = self.sandbox.filter(|price| price.cpu_hour.max(price.gib_hour) > COST_MICROS_MAX);
        let fee = self.fee.filter(|fee| fee.turn > COST_MICROS_MAX);
        models.or(sandbox.map(|_| "sandbox")).or(fee.map(|_| "fee"))
    }
}

impl Tariff {
    /// Returns the prices of turns of `model`; `own` overrides the bundled list.
    pub fn of(model: &str, own: Option<&PriceList>) -> Self {
        let lists = || own.into_iter().chain([PriceList::bundled()]);
        Self {
            model: lists().find_map(|list| Some((list.price(model)?, list.version.clone()))),
            sandbox: lists().find_map(|list| list.sandbox).unwrap_or_default(),
            fee: lists().find_map(|list| list.fee).unwrap_or_default(),
        }
    }

    /// Returns the cost of a completed call; `None` if the model's price is unknown.
    pub fn step_micros(&self, usage: &Usage) -> Option<u64> {
        let (price, _) = self.model.as_ref()?;
        let tokens =
            [usage.input_tokens, usage.output_tokens, usage.cache_write_tokens, usage.cache_read_tokens];
        let prompt = usage.input_tokens + usage.cache_write_tokens + usage.cache_read_tokens;
        let rates = price.rates_for(prompt).into_iter().zip(tokens);
        Some(whole(rates.map(|(rate, tokens)| u128::from(rate) * u128::from(tokens)).sum(), MILLION))
    }

    /// Returns the max cost of a call; `None` if the model's price is unknown.
    ///
    /// Assumes one token per two bytes of the prompt, and `max_tokens` of output.
    pub fn step_micros_max(&self, prompt_bytes: usize, max_tokens: u64) -> Option<u64> {
        let tokens = prompt_tokens_max(prompt_bytes);
        let input = Usage { input_tokens: tokens, output_tokens: max_tokens, ..Usage::default() };
        let written = Usage { cache_write_tokens: tokens, output_tokens: max_tokens, ..Usage::default() };
        Some(self.step_micros(&input)?.max(self.step_micros(&written)?))
    }

    /// Returns the output tokens that `micros` pay for; `None` if output is free or unpriced.
    pub fn output_tokens_for(&self, micros: u64) -> Option<u64> {
        let (price, _) = self.model.as_ref()?;
        let rate = price.output.max(price.long.map_or(0, |long| long.output));
        u64::try_from(u128::from(micros) * MILLION / u128::from((rate > 0).then_some(rate)?)).ok()
    }

    /// Returns the cost of a command: all resources of its sandbox while it ran.
    pub fn exec(&self, size: SandboxSize, duration_ms: u64) -> Cost {
        const HOUR_MS: u128 = 3_600_000;
        let ms = u128::from(duration_ms);
        let cpu = ms * u128::from(size.cpu_millis) * u128::from(self.sandbox.cpu_hour);
        let memory = ms * u128::from(size.memory_bytes) * u128::from(self.sandbox.gib_hour);
        Cost {
            sandbox_cpu_micros: whole(cpu, HOUR_MS * 1_000),
            sandbox_memory_micros: whole(memory, HOUR_MS << 30),
            ..Cost::default()
        }
    }
}

const MILLION: u128 = 1_000_000;

/// Rates for input, output, cache write and cache read.
type Rates = [u64; 4];

impl Price {
    fn short(&self) -> Rates {
        [self.input, self.output, self.cache_write, self.cache_read]
    }

    fn long_rates(&self) -> Option<Rates> {
        self.long.map(|long| [long.input, long.output, long.cache_write, long.cache_read])
    }

    fn rates_for(&self, prompt_tokens: u64) -> Rates {
        let is_long = self.long.is_some_and(|long| prompt_tokens > long.above_tokens);
        self.long_rates().filter(|_| is_long).unwrap_or_else(|| self.short())
    }
}

/// Fewest bytes of a prompt for each of its tokens.
pub const PROMPT_BYTES_PER_TOKEN: u64 = 2;

/// Returns the max number of tokens of a prompt.
pub fn prompt_tokens_max(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(PROMPT_BYTES_PER_TOKEN)
}

/// Rounds up, so that many small calls are not free.
fn whole(amount: u128, unit: u128) -> u64 {
    u64::try_from(amount.div_ceil(unit)).unwrap_or(COST_MICROS_MAX).min(COST_MICROS_MAX)
}

/// Strips the date of `claude-x-20250929` and `gpt-x-2025-08-07`.
fn undated(model: &str) -> Option<&str> {
    let digits = |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let (rest, last) = model.rsplit_once('-')?;
    if digits(last, 8) {
        return Some(rest);
    }
    let (rest, month) = rest.rsplit_once('-')?;
    let (rest, year) = rest.rsplit_once('-')?;
    (digits(last, 2) && digits(month, 2) && digits(year, 4)).then_some(rest)
}

#[cfg(test)]
mod tests;

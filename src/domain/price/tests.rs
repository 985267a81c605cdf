//! Tests of the bundled list, and of sums to the micro-USD.

use super::*;

fn used(input: u64, output: u64, cache_write: u64, cache_read: u64) -> Usage {
    Usage {
        input_tokens: input,
        output_tokens: output,
        cache_write_tokens: cache_write,
        cache_read_tokens: cache_read,
        ..Usage::default()
    }
}

#[test]
fn the_bundled_list_is_read_and_says_its_version() {
    let list = PriceList::bundled();
    assert!(list.models.len() > 20 && list.version.starts_with("20"), "{}", list.version);
    assert_eq!(list.implausible_price(), None);
    let names_provider = |name: &&String| name.split_once('/').is_some_and(|(_, model)| !model.is_empty());
    assert!(list.models.keys().all(|name| names_provider(&name)));
    assert!(list.models.values().all(|price| price.cache_read <= price.input));
}

#[test]
fn each_kind_of_token_has_its_price_and_the_sum_is_rounded_up_once() {
    let tariff = Tariff::of("anthropic/claude-opus-5-5", None);
    // 4 + 20 + 5 + 0.2 micro-dollars.
    assert_eq!(tariff.step_micros(&used(1, 1, 1, 1)), Some(30));
    assert_eq!(tariff.step_micros(&used(1_000, 100, 0, 10_000)), Some(4_000 + 2_000 + 2_000));
    assert_eq!(tariff.step_micros(&Usage::default()), Some(0));
}

#[test]
fn a_dated_name_has_the_price_of_its_model_and_an_unknown_one_has_none() {
    let rates = |name: &str| Tariff::of(name, None).model.map(|(price, _)| price);
    let known = rates("anthropic/claude-sonnet-4-5");
    assert!(known.is_some());
    assert_eq!(rates("anthropic/claude-sonnet-4-5-20250929"), known);
    assert_eq!(rates("openai/gpt-5-mini-2025-08-07"), rates("openai/gpt-5-mini"));
    for unknown in ["anthropic/claude-sonnet-9", "groq/llama", "claude-sonnet-4-5", "openai/gpt-5-2025"] {
        assert_eq!(rates(unknown), None, "{unknown}");
        assert_eq!(Tariff::of(unknown, None).step_micros(&used(1, 1, 0, 0)), None);
    }
}

#[test]
fn a_long_prompt_is_priced_as_a_whole() {
    let tariff = Tariff::of("anthropic/claude-haiku-5-5", None);
    assert_eq!(tariff.step_micros(&used(100_000, 10, 0, 0)), Some(10_005));
    // Every kind of input counts toward the threshold; the output costs more too.
    assert_eq!(tariff.step_micros(&used(99_990, 10, 10, 1)), Some(49_995 + 25 + 7));
}

#[test]
fn an_own_list_stands_in_front_and_fills_up_from_the_bundled_one() {
    let own = r#"{"version": "ours-3", "models": {"groq/llama": {"input": 50000, "output": 80000,
        "cache_write": 0, "cache_read": 0}}, "sandbox": {"cpu_hour": 50400, "gib_hour": 16200}, "fee": {"turn": 5}}"#;
    let own: PriceList = serde_json::from_str(own).expect("a list");
    let ours = Tariff::of("groq/llama", Some(&own));
    assert_eq!(ours.model.as_ref().map(|(_, version)| version.as_str()), Some("ours-3"));
    assert_eq!(ours.step_micros(&used(1_000_000, 1, 0, 0)), Some(50_001));
    let theirs = Tariff::of("openai/gpt-5", Some(&own));
    assert_eq!(theirs.model.map(|(_, version)| version), Some(PriceList::bundled().version.clone()));
    assert_eq!((theirs.fee.turn, theirs.sandbox.cpu_hour), (5, 50_400));
    assert!(serde_json::from_str::<PriceList>(r#"{"version": "x", "models": {}, "sandbx": {}}"#).is_err());
}

#[test]
fn a_command_pays_for_what_its_sandbox_may_use() {
    let sandbox = SandboxPrice { cpu_hour: 50_400, gib_hour: 16_200 };
    let tariff = Tariff { sandbox, ..Tariff::default() };
    let size = SandboxSize { cpu_millis: 2_000, memory_bytes: 2 << 30 };
    let cost = tariff.exec(size, 10_000);
    assert_eq!((cost.sandbox_cpu_micros, cost.sandbox_memory_micros), (280, 90));
    let begun = tariff.exec(size, 1);
    assert_eq!((begun.sandbox_cpu_micros, begun.sandbox_memory_micros), (1, 1));
}

#[test]
fn nothing_that_a_stranger_counts_overflows() {
    let most = crate::base::limit::MODEL_TOKENS_MAX;
    let price = Price { input: COST_MICROS_MAX, output: COST_MICROS_MAX, ..Price::default() };
    let model = Some((price, "x".to_owned()));
    let tariff = Tariff { model, ..Tariff::default() };
    assert_eq!(tariff.step_micros(&used(most, most, most, most)), Some(COST_MICROS_MAX));
    assert_eq!(tariff.step_micros_max(usize::MAX, most), Some(COST_MICROS_MAX));
    assert_eq!(tariff.output_tokens_for(COST_MICROS_MAX), Some(1_000_000));
}

#[test]
fn a_price_is_an_object_and_no_array_of_its_fields() {
    for part in [
        r#""models": {"a/b": [1, 2, 3, 4]}"#,
        r#""models": {"a/b": {"input": 1, "output": 1, "cache_write": 1, "cache_read": 1, "long": [1, 2, 3, 4, 5]}}"#,
        r#""sandbox": [1, 2]"#,
        r#""fee": [1]"#,
    ] {
        let list = format!(r#"{{"version": "x", {part}}}"#);
        assert!(serde_json::from_str::<PriceList>(&list).is_err(), "{part}");
    }
}

//! The number of values of a JSON text, and deserializers that accept a struct only as a JSON object.
//!
//! serde's derive also accepts an array for a struct, with the items in field order. No caller
//! intends that and openapi.yaml does not document it.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Returns whether a JSON text has more than `values_max` values and names of fields, without parsing it.
///
/// It counts what separates them, so an array or object that is not empty counts twice. A text that is no JSON has some
/// number, too: the parser rejects it.
pub(crate) fn has_more_values(json: &[u8], values_max: usize) -> bool {
    let (mut values, mut rest) = (1, json);
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b',' | b':' | b'[' | b'{')) {
        let (byte, after) = (rest[at], &rest[at + 1..]);
        if byte == b'"' {
            rest = after_string(after);
            continue;
        }
        values += 1;
        if values > values_max {
            return true;
        }
        rest = after;
    }
    false
}

/// Returns what follows the string whose content begins here.
fn after_string(content: &[u8]) -> &[u8] {
    let mut rest = content;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        if rest[at] == b'"' {
            return &rest[at + 1..];
        }
        // An escape has one more byte, which may be a quote.
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    &[]
}

/// Deserializes a struct from an object.
pub(crate) fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

/// Deserializes a struct from an object, or `None` from null.
pub(crate) fn object_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(value)| value))
}

/// Deserializes a struct from an object, or `Some(None)` from null, which differs from an absent field.
pub(crate) fn present_object_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    object_or_null(deserializer).map(Some)
}

/// Deserializes structs by name from an object of objects.
pub(crate) fn objects_by_name<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let objects = BTreeMap::<String, Object<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|(name, Object(value))| (name, value)).collect())
}

/// Deserializes structs from an array of objects.
pub(crate) fn objects<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Vec::<Object<T>>::deserialize(deserializer).map(values)
}

/// Deserializes structs from an array of objects, or `None` from null.
pub(crate) fn objects_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    Ok(Option::<Vec<Object<T>>>::deserialize(deserializer)?.map(values))
}

/// Deserializes structs from an array of objects, or `Some(None)` from null, which differs from an absent field.
pub(crate) fn present_objects_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<Vec<T>>>, D::Error> {
    objects_or_null(deserializer).map(Some)
}

fn values<T>(objects: Vec<Object<T>>) -> Vec<T> {
    objects.into_iter().map(|Object(value)| value).collect()
}

/// A struct that is read from the entries of an object, so that an error keeps the path of its field.
struct Object<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<fn() -> T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::has_more_values;

    #[test]
    fn values_are_counted_without_what_is_in_strings() {
        // Nine separators outside of strings, and the text itself.
        let json = br#"{"a": "x, y: [z]", "b\"": [1, 2], "c\\": {}}"#;
        assert!(!has_more_values(json, 10) && has_more_values(json, 9));
        let many = format!("[{}1]", "1,".repeat(1_000));
        assert!(has_more_values(many.as_bytes(), 1_001) && !has_more_values(many.as_bytes(), 1_002));
        let nested = "[".repeat(1_000);
        assert!(has_more_values(nested.as_bytes(), 1_000) && !has_more_values(nested.as_bytes(), 1_001));
        // A file in base64 is one value, and an unclosed string is the rest of the text.
        let file = format!(r#"{{"data": "{}"#, "A,".repeat(1_000));
        assert!(!has_more_values(file.as_bytes(), 3));
        for text in ["", "\"", "\"\\", "nonsense"] {
            assert!(!has_more_values(text.as_bytes(), 1), "{text}");
        }
    }
}

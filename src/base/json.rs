//! Objects that are objects.
//!
//! serde's derive also takes an array for a struct, its items for the fields in
//! their order. No caller means that, and openapi.yaml does not say it.

use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error};
use serde_json::{Map, Value};

/// A struct from an object.
pub fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    of_map(Map::deserialize(deserializer)?)
}

/// A struct from an object, none from null.
pub fn object_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<Map<_, _>>::deserialize(deserializer)?.map(of_map).transpose()
}

/// Structs from an array of objects.
pub fn objects<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Vec::<Map<_, _>>::deserialize(deserializer)?.into_iter().map(of_map).collect()
}

/// Structs from an array of objects, none from null.
pub fn objects_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let items = Option::<Vec<Map<_, _>>>::deserialize(deserializer)?;
    items.map(|items| items.into_iter().map(of_map).collect()).transpose()
}

fn of_map<T: DeserializeOwned, E: Error>(map: Map<String, Value>) -> Result<T, E> {
    T::deserialize(Value::Object(map)).map_err(E::custom)
}

//! Deserializers that accept a struct only as a JSON object.
//!
//! serde's derive also accepts an array for a struct, with the items in field order. No caller
//! intends that and openapi.yaml does not document it.

use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error};
use serde_json::{Map, Value};

/// Deserializes a struct from an object.
pub fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    of_map(Map::deserialize(deserializer)?)
}

/// Deserializes a struct from an object, or `None` from null.
pub fn object_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<Map<_, _>>::deserialize(deserializer)?.map(of_map).transpose()
}

/// Deserializes structs from an array of objects.
pub fn objects<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Vec::<Map<_, _>>::deserialize(deserializer)?.into_iter().map(of_map).collect()
}

/// Deserializes structs from an array of objects, or `None` from null.
pub fn objects_or_null<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let items = Option::<Vec<Map<_, _>>>::deserialize(deserializer)?;
    items.map(|items| items.into_iter().map(of_map).collect()).transpose()
}

fn of_map<T: DeserializeOwned, E: Error>(map: Map<String, Value>) -> Result<T, E> {
    T::deserialize(Value::Object(map)).map_err(E::custom)
}

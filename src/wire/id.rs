//! Schemas of ids in the OpenAPI document: strings with a prefix.

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, schema::Type},
};

use crate::base::{Id, Kind};

impl<K: Kind> PartialSchema for Id<K> {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(format!("^{}_[0-7][0-9a-hjkmnp-tv-z]{{25}}$", K::PREFIX)))
            .into()
    }
}

impl<K: Kind> ToSchema for Id<K> {
    fn name() -> Cow<'static, str> {
        format!("{}_id", K::PREFIX).into()
    }
}

//! Error responses in the description of an operation.

use std::collections::BTreeMap;

use utoipa::{
    IntoResponses,
    openapi::{
        Ref, RefOr,
        content::ContentBuilder,
        response::{Response, ResponseBuilder},
    },
};

/// Error responses of an operation. `refusals` derives their statuses from what the operation takes.
pub(crate) struct Errors;

impl IntoResponses for Errors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        let response = ResponseBuilder::new().content("application/json", content).build();
        BTreeMap::from([("ERROR".to_owned(), response.into())])
    }
}

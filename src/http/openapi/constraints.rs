//! Constraints of request fields: lengths, patterns, ranges and numbers of items.
//!
//! Clients are generated from them, and the contract tests fail if the service and the document disagree about
//! a value. A table and no attributes of the types, because those take only literals and do not reach the items
//! of a list or the names of a map. Lengths are counted in characters here and in bytes of UTF-8 by the service,
//! so a text that is not ASCII can be refused although it is not too long here.

use std::collections::BTreeMap;

use utoipa::{
    Number, PartialSchema,
    openapi::{
        Array, Object, OpenApi, Ref, RefOr, Schema,
        path::{Operation, Parameter, ParameterIn},
        schema::{AdditionalProperties, ArrayItems, KnownFormat, SchemaFormat, SchemaType, Type},
    },
};

use crate::{
    base::limit::{
        AGENT_TOOLS_MAX, COMPACTION_INSTRUCTIONS_BYTES_MAX, CONTEXT_TOKENS, COST_MICROS_MAX,
        CREDENTIAL_BYTES_MAX, CRON_BYTES_MAX, CUSTOM_TOOL_DESCRIPTION_BYTES_MAX, DESTINATIONS_MAX,
        EVENTS_SENT_MAX, FALLBACK_MODELS_MAX, FILE_NAME_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, KEY_SCOPES_MAX,
        LIST_ITEM_BYTES_MAX, LIST_ITEMS_MAX, MCP_COMMAND_BYTES_MAX, MCP_COMMAND_WORDS_MAX,
        MCP_NAME_BYTES_MAX, MCP_SERVERS_MAX, MESSAGE_CONTENT_MAX, MODEL_NAME_BYTES_MAX,
        MODEL_THINKING_TOKENS_MIN, NAME_BYTES_MAX, NET_URL_BYTES_MAX, OUTPUT_REPAIRS, PACKAGE_BYTES_MAX,
        PROVIDER_HEADER_NAME_BYTES_MAX, QUESTIONS_MAX, RESULT_CONTENT_MAX, SKILLS_MAX, TEXT_BYTES_MAX,
        TRIGGER_SECRET_BYTES_MIN, WEBHOOK_SECRET_BYTES_MAX,
    },
    domain::{compaction::THRESHOLD, secret::SECRETS_MAX, source::SOURCES_MAX},
    http::scope::scopes,
};

/// Shortest and longest text in characters, and its pattern; an empty pattern allows every text.
type Text = (usize, usize, &'static str);

const NAME: Text = (1, NAME_BYTES_MAX, "");
const TITLE: Text = (0, NAME_BYTES_MAX, "");
const LONG: Text = (1, TEXT_BYTES_MAX, "");
const ITEM: Text = (1, LIST_ITEM_BYTES_MAX, "");
const KEY: Text = (1, CREDENTIAL_BYTES_MAX, "");
const HEADER: Text = (1, PROVIDER_HEADER_NAME_BYTES_MAX, "^[A-Za-z0-9_-]+$");
const TRIGGER_SECRET: Text = (TRIGGER_SECRET_BYTES_MIN, WEBHOOK_SECRET_BYTES_MAX, "");
const SECRET: Text = (8, WEBHOOK_SECRET_BYTES_MAX, "");
const MODEL: Text = (3, MODEL_NAME_BYTES_MAX, "^[a-z0-9_-]+/[!-~]+$");
const URL: Text = (1, NET_URL_BYTES_MAX, "^[Hh][Tt][Tt][Pp][Ss]?://.");
const DIRECTORY: Text = (1, 4_096, "^/");
const SCRIPT: Text = (1, 32 << 10, "");
const CRON: Text = (9, CRON_BYTES_MAX, r"^[ \t]*[!-~]+([ \t]+[!-~]+){4}[ \t]*$");
const SIZE: Text = (3, 22, "^[0-9]+[MG]i$");
const SOURCE_NAME: Text = (1, 100, "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$");
const VARIABLE: Text = (1, 128, "^[A-Za-z_][A-Za-z0-9_]*$");
const ANY_VARIABLE: Text = (1, usize::MAX, VARIABLE.2);
const FILE_NAME: Text = (1, FILE_NAME_BYTES_MAX, "");
const GITHUB_NAME: Text = (1, 39, "^[A-Za-z0-9-]+$");

/// Texts by the path of their schema: `Schema.field`, with `[]` for the items of a list, `{}` for the names of
/// a map, and `|N` for an alternative.
const TEXTS: &[(&str, Text)] = &[
    ("Command|0", (1, usize::MAX, "")),
    ("ContentInput|0.text", LONG),
    ("ContentInput|1.name", FILE_NAME),
    ("ContentInput|2.name", FILE_NAME),
    ("ContextInput.env_vars{}", ANY_VARIABLE),
    ("ContextInput.working_dir", DIRECTORY),
    ("Conversation|0", TITLE),
    ("ConversationRef.ref", NAME),
    ("ConversationRef.source", NAME),
    ("CompactSession.instructions", (0, COMPACTION_INSTRUCTIONS_BYTES_MAX, "")),
    ("CompactionSettings.instructions", (0, COMPACTION_INSTRUCTIONS_BYTES_MAX, "")),
    ("CreateAgent.credential", NAME),
    ("CreateAgent.key", KEY),
    ("CreateAgent.model", MODEL),
    ("CreateAgent.name", NAME),
    ("CreateAgent.prompt", (0, TEXT_BYTES_MAX, "")),
    ("CreateAgent.runtime", (7, 7, "^builtin$")),
    ("CreateCredential.base_url", URL),
    ("CreateCredential.headers{}", HEADER),
    ("CreateCredential.key", KEY),
    ("CreateCredential.key_header", HEADER),
    ("CreateCredential.name", NAME),
    ("CreateCredential.provider", (1, LIST_ITEM_BYTES_MAX, "^[a-z0-9-]+$")),
    ("CreateDestination.secret", SECRET),
    ("CreateDestination.types[]", ITEM),
    ("CreateDestination.url", URL),
    ("CreateEnvironment.name", NAME),
    ("CreateInvokeToken.name", NAME),
    ("CreateInvokeToken.title", TITLE),
    ("CreateKey.name", NAME),
    ("CreateOrganization.name", NAME),
    ("CreateSchedule.cron", CRON),
    ("CreateSchedule.time_zone", NAME),
    ("CreateSchedule.title", TITLE),
    ("CreateSession.agent", NAME),
    ("CreateSession.client_id", NAME),
    ("CreateSession.key", NAME),
    ("CreateSession.model", MODEL),
    ("CreateSession.parent_session_id", NAME),
    ("CreateSession.title", TITLE),
    ("CreateSession.webhook", URL),
    ("CreateTrigger.mention", GITHUB_NAME),
    ("CreateTrigger.secret", TRIGGER_SECRET),
    ("CreateTrigger.title", TITLE),
    ("CustomTool.description", (1, CUSTOM_TOOL_DESCRIPTION_BYTES_MAX, "")),
    ("CustomTool.name", (1, 64, "^[a-zA-Z0-9_-]+$")),
    ("DefaultCredential.credential", NAME),
    ("EgressRule.host", (1, 253, "")),
    ("EgressRule.methods[]", (1, 20, "^[A-Z]+$")),
    ("EgressRule.path_prefix", (1, 512, r"^/[!$&-;=@-\[\]^_a-z|~]*$")),
    ("Envelope.id", NAME),
    ("Envelope.source", TITLE),
    ("Envelope.text", LONG),
    ("Environment.disk", SIZE),
    ("Environment.env{}", VARIABLE),
    ("Environment.image", (1, 64, "^[a-z0-9][a-z0-9._-]*$")),
    ("Environment.memory", SIZE),
    ("EnvironmentChoice|0", NAME),
    ("EnvironmentSecret.headers[]", (1, 64, "^[A-Za-z0-9_.-]+$")),
    ("EnvironmentSecret.hosts[]", (1, 253, "")),
    ("EnvironmentSecret.name", VARIABLE),
    ("EnvironmentSecret.query_parameters[]", (1, 64, r"^[A-Za-z0-9_.~\[\]-]+$")),
    ("EnvironmentSecret.value", (8, 4_096, "^[ -~]+$")),
    ("ExecRequest.env{}", ANY_VARIABLE),
    ("ExecRequest.working_dir", DIRECTORY),
    ("Input|0", LONG),
    ("InvokeAgent.title", TITLE),
    ("LifecycleHooks.post_clone", SCRIPT),
    ("LifecycleHooks.post_start", SCRIPT),
    (
        "Packages.apt[]",
        (2, PACKAGE_BYTES_MAX, "^[a-z0-9][a-z0-9+.-]*[a-z0-9+](=[A-Za-z0-9][A-Za-z0-9.+~:-]*)?$"),
    ),
    (
        "Packages.npm[]",
        (
            1,
            PACKAGE_BYTES_MAX,
            "^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9.+-]*)?$",
        ),
    ),
    (
        "Packages.pip[]",
        (
            1,
            PACKAGE_BYTES_MAX,
            r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9]([A-Za-z0-9._,-]*[A-Za-z0-9])?\])?(==[A-Za-z0-9][A-Za-z0-9.!+_-]*)?$",
        ),
    ),
    ("McpServer.command[]", (0, MCP_COMMAND_BYTES_MAX, "")),
    ("McpServer.name", (1, MCP_NAME_BYTES_MAX, "^[a-z0-9-]+(_[a-z0-9-]+)*$")),
    ("McpServer.replay{}", NAME),
    ("McpServer.tools[]", NAME),
    ("McpServer.url", URL),
    ("OAuthClientInput.client_id", KEY),
    ("OAuthClientInput.client_secret", KEY),
    ("OAuthClientInput.refresh_token", KEY),
    ("OAuthClientInput.resource", (1, NET_URL_BYTES_MAX, "")),
    ("OAuthClientInput.scope", KEY),
    ("OAuthClientInput.token_url", URL),
    ("PatchAgent.credential", NAME),
    ("PatchAgent.key", KEY),
    ("FallbackModel.model", MODEL),
    ("PatchAgent.model", MODEL),
    ("PatchAgent.prompt", (0, TEXT_BYTES_MAX, "")),
    ("PatchDestination.secret", SECRET),
    ("PatchDestination.types[]", ITEM),
    ("PatchDestination.url", URL),
    ("PatchEnvironment.name", NAME),
    ("PatchOrganization.name", NAME),
    ("PatchSchedule.cron", CRON),
    ("PatchSchedule.time_zone", NAME),
    ("PatchSchedule.title", TITLE),
    ("PatchSession.title", TITLE),
    ("PatchTrigger.mention", GITHUB_NAME),
    ("PatchTrigger.title", TITLE),
    ("PriceList.version", (1, usize::MAX, "")),
    ("Reattach.client_id", NAME),
    ("RegisterTool.description", (0, CUSTOM_TOOL_DESCRIPTION_BYTES_MAX, "")),
    ("RegisterTool.name", ITEM),
    ("RegisterTool.tool_type", ITEM),
    ("FileSource|1.data", (1, usize::MAX, "^[A-Za-z0-9+/]+={0,2}$")),
    ("FileSource|2.url", URL),
    ("Restore.checkpoint_id", (1, 64, "")),
    ("RotateCredential.headers{}", HEADER),
    ("RotateCredential.key", KEY),
    ("RotateSecret.secret", SECRET),
    ("RotateTriggerSecret.secret", TRIGGER_SECRET),
    ("SentEvent|0.text", LONG),
    ("SessionSource.name", SOURCE_NAME),
    ("SessionSource.path", (1, 600, "")),
    ("SessionSource.ref", (1, 250, r"^[^\x00-\x20\x7f-\x9f~^:?*\[\\-][^\x00-\x20\x7f-\x9f~^:?*\[\\]*$")),
    ("SessionSource.repo", (3, 201, "^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$")),
    ("SessionSource.sha", (40, 64, "^([0-9a-f]{40}|[0-9a-f]{64})$")),
    ("SessionSource.url", (8, 1_000, "^([Hh][Tt][Tt][Pp][Ss]://|[Ff][Ii][Ll][Ee]:)[^?#]+$")),
    ("Steer.idempotency_key", (1, IDEMPOTENCY_KEY_BYTES_MAX, "")),
    ("Steer.text", LONG),
    ("StopSession.reason", TITLE),
    ("TriggerReact.actions[]", (1, 64, "^[a-z_]+$")),
    ("TriggerSource.name", SOURCE_NAME),
    ("TriggerSource.path", (1, 600, "")),
];

/// Smallest and largest number by the path of its schema.
const NUMBERS: &[(&str, f64, f64)] = &[
    ("EgressRule.port", 1.0, 65_535.0),
    ("Environment.cpus", 0.1, 16.0),
    ("Environment.pids", 16.0, 4_096.0),
    ("Environment.timeout_seconds", 30.0, 2_592_000.0),
    ("CompactionSettings.threshold", THRESHOLD.0, THRESHOLD.2),
    ("CreateAgent.output_repairs", 0.0, OUTPUT_REPAIRS.1 as f64),
    ("CreateSession.output_repairs", 0.0, OUTPUT_REPAIRS.1 as f64),
    ("Fee.turn", 0.0, COST_MICROS_MAX as f64),
    ("LongPrompt.cache_read", 0.0, COST_MICROS_MAX as f64),
    ("LongPrompt.cache_write", 0.0, COST_MICROS_MAX as f64),
    ("LongPrompt.input", 0.0, COST_MICROS_MAX as f64),
    ("LongPrompt.output", 0.0, COST_MICROS_MAX as f64),
    ("ModelOptions.context_tokens", CONTEXT_TOKENS.0 as f64, CONTEXT_TOKENS.1 as f64),
    ("ModelOptions.max_tokens", 1.0, f64::INFINITY),
    ("PatchAgent.output_repairs", 0.0, OUTPUT_REPAIRS.1 as f64),
    ("PatchSession.output_repairs", 0.0, OUTPUT_REPAIRS.1 as f64),
    ("Price.cache_read", 0.0, COST_MICROS_MAX as f64),
    ("Price.cache_write", 0.0, COST_MICROS_MAX as f64),
    ("Price.input", 0.0, COST_MICROS_MAX as f64),
    ("Price.output", 0.0, COST_MICROS_MAX as f64),
    ("Rotation.pre_rotate_buffer_seconds", 0.0, 1_296_000.0),
    ("SandboxPrice.cpu_hour", 0.0, COST_MICROS_MAX as f64),
    ("SandboxPrice.gib_hour", 0.0, COST_MICROS_MAX as f64),
    ("SessionSource.depth", 1.0, 1_000_000.0),
    ("SkillVersion|0", 1.0, i32::MAX as f64),
    ("Thinking.budget_tokens", MODEL_THINKING_TOKENS_MIN as f64, f64::INFINITY),
    ("TriggerSource.depth", 1.0, 1_000_000.0),
];

/// Smallest and largest number of items by the path of a list.
const ITEMS: &[(&str, usize, usize)] = &[
    ("Command|1", 1, 1_024),
    ("CreateAgent.sources", 0, SOURCES_MAX),
    ("CreateAgent.fallback_models", 0, FALLBACK_MODELS_MAX),
    ("CreateAgent.skills", 0, SKILLS_MAX),
    ("CreateAgent.mcp_servers", 0, MCP_SERVERS_MAX),
    ("CreateAgent.tools", 0, AGENT_TOOLS_MAX),
    ("CreateDestination.types", 0, LIST_ITEMS_MAX),
    ("CreateEnvironment.secrets", 0, SECRETS_MAX),
    ("CreateKey.scopes", 1, KEY_SCOPES_MAX),
    ("CreateSession.content", 0, MESSAGE_CONTENT_MAX),
    ("CreateSession.destinations", 0, DESTINATIONS_MAX),
    ("CreateSession.fallback_models", 0, FALLBACK_MODELS_MAX),
    ("CreateSession.skills", 0, SKILLS_MAX),
    ("CreateSession.mcp_servers", 0, MCP_SERVERS_MAX),
    ("CreateSession.sources", 0, SOURCES_MAX),
    ("CreateSession.tools", 0, AGENT_TOOLS_MAX),
    ("CreateTrigger.react", 0, 16),
    ("EgressRule.methods", 0, 16),
    ("Environment.sources", 0, SOURCES_MAX),
    ("EnvironmentSecret.headers", 0, 8),
    ("EnvironmentSecret.hosts", 1, 16),
    ("EnvironmentSecret.query_parameters", 0, 8),
    ("McpServer.command", 1, MCP_COMMAND_WORDS_MAX),
    ("McpServer.tools", 0, AGENT_TOOLS_MAX),
    ("MintClientToken.scopes", 1, 3),
    ("NetworkPolicy.allow", 0, 64),
    ("PatchAgent.fallback_models", 0, FALLBACK_MODELS_MAX),
    ("PatchAgent.skills", 0, SKILLS_MAX),
    ("PatchAgent.mcp_servers", 0, MCP_SERVERS_MAX),
    ("PatchAgent.sources", 0, SOURCES_MAX),
    ("PatchAgent.tools", 0, AGENT_TOOLS_MAX),
    ("PatchDestination.types", 0, LIST_ITEMS_MAX),
    ("PatchEnvironment.secrets", 0, SECRETS_MAX),
    ("PatchSession.fallback_models", 0, FALLBACK_MODELS_MAX),
    ("PatchSession.skills", 0, SKILLS_MAX),
    ("PatchSession.mcp_servers", 0, MCP_SERVERS_MAX),
    ("PatchTrigger.react", 0, 16),
    ("SendEvents.events", 1, EVENTS_SENT_MAX),
    ("SentEvent|0.content", 0, MESSAGE_CONTENT_MAX),
    ("SentEvent|2.content", 1, RESULT_CONTENT_MAX),
    ("SentEvent|3.answers", 1, QUESTIONS_MAX),
    ("Steer.content", 0, MESSAGE_CONTENT_MAX),
    ("TriggerReact.actions", 1, usize::MAX),
];

/// Alternatives that have no other fields: the derived schema of an `enum` does not say so.
const CLOSED: &[&str] = &[
    "ContentInput|0",
    "ContentInput|1",
    "ContentInput|2",
    "FileSource|0",
    "FileSource|1",
    "FileSource|2",
    "SentEvent|0",
    "SentEvent|1",
    "SentEvent|2",
    "SentEvent|3",
    "SentEvent|4",
];

/// Patterns of parameters by operation (`*`: all) and name.
const PARAMETERS: &[(&str, &str, &str)] = &[
    ("getExec", "Last-Event-ID", "^[0-9]{1,18}-[0-9]{1,18}$"),
    ("getExec", "cursor", "^[0-9]{1,18}-[0-9]{1,18}$"),
    ("getUsage", "by", "^(day|agent|model)(,(day|agent|model))*$"),
    ("listEvents", "cursor", "^[0-9]{1,18}$"),
    ("listMessages", "cursor", "^[0-9]{1,18}$"),
    ("readFile", "Range", "^bytes=[0-9]{1,18}-([0-9]{1,18})?$"),
    ("streamEvents", "cursor", "^[0-9]{1,18}$"),
];

/// Adds the constraints of request bodies and parameters.
///
/// # Panics
/// If a table names a field that the document does not have.
pub(super) fn add(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for (path, text) in TEXTS {
        constrain(object(&mut components.schemas, path), text);
    }
    for (path, low, high) in NUMBERS {
        let number = object(&mut components.schemas, path);
        number.minimum = Some(plain(*low));
        number.maximum = high.is_finite().then(|| plain(*high));
    }
    for (path, least, most) in ITEMS {
        let Schema::Array(list) = find(&mut components.schemas, path) else { panic!("{path} is no list") };
        list.min_items = (*least > 0).then_some(*least);
        list.max_items = (*most < usize::MAX).then_some(*most);
    }
    for path in CLOSED {
        object(&mut components.schemas, path).additional_properties =
            Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
    // A secret of a changed environment can keep its value, a new one cannot.
    let mut secret = object(&mut components.schemas, "EnvironmentSecret").clone();
    secret.required.push("value".to_owned());
    if let Some(RefOr::T(Schema::Object(value))) = secret.properties.get_mut("value") {
        value.schema_type = SchemaType::Type(Type::String);
    }
    components.schemas.insert("NewEnvironmentSecret".to_owned(), Schema::Object(secret).into());
    if let Schema::Array(secrets) = find(&mut components.schemas, "CreateEnvironment.secrets") {
        let items = Ref::from_schema_name("NewEnvironmentSecret");
        secrets.items = ArrayItems::RefOrSchema(Box::new(items.into()));
    }
    // The other fields of an input are free.
    object(&mut components.schemas, "Input|1").properties.insert("text".to_owned(), String::schema());
    let scope = object(&mut components.schemas, "CreateKey.scopes[]");
    scope.enum_values = Some(every_scope().into_iter().map(Into::into).collect());
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        operations.into_iter().flatten().for_each(constrain_parameters);
    }
}

/// Returns the schema of an `Idempotency-Key`.
pub(super) fn idempotency_key() -> Schema {
    let mut key = Object::with_type(Type::String);
    constrain(&mut key, &(1, IDEMPOTENCY_KEY_BYTES_MAX, r"^[\t -~]*[!-~][\t -~]*$"));
    Schema::Object(key)
}

/// Returns a number without a fraction as an integer, as which it is written.
fn plain(number: f64) -> Number {
    if number.fract() == 0.0 { Number::Int(number as isize) } else { Number::Float(number) }
}

fn constrain(text: &mut Object, (shortest, longest, pattern): &Text) {
    text.min_length = (*shortest > 0).then_some(*shortest);
    text.max_length = (*longest < usize::MAX).then_some(*longest);
    text.pattern = (!pattern.is_empty()).then(|| (*pattern).to_owned()).or(text.pattern.take());
}

fn constrain_parameters(operation: &mut Operation) {
    let id = operation.operation_id.clone().unwrap_or_default();
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(Parameter {
            name, schema: Some(RefOr::T(Schema::Object(schema))), parameter_in, ..
        }) = parameter
        else {
            continue;
        };
        // A header is absent or a text, never null.
        if let SchemaType::Array(kinds) = &schema.schema_type
            && let [kind, Type::Null] | [Type::Null, kind] = kinds.as_slice()
        {
            schema.schema_type = SchemaType::Type(kind.clone());
        }
        if let Some((_, _, pattern)) = PARAMETERS.iter().find(|(of, named, _)| *of == id && named == name) {
            schema.pattern = Some((*pattern).to_owned());
        }
        let is_time = *parameter_in == ParameterIn::Query && ["after", "before"].contains(&name.as_str());
        if is_time && is_text(&schema.schema_type) {
            schema.format = Some(SchemaFormat::KnownFormat(KnownFormat::DateTime));
        }
    }
}

fn is_text(kind: &SchemaType) -> bool {
    match kind {
        SchemaType::Type(kind) => *kind == Type::String,
        SchemaType::Array(_) | SchemaType::AnyValue => false,
    }
}

/// Returns `*`, every scope and every group of scopes.
fn every_scope() -> Vec<String> {
    let known = scopes();
    let groups = known.iter().filter_map(|scope| Some(format!("{}:*", scope.split_once(':')?.0)));
    let mut every: Vec<String> = groups.chain(known.iter().map(|scope| (*scope).to_owned())).collect();
    every.push("*".to_owned());
    every.sort();
    every.dedup();
    every
}

type Schemas = BTreeMap<String, RefOr<Schema>>;

fn object<'a>(schemas: &'a mut Schemas, path: &str) -> &'a mut Object {
    match find(schemas, path) {
        Schema::Object(object) => object,
        _ => panic!("{path} is neither a text nor a number"),
    }
}

/// Finds the schema at a path.
fn find<'a>(schemas: &'a mut Schemas, path: &str) -> &'a mut Schema {
    let missing = || -> ! { panic!("the document has no schema {path}") };
    let end = path.find(['.', '|']).unwrap_or(path.len());
    let Some(RefOr::T(schema)) = schemas.get_mut(&path[..end]) else { missing() };
    let (mut schema, mut rest) = (schema, &path[end..]);
    if let Some(choice) = rest.strip_prefix('|') {
        let (at, field) = choice.split_at(choice.find('.').unwrap_or(choice.len()));
        let Schema::OneOf(choice) = schema else { missing() };
        schema = match at.parse().ok().and_then(|at: usize| choice.items.get_mut(at)) {
            Some(RefOr::T(schema)) => schema,
            Some(RefOr::Ref(_)) | None => missing(),
        };
        rest = field;
    }
    let field = rest.trim_start_matches('.');
    if field.is_empty() {
        return schema;
    }
    let (field, inner) = field.split_at(field.find(['[', '{']).unwrap_or(field.len()));
    let Schema::Object(Object { properties, .. }) = schema else { missing() };
    let Some(RefOr::T(schema)) = properties.get_mut(field) else { missing() };
    match (inner, schema) {
        ("", schema) => schema,
        ("[]", Schema::Array(Array { items: ArrayItems::RefOrSchema(items), .. })) => match items.as_mut() {
            RefOr::T(schema) => schema,
            RefOr::Ref(_) => missing(),
        },
        ("{}", Schema::Object(Object { property_names: Some(names), .. })) => names,
        _ => missing(),
    }
}

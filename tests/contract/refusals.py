"""Valid requests that the service may refuse: each with a rule that a schema cannot express."""

import re
from typing import NamedTuple


class Rule(NamedTuple):
    """Refusals with one cause."""

    # Operation ids, separated by spaces; `*` is every operation.
    operations: str
    # `code` of the error, else its `type`: most errors of type `invalid` have no code.
    code: str
    # Pattern of the whole `param`; empty for an error without one.
    param: str
    # Pattern of the start of the `message`.
    message: str
    why: str
    # Whether a run with the default seed meets it. States depend on times, too.
    always: bool = True
    # A request that it refuses, for one that is seldom generated: method, path with the ids of `call.fill`, body.
    # It is of the first operation.
    example: tuple | None = None


ANY = "*"
# Operations with an inline environment or sources.
SPECS = "createAgent createEnvironment createInvokeToken createSchedule createSession createTrigger updateAgent " \
    "updateEnvironment updateSchedule updateTrigger"
SPEC = r"config|environment|sources"
# Operations with the URL of a receiver or a provider.
URLS = "createAgent updateAgent updateSession createCredential createDestination createSession createWebhook updateDestination updateWebhook"

REFUSES = [
    # Texts and numbers.
    Rule(ANY, "invalid", r".*", r"(`.*` )?invalid type: floating point",
         "JSON Schema counts 2.0 as an integer, the service does not"),
    Rule("createAgent createSession updateAgent updateSession", "invalid", r"skills\[\d+\]\.version", r"expected the number of a version",
         "JSON Schema counts 2.0 as an integer, the service does not"),
    Rule(ANY, "invalid", r".*", r".*U\+0000",
         "Postgres stores no U+0000; a pattern against it on every text would hide the other patterns"),
    Rule(ANY, "invalid", r"cursor", r"`cursor` is cursor was not returned by this query",
         "a cursor is sealed: only one that a page returned is valid"),
    Rule("createDestination createSession createWebhook updateDestination updateWebhook", "invalid",
         r"(destinations\[\d+\]\.)?types\[\d+\]", r"`.*types\[\d+\]` length is greater",
         "the service counts the bytes of UTF-8, the schema characters", False),
    Rule("readFile", "invalid", r"Range", r"`Range` must be|the file has",
         "the last byte is not before the first, the first not behind the end of the file"),
    Rule("createSchedule updateSchedule", "invalid", r"cron", r"`cron` must be five fields",
         "the fields are those of cron, with ranges and names"),
    Rule("createSchedule updateSchedule", "invalid", r"time_zone", r"`time_zone` must be the name of an IANA",
         "the list of time zones changes several times a year"),
    Rule("getUsage", "invalid", r"from|to", r"`(from|to)` must be a day",
         "there is no usage before the year 2000"),
    Rule(URLS, "invalid", r".*url|webhook", r"not an absolute URL",
         "the host of a URL is a valid domain name or an address"),
    Rule(URLS, "invalid", r".*url|webhook", r"only https URLs are allowed",
         "plain http is allowed only to private addresses, and only where the operator allows those"),
    Rule(URLS, "invalid", r".*url|webhook", r".* does not resolve to an allowed address",
         "an address is refused by its range, a name by its current address"),
    Rule(SPECS, "invalid", SPEC, r"`\w+` `(memory|disk)` must be",
         "the range of a number with a unit"),
    Rule(SPECS, "invalid", SPEC, r"`\w+` `network\.allow\[\d+\]\.host` must be",
         "a host name by the rules of IDNA, and no address in any spelling"),
    Rule(SPECS, "invalid", r"secrets\[\d+\]\.hosts", r".*: must be a host name",
         "a host name by the rules of IDNA, and no address in any spelling"),
    Rule(SPECS, "invalid", SPEC, r"`\w+` `sources\[\d+\]\.url` must",
         "the host of a repository is a host name, its path has no dot segments", False),
    Rule(SPECS, "invalid", SPEC, r"`\w+` `sources\[\d+\]\.ref` must",
         "the rules of git-check-ref-format(1)", False),
    Rule(SPECS, "invalid", SPEC, r"`\w+` `sources\[\d+\]\.name` must",
         "without a `name`, the last part of `url` has to be one"),
    Rule(SPECS, "invalid", rf"{SPEC}|source\.path", r"(`\w+` )?`(sources\[\d+\]\.)?path` must",
         "a path below /workspace without dot segments or `.git`"),
    # Fields that depend on each other.
    Rule("createEnvironment updateEnvironment", "invalid", r"secrets\[\d+\]\.hosts", r".*: the network policy does not allow",
         "the hosts of a secret are among those of `config.network`", False),
    Rule(ANY, "invalid", r"(.*\.)?(cost_cap_cents|iterations)", r".* is set twice",
         "a limit has two names that exclude each other"),
    Rule(SPECS, "invalid", SPEC, r"`\w+` `sources\[\d+\]\.url` or `repo` must be set, not both",
         "`url` and `repo` exclude each other"),
    Rule(SPECS, "invalid", SPEC, r"`\w+` `rotation\.pre_rotate_buffer_seconds` (requires|must be at most half)",
         "it is compared with `timeout_seconds`"),
    Rule("createAgent createSession updateAgent updateSession", "invalid", r"model_options|fallback_models\[\d+\]",
         r"`(model_options|fallback_models\[\d+\])` `(thinking\.budget_tokens|context_tokens)` must be",
         "it is compared with `max_tokens`"),
    Rule("createAgent createSession updateAgent updateSession", "invalid", r"fallback_models\[\d+\]\.model", r"the model is in the list twice",
         "a model is named once; only whole objects can be unique in a schema",
         example=("POST", "/agents", {"name": "fallbacks", "prompt": "", "model": "scripted/inline", "fallback_models": [
             {"model": "scripted/noop"}, {"model": "scripted/noop"}]})),
    Rule("createAgent updateAgent", "invalid", r"credential", r"send `key` or `credential`, not both",
         "two fields exclude each other"),
    Rule("createCredential", "invalid", r"base_url", r"a provider other than anthropic and openai needs",
         "it depends on the provider, which is any name"),
    Rule("createSession", "invalid", r"agent", r"`input`, `content`, `model`, `tools`, `permissions`, `ask`, `doom_loop`, `output_schema`, `output_repairs`, `compaction`, `mcp_servers`, `fallback_models`, `skills` and `revision` need an agent",
         "one field needs another"),
    Rule("createSchedule", "invalid", r"metadata|environment|limits|title", r"`\w+` applies to sessions that the schedule creates",
         "`session_id` excludes the fields of new sessions"),
    Rule("createTrigger updateTrigger", "invalid", r"mention", r"`mention` set `mention` or `react`",
         "one of two fields has to be set, in the end of a change"),
    Rule("createTrigger updateTrigger", "invalid", r"mention|react|authors|source", r"`\w+` is only allowed for triggers of kind `github`",
         "the fields of one kind; a change does not name the kind",
         example=("POST", "/agents/{agent}/hooks", {"kind": "generic", "mention": "@contract"})),
    Rule("steerSession", "invalid", r"text|envelope", r"send `text`, `content` or `envelope`|send `text` or `envelope`",
         "two fields exclude each other"),
    Rule("execInSession", "invalid", r"command", r"`command` is empty",
         "the first of several words is not empty, the others may be"),
    Rule("listEvents", "invalid", r"deltas", r"`deltas` is for streams",
         "one parameter needs another"),
    Rule("updateEnvironment", "invalid", r"secrets\[\d+\]\.value", r"a secret needs a value",
         "a secret that the environment has keeps its value, another one needs one"),
    Rule("getUsage", "invalid", r"from", r"`from` to `to` must span",
         "two days are compared, or one with today"),
    Rule("deleteOrganization", "invalid", r"confirm", r"`confirm` must be the id of the organization",
         "it repeats the id of the path"),
    # Times.
    Rule("sendEvents", "invalid", r"events\[\d+\]\.content", r"", "the texts of a result have a size in all", False),
    Rule("createKey", "invalid", r"expires_at", r"`expires_at` must be in the future",
         "it is compared with the time"),
    # Existence. Each operation also has to accept a request (NEVER_ACCEPTED).
    Rule(ANY, "not_found", r"(agent|checkpoint_id|environment|credential|session_id|parent_session_id)?", r"",
         "the resource has to exist"),
    Rule("createAgent updateAgent", "invalid", r"credential", r"no credential has this id",
         "the credential has to exist", False),
    Rule("createSession fireSchedule invokeAgent receiveTrigger updateSession", "no_credential", r"", r"",
         "the provider of the model needs a stored key", False),
    Rule("setDefaultCredential", "invalid", r"provider", r"this credential is for",
         "it is compared with the credential",
         example=("PUT", "/credentials/default", {"credential": "contract", "provider": "anthropic"})),
    Rule("createTrigger updateTrigger", "invalid", r"source\.credential", r"no credential with this id or name",
         "the credential has to exist"),
    Rule(SPECS, "unknown_image", r".*\.image", r"", "the operator registers images"),
    Rule(SPECS, "packages_unavailable", r".*\.packages", r"", "it depends on the image, and on the operator's default"),
    Rule("createAgent", "name_taken", r"name", r"", "the name is unique"),
    Rule("createEnvironment updateEnvironment", "name_taken", r"name", r"", "the name is unique"),
    Rule("createDestination", "too_many_destinations", r"", r"", "16 exist", False),
    Rule("createWebhook", "too_many_webhooks", r"", r"", "16 exist", False),
    Rule("createInvokeToken", "too_many_invoke_tokens", r"", r"", "20 exist", False),
    Rule("createTrigger", "too_many_triggers", r"", r"", "20 exist", False),
    Rule("createSession", "key_taken", r"key", r"", "the key is unique", False),
    Rule("createSession updateSession", "slug_taken", r"slug", r"", "the slug is unique", False),
    Rule(ANY, "idempotency_mismatch", r"Idempotency-Key|idempotency_key", r"", "another request was sent with the key"),
    Rule("claimAction", "not_found", r"", r"", "the action has to exist", False),
    Rule("revokePermission", "not_found", r"", r"", "the rule has to be granted", False),
    Rule("sendEvents", "not_found", r"events\[\d+\]", r"", "the action has to exist"),
    Rule("createAgent updateAgent createSession updateSession", "invalid", r"tools\[\d+\]", r"(there is no tool|`.*` is listed twice)",
         "a tool is one of the service or an object, each name once", False),
    Rule("createAgent updateAgent createSession updateSession", "invalid", r"tools\[\d+\]\.name", r"`.*` is a name of the service",
         "the name of a custom tool is not that of another tool", False),
    Rule("createAgent updateAgent createSession updateSession", "invalid_schema", r"tools\[\d+\]\.input_schema.*", r"",
         "a JSON Schema", False),
    Rule("createAgent updateAgent createSession updateSession", "invalid", r"permissions\[\d+\]\.\w+", r"",
         "a rule is of a tool of the service, with the fields that the tool has", False),
    Rule("sendEvents", "invalid", r"events\[\d+\](\.(rule|message|others|then)(\.\w+)?)?", r"",
         "an answer is one of the action's kind, and has the fields of its decision", False),
    Rule("createAgent updateAgent createSession updateSession steerSession sendEvents", "invalid_schema",
         r"(events\[\d+\]\.)?output_schema", r"", "a JSON Schema of an object", False),
    Rule("updateSession", "invalid", r"agent", r"the changed fields are those of an agent", "the session needs an agent", False),
    Rule("createCredential rotateCredential", "invalid", r"key|oauth", r"(`key` is needed|send `key` or `oauth`|`oauth` (is only|needs)|this credential has)",
         "one field excludes or needs another", False,
         example=("POST", "/credentials", {"provider": "anthropic"})),
    Rule("createAgent updateAgent createSession updateSession", "invalid", r"mcp_servers\[\d+\]\.name", r"`name` `.*` is listed twice",
         "each server has another name", False,
         example=("POST", "/agents", {"name": "twice", "prompt": "", "model": "scripted/inline", "mcp_servers": [
             {"name": "a", "url": "https://mcp.example.com"}, {"name": "a", "url": "https://mcp.example.com"}]})),
    Rule("createAgent updateAgent createSession updateSession", "invalid", r"mcp_servers\[\d+\]\.(url|command|credential)",
         r"(`url` or `command` is required|`command` (cannot be combined with|must begin with a program|may have|must not contain)"
         r"|`credential` is for a server with a `url`)",
         "a server has an address or a command, whose words together have at most 8 KiB", False,
         example=("POST", "/agents", {"name": "nowhere", "prompt": "", "model": "scripted/inline", "mcp_servers": [{"name": "a"}]})),
    Rule("createAgent updateAgent createSession updateSession", "invalid", r"mcp_servers\[\d+\]\.credential", r"(no credential has this id|this credential is not for)",
         "the credential exists, and is for the origin of the server", False,
         example=("POST", "/agents", {"name": "without", "prompt": "", "model": "scripted/inline", "mcp_servers": [
             {"name": "a", "url": "https://mcp.example.com", "credential": "cred_01m8fkd23vf68svawqn8vmzv8a"}]})),
    Rule("steerSession sendEvents", "invalid", r"(events\[\d+\]\.)?output_schema", r"the output schema of a running turn is fixed",
         "`mode`: `steer` excludes it", False),
    Rule("compactSession", "nothing_to_compact", r"", r"", "no model call was made", False),
    Rule("updateSession", "tool_exists", r"tools\[\d+\]", r"", "a registered tool has the name", False),
    Rule("createCredential rotateCredential", "invalid", r"(headers|key_header).*", r"",
         "a header is not one of the service or the one with the key, and its value is printable", False),
    Rule("retryTurn", "turn_not_failed", r"", r"", "the turn ended without an error", False),
    Rule("retryTurn", "not_last_turn", r"", r"", "another turn ended after it", False),
    Rule("retryTurn updateSession", "turn_running", r"", r"", "a turn runs or waits", False),
    Rule("sendEvents", "args_changed", r"events\[\d+\]", r"", "the hash is that of the action", False),
    Rule("sendEvents", "too_many_grants", r"events\[\d+\]", r"", "64 rules are granted", False),
    Rule("registerTool", "invalid", r"name", r"must have 1 to 64 characters|`.*` is a name of the service|`name` length is greater",
         "a tool that the agent gets has a name that models accept", False),
    Rule("registerTool", "invalid", r"description", r"must have 1 to", "a tool that the agent gets has a description", False),
    Rule("registerTool", "invalid_schema", r"input_schema", r"", "a JSON Schema, if the agent gets the tool", False),
    Rule("registerTool", "tool_exists", r"name", r"", "the agent has a tool of this name", False),
    # States.
    Rule("claimAction sendEvents", "action_claimed", r".*", r"", "another caller has claimed the action", False),
    Rule("claimAction sendEvents", "action_resolved", r".*", r"", "the action has ended", False),
    Rule("sendEvents", "archived", r"events\[\d+\]", r"", "the session is archived", False),
    Rule("sendEvents", "no_agent", r"events\[\d+\]", r"", "the session was created without an agent", False),
    Rule("archiveSession cancelSession createCheckpoint createDestination execInSession heartbeatSession listFiles mintClientToken "
         "pauseSession readArchive readFile registerTool restoreSession resumeSession startSession steerSession stopSession "
         "compactSession retryTurn updateContext updateSession wakeSession writeArchive writeFile", "archived", r"", r"", "the session is archived", False),
    Rule("createCheckpoint execInSession listFiles pauseSession readArchive readFile restoreSession resumeSession "
         "writeArchive writeFile", "stopped", r"", r"", "the session is stopped", False),
    Rule("archiveSession createCheckpoint execInSession listFiles readArchive readFile restoreSession startSession stopSession "
         "wakeSession writeArchive writeFile", "paused", r"", r"", "the session is paused", False),
    Rule("execInSession restoreSession startSession", "budget_exceeded", r"", r"", "a limit of the session is used up", False),
    Rule("compactSession steerSession", "no_agent", r"", r"", "the session was created without an agent", False),
    Rule("testWebhook", "webhook_disabled", r"", r"", "the webhook is disabled", False),
    Rule("redeliver", "destination_deleted", r"", r"", "the destination of the delivery was deleted", False),
    Rule("rotateKey", "key_ended", r"", r"", "the key was revoked", False),
    # Contents.
    Rule("createSession steerSession sendEvents", "invalid", r"(events\[\d+\]\.)?content\[\d+\]\.source",
         r"(the organization has no such file|`data` is not base64|the file is |the image |the server of the file |.*address|.*https|.*URL|.*host|.*port|.*scheme)",
         "the file is fetched, decoded or looked up"),
    Rule("createSession steerSession sendEvents", "invalid", r"(events\[\d+\]\.)?content", r"the texts of a message have",
         "the texts have a size in all",
         example=("POST", "/sessions", {"agent": "main", "content": [{"type": "text", "text": "x" * 150_000}] * 2})),
    Rule("sendEvents", "invalid", r"events\[\d+\]\.text", r"send `text` or `content`", "one of two fields has to be set"),
    Rule("createAgent updateAgent", "invalid", r"model_options\.api", r"`api` is for models of OpenAI",
         "an option of the models of some providers",
         example=("POST", "/agents", {"name": "of another", "prompt": "", "model": "scripted/inline",
                                      "model_options": {"api": "responses"}})),
    Rule("uploadFile", "invalid", r"", r"(the file is empty|the image )", "a file has bytes, and an image is decoded"),
    Rule("uploadSkill", "invalid", r"", r"(the body is not a tar archive|the archive has no SKILL\.md)", "the body is an archive of a folder"),
    Rule("createAgent createSession updateAgent updateSession", "invalid", r"skills\[\d+\]", r"the agent names a skill", "a skill has to exist",
         example=("POST", "/agents", {"name": "unskilled", "prompt": "", "model": "scripted/inline", "skills": [{"skill": "none"}]})),
    Rule("createAgent createSession updateAgent updateSession", "invalid", r"skills\[\d+\]\.skill", r"`.*` is listed twice",
         "a skill is named once; only whole objects can be unique in a schema",
         example=("POST", "/agents", {"name": "twice", "prompt": "", "model": "scripted/inline", "skills": [
             {"skill": "contract"}, {"skill": "contract", "version": 1}]})),
    Rule("createAgent updateAgent createSession updateSession", "invalid", r"skills", r"skills are read with a tool", "an agent with skills can read files",
         example=("POST", "/agents", {"name": "blind", "prompt": "", "model": "scripted/inline", "tools": ["glob"],
                                      "skills": [{"skill": "contract"}]})),
    Rule("importSession", "invalid", r"", r"line \d+", "the lines are those of an export"),
    Rule("writeArchive", "invalid", r"path", r"failed to read entire block", "the body is a tar archive"),
    Rule("listFiles readArchive readFile writeArchive writeFile", "invalid", r"path",
         r"(.*File name too long|.*Read-only file system|is a directory|.*Not a directory|.*Permission denied)",
         "the file system of the sandbox refuses the path"),
]

# Operations that refuse every generated request, with the reason.
NEVER_ACCEPTED = {
}


def rule_of(operation, error):
    """Returns the index of the rule that explains an error, or None."""
    code, param, message = error.get("code") or error["type"], error.get("param") or "", error["message"]
    for index, rule in enumerate(REFUSES):
        if (
            (rule.operations == "*" or operation in rule.operations.split())
            and rule.code == code
            and re.fullmatch(rule.param, param)
            and re.match(rule.message, message)
        ):
            return index
    return None

// Form of an agent: create and edit.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { choice, chosen, EnvironmentSelect } from "../parts/environment-select";
import { Check, Form, Select, TextArea, TextField } from "../parts/form";
import { formOf, LimitFields, limitsOf } from "../parts/limits";
import { listField, listOf } from "../parts/json-list";
import { skillNames, skillsOf } from "../parts/skills";
import { fieldsOf, toolsOf } from "../parts/tools";
import { useCredentials } from "./credentials";

type Agent = Schemas["Agent"];

/** Suggestions only: any `provider/model` may be typed. */
const MODELS = ["anthropic/claude-sonnet-4-5", "openai/gpt-5", "scripted/demo", "scripted/inline", "scripted/noop"];

interface Values {
  name: string;
  prompt: string;
  model: string;
  /** Off: exactly the tools of the list, which may be empty. */
  allTools: boolean;
  tools: string;
  /** JSON list of the custom tools. */
  custom: string;
  /** JSON list of the permission rules. */
  permissions: string;
  /** JSON list of the MCP servers. */
  servers: string;
  /** Names of the fallback models. */
  fallbacks: string;
  /** Skills, one a line. */
  skills: string;
  ask: Schemas["AskMode"];
  loops: Schemas["LoopPolicy"];
  /** Whether a history that is almost too long is summarized. */
  compacts: boolean;
  /** JSON Schema of the output of each turn. */
  output: string;
  credential: string;
  environment: string;
  max_tokens: string;
  effort: "" | Schemas["Effort"];
  thinking: string;
  limits: Record<string, string>;
}

function begun(agent?: Agent): Values {
  return {
    name: agent?.name ?? "",
    prompt: agent?.prompt ?? "",
    model: agent?.model ?? "",
    allTools: agent?.tools == null,
    ...fieldsOf(agent?.tools),
    permissions: listField(agent?.permissions),
    servers: listField(agent?.mcp_servers),
    fallbacks: (agent?.fallback_models ?? []).map(({ model }) => model).join(", "),
    skills: skillNames(agent?.skills).join("\n"),
    ask: agent?.ask?.mode ?? "end_turn",
    loops: agent?.doom_loop?.policy ?? "ask",
    compacts: agent?.compaction?.auto ?? true,
    output: agent?.output_schema ? JSON.stringify(agent.output_schema, null, 2) : "",
    credential: agent?.credential_id ?? "",
    environment: chosen(agent?.environment),
    max_tokens: agent?.model_options.max_tokens?.toString() ?? "",
    effort: agent?.model_options.effort ?? "",
    thinking: agent?.model_options.thinking?.budget_tokens.toString() ?? "",
    limits: formOf(agent?.limits ?? {}),
  };
}

/** Reads the field of the output schema. Throws an `Error` for the user. */
function schemaOf(field: string): Record<string, unknown> | null {
  if (field.trim() === "") return null;
  try {
    return JSON.parse(field) as Record<string, unknown>;
  } catch {
    throw new Error("The output schema is not JSON.");
  }
}

/** Reads the names of the fallback models; one that the agent has keeps its options. */
function fallbacksOf(field: string, agent?: Agent): Schemas["FallbackModel"][] {
  const names = field.split(",").map((name) => name.trim()).filter((name) => name !== "");
  return names.map((model) => agent?.fallback_models?.find((known) => known.model === model) ?? { model });
}

/** Reads the fields that the create and update requests share. Throws an `Error` for the user. */
function configuration(form: Values, agent?: Agent) {
  const model_options: Schemas["ModelOptions"] = {};
  if (form.max_tokens) model_options.max_tokens = Number(form.max_tokens);
  if (form.effort) model_options.effort = form.effort;
  if (form.thinking) model_options.thinking = { budget_tokens: Number(form.thinking) };
  return {
    prompt: form.prompt,
    model: form.model.trim(),
    model_options,
    tools: form.allTools ? null : toolsOf(form),
    permissions: listOf<Schemas["PermissionRule"]>(form.permissions, "permissions"),
    limits: limitsOf(form.limits, agent?.limits),
    ...choice(form.environment),
    // What the form does not show is kept.
    ...((agent?.ask || form.ask !== "end_turn") && { ask: { ...agent?.ask, mode: form.ask } }),
    ...((agent?.mcp_servers || form.servers) && { mcp_servers: listOf<Schemas["McpServer"]>(form.servers, "MCP servers") }),
    ...((agent?.fallback_models || form.fallbacks) && { fallback_models: fallbacksOf(form.fallbacks, agent) }),
    ...((agent?.skills || form.skills) && { skills: skillsOf(form.skills) }),
    ...((agent?.compaction || !form.compacts) && { compaction: { ...agent?.compaction, auto: form.compacts } }),
    ...((agent?.output_schema || form.output) && { output_schema: schemaOf(form.output) }),
    ...((agent?.doom_loop || form.loops !== "ask") && { doom_loop: { ...agent?.doom_loop, policy: form.loops } }),
  };
}

async function save(form: Values, body: ReturnType<typeof configuration>, agent?: Agent): Promise<Agent> {
  if (!agent) {
    const credential = form.credential || undefined;
    return take(api.POST("/v3/agents", { body: { ...body, tools: body.tools ?? undefined, name: form.name.trim(), credential } }));
  }
  const params = { path: { agent_id: agent.id } };
  return take(api.PATCH("/v3/agents/{agent_id}", { params, body: { ...body, credential: form.credential || null } }));
}

export function AgentForm({ agent, onDone }: { agent?: Agent; onDone: (agent: Agent) => void }) {
  const [form, setForm] = useState(() => begun(agent));
  const credentials = useCredentials();
  const queries = useQueryClient();
  const saving = useMutation({
    mutationFn: (body: ReturnType<typeof configuration>) => save(form, body, agent),
    onSuccess: (saved) => {
      queries.invalidateQueries({ queryKey: ["agents"] });
      queries.invalidateQueries({ queryKey: ["agent", saved.id] });
      onDone(saved);
    },
  });
  const set = (change: Partial<Values>) => setForm({ ...form, ...change });
  return (
    <Form send={() => saving.mutate(configuration(form, agent))} call={saving} label={saving.isPending ? "Saving…" : agent ? "Save as a new revision" : "Create agent"}>
      {!agent && (
        <TextField label="Name" hint="Unique; the API accepts it instead of the id." required value={form.name} onChange={(name) => set({ name })} />
      )}
      <TextArea label="Prompt" hint="System prompt of the agent." rows={6} required value={form.prompt} onChange={(prompt) => set({ prompt })} />
      <TextField
        label="Model"
        hint="provider/model. Models of scripted/ need no provider: scripted/demo fixes a small repository."
        required suggestions={MODELS} className="mono" value={form.model} onChange={(model) => set({ model })}
      />
      <Select label="Credential" hint="Provider key for model calls." value={form.credential} onChange={(credential) => set({ credential })}>
        <option value="">default of the organization for the provider</option>
        {credentials.list.map((credential) => (
          <option key={credential.id} value={credential.id}>
            {credential.provider} · {credential.name ?? "unnamed"} · …{credential.last4}
          </option>
        ))}
      </Select>
      <EnvironmentSelect value={form.environment} onChange={(environment) => set({ environment })} />
      <details>
        <summary>Tools, options and limits</summary>
        <Check label="All tools except those for child sessions" value={form.allTools} onChange={(allTools) => set({ allTools })} />
        {!form.allTools && (
          <>
            <TextField
              label="Tools"
              hint="Comma-separated names, such as bash, read, write, edit, glob, grep, ask; empty for none."
              value={form.tools} onChange={(tools) => set({ tools })}
            />
            <TextArea
              label="Custom tools"
              hint="JSON list of tools that your program runs: type, name, description, input_schema."
              rows={form.custom ? 8 : 2} spellCheck={false} className="mono" value={form.custom} onChange={(custom) => set({ custom })}
            />
          </>
        )}
        <TextArea
          label="Permissions"
          hint="JSON list of rules for which calls run, ask or are denied: tool, prefix, path, host, policy."
          rows={form.permissions ? 8 : 2} spellCheck={false} className="mono" value={form.permissions} onChange={(permissions) => set({ permissions })}
        />
        <TextArea
          label="MCP servers"
          hint="JSON list of servers whose tools the agent may call: name, url, credential."
          rows={form.servers ? 8 : 2} spellCheck={false} className="mono" value={form.servers} onChange={(servers) => set({ servers })}
        />
        <TextField
          label="Fallback models"
          hint="Comma-separated models that are called, in this order, while the model is not available."
          className="mono" value={form.fallbacks} onChange={(fallbacks) => set({ fallbacks })}
        />
        <TextArea
          label="Skills"
          hint="Skills that the agent may read, one a line: name for the newest version, name@version for another."
          rows={2} spellCheck={false} className="mono" value={form.skills} onChange={(skills) => set({ skills })}
        />
        <Select label="Questions" value={form.ask} onChange={(ask) => set({ ask: ask as Values["ask"] })}>
          <option value="end_turn">end the turn; the answer is the next message</option>
          <option value="wait">wait within the turn for the answer</option>
        </Select>
        <Select label="Loops" hint="when the agent makes the same calls again and again" value={form.loops} onChange={(loops) => set({ loops: loops as Values["loops"] })}>
          <option value="ask">ask a person</option>
          <option value="stop">end the turn</option>
          <option value="off">do nothing</option>
        </Select>
        <Check label="Summarize a history that is almost too long" value={form.compacts} onChange={(compacts) => set({ compacts })} />
        <TextArea
          label="Output schema"
          hint="JSON Schema of the output of each turn; empty for text."
          rows={form.output ? 8 : 2} spellCheck={false} className="mono" value={form.output} onChange={(output) => set({ output })}
        />
        <div className="row">
          <TextField
            label="Output tokens"
            hint="per model call; 16,384 when empty"
            inputMode="numeric" pattern="[0-9]*" value={form.max_tokens} onChange={(max_tokens) => set({ max_tokens })}
          />
          <Select label="Effort" hint="reasoning effort" value={form.effort} onChange={(effort) => set({ effort: effort as Values["effort"] })}>
            <option value="">default of the model</option>
            <option value="low">low</option>
            <option value="medium">medium</option>
            <option value="high">high</option>
          </Select>
          <TextField
            label="Thinking tokens"
            hint="at least 1,024; off when empty"
            inputMode="numeric" pattern="[0-9]*" value={form.thinking} onChange={(thinking) => set({ thinking })}
          />
        </div>
        <LimitFields values={form.limits} onChange={(limits) => set({ limits })} />
      </details>
    </Form>
  );
}

// Form fields of the sessions that a schedule or trigger starts: title, environment, limits.
import type { Schemas } from "../api/client";
import { choice, chosen, EnvironmentSelect } from "../parts/environment-select";
import { type SetForm, TextField } from "../parts/form";
import { formOf, LimitFields, limitsOf } from "../parts/limits";

type Template = Pick<Schemas["Schedule"], "title" | "environment" | "limits">;

export function templateForm(of?: Template) {
  return {
    title: of?.title ?? "",
    environment: chosen(of?.environment),
    limits: formOf(of?.limits ?? {}),
  };
}

type TemplateForm = ReturnType<typeof templateForm>;

export function readTemplate(form: TemplateForm, before?: Template) {
  const limits = limitsOf(form.limits, before?.limits ?? {});
  return {
    title: form.title.trim() || null,
    ...(Object.keys(limits).length > 0 && { limits }),
    ...choice(form.environment),
  };
}

export function TitleField({ form, set }: { form: TemplateForm; set: SetForm<TemplateForm> }) {
  return <TextField label="Title" hint="Title of the sessions that it starts." value={form.title} onChange={(title) => set({ title })} />;
}

export function EnvironmentAndLimits({ form, set }: { form: TemplateForm; set: SetForm<TemplateForm> }) {
  return (
    <>
      <EnvironmentSelect value={form.environment} onChange={(environment) => set({ environment })} />
      <LimitFields values={form.limits} onChange={(limits) => set({ limits })} />
    </>
  );
}

// Forms: the form around its fields, and labeled fields of text.
import { type ComponentProps, type FormEvent, type ReactNode, useId, useState } from "react";
import { Field, Trouble } from "./basics";

interface Labeled {
  label: string;
  hint?: ReactNode;
  value: string;
  onChange: (value: string) => void;
}

type Of<Tag extends "input" | "textarea" | "select"> = Labeled & Omit<ComponentProps<Tag>, keyof Labeled | "id">;

/** A labeled line of text with suggestions; further attributes are those of its input. */
export function TextField({ label, hint, onChange, suggestions, ...rest }: Of<"input"> & { suggestions?: string[] }) {
  const list = useId();
  return (
    <Field label={label} hint={hint}>
      {(id, hint) => (
        <>
          <input id={id} aria-describedby={hint} list={suggestions && list} onChange={(event) => onChange(event.target.value)} {...rest} />
          {suggestions && (
            <datalist id={list}>
              {suggestions.map((text) => (
                <option key={text} value={text} />
              ))}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}

/** A labeled text of several lines; further attributes are those of its textarea. */
export function TextArea({ label, hint, onChange, ...rest }: Of<"textarea">) {
  return (
    <Field label={label} hint={hint}>
      {(id, hint) => <textarea id={id} aria-describedby={hint} onChange={(event) => onChange(event.target.value)} {...rest} />}
    </Field>
  );
}

/** A labeled choice of the options that are its children. */
export function Select({ label, hint, onChange, ...rest }: Of<"select">) {
  return (
    <Field label={label} hint={hint}>
      {(id, hint) => <select id={id} aria-describedby={hint} onChange={(event) => onChange(event.target.value)} {...rest} />}
    </Field>
  );
}

/** The setter of some fields of a form. */
export type SetForm<T> = (change: Partial<T>) => void;

export function Check({ label, value, onChange }: { label: string; value: boolean; onChange: (value: boolean) => void }) {
  return (
    <label className="check">
      <input type="checkbox" checked={value} onChange={(event) => onChange(event.target.checked)} />
      {label}
    </label>
  );
}

/** A filter of a list; it changes on Enter, and when it loses the focus. */
export function FilterField(props: { label: string; hint: string; value?: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(props.value ?? "");
  const done = () => props.onChange(text.trim());
  return (
    <label>
      {props.label}
      <input
        value={text}
        placeholder={props.hint}
        onChange={(event) => setText(event.target.value)}
        onBlur={done}
        onKeyDown={(event) => event.key === "Enter" && done()}
      />
    </label>
  );
}

/** A form with its button. `send` throws an `Error` for the user where a field is invalid. */
export function Form(props: {
  send: () => void;
  call: { error: unknown; isPending: boolean };
  label: string;
  disabled?: boolean;
  children: ReactNode;
}) {
  const [invalid, setInvalid] = useState<string>();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setInvalid(undefined);
    try {
      props.send();
    } catch (error) {
      setInvalid(error instanceof Error ? error.message : "The form is invalid.");
    }
  };
  return (
    <form onSubmit={submit}>
      {props.children}
      {invalid && (
        <p className="trouble" role="alert">
          {invalid}
        </p>
      )}
      <Trouble error={props.call.error} />
      <footer>
        <button type="submit" className="main" disabled={props.call.isPending || props.disabled}>
          {props.label}
        </button>
      </footer>
    </form>
  );
}

/** The input of a turn: text, or a JSON object. Throws an `Error` for the user. */
export function readInput(input: string, isObject: boolean): string | Record<string, unknown> {
  if (!isObject) return input;
  const refused = new Error("The input is not a JSON object.");
  let value: unknown;
  try {
    value = JSON.parse(input);
  } catch {
    throw refused;
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw refused;
  return value as Record<string, unknown>;
}

// Signing in: with an API key that is tried before it is kept.
import { type FormEvent, useState } from "react";
import { Failure } from "../api/failure";
import { signedOutBecause, signIn } from "../api/key";
import mark from "../mark.svg";
import { Field, Trouble } from "../parts/basics";

/** Asks for one session: any answer but 401 means that the key is good for something. */
async function proven(key: string): Promise<void> {
  const response = await fetch("/v3/sessions?limit=1", { headers: { Authorization: `Bearer ${key}` } }).catch(() => {
    throw Failure.unreachable();
  });
  if (response.ok || response.status === 403) return;
  throw Failure.of(await response.json().catch(() => undefined), response.status);
}

export function SignInPage() {
  const [key, setKey] = useState("");
  const [trying, setTrying] = useState(false);
  const [error, setError] = useState<unknown>();
  const why = signedOutBecause();

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setTrying(true);
    setError(undefined);
    try {
      // A header takes no other letters, and a key has none.
      const trimmed = key.trim();
      if (!/^[\x21-\x7e]+$/.test(trimmed)) throw new Error("not a key");
      await proven(trimmed);
      signIn(trimmed);
    } catch (failed) {
      setError(failed);
      setTrying(false);
    }
  };
  return (
    <main className="sign-in">
      <form onSubmit={submit}>
        <img src={mark} alt="" width="48" height="48" />
        <h1>Sojourn</h1>
        <p className="quiet">Agents that work for minutes or months, and what they are doing.</p>
        {why && !error && <p role="alert">{why}</p>}
        <Field label="API key" hint="It stays in this tab and is gone when the tab is closed.">
          {(id, hint) => (
            <input
              id={id}
              aria-describedby={hint}
              type="password"
              autoComplete="off"
              spellCheck={false}
              autoFocus
              required
              value={key}
              onChange={(event) => setKey(event.target.value)}
            />
          )}
        </Field>
        {error instanceof Failure ? (
          <Trouble error={error} />
        ) : (
          error !== undefined && <p role="alert">That is not an API key: it has letters, digits and _ only.</p>
        )}
        <button type="submit" className="main" disabled={trying}>
          {trying ? "Trying…" : "Sign in"}
        </button>
        <details>
          <summary>Where is my key?</summary>
          <p>
            The service printed it when it first started, and keeps it in <code>data/api-key</code> below the directory
            that it was started in. Another organization gets one by <code>sojourn admin create-org NAME</code>.
          </p>
        </details>
      </form>
    </main>
  );
}

// Sign-in: an API key is tried before it is stored.
import { type FormEvent, useState } from "react";
import { Failure } from "../api/failure";
import { signedOutBecause, signIn } from "../api/key";
import mark from "../mark.svg";
import { Field, Trouble } from "../parts/basics";

/** Requests one session. Success or 403 proves that the key is valid. */
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
      // A key has only these characters, and a header takes no others.
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
        <p className="quiet">Durable agent sessions.</p>
        {why && !error && <p role="alert">{why}</p>}
        <Field label="API key" hint="Stored in this tab only, until the tab is closed.">
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
          error !== undefined && <p role="alert">This is not an API key: a key has only letters, digits and _.</p>
        )}
        <button type="submit" className="main" disabled={trying}>
          {trying ? "Signing in…" : "Sign in"}
        </button>
        <details>
          <summary>Where is my key?</summary>
          <p>
            The service printed it at its first start and stores it in <code>data/api-key</code> below its working
            directory. <code>sojourn admin create-org NAME</code> creates another organization with its own key.
          </p>
        </details>
      </form>
    </main>
  );
}

// The frame of every page: who is signed in, where one can go, what an address shows.
import { useEffect, useRef, useSyncExternalStore } from "react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Link, Route, Router, Switch } from "wouter";
import { Failure } from "./api/failure";
import { onKeyChange, readKey, signOut } from "./api/key";
import mark from "./mark.svg";
import { Empty } from "./parts/basics";
import { useHashPath } from "./parts/location";
import { AgentPage } from "./pages/agent";
import { AgentsPage } from "./pages/agents";
import { AuditPage } from "./pages/audit";
import { CredentialsPage } from "./pages/credentials";
import { EnvironmentsPage } from "./pages/environments";
import { KeysPage } from "./pages/keys";
import { SessionsPage } from "./pages/sessions";
import { SignInPage } from "./pages/sign-in";
import { UsagePage } from "./pages/usage";
import { WebhooksPage } from "./pages/webhooks";
import { SessionPage } from "./session/page";

/** A refusal stays one when it is asked again; only what passes by itself is. */
const passes = (error: Error) => !(error instanceof Failure) || ["unreachable", "unavailable"].includes(error.type);

const queries = new QueryClient({
  defaultOptions: {
    queries: { retry: (tries, error) => tries < 3 && passes(error), staleTime: 1_000, networkMode: "always" },
    mutations: { networkMode: "always" },
  },
});

/** The places of the navigation. A page that is added here has a route below. */
const PLACES = [
  ["/", "Sessions"],
  ["/agents", "Agents"],
  ["/environments", "Environments"],
  ["/credentials", "Credentials"],
  ["/webhooks", "Webhooks"],
  ["/keys", "Keys"],
  ["/usage", "Usage"],
  ["/audit", "Audit"],
] as const;

export function App() {
  const key = useSyncExternalStore(onKeyChange, readKey);
  if (key === null) return <SignInPage />;
  return (
    <QueryClientProvider client={queries}>
      <Router hook={useHashPath}>
        <Frame />
      </Router>
    </QueryClientProvider>
  );
}

function Frame() {
  const leave = () => {
    queries.clear();
    signOut();
  };
  return (
    <>
      <a className="skip" href="#main" onClick={toMain}>
        Skip to the page
      </a>
      <header className="top">
        <Link href="/" className="mark">
          <img src={mark} alt="" width="24" height="24" />
          Sojourn
        </Link>
        <nav aria-label="Pages">
          {PLACES.map(([href, name]) => (
            <Place key={href} href={href} name={name} />
          ))}
        </nav>
        <a href="/docs">Docs</a>
        <button type="button" className="plain" onClick={leave}>
          Sign out
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        <Switch>
          <Route path="/" component={SessionsPage} />
          <Route path="/sessions/:id/:tab?">{({ id, tab }) => <SessionPage key={id} id={id} tab={tab} />}</Route>
          <Route path="/agents" component={AgentsPage} />
          <Route path="/agents/:id">{({ id }) => <AgentPage key={id} id={id} />}</Route>
          <Route path="/environments" component={EnvironmentsPage} />
          <Route path="/credentials" component={CredentialsPage} />
          <Route path="/webhooks" component={WebhooksPage} />
          <Route path="/keys" component={KeysPage} />
          <Route path="/usage" component={UsagePage} />
          <Route path="/audit" component={AuditPage} />
          <Route>
            <Empty title="There is no such page">
              <p>
                <Link href="/">Go to the sessions</Link>
              </p>
            </Empty>
          </Route>
        </Switch>
      </main>
    </>
  );
}

function Place({ href, name }: { href: string; name: string }) {
  const [here] = useHashPath();
  const isHere = href === "/" ? here === "/" || here.startsWith("/sessions") : here.startsWith(href);
  const link = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    // On a phone the navigation is wider than the page.
    if (isHere) link.current?.scrollIntoView({ inline: "center", block: "nearest" });
  }, [isHere]);
  return (
    <Link ref={link} href={href} aria-current={isHere ? "page" : undefined}>
      {name}
    </Link>
  );
}

// The address after # is the page's own: the link must not change it.
function toMain(click: { preventDefault(): void }): void {
  click.preventDefault();
  document.getElementById("main")?.focus();
}

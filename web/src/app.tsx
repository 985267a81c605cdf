// Frame of every page: navigation, sign-out, and the routes.
import { useState, useSyncExternalStore } from "react";
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
import { PendingPage, usePending } from "./pages/pending";
import { SessionsPage } from "./pages/sessions";
import { SignInPage } from "./pages/sign-in";
import { SkillsPage } from "./pages/skills";
import { UsagePage } from "./pages/usage";
import { WebhooksPage } from "./pages/webhooks";
import { SessionPage } from "./session/page";

/** Retries network failures and `unavailable`; any other refusal repeats when the request is repeated. */
const passes = (error: Error) => !(error instanceof Failure) || ["unreachable", "unavailable"].includes(error.type);

const queries = new QueryClient({
  defaultOptions: {
    queries: { retry: (tries, error) => tries < 3 && passes(error), staleTime: 1_000, networkMode: "always" },
    mutations: { networkMode: "always" },
  },
});

/** Navigation entries by group. Each entry has a route below. */
const PLACES = [
  ["Work", [["/", "Sessions"], ["/pending", "Pending"], ["/agents", "Agents"]]],
  ["Set up", [["/environments", "Environments"], ["/skills", "Skills"], ["/credentials", "Credentials"], ["/webhooks", "Webhooks"], ["/keys", "Keys"]]],
  ["History", [["/usage", "Usage"], ["/audit", "Audit"]]],
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
  const [here] = useHashPath();
  // On a phone the navigation is behind a button; navigating closes it.
  const [openAt, setOpenAt] = useState<string>();
  const isOpen = openAt === here;
  const leave = () => {
    queries.clear();
    signOut();
  };
  return (
    <>
      <a className="skip" href="#main" onClick={toMain}>
        Skip to the page
      </a>
      <header className="side" data-open={isOpen ? "" : undefined}>
        <Link href="/" className="mark">
          <img src={mark} alt="" width="26" height="26" />
          Sojourn
        </Link>
        <button
          type="button"
          className="menu"
          aria-expanded={isOpen}
          aria-controls="places"
          onClick={() => setOpenAt(isOpen ? undefined : here)}
        >
          {isOpen ? "Close" : "Menu"}
        </button>
        <div id="places" className="places">
          <nav aria-label="Pages">
            {PLACES.map(([group, places]) => (
              <section key={group} aria-label={group}>
                <p aria-hidden>{group}</p>
                {places.map(([href, name]) => (
                  <Place key={href} href={href} name={name} here={here} />
                ))}
              </section>
            ))}
          </nav>
          <div className="leave">
            <a href="/docs">Docs</a>
            <button type="button" className="plain" onClick={leave}>
              Sign out
            </button>
          </div>
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        <Switch>
          <Route path="/" component={SessionsPage} />
          <Route path="/sessions/:id/:tab?">{({ id, tab }) => <SessionPage key={id} id={id} tab={tab} />}</Route>
          <Route path="/pending" component={PendingPage} />
          <Route path="/agents" component={AgentsPage} />
          <Route path="/agents/:id/:tab?">{({ id, tab }) => <AgentPage key={id} id={id} tab={tab} />}</Route>
          <Route path="/environments" component={EnvironmentsPage} />
          <Route path="/skills" component={SkillsPage} />
          <Route path="/credentials" component={CredentialsPage} />
          <Route path="/webhooks" component={WebhooksPage} />
          <Route path="/keys" component={KeysPage} />
          <Route path="/usage" component={UsagePage} />
          <Route path="/audit" component={AuditPage} />
          <Route>
            <Empty title="Page not found">
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

function Place({ href, name, here }: { href: string; name: string; here: string }) {
  const isHere = href === "/" ? here === "/" || here.startsWith("/sessions") : here.startsWith(href);
  return (
    <Link href={href} aria-current={isHere ? "page" : undefined}>
      {name}
      {href === "/pending" && <PendingCount />}
    </Link>
  );
}

/** Number of open actions of the organization, as far as one page has them. */
function PendingCount() {
  const { query, list } = usePending();
  if (list.length === 0) return null;
  return <span className="tally">{list.length}{query.hasNextPage && "+"}</span>;
}

// The page's address is after `#`, so the link must not change it.
function toMain(click: { preventDefault(): void }): void {
  click.preventDefault();
  document.getElementById("main")?.focus();
}

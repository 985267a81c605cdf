// Parent and child sessions of a session.
import { Link } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Badge, More, Trouble } from "../parts/basics";
import { dollars } from "../parts/format";
import { useList } from "../parts/lists";

type Session = Schemas["Session"];
interface Page {
  data: Session[];
  next_cursor?: string | null;
}

export function RelatedSessions({ session }: { session: Session }) {
  const { parent_session_id: parent, budget_consumed: consumed } = session;
  if (!parent && !consumed.children) return null;
  return (
    <section>
      <h2>Parent and children</h2>
      {parent && (
        <dl className="facts">
          <dt>Parent</dt>
          <dd className="mono">
            <Link href={`/sessions/${parent}`}>{parent}</Link>
          </dd>
        </dl>
      )}
      {consumed.children && <Children session={session} children={consumed.children} />}
    </section>
  );
}

function Children({ session, children }: { session: Session; children: Schemas["ChildrenConsumed"] }) {
  const { query, list } = useList<Session>(
    // A new child changes the query key.
    ["session", session.id, "children", children.sessions],
    (cursor, signal) =>
      // The cast is needed because the same path can also return a stream.
      take(
        api.GET("/v3/sessions", { params: { query: { parent_session_id: session.id, limit: 20, cursor } }, signal }),
      ) as Promise<Page>,
  );
  const below = children.sessions === 1 ? "1 session" : `${children.sessions} sessions`;
  return (
    <>
      <p className="quiet">
        {below} below. They account for {dollars(children.cost_micros)} of the cost that counts against the limits here.
      </p>
      <Trouble error={query.error} />
      <ul aria-label="Children">
        {list.map((child) => (
          <li key={child.id}>
            <Link href={`/sessions/${child.id}`}>{child.title || child.id}</Link> <Badge of={child.status} />
          </li>
        ))}
      </ul>
      <More query={query} />
    </>
  );
}

// Permission rules of a session, and the rules that people granted in it.
import { Fragment } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Trouble } from "../parts/basics";
import { ruleText } from "../parts/permissions";

type Session = Schemas["Session"];
type Grant = Schemas["GrantedRule"];
type Rule = Schemas["PermissionRule"];

/** Shown if there is a rule. `changes` counts the changes of the session. */
export function Permissions({ session, changes }: { session: Session; changes: number }) {
  const query = useQuery({
    queryKey: ["session", session.id, "permissions", changes],
    queryFn: ({ signal }) =>
      take(api.GET("/v3/sessions/{session_id}/permissions", { params: { path: { session_id: session.id } }, signal })),
    placeholderData: (before) => before,
  });
  const { agent = [], session: own = [], parents = [] } = query.data?.permissions ?? {};
  const granted = query.data?.granted ?? [];
  const lists: [string, Rule[]][] = [["Agent", agent], ["Session", own], ...parents.map((rules): [string, Rule[]] => ["Parent", rules])];
  const filled = lists.filter(([, rules]) => rules.length > 0);
  if (!query.error && filled.length === 0 && granted.length === 0) return null;
  return (
    <section>
      <h2>Permissions</h2>
      <Trouble error={query.error} />
      <dl className="facts">
        {filled.map(([name, rules], at) => (
          <Fragment key={at}>
            <dt>{name}</dt>
            <dd className="mono">{rules.map(ruleText).join(", ")}</dd>
          </Fragment>
        ))}
      </dl>
      {granted.length > 0 && (
        <ul aria-label="Granted rules">
          {granted.map((grant) => (
            <Granted key={grant.event_id} session={session} grant={grant} />
          ))}
        </ul>
      )}
    </section>
  );
}

function Granted({ session, grant }: { session: Session; grant: Grant }) {
  const queries = useQueryClient();
  const revoke = useMutation({
    mutationFn: () =>
      take(
        api.DELETE("/v3/sessions/{session_id}/permissions/{event_id}", {
          params: { path: { session_id: session.id, event_id: grant.event_id } },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["session", session.id, "permissions"] }),
  });
  const by = grant.granted_by.display ?? grant.granted_by.id ?? grant.granted_by.type;
  return (
    <li>
      <span className="mono">{ruleText(grant.rule)}</span>{" "}
      <span className="quiet small">
        granted by {by}, <Age ts={grant.granted_at} />
      </span>{" "}
      {session.status !== "archived" && (
        <button type="button" disabled={revoke.isPending} onClick={() => revoke.mutate()}>
          Revoke
        </button>
      )}
      <Trouble error={revoke.error} />
    </li>
  );
}

// Audit log of the organization, newest first.
import { api, type Schemas, take } from "../api/client";
import { Age, Empty, Loading, More, Trouble } from "../parts/basics";
import { useFilters } from "../parts/filters";
import { FilterField } from "../parts/form";
import { useList } from "../parts/lists";

type Act = Schemas["AuditRecord"];

export function AuditPage() {
  const [chosen, choose] = useFilters<"action" | "target">();
  const filters = { action: chosen("action"), target: chosen("target") };
  const { query, list } = useList<Act>(["audit", filters], (cursor, signal) =>
    take(api.GET("/v3/audit", { params: { query: { ...filters, limit: 100, cursor } }, signal })),
  );
  const isFiltered = Boolean(filters.action || filters.target);
  return (
    <>
      <div className="head">
        <h1>Audit log</h1>
      </div>
      <form className="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <FilterField label="Action" hint="key.* or key.created" value={filters.action} onChange={(value) => choose("action", value)} />
        <FilterField label="Target" hint="an id" value={filters.target} onChange={(value) => choose("target", value)} />
      </form>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title={isFiltered ? "No record matches" : "No records yet"}>
          <p>
            {isFiltered
              ? "Change or clear the filters above."
              : "Actions such as creating a key, rotating a secret or deleting a session are recorded here. Records cannot be changed."}
          </p>
        </Empty>
      )}
      {list.length > 0 && <Table acts={list} />}
      <More query={query} />
      {list.length > 0 && (
        <p className="quiet">
          <code>sojourn audit export</code> exports the audit log as NDJSON.
        </p>
      )}
    </>
  );
}

function Table({ acts }: { acts: Act[] }) {
  return (
    <div className="table-wrap" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Action</th>
            <th scope="col">By</th>
            <th scope="col">Target</th>
            <th scope="col">Details</th>
            <th scope="col">When</th>
          </tr>
        </thead>
        <tbody>
          {acts.map((act) => (
            <tr key={act.id}>
              <td className="mono">{act.action}</td>
              <td data-label="By">{act.actor.display ?? act.actor.id ?? act.actor.type}</td>
              <td data-label="Target" className="mono">
                {act.target}
              </td>
              <td data-label="Details" className="breaks">
                {Object.entries(act.details).map(([name, value]) => (
                  <div key={name}>
                    <span className="quiet">{name}</span> {typeof value === "string" ? value : JSON.stringify(value)}
                  </div>
                ))}
              </td>
              <td data-label="When">
                <Age ts={act.at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

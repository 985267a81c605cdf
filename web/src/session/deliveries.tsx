// Where a session's events are sent, and what became of each.
import { type FormEvent, useState } from "react";
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Badge, Confirmed, Copy, Dialog, Empty, Field, Loading, More, Trouble } from "../parts/basics";

type Session = Schemas["Session"];
type Destination = Schemas["Destination"];
type Delivery = Schemas["Delivery"];

export function Deliveries({ session }: { session: Session }) {
  const [adding, setAdding] = useState(false);
  const path = { session_id: session.id };
  const query = useQuery({
    queryKey: ["session", session.id, "destinations"],
    queryFn: ({ signal }) => take(api.GET("/v3/sessions/{session_id}/destinations", { params: { path }, signal })),
  });
  const list = query.data?.data ?? [];
  return (
    <div className="page">
      <div className="head">
        <h2>Destinations</h2>
        {session.status !== "archived" && (
          <button type="button" onClick={() => setAdding(true)}>
            Add a destination
          </button>
        )}
      </div>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title="Nobody is told">
          <p>
            A destination gets a signed POST for each message and each end of a turn, so that a program need not wait.
            Deliveries are tried for three days.
          </p>
        </Empty>
      )}
      <ul className="cards">
        {list.map((destination) => (
          <DestinationCard key={destination.id} destination={destination} />
        ))}
      </ul>
      {list.length > 0 && <Log session={session.id} destinations={list} />}
      {adding && <Add session={session.id} onClose={() => setAdding(false)} />}
    </div>
  );
}

function DestinationCard({ destination }: { destination: Destination }) {
  const queries = useQueryClient();
  const params = { path: { session_id: destination.session, destination_id: destination.id } };
  const onSuccess = () => queries.invalidateQueries({ queryKey: ["session", destination.session, "destinations"] });
  const turn = useMutation({
    mutationFn: () =>
      take(
        api.PATCH("/v3/sessions/{session_id}/destinations/{destination_id}", {
          params,
          body: { enabled: !destination.enabled },
        }),
      ),
    onSuccess,
  });
  const remove = useMutation({
    mutationFn: () => take(api.DELETE("/v3/sessions/{session_id}/destinations/{destination_id}", { params })),
    onSuccess,
  });
  return (
    <li>
      <strong className="mono">{destination.url}</strong>
      <span className="quiet grow">
        level {destination.level}
        {destination.types && `, ${destination.types.join(", ")}`}
      </span>
      {!destination.enabled && <span className="badge" data-tone="off">off</span>}
      <button type="button" disabled={turn.isPending} onClick={() => turn.mutate()}>
        {destination.enabled ? "Turn off" : "Turn on"}
      </button>
      <Confirmed label="Delete" sure="Delete it?" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
      <Trouble error={turn.error ?? remove.error} />
    </li>
  );
}

function Log({ session, destinations }: { session: string; destinations: Destination[] }) {
  const query = useInfiniteQuery({
    queryKey: ["session", session, "deliveries"],
    queryFn: ({ pageParam, signal }) =>
      take(
        api.GET("/v3/sessions/{session_id}/deliveries", {
          params: { path: { session_id: session }, query: { limit: 50, cursor: pageParam } },
          signal,
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: 2_000,
  });
  const list = query.data?.pages.flatMap((page) => page.data) ?? [];
  const urls = new Map(destinations.map(({ id, url }) => [id, url]));
  return (
    <>
      <h2>Deliveries</h2>
      <Trouble error={query.error} />
      {query.isSuccess && list.length === 0 && <p className="quiet">Nothing was sent yet.</p>}
      {list.length > 0 && (
        <div className="table-wrap">
          <table>
            <thead>
              <tr>
                <th scope="col">Event</th>
                <th scope="col">Status</th>
                <th scope="col">To</th>
                <th scope="col" className="number">
                  Tries
                </th>
                <th scope="col">Answer</th>
                <th scope="col">Changed</th>
                <th scope="col">
                  <span className="visually-hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {list.map((delivery) => (
                <Line key={delivery.id} session={session} delivery={delivery} url={urls.get(delivery.destination ?? "")} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <More query={query} />
    </>
  );
}

function Line({ session, delivery, url }: { session: string; delivery: Delivery; url?: string }) {
  const queries = useQueryClient();
  const again = useMutation({
    mutationFn: () =>
      take(
        api.POST("/v3/sessions/{session_id}/deliveries/{delivery_id}/redeliver", {
          params: { path: { session_id: session, delivery_id: delivery.id } },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["session", session, "deliveries"] }),
  });
  return (
    <tr>
      <td>#{delivery.event_seq}</td>
      <td data-label="Status">
        <Badge of={delivery.status} />
      </td>
      <td data-label="To" className="mono">
        {url ?? "a deleted destination"}
      </td>
      <td data-label="Tries" className="number">
        {delivery.attempts}
      </td>
      <td data-label="Answer">
        {delivery.response_code ?? ""} {delivery.error && <span className="quiet">{delivery.error}</span>}
        <Trouble error={again.error} />
      </td>
      <td data-label="Changed">
        <Age ts={delivery.updated_at} />
      </td>
      <td>
        <button type="button" disabled={again.isPending} onClick={() => again.mutate()}>
          Redeliver
        </button>
      </td>
    </tr>
  );
}

function Add({ session, onClose }: { session: string; onClose: () => void }) {
  const queries = useQueryClient();
  const [url, setUrl] = useState("");
  const [level, setLevel] = useState<Schemas["Level"]>("user");
  const add = useMutation({
    mutationFn: () =>
      take(
        api.POST("/v3/sessions/{session_id}/destinations", {
          params: { path: { session_id: session } },
          body: { url, level },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["session", session, "destinations"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate();
  };
  const secret = add.data?.secret;
  return (
    <Dialog title="Add a destination" onClose={onClose}>
      {add.isSuccess ? (
        <>
          <p>Every delivery is signed with this secret (Standard Webhooks). It is shown this once:</p>
          <pre className="output" tabIndex={0} role="region" aria-label="Signing secret">
            {secret}
          </pre>
          <footer>
            {secret && <Copy text={secret} label="Copy the secret" />}
            <button type="button" className="main" onClick={onClose}>
              Done
            </button>
          </footer>
        </>
      ) : (
        <form onSubmit={submit}>
          <Field label="Address" hint="https, and an address that everyone can reach.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} type="url" required value={url} onChange={(event) => setUrl(event.target.value)} />
            )}
          </Field>
          <Field label="What is sent" hint="A level includes those before it.">
            {(id, hint) => (
              <select id={id} aria-describedby={hint} value={level} onChange={(event) => setLevel(event.target.value as Schemas["Level"])}>
                <option value="user">user: messages, ends of turns</option>
                <option value="progress">progress: tool calls too</option>
                <option value="internal">internal: everything</option>
              </select>
            )}
          </Field>
          <Trouble error={add.error} />
          <footer>
            <button type="submit" className="main" disabled={add.isPending}>
              Add
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}

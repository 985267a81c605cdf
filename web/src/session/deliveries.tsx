// Where a session's events are sent, and what became of each.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Confirmed, Dialog, Empty, Loading, More, Trouble } from "../parts/basics";
import { type DeliveryCalls, DeliveryTable } from "../parts/delivery-log";
import { HookForm } from "../parts/hook-form";
import { useList } from "../parts/lists";
import { ShownOnce } from "../parts/secret";

type Session = Schemas["Session"];
type Destination = Schemas["Destination"];

export function Deliveries({ session }: { session: Session }) {
  const [adding, setAdding] = useState(false);
  const queries = useQueryClient();
  const path = { session_id: session.id };
  const queryKey = ["session", session.id, "destinations"];
  const query = useQuery({
    queryKey,
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
      {adding && (
        <HookForm
          title="Add a destination"
          add={(body) => take(api.POST("/v3/sessions/{session_id}/destinations", { params: { path }, body }))}
          onAdded={() => queries.invalidateQueries({ queryKey })}
          onClose={() => setAdding(false)}
        />
      )}
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
  const rotate = useMutation({
    mutationFn: () =>
      take(api.POST("/v3/sessions/{session_id}/destinations/{destination_id}/rotate-secret", { params })),
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
      <Confirmed label="New secret" sure="Replace it?" disabled={rotate.isPending} onConfirm={() => rotate.mutate()} />
      <Confirmed label="Delete" sure="Delete it?" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
      <Trouble error={turn.error ?? rotate.error ?? remove.error} />
      {rotate.data && (
        <Dialog title="The new secret" onClose={rotate.reset}>
          <ShownOnce secret={rotate.data.secret} label="Signing secret" onDone={rotate.reset}>
            <p>For a day, deliveries carry the signatures of both. It is shown this once:</p>
          </ShownOnce>
        </Dialog>
      )}
    </li>
  );
}

function Log({ session, destinations }: { session: string; destinations: Destination[] }) {
  const queries = useQueryClient();
  const queryKey = ["session", session, "deliveries"];
  const { query, list } = useList(
    queryKey,
    (cursor, signal) =>
      take(
        api.GET("/v3/sessions/{session_id}/deliveries", {
          params: { path: { session_id: session }, query: { limit: 50, cursor } },
          signal,
        }),
      ),
    2_000,
  );
  const urls = new Map(destinations.map(({ id, url }) => [id, url]));
  const path = (delivery_id: string) => ({ path: { session_id: session, delivery_id } });
  const calls: DeliveryCalls = {
    read: (id, signal) =>
      take(api.GET("/v3/sessions/{session_id}/deliveries/{delivery_id}", { params: path(id), signal })),
    redeliver: (id) =>
      take(api.POST("/v3/sessions/{session_id}/deliveries/{delivery_id}/redeliver", { params: path(id) })),
    onChange: () => queries.invalidateQueries({ queryKey }),
  };
  return (
    <>
      <h2>Deliveries</h2>
      <Trouble error={query.error} />
      {query.isSuccess && list.length === 0 && <p className="quiet">Nothing was sent yet.</p>}
      {list.length > 0 && (
        <DeliveryTable
          list={list}
          calls={calls}
          to={(delivery) => urls.get(delivery.destination ?? "") ?? "a deleted destination"}
        />
      )}
      <More query={query} />
    </>
  );
}

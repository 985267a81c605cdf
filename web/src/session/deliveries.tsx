// Destinations of a session, and their deliveries.
import { useState } from "react";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Empty, More, Trouble } from "../parts/basics";
import { type DeliveryCalls, DeliveryTable } from "../parts/delivery-log";
import { type ReceiverCalls, ReceiverCard } from "../parts/receiver-card";
import { ReceiverForm } from "../parts/receiver-form";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";

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
      <ListPage
        title="Destinations"
        heading="h2"
        add={session.status === "archived" ? undefined : "Add a destination"}
        onAdd={() => setAdding(true)}
        of={{ query, list }}
        empty={
          <Empty title="No destinations yet">
            <p>
              A destination receives a signed POST request for each message and each end of a turn, so no program has to
              poll. Failed deliveries are retried for three days.
            </p>
          </Empty>
        }
      >
        <ul className="cards">
          {list.map((destination) => (
            <DestinationCard key={destination.id} destination={destination} />
          ))}
        </ul>
      </ListPage>
      {list.length > 0 && <Log session={session.id} destinations={list} />}
      {adding && (
        <ReceiverForm
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
  const calls: ReceiverCalls = {
    turn: (enabled) =>
      take(api.PATCH("/v3/sessions/{session_id}/destinations/{destination_id}", { params, body: { enabled } })),
    rotate: () => take(api.POST("/v3/sessions/{session_id}/destinations/{destination_id}/rotate-secret", { params })),
    remove: () => take(api.DELETE("/v3/sessions/{session_id}/destinations/{destination_id}", { params })),
    onChange: () => queries.invalidateQueries({ queryKey: ["session", destination.session, "destinations"] }),
  };
  return <ReceiverCard receiver={destination} calls={calls} />;
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
      {query.isSuccess && list.length === 0 && <p className="quiet">No deliveries yet.</p>}
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

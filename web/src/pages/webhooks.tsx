// Webhooks of the organization, and their deliveries.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Empty, More, Trouble } from "../parts/basics";
import { type DeliveryCalls, DeliveryTable } from "../parts/delivery-log";
import { words } from "../parts/format";
import { type ReceiverCalls, ReceiverCard } from "../parts/receiver-card";
import { ReceiverForm } from "../parts/receiver-form";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";

type Webhook = Schemas["Webhook"];
type DeliveryStatus = Schemas["DeliveryStatus"];

const STATUSES: DeliveryStatus[] = ["pending", "delivering", "delivered", "failed", "dead_letter"];
const KEY = ["webhooks"];

export function WebhooksPage() {
  const queries = useQueryClient();
  const [adding, setAdding] = useState(false);
  const [chosen, setChosen] = useState<string>();
  const query = useQuery({ queryKey: KEY, queryFn: ({ signal }) => take(api.GET("/v3/webhooks", { signal })) });
  const list = query.data?.data ?? [];
  const shown = list.find(({ id }) => id === chosen) ?? list[0];
  return (
    <>
      <ListPage
        title="Webhooks"
        add="Add a webhook"
        onAdd={() => setAdding(true)}
        of={{ query, list }}
        empty={
          <Empty title="No webhooks yet">
            <p>
              A webhook receives signed POST requests for events of all sessions: messages, ends of turns, exceeded limits.
              No polling is needed.
            </p>
            <ol>
              <li>Add the URL of your receiver and store the secret that is shown.</li>
              <li>Press “Send a test” and check the response of your receiver here.</li>
              <li>
                Verify each signature; the clients in <code>clients/</code> do this in one call.
              </li>
            </ol>
            <p>
              For development, <code>sojourn webhook listen</code> receives and verifies deliveries on your machine.
            </p>
          </Empty>
        }
      >
        <ul className="cards">
          {list.map((webhook) => (
            <Card key={webhook.id} webhook={webhook} isShown={webhook.id === shown?.id} onShow={() => setChosen(webhook.id)} />
          ))}
        </ul>
      </ListPage>
      {shown && <Log key={shown.id} webhook={shown} />}
      {adding && (
        <ReceiverForm
          title="Add a webhook"
          add={(body) => take(api.POST("/v3/webhooks", { body }))}
          onAdded={() => queries.invalidateQueries({ queryKey: KEY })}
          onClose={() => setAdding(false)}
        />
      )}
    </>
  );
}

function Card({ webhook, isShown, onShow }: { webhook: Webhook; isShown: boolean; onShow: () => void }) {
  const queries = useQueryClient();
  const params = { path: { webhook_id: webhook.id } };
  const calls: ReceiverCalls = {
    turn: (enabled) => take(api.PATCH("/v3/webhooks/{webhook_id}", { params, body: { enabled } })),
    rotate: () => take(api.POST("/v3/webhooks/{webhook_id}/rotate-secret", { params })),
    remove: () => take(api.DELETE("/v3/webhooks/{webhook_id}", { params })),
    onChange: () => queries.invalidateQueries({ queryKey: KEY }),
  };
  const test = useMutation({
    mutationFn: () => take(api.POST("/v3/webhooks/{webhook_id}/test", { params })),
    onSuccess: () => {
      onShow();
      queries.invalidateQueries({ queryKey: [...KEY, webhook.id] });
    },
  });
  return (
    <ReceiverCard receiver={webhook} calls={calls}>
      <Trouble error={test.error} />
      {!isShown && (
        <button type="button" onClick={onShow}>
          Deliveries
        </button>
      )}
      <button type="button" disabled={test.isPending} onClick={() => test.mutate()}>
        Send a test
      </button>
    </ReceiverCard>
  );
}

function Log({ webhook }: { webhook: Webhook }) {
  const queries = useQueryClient();
  const [status, setStatus] = useState<DeliveryStatus>();
  const queryKey = [...KEY, webhook.id, status];
  const { query, list } = useList(
    queryKey,
    (cursor, signal) =>
      take(
        api.GET("/v3/webhooks/{webhook_id}/deliveries", {
          params: { path: { webhook_id: webhook.id }, query: { limit: 50, cursor, status } },
          signal,
        }),
      ),
    2_000,
  );
  const path = (webhook_delivery_id: string) => ({ path: { webhook_id: webhook.id, webhook_delivery_id } });
  const calls: DeliveryCalls = {
    read: (id, signal) =>
      take(api.GET("/v3/webhooks/{webhook_id}/deliveries/{webhook_delivery_id}", { params: path(id), signal })),
    redeliver: (id) =>
      take(api.POST("/v3/webhooks/{webhook_id}/deliveries/{webhook_delivery_id}/redeliver", { params: path(id) })),
    onChange: () => queries.invalidateQueries({ queryKey: [...KEY, webhook.id] }),
  };
  return (
    <>
      <h2>
        Deliveries to <span className="mono">{webhook.url}</span>
      </h2>
      <div className="filters">
        <label>
          Status
          <select value={status ?? ""} onChange={(event) => setStatus((event.target.value || undefined) as DeliveryStatus)}>
            <option value="">any</option>
            {STATUSES.map((one) => (
              <option key={one} value={one}>
                {words(one)}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Trouble error={query.error} />
      {query.isSuccess && list.length === 0 && (
        <p className="quiet">{status ? "No delivery has this status." : "No deliveries yet. “Send a test” sends one now."}</p>
      )}
      {list.length > 0 && <DeliveryTable list={list} calls={calls} />}
      <More query={query} />
    </>
  );
}

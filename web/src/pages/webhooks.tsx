// Webhooks of the organization: who hears of every session, and what was sent.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Dialog, Empty, Loading, More, Trouble } from "../parts/basics";
import { type DeliveryCalls, DeliveryTable } from "../parts/delivery-log";
import { words } from "../parts/format";
import { HookForm } from "../parts/hook-form";
import { useList } from "../parts/lists";
import { ShownOnce } from "../parts/secret";

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
      <div className="head">
        <h1>Webhooks</h1>
        <button type="button" className="main" onClick={() => setAdding(true)}>
          Add a webhook
        </button>
      </div>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title="Nobody hears of your sessions yet">
          <p>
            A webhook gets a signed POST for what happens in every session: messages, ends of turns, limits that were
            reached. Nothing has to poll.
          </p>
          <ol>
            <li>Add the address of your receiver, and keep the secret that is shown.</li>
            <li>Press “Send a test”, and see here what your receiver answered.</li>
            <li>
              Verify each signature; the clients in <code>clients/</code> do it in one call.
            </li>
          </ol>
          <p>
            While you develop, <code>sojourn webhook listen</code> receives and verifies on your own machine.
          </p>
        </Empty>
      )}
      <ul className="cards">
        {list.map((webhook) => (
          <Card key={webhook.id} webhook={webhook} isShown={webhook.id === shown?.id} onShow={() => setChosen(webhook.id)} />
        ))}
      </ul>
      {shown && <Log key={shown.id} webhook={shown} />}
      {adding && (
        <HookForm
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
  const onSuccess = () => queries.invalidateQueries({ queryKey: KEY });
  const test = useMutation({
    mutationFn: () => take(api.POST("/v3/webhooks/{webhook_id}/test", { params })),
    onSuccess: () => {
      onShow();
      queries.invalidateQueries({ queryKey: [...KEY, webhook.id] });
    },
  });
  const turn = useMutation({
    mutationFn: () => take(api.PATCH("/v3/webhooks/{webhook_id}", { params, body: { enabled: !webhook.enabled } })),
    onSuccess,
  });
  const rotate = useMutation({
    mutationFn: () => take(api.POST("/v3/webhooks/{webhook_id}/rotate-secret", { params })),
    onSuccess,
  });
  const remove = useMutation({
    mutationFn: () => take(api.DELETE("/v3/webhooks/{webhook_id}", { params })),
    onSuccess,
  });
  return (
    <li>
      <strong className="mono">{webhook.url}</strong>
      <span className="quiet grow">
        level {webhook.level}
        {webhook.types && `, ${webhook.types.join(", ")}`}
      </span>
      {!webhook.enabled && (
        <span className="badge" data-tone="bad">
          {webhook.disabled_reason ? `turned off: ${words(webhook.disabled_reason)}` : "off"}
        </span>
      )}
      {webhook.enabled && webhook.failing_since && (
        <span className="badge" data-tone="warn">
          fails since <Age ts={webhook.failing_since} />
        </span>
      )}
      {!isShown && (
        <button type="button" onClick={onShow}>
          Deliveries
        </button>
      )}
      <button type="button" disabled={test.isPending} onClick={() => test.mutate()}>
        Send a test
      </button>
      <button type="button" disabled={turn.isPending} onClick={() => turn.mutate()}>
        {webhook.enabled ? "Turn off" : "Turn on"}
      </button>
      <Confirmed label="New secret" sure="Replace it?" disabled={rotate.isPending} onConfirm={() => rotate.mutate()} />
      <Confirmed label="Delete" sure="Delete it?" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
      <Trouble error={test.error ?? turn.error ?? rotate.error ?? remove.error} />
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
        <p className="quiet">{status ? "None has this status." : "Nothing was sent yet. “Send a test” sends a letter now."}</p>
      )}
      {list.length > 0 && <DeliveryTable list={list} calls={calls} />}
      <More query={query} />
    </>
  );
}

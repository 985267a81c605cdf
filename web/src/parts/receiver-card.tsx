// Card of a webhook or destination: URL, filter, and actions.
import type { ReactNode } from "react";
import { useMutation } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { Age, Confirmed, Dialog, Trouble } from "./basics";
import { words } from "./format";
import { ShownOnce } from "./secret";

type Receiver = Pick<
  Schemas["Webhook"],
  "id" | "url" | "level" | "types" | "enabled" | "disabled_reason" | "failing_since"
>;

export interface ReceiverCalls {
  turn(enabled: boolean): Promise<unknown>;
  rotate(): Promise<{ secret?: string | null }>;
  remove(): Promise<unknown>;
  onChange(): void;
}

export function ReceiverCard({ receiver, calls, children }: { receiver: Receiver; calls: ReceiverCalls; children?: ReactNode }) {
  const onSuccess = calls.onChange;
  const turn = useMutation({ mutationFn: () => calls.turn(!receiver.enabled), onSuccess });
  const rotate = useMutation({ mutationFn: calls.rotate, onSuccess });
  const remove = useMutation({ mutationFn: calls.remove, onSuccess });
  return (
    <li>
      <strong className="mono">{receiver.url}</strong>
      <span className="quiet grow">
        level {receiver.level}
        {receiver.types && `, ${receiver.types.join(", ")}`}
      </span>
      {!receiver.enabled && (
        <span className="badge" data-tone="bad">
          {receiver.disabled_reason ? `turned off: ${words(receiver.disabled_reason)}` : "off"}
        </span>
      )}
      {receiver.enabled && receiver.failing_since && (
        <span className="badge" data-tone="warn">
          failing since <Age ts={receiver.failing_since} />
        </span>
      )}
      {children}
      <button type="button" disabled={turn.isPending} onClick={() => turn.mutate()}>
        {receiver.enabled ? "Turn off" : "Turn on"}
      </button>
      <Confirmed label="New secret" sure="Confirm replace" disabled={rotate.isPending} onConfirm={() => rotate.mutate()} />
      <Confirmed label="Delete" sure="Confirm delete" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
      <Trouble error={turn.error ?? rotate.error ?? remove.error} />
      {rotate.data && (
        <Dialog title="New secret" onClose={rotate.reset}>
          <ShownOnce secret={rotate.data.secret} label="Signing secret" onDone={rotate.reset}>
            <p>For one day, deliveries are signed with both secrets. The new one is shown only once:</p>
          </ShownOnce>
        </Dialog>
      )}
    </li>
  );
}

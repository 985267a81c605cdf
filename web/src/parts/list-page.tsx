// A list with its heading, the button that adds to it, and its states.
import type { ReactNode } from "react";
import { type ListQuery, Loading, More, Trouble } from "./basics";

/** `add` is the label of the button; `empty` is shown while the list has no items. */
export function ListPage(props: {
  title: string;
  heading?: "h1" | "h2";
  add?: string;
  onAdd: () => void;
  of: { query: ListQuery; list: unknown[] };
  empty: ReactNode;
  children: ReactNode;
}) {
  const { heading: Heading = "h1", of: { query, list } } = props;
  return (
    <>
      <div className="head">
        <Heading>{props.title}</Heading>
        {props.add && (
          <button type="button" className="main" onClick={props.onAdd}>
            {props.add}
          </button>
        )}
      </div>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && props.empty}
      {props.children}
      <More query={query} />
    </>
  );
}

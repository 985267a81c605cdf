// Open actions of all sessions, oldest first: what turns wait for.
import { useInfiniteQuery } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { Empty, Loading, More, Trouble } from "../parts/basics";
import { ActionCard } from "../session/actions";

/** New actions are shown after at most this time. */
const POLL_MS = 5_000;

export function usePending() {
  const query = useInfiniteQuery({
    queryKey: ["pending"],
    queryFn: ({ pageParam, signal }) =>
      take(api.GET("/v3/pending", { params: { query: { limit: 50, cursor: pageParam } }, signal })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: POLL_MS,
  });
  return { query, list: query.data?.pages.flatMap((page) => page.data) ?? [] };
}

export function PendingPage() {
  const { query, list } = usePending();
  return (
    <>
      <div className="head">
        <h1>Pending</h1>
      </div>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title="Nothing waits for you">
          <p>
            When an agent calls a custom tool, its turn waits here until your program, or you, sends the result. A call
            that asks waits until somebody approves it, and a question until somebody answers it. See{" "}
            <a href="/docs/custom-tools">Custom tools</a>, <a href="/docs/permissions">Permissions</a> and{" "}
            <a href="/docs/questions">Questions</a>.
          </p>
        </Empty>
      )}
      <ul className="cards">
        {list.map((action) => (
          <ActionCard key={action.id} action={action} names />
        ))}
      </ul>
      <More query={query} />
    </>
  );
}

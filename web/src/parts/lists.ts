// Paged lists.
import { useInfiniteQuery } from "@tanstack/react-query";

interface Page<T> {
  data: T[];
  next_cursor?: string | null;
}

/** A list under its query key; `read` gets the cursor of the page to load. */
export function useList<T>(
  queryKey: unknown[],
  read: (cursor: string | undefined, signal: AbortSignal) => Promise<Page<T>>,
  refetchInterval?: number,
) {
  const query = useInfiniteQuery({
    queryKey,
    queryFn: ({ pageParam, signal }) => read(pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval,
  });
  return { query, list: query.data?.pages.flatMap((page) => page.data) ?? [] };
}

// A long list that draws only the visible rows. Row heights vary and may change. A list that follows stays at
// its end while rows arrive.
import { type ReactNode, useEffect, useLayoutEffect, useRef, useState } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";

/** Distance from the end, in pixels, within which a reader counts as being at the end. */
const AT_END_PX = 48;
/** A scroll within this time after user input is the user's; any other is the page's own. In milliseconds. */
const HAND_MS = 700;

interface Props<T> {
  label: string;
  rows: T[];
  /** Changes when rows change: the array grows in place. */
  version: number;
  keyOf: (row: T) => string;
  /** Height of a row before it is measured, in pixels. */
  estimate: (row: T) => number;
  follows: boolean;
  render: (row: T) => ReactNode;
  children?: ReactNode;
}

export function VirtualList<T>(props: Props<T>) {
  const { rows, version, follows } = props;
  const frame = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const atEnd = useRef(follows);
  const [isAway, setAway] = useState(false);
  const hand = useRef(0);
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => frame.current,
    getItemKey: (at) => props.keyOf(rows[at] as T),
    estimateSize: (at) => props.estimate(rows[at] as T),
    overscan: 8,
  });
  const toEnd = () => {
    const element = frame.current;
    if (element) element.scrollTop = element.scrollHeight;
  };
  useLayoutEffect(() => {
    if (atEnd.current) toEnd();
  }, [version]);
  // The end moves without a new row: rows are measured after they are drawn, and what is below the frame may grow.
  useEffect(() => {
    if (!frame.current || !inner.current || !follows) return;
    const watcher = new ResizeObserver(() => {
      if (atEnd.current) toEnd();
    });
    watcher.observe(frame.current);
    watcher.observe(inner.current);
    return () => watcher.disconnect();
  }, [follows]);
  const onHand = () => {
    hand.current = performance.now();
  };
  const onScroll = () => {
    const element = frame.current;
    if (!element || !follows || performance.now() - hand.current > HAND_MS) return;
    atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < AT_END_PX;
    setAway(!atEnd.current);
  };
  return (
    <div className="virtual">
      <div
        ref={frame}
        className="frame"
        tabIndex={0}
        role="region"
        aria-label={props.label}
        onScroll={onScroll}
        onWheel={onHand}
        onTouchMove={onHand}
        onKeyDown={onHand}
        onFocus={onHand}
        onPointerDown={onHand}
        onPointerMove={(event) => event.buttons > 0 && onHand()}
      >
        <div ref={inner} className="inner" style={{ height: list.getTotalSize() }}>
          {list.getVirtualItems().map((item) => (
            <div
              key={item.key}
              ref={list.measureElement}
              data-index={item.index}
              className="item"
              style={{ transform: `translateY(${item.start}px)` }}
            >
              {props.render(rows[item.index] as T)}
            </div>
          ))}
        </div>
        {props.children}
      </div>
      {isAway && (
        <button
          type="button"
          className="to-end"
          onClick={() => {
            atEnd.current = true;
            setAway(false);
            toEnd();
          }}
        >
          ↓ Newest
        </button>
      )}
    </div>
  );
}
